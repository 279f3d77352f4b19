"""``trainwatch import``, ``trainwatch backtest`` and ``trainwatch rules``: runs that are over."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.patience import PATIENCE, wait_for
from tests.test_cli import Server, environment, get, record, run
from trainwatch.rules import RULES


@pytest.fixture
def serve() -> Iterator[Any]:
    begun: list[Server] = []

    def begin(home: Path) -> Server:
        begun.append(Server(home))
        return begun[-1]

    yield begin
    for server in begun:
        if server.process.poll() is None:
            server.process.kill()
        server.process.communicate()


def state(path: Path, *losses: str, norm: str = "1.0", end: bool = True) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    entries = [
        f'{{"loss": {loss}, "grad_norm": {norm}, "step": {10 * number}, "_timestamp": {1000 + 5 * number}}}'
        for number, loss in enumerate(losses, 1)
    ]
    steps = 10 * len(losses)
    head = f'"global_step": {steps}, "max_steps": {steps if end else 2 * steps}'
    path.write_text(f'{{{head}, "log_history": [{", ".join(entries)}]}}', "utf-8")
    return path


def lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


# -- backtest ----------------------------------------------------------------------------------------------------------


def test_json_has_one_line_a_file_with_every_report(tmp_path: Path) -> None:
    bad = state(tmp_path / "bad.json", "1.0", "0.9", "NaN", "NaN")
    good = state(tmp_path / "good.json", *["1.0"] * 5)
    broken = tmp_path / "broken.json"
    broken.write_text('{"log_history": [{"lo', "utf-8")
    done = run("backtest", "--format", "json", str(bad), str(good), str(broken))
    assert done.returncode == 0, done.stderr
    first, second, third = lines(done.stdout)
    assert first == {
        "file": str(bad),
        "findings": [
            {
                "rule": "nonfinite_loss",
                "severity": "critical",
                "point": 2,
                "step": 30,
                "t_seconds": 10.0,
                "state": "firing",
            }
        ],
    }
    assert second == {"file": str(good), "findings": []}
    assert (third["file"], third["findings"]) == (str(broken), [])
    assert "no whole JSON" in third["error"]


def test_files_are_named_as_they_were_given_and_folders_are_walked(tmp_path: Path) -> None:
    state(tmp_path / "runs" / "a.json", "1.0")
    state(tmp_path / "runs" / "deep" / "b.json", "1.0")
    (tmp_path / "runs" / "config.json").write_text('{"hidden_size": 8}', "utf-8")
    command = [sys.executable, "-m", "trainwatch", "backtest", "--format", "json", "./runs/../runs/a.json", "runs"]
    done = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)
    told = lines(done.stdout)
    assert [one["file"] for one in told] == [
        "./runs/../runs/a.json",
        "runs/a.json",
        "runs/config.json",
        "runs/deep/b.json",
    ]
    assert ["error" in one for one in told] == [False, False, True, False]


def test_text_says_where_and_on_how_many_that_ended_well(tmp_path: Path) -> None:
    state(tmp_path / "a.json", "1.0", "NaN", "NaN", "NaN")
    state(tmp_path / "b.json", "1.0", "NaN", end=False)
    state(tmp_path / "c.json", "1.0", "1.0")
    (tmp_path / "other.json").write_text("{}", "utf-8")
    (tmp_path / "broken.csv").write_text("", "utf-8")
    done = run("backtest", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "3 runs with 8 points; 2 of them ended well." in done.stdout
    assert "nonfinite_loss (critical): 2 of 3 runs, 1 of 2 that ended well" in done.stdout
    where = "a.json: critical, step 20 of 40, point 1 of 4, 5 s after the begin, 10 s before the end"
    assert where in done.stdout
    assert "Nothing was found in 1 run." in done.stdout
    assert "broken.csv is empty." in done.stdout
    assert 'there is no list "log_history"' in done.stdout


def test_rules_can_be_chosen_and_set(tmp_path: Path) -> None:
    path = state(tmp_path / "a.json", "1.0", "NaN", "NaN")
    settings = tmp_path / "mine.toml"
    settings.write_text('[rules.nonfinite_loss]\nat_most = "info"\n', "utf-8")
    command = ["backtest", "--format", "json", str(path)]
    (told,) = lines(run(*command, "--rules", str(settings)).stdout)
    assert [one["severity"] for one in told["findings"]] == ["info"]
    (told,) = lines(run(*command, "--rule", "nonfinite_gradient").stdout)
    assert told["findings"] == []


def test_a_recorded_run_by_its_id(tmp_path: Path) -> None:
    record(tmp_path, "offline1")
    (told,) = lines(run("backtest", "offline1", "--home", str(tmp_path), "--format", "json").stdout)
    assert told == {"file": "offline1", "findings": []}
    assert "1 run with 5 points; 1 of them ended well." in run("backtest", "offline1", "--home", str(tmp_path)).stdout


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["backtest", "no-such-run", "--home", "/nowhere"], 2, "there is no such run in /nowhere/journal"),
        (["backtest", ".", "--rule", "loss_spik"], 2, "did you mean loss_spike?"),
        (["backtest", ".", "--rules", "/nowhere/a.toml"], 2, "/nowhere/a.toml cannot be read"),
        (["backtest", "{empty}"], 1, "none of 1 file could be read"),
        (["backtest", ".", "--rules", "{wrong}"], 2, "rules.loss_spike.facto is no option"),
        (["rules", "nothing"], 2, "there is no rule 'nothing'"),
        (["import", "/nowhere/a.json"], 2, "/nowhere/a.json does not exist"),
        (["import", "{empty}", "--project", "a b"], 2, "--project 'a b': use letters"),
        (["import", "{empty}"], 1, "1 file could not be imported"),
    ],
)
def test_mistakes(tmp_path: Path, arguments: list[str], status: int, sentence: str) -> None:
    files = {"{empty}": tmp_path / "empty.json", "{wrong}": tmp_path / "wrong.toml"}
    files["{empty}"].write_text("", "utf-8")
    files["{wrong}"].write_text("[rules.loss_spike]\nfacto = 2\n", "utf-8")
    done = run(*(str(files.get(one, one)) for one in arguments), extra={"TRAINWATCH_HOME": str(tmp_path / "home")})
    assert done.returncode == status
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr


def test_a_rule_that_fails_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from trainwatch import cli
    from trainwatch.cli import backtest
    from trainwatch.events import Logged
    from trainwatch.rules import Options, Rule

    class Broken(Rule[Options]):
        id = "broken"
        listens = (Logged,)

        def observe(self, event: Any, rank: int | None) -> Any:
            raise ZeroDivisionError("oh")

    monkeypatch.setattr(backtest, "RULES", (Broken, *RULES))
    assert cli.main(["backtest", "--format", "json", str(state(tmp_path / "a.json", "1.0", "NaN"))]) == 0
    out, err = capsys.readouterr()
    assert [one["rule"] for one in json.loads(out)["findings"]] == ["nonfinite_loss"]
    assert err.count("rule broken failed, a fault of TrainWatch: ZeroDivisionError('oh')") == 1


def test_backtests_need_the_base_install_only(tmp_path: Path) -> None:
    heavy = ("torch", "transformers", "fastapi", "pydantic", "sqlalchemy", "zstandard", "wandb", "tensorboard")
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nfor name in {heavy!r}: sys.modules[name] = None\n")
    path = state(tmp_path / "a.json", "1.0", "NaN")
    done = run("backtest", "--format", "json", str(path), extra={"PYTHONPATH": str(tmp_path)})
    assert done.returncode == 0, done.stderr
    assert lines(done.stdout)[0]["findings"]


# -- rules -------------------------------------------------------------------------------------------------------------


def test_rules_are_listed() -> None:
    told = {one["rule"]: one for one in lines(run("rules", "--format", "json").stdout)}
    assert list(told) == [rule.id for rule in RULES]
    one = told["nonfinite_loss"]
    assert one["severity"] == "critical"
    assert one["options"]["for"] == 0.0
    assert "halt" in one["actions"]
    assert all(rule["sees"].endswith(".") for rule in told.values())
    text = run("rules", "loss_spike").stdout
    assert text.startswith("loss_spike  notify (or checkpoint, halt)\n")
    assert "    repeat = 0.0  " in text
    assert "nonfinite_loss" not in text


# -- import ------------------------------------------------------------------------------------------------------------


def test_an_imported_run_is_on_the_dashboard(serve: Any, tmp_path: Path) -> None:
    server = serve(tmp_path / "server")
    path = state(tmp_path / "llama" / "checkpoint-30" / "trainer_state.json", "3.0", "2.0", "NaN")
    home = ["--home", str(tmp_path / "home"), "--server", server.url]
    done = run("import", str(tmp_path / "llama"), "--project", "old", *home)
    assert done.returncode == 0, done.stderr
    (found,) = get(f"{server.url}/api/runs")["runs"]
    assert f"{server.url}/runs/{found['id']}" in done.stdout
    assert {name: found[name] for name in ("name", "project", "state", "step", "max_steps", "last_loss")} == {
        "name": "llama",
        "project": "old",
        "state": "finished",
        "step": 30,
        "max_steps": 30,
        "last_loss": "NaN",
    }
    detail = get(f"{server.url}/api/runs/{found['id']}")
    assert [alert["rule"] for alert in detail["alerts"]] == ["nonfinite_loss"]
    series = f"{server.url}/api/runs/{found['id']}/series/data?metric=train/loss_logged&rank=0"
    assert get(series)["value"] == [3.0, 2.0, "NaN"]

    done = run("import", str(path), *home)
    assert done.returncode == 0
    assert f"is there already, as {found['id']}" in done.stdout
    assert get(f"{server.url}/api/runs")["total"] == 1
    (told,) = lines(run("backtest", found["id"], "--format", "json", *home[:2]).stdout)
    assert [(one["rule"], one["point"], one["step"]) for one in told["findings"]] == [("nonfinite_loss", 2, 30)]


def test_without_a_server_it_is_shipped_later(serve: Any, tmp_path: Path) -> None:
    path = state(tmp_path / "mine.json", "3.0", "2.0", end=False)
    home = tmp_path / "home"
    done = run("import", str(path), "--name", "chosen", "--home", str(home), "--server", "http://127.0.0.1:9")
    assert done.returncode == 0, done.stderr
    assert "No server answers at http://127.0.0.1:9: `trainwatch serve`" in done.stdout
    server = serve(home)
    wait_for(lambda: get(f"{server.url}/api/runs")["total"] == 1)
    (found,) = get(f"{server.url}/api/runs")["runs"]
    assert (found["name"], found["project"], found["state"]) == ("chosen", "default", "lost")


def test_of_several_files_the_good_ones_are_imported(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    state(folder / "a.json", "1.0")
    (folder / "b.jsonl").write_text("rubbish", "utf-8")
    (folder / "config.json").write_text("{}", "utf-8")
    done = run("import", str(folder), "--home", str(tmp_path / "home"), "--server", "http://127.0.0.1:9")
    assert done.returncode == 1
    assert "a.json: 1 point (trainer_state.json) are run imported-" in done.stdout
    assert "1 other file passed over" in done.stdout
    assert "b.jsonl: this is no JSON" in done.stderr
    assert len(list((tmp_path / "home" / "journal").iterdir())) == 1


def test_a_long_import_shows_on_a_terminal_how_far_it_is(tmp_path: Path) -> None:
    import pty

    path = tmp_path / "long.json"
    path.write_text(json.dumps({"log_history": [{"loss": 1.0, "step": n} for n in range(300_000)]}), "utf-8")
    parent, child = pty.openpty()
    command = [sys.executable, "-m", "trainwatch", "import", str(path), "--home", str(tmp_path / "home")]
    command += ["--server", "http://127.0.0.1:9"]
    process = subprocess.Popen(command, env=environment(), stderr=child, stdout=subprocess.DEVNULL)
    os.close(child)
    shown = b""
    with contextlib.suppress(OSError):  # what a terminal's end looks like
        while part := os.read(parent, 4096):
            shown += part
    os.close(parent)
    assert process.wait(PATIENCE) == 0
    shares = [int(share) for share in re.findall(rb"long\.json \[#*\.*\] +(\d+)%", shown)]
    assert len(shares) > 1
    assert shares == sorted(shares)
    assert shown.endswith(b"\r\x1b[K"), "and it is gone in the end"
