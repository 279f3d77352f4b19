"""Bodies that no agent sends: each gets a 4xx with a sentence, stores nothing, and costs little memory."""

from __future__ import annotations

import gzip
import math
import random
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import psutil
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.server.conftest import running
from tests.server.shipping import RUN, batch, send, shipment, started, step
from trainwatch.server.settings import Settings

MIB = 1024 * 1024
DEEP = 1_000_000


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx2.Client]:
    """A client of a server that lives as long as this file's tests."""
    chosen = Settings(home=tmp_path_factory.mktemp("fuzzed"), port=0)
    with running(chosen) as server, httpx2.Client(base_url=server.url, timeout=120) as found:
        yield found


def post(client: httpx2.Client, body: bytes, encoding: str = "", **headers: str) -> httpx2.Response:
    sent = {"content-type": "application/msgpack", **headers}
    if encoding:
        sent["content-encoding"] = encoding
    return client.post("/api/ingest", content=body, headers=sent)


def assert_refused(answer: httpx2.Response) -> str:
    assert 400 <= answer.status_code < 500, answer.text
    detail = answer.json()["detail"]
    assert isinstance(detail, str)
    assert 10 < len(detail) < 600
    assert "Traceback" not in detail
    return detail


def stored(client: httpx2.Client) -> int:
    total: int = client.get("/api/runs").json()["total"]
    return total


VALID = msgspec.msgpack.encode(shipment(batch([started(), *(step(n) for n in range(1, 30))], run="valid")))


def raw(**changes: Any) -> bytes:
    """A shipment whose batch has other fields, of whatever type."""
    fields: dict[str, Any] = {
        "run": RUN,
        "project": "default",
        "node": "node1",
        "source": "rank0",
        "rank": 0,
        "first": 0,
        "events": [],
    }
    return msgspec.msgpack.encode({"batches": [fields | changes], "node": "n", "sent_at": 1.0})


@pytest.mark.parametrize("compress", [bytes, zstandard.compress, gzip.compress], ids=["plain", "zstd", "gzip"])
def test_a_body_that_is_cut_anywhere(client: httpx2.Client, compress: Any) -> None:
    encoding = {bytes: "", zstandard.compress: "zstd", gzip.compress: "gzip"}[compress]
    body = compress(VALID)
    for end in sorted(random.Random(1).sample(range(len(body)), 60)):
        assert_refused(post(client, body[:end], encoding))
    assert stored(client) == 0


@pytest.mark.parametrize("encoding", ["", "zstd", "gzip"])
def test_noise(client: httpx2.Client, encoding: str) -> None:
    chance = random.Random(2)
    for size in (0, 1, 2, 3, 10, 100, 10_000, 1_000_000):
        assert_refused(post(client, chance.randbytes(size), encoding))
    assert stored(client) == 0


@pytest.mark.parametrize(
    "body",
    [
        b"\x91" * DEEP,
        b"\x81\xa1a" * DEEP,
        b"\x83\xa7batches" + b"\x91" * DEEP,
        b"\x83\xa7unknown" + b"\x91" * DEEP,
        b"\x91" * DEEP + b"\xc0",
        b"\x81" * DEEP,
    ],
    ids=["lists", "maps", "batches", "a field that is skipped", "closed", "maps as keys"],
)
def test_a_million_deep(client: httpx2.Client, body: bytes) -> None:
    assert_refused(post(client, body))
    assert_refused(post(client, zstandard.compress(body), "zstd"))


def test_an_event_that_is_a_million_deep_is_counted_and_the_others_are_stored(client: httpx2.Client) -> None:
    events = [msgspec.msgpack.encode(1), b"\x91" * DEEP + b"\xc0", msgspec.msgpack.encode({"type": "later"})]
    answer = post(client, raw(run="deep", events=[msgspec.Raw(one) for one in events]))
    # Either the whole is refused or the event alone; what is stored says what is missing.
    if answer.status_code != 200:
        assert_refused(answer)
        return
    assert sum(client.get("/api/runs/deep").json()["trouble"]["lost"].values()) == 3


TEXTS = ("run", "project", "node", "source")
WRONG: list[dict[str, Any]] = [
    *({name: value} for name in TEXTS for value in (None, 1, 1.5, b"x", [], {}, "", True)),
    *({"rank": value} for value in ("0", 1.5, -1, 2**31, 2**63, 2**64 - 1, [], {}, math.nan)),
    *({"first": value} for value in ("0", 1.5, -1, -(2**63), 2**62, 2**64 - 1, None, [], math.inf)),
    *({"lost": value} for value in ("0", 1.5, -1, 1, 2**64 - 1, None)),
    *({"events": value} for value in (None, 1, "x", b"x", {})),
    *({"run": value} for value in ("a/b", "../..", "a b", "ä", "x" * 101, "a\x00b", "a\nb")),
    *({name: "x" * 251} for name in TEXTS[1:]),
    *({name: "a\x00b"} for name in TEXTS[1:]),
]


@pytest.mark.parametrize("changes", WRONG, ids=lambda changes: repr(changes)[:40].encode("ascii", "replace").decode())
def test_wrong_types_and_huge_numbers(client: httpx2.Client, changes: dict[str, Any]) -> None:
    assert_refused(post(client, raw(**changes)))


@pytest.mark.parametrize(
    "whole",
    [
        None,
        1,
        "x",
        b"x",
        [],
        {},
        {"batches": 1, "node": "n", "sent_at": 1.0},
        {"batches": [1], "node": "n", "sent_at": 1.0},
        {"batches": [], "node": 1, "sent_at": 1.0},
        {"batches": [], "node": "n", "sent_at": "now"},
        {"batches": [], "node": "n", "sent_at": 1.0, "runs": "all"},
        {"batches": [], "node": "n", "sent_at": 1.0, "runs": ["../x"]},
        {"batches": [], "node": "n", "sent_at": 1.0, "runs": [1]},
    ],
)
def test_what_is_no_shipment(client: httpx2.Client, whole: Any) -> None:
    assert_refused(post(client, msgspec.msgpack.encode(whole)))


def test_numbers_no_database_can_hold(client: httpx2.Client) -> None:
    """In events they are what a training may measure; each is stored or counted, and none breaks the server."""
    huge = 2**63 - 1
    content = [
        started(max_steps=huge),
        step(1, 1e308, time=1e300),
        step(2, math.nan, time=math.inf),
        step(huge, -math.inf),
        step(3, 1e308),
        step(4, -math.inf),
    ]
    assert post(client, msgspec.msgpack.encode(shipment(batch(content, run="huge")))).status_code == 200
    series = {one["metric"]: one for one in client.get("/api/runs/huge/series").json()}
    assert series["train/loss"]["points"] == 2
    assert series["train/loss"]["last"] == "-Infinity"
    assert sum(client.get("/api/runs/huge").json()["trouble"]["lost"].values()) == 4
    assert client.get("/api/runs/huge/charts/loss").status_code == 200


@pytest.mark.parametrize("kind", ["", "application/json", "text/plain", "multipart/form-data; boundary=x"])
def test_another_kind_of_body(client: httpx2.Client, kind: str) -> None:
    answer = post(client, VALID, **{"content-type": kind})
    assert answer.status_code == 415
    assert_refused(answer)


@pytest.mark.parametrize("encoding", ["br", "deflate", "zstd, gzip", "x" * 300])
def test_an_encoding_that_is_not_known(client: httpx2.Client, encoding: str) -> None:
    answer = post(client, VALID, encoding)
    assert answer.status_code == 415
    assert_refused(answer)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.binary(max_size=300)
    | st.builds(
        lambda at, bit: VALID[:at] + bytes([VALID[at] ^ (1 << bit)]) + VALID[at + 1 :],
        st.integers(0, len(VALID) - 1),
        st.integers(0, 7),
    )
)
def test_whatever_comes_is_taken_or_refused(client: httpx2.Client, body: bytes) -> None:
    answer = post(client, body)
    if answer.status_code != 200:
        assert_refused(answer)


# Memory is measured in a process of the server's own. ---------------------------------------------------------------


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[psutil.Process, httpx2.Client]]:
    """A server in a process of its own."""
    home = tmp_path_factory.mktemp("bombed")
    command = [sys.executable, "-m", "trainwatch.server"]
    environment = {"TRAINWATCH_HOME": str(home), "TRAINWATCH_PORT": "0", "PATH": "/usr/bin:/bin", "HOME": str(home)}
    root = Path(__file__).parent.parent.parent
    with subprocess.Popen(command, env=environment, cwd=root, stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            url = child.stdout.readline().strip()
            with httpx2.Client(base_url=url, timeout=120) as client:
                send(client, batch([started(), step(1)]))  # what is needed once is there
                yield psutil.Process(child.pid), client
        finally:
            child.kill()


def zeros(size: int, encoding: str) -> bytes:
    """Compresses so many zeros, a piece at a time."""
    piece = bytes(16 * MIB)
    if encoding == "gzip":
        made = gzip.compress(piece, 9)
        return made * (size // len(piece))
    compressor = zstandard.ZstdCompressor(level=3).compressobj()
    return b"".join([*(compressor.compress(piece) for _ in range(size // len(piece))), compressor.flush()])


@pytest.mark.parametrize(
    ("body", "encoding"),
    [
        (zeros(4096 * MIB, "zstd"), "zstd"),
        (zeros(1024 * MIB, "gzip"), "gzip"),
        (zstandard.compress(zstandard.compress(bytes(512 * MIB))), "zstd"),
        (b"".join(zstandard.compress(bytes(MIB)) for _ in range(1000)), "zstd"),
        (struct.pack("<I", 0xFD2FB528) + b"\xe0" + struct.pack("<Q", 2**63) + b"\x00" * 100, "zstd"),
        (struct.pack("<I", 0xFD2FB528) + b"\x00\xf8" + b"\x01\x00\x00", "zstd"),
        (b"\x93" + b"\xdd" + struct.pack(">I", 2**32 - 1), ""),
        (b"\x83\xa7batches\xdd" + struct.pack(">I", 2**32 - 1), ""),
        (b"\x81\xdb" + struct.pack(">I", 2**32 - 1), ""),
        (b"\xdf" + struct.pack(">I", 2**32 - 1), ""),
    ],
    ids=[
        "4 GiB in zstd",
        "1 GiB in gzip",
        "zstd in zstd",
        "a thousand frames",
        "a frame that says 8 EiB",
        "a window of 2 GiB",
        "4 billion elements",
        "4 billion batches",
        "a text of 4 GiB",
        "4 billion fields",
    ],
)
def test_a_bomb_is_refused_and_memory_stays_bounded(
    process: tuple[psutil.Process, httpx2.Client], body: bytes, encoding: str
) -> None:
    server, client = process
    before = server.memory_info().rss
    for _ in range(3):
        assert_refused(post(client, body, encoding))
    # What is expanded is 128 MiB at most; the process may keep what it was given for the next one.
    assert server.memory_info().rss - before < 400 * MIB
    assert server.memory_info().rss < 900 * MIB
    assert client.get("/api/health").status_code == 200


def test_a_body_without_end_is_not_gathered(process: tuple[psutil.Process, httpx2.Client]) -> None:
    server, client = process
    before = server.memory_info().rss

    def without_end() -> Iterator[bytes]:
        for _ in range(300):
            yield bytes(MIB)

    try:
        answer = client.post("/api/ingest", content=without_end(), headers={"content-type": "application/msgpack"})
        assert answer.status_code == 413
    except httpx2.TransportError:
        pass  # the server answered and closed while this was still sending
    assert server.memory_info().rss - before < 100 * MIB
    assert client.get("/api/health").status_code == 200
