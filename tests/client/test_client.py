"""The client, against a real server."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2
import numpy as np
import plotly.graph_objects
import pytest
from pydantic import SecretStr

from tests.server.conftest import running
from tests.server.shipping import NODE, RUN, batch, ended, send, started, step
from trainwatch import Client, events
from trainwatch.client import ClientError, NotAllowed, NotFound, Unreachable
from trainwatch.server.main import Server
from trainwatch.server.settings import Settings

VALUES = [1.5, math.nan, math.inf, -math.inf, 0.1 + 0.2]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that has three runs."""
    with running(Settings(home=tmp_path_factory.mktemp("home"), port=0)) as found:
        with httpx2.Client(base_url=found.url) as http:
            finding = events.FindingRaised(
                time=1.7e9, rule="loss_spike", severity="warning", step=2, rank=0, parameters={"value": math.nan}
            )
            readings = events.Sampled(time=1.7e9, devices={"cuda:0": {"memory/used": 5.0}})
            steps = [step(n, value) for n, value in enumerate(VALUES, start=1)]
            send(http, batch([started(), *steps]), batch([started(), step(1, 9.0)], rank=1))
            send(http, batch([finding, readings], rank=None))
            send(http, batch([started(name="long"), *(step(n) for n in range(1, 5001)), ended(5000)], run="long"))
            send(http, batch([started(), step(1), ended(1)], run="other", project="second", node=NODE))
        yield found


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    """A client of it."""
    with Client(server.url) as found:
        yield found


def test_projects_and_runs(client: Client) -> None:
    assert client.projects() == ["default", "second"]
    assert {run.id for run in client.runs()} == {RUN, "long", "other"}
    assert [run.id for run in client.runs(project="second")] == ["other"]
    assert {run.id for run in client.runs(state="finished")} == {"long", "other"}
    assert len(client.runs(limit=2)) == 2
    run = client.run(RUN)
    assert (run.name, run.project, run.state, run.step) == ("tiny", "default", "running", 5)
    assert RUN in repr(run)
    assert run.refresh() is run
    assert RUN in repr(client.runs())


def test_runs_as_tables(client: Client) -> None:
    frame = client.runs().to_pandas().set_index("id")
    assert frame.loc["long", "step"] == 5000
    assert frame.loc[RUN, "last_loss"] == pytest.approx(0.3)
    table = client.runs(project="second").to_arrow()
    assert table.column("id").to_pylist() == ["other"]
    assert {"state", "started_at", "sentence"} <= set(table.column_names)


def test_points_are_exact(client: Client) -> None:
    run = client.run(RUN)
    points = run.points("train/loss", rank=0)
    assert points.value.dtype == np.float64
    np.testing.assert_array_equal(
        points.value.view(np.int64)[[0, 2, 3, 4]], np.array(VALUES).view(np.int64)[[0, 2, 3, 4]]
    )
    assert math.isnan(points.value[1])
    assert points.step.tolist() == [1, 2, 3, 4, 5]
    frame = points.to_pandas()
    assert list(frame.columns) == ["step", "time", "value"]
    assert frame["value"].isna().tolist() == [False, True, False, False, False]
    column = points.to_arrow().column("value")
    assert column.null_count == 0
    np.testing.assert_array_equal(column.to_numpy(), np.array(VALUES))


def test_which_series_is_meant(client: Client) -> None:
    run = client.run(RUN)
    with pytest.raises(ValueError, match="rank=1"):
        run.points("train/loss")
    assert run.points("train/loss", rank=1).value.tolist() == [9.0]
    assert client.run("long").points("train/loss").rank == 0
    with pytest.raises(NotFound, match="rank=0"):
        run.points("train/loss", rank=7)
    with pytest.raises(NotFound, match="series"):
        run.points("nothing")
    [series] = [one for one in run.series("train/loss") if one.rank == 0]
    assert (series.count, series.nonfinite, series.last_step) == (5, 3, 5)
    assert run.series().to_pandas()["count"].sum() >= 6
    assert "train/loss" in repr(run.series())


def test_pages_of_a_long_series(client: Client) -> None:
    [series] = client.run("long").series("train/loss")
    pages = list(series.pages(limit=2000))
    assert [len(page) for page in pages] == [2000, 2000, 1000]
    assert series.points().step.tolist() == list(range(1, 5001))


def test_alerts(client: Client) -> None:
    [alert] = client.run(RUN).alerts()
    assert (alert.rule, alert.severity, alert.state) == ("loss_spike", "warning", "firing")
    assert alert.sentence
    frame = client.run(RUN).alerts().to_pandas()
    assert frame["rule"].tolist() == ["loss_spike"]
    assert client.run(RUN).alerts().to_arrow().num_rows == 1


def test_figures(client: Client) -> None:
    run = client.run(RUN)
    assert "loss" in run.charts()
    figure = run.figure("loss", rank=0, theme="dark", low=1, high=4)
    assert isinstance(figure, plotly.graph_objects.Figure)
    assert len(figure.data) >= 1
    assert isinstance(run.figure("metric:train/loss"), plotly.graph_objects.Figure)
    with pytest.raises(NotFound, match="chart"):
        run.figure("nothing")


def test_commands(client: Client) -> None:
    client.run(RUN).checkpoint("before the weekend")
    client.run(RUN).halt()
    with pytest.raises(ClientError, match="over") as caught:
        client.run("long").halt()
    assert caught.value.status == 409
    assert caught.value.request_id


def test_a_run_is_deleted(server: Server, client: Client) -> None:
    with httpx2.Client(base_url=server.url) as http:
        send(http, batch([started(), step(1), ended(1)], run="short", project="third"))
    client.run("short").delete()
    with pytest.raises(NotFound):
        client.run("short")
    assert len(client.runs(project="third")) == 0


def test_what_is_not_there_and_who_may_not(client: Client, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no run 'none'"):
        client.run("none")
    guarded = Settings(home=tmp_path, port=0, token=SecretStr("a long token"))
    with running(guarded) as server:
        with Client(server.url, "wrong") as wrong, pytest.raises(NotAllowed) as caught:
            wrong.projects()
        assert caught.value.status == 401
        with Client(server.url, "a long token") as right:
            assert right.projects() == []


def test_nobody_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with Client(f"http://127.0.0.1:{port}") as client, pytest.raises(Unreachable, match="does not answer"):
        client.projects()
    with pytest.raises(ValueError, match="http://"):
        Client("localhost:8420")


def test_a_server_that_is_away_for_a_moment_is_asked_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    found: list[list[str]] = []
    with Client(f"http://127.0.0.1:{port}") as client:
        asking = threading.Thread(target=lambda: found.append(client.projects()))
        asking.start()
        with running(Settings(home=tmp_path, port=port)):
            asking.join(60)
    assert found == [[]]


def test_no_server_of_ours_is_told_apart() -> None:
    """Something else answers: the error says so instead of failing at what it does not understand."""
    with socket.create_server(("127.0.0.1", 0)) as other:

        def answer() -> None:
            connection, _ = other.accept()
            with connection:
                connection.recv(10_000)
                connection.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\nConnection: close\r\n\r\nno")

        thread = threading.Thread(target=answer)
        thread.start()
        with (
            Client(f"http://127.0.0.1:{other.getsockname()[1]}") as client,
            pytest.raises(NotFound, match="is it a TrainWatch server"),
        ):
            client.projects()
        thread.join()


_WITHOUT = """
import sys

class Wall:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError("out of reach: " + name)

sys.meta_path.insert(0, Wall())
{code}
"""


@pytest.mark.parametrize(
    ("blocked", "code", "words"),
    [
        ("httpx2", "from trainwatch import Client", "pip install 'trainwatch[client]'"),
        ("pandas", "from trainwatch import Client\nClient({url!r}).runs().to_pandas()", "pip install pandas"),
        ("pyarrow", "from trainwatch import Client\nClient({url!r}).runs().to_arrow()", "pip install pyarrow"),
    ],
)
def test_what_is_not_installed_is_named(server: Server, blocked: str, code: str, words: str) -> None:
    program = _WITHOUT.format(blocked={blocked}, code=code.format(url=server.url))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert words in done.stderr.splitlines()[-1]


def test_without_plotly_a_figure_is_a_dictionary(server: Server) -> None:
    code = f"""
from trainwatch import Client
found = Client({server.url!r}).run({RUN!r}).figure("loss")
assert type(found) is dict and found["data"] and found["layout"]
"""
    program = _WITHOUT.format(blocked={"plotly", "pandas", "pyarrow", "pydantic", "fastapi"}, code=code)
    subprocess.run([sys.executable, "-c", program], timeout=120, check=True)
