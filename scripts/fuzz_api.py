"""Tries the whole API with generated requests, against a server of its own::

    python scripts/fuzz_api.py --cases 20000 --seed 1

schemathesis reads the OpenAPI document, makes requests that fit it and ones that do not, and looks at the answers: no
5xx, nothing that the document does not tell of, nothing without a token that is to have one. Exit status 1 when it
finds something. The live stream is left out, which never ends.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
from pydantic import SecretStr

from trainwatch import events
from trainwatch.server.main import Server
from trainwatch.server.openapi import document
from trainwatch.server.settings import Settings
from trainwatch.shipment import Batch, Shipment

ROOT: Final = Path(__file__).parent.parent
TOKEN: Final = "a token for fuzzing alone"
RUNS: Final = ("run1", "run2")
PHASES: Final = ("examples", "coverage", "fuzzing", "stateful")
EXAMPLES: Final = 30
"""Of each operation, in each round."""
LEFT_OUT: Final = ("/api/events",)
# What these two find is no fault. `negative_data_rejection`: query parameters are text, and "1.0" or " 1" are read as
# numbers on purpose; a body with more fields than are known is taken, as one of a later version.
# `positive_data_acceptance`: a name that fits the document need not be there.
EXCLUDED: Final = ("negative_data_rejection", "positive_data_acceptance")


def main() -> int:
    """Fuzzes; returns the exit status."""
    parser = argparse.ArgumentParser(description="Tries the whole API with generated requests.")
    parser.add_argument("--cases", type=int, default=20_000, help="how many requests at least (default: 20000)")
    parser.add_argument("--seed", type=int, default=1, help="the same seed gives the same requests (default: 1)")
    options = parser.parse_args()
    done, status, round_ = 0, 0, 0
    while done < options.cases and not status:
        made, status = fuzz(seed=options.seed + round_, examples=EXAMPLES, phases=PHASES if round_ == 0 else PHASES[2:])
        done, round_ = done + made, round_ + 1
        sys.stdout.write(f"{done} of {options.cases} cases\n")
        if not made:
            return 1
    return status


def fuzz(*, seed: int, examples: int, phases: Sequence[str] = PHASES, quiet: bool = False) -> tuple[int, int]:
    """Starts a server and fuzzes it once.

    Args:
        seed: The same gives the same requests.
        examples: Of each operation, in each phase.
        phases: Of schemathesis; the first two do the same whatever the seed.
        quiet: Say nothing when nothing was found.

    Returns:
        How many requests were made, and 0 when nothing was found.
    """
    with tempfile.TemporaryDirectory() as folder, serving(Path(folder)) as url:
        path = Path(folder) / "openapi.json"
        path.write_text(json.dumps(described()), "utf-8")
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", str(path), "--url", url),
            *("--header", f"Authorization: Bearer {TOKEN}", "--seed", str(seed), "--max-examples", str(examples)),
            *("--phases", ",".join(phases)),
            *("--checks", "all", "--exclude-checks", ",".join(EXCLUDED), "--continue-on-failure"),
            *(
                "--suppress-health-check",
                "all",
                "--warnings",
                "off",
                "--request-timeout",
                "60",
                "--max-response-time",
                "60",
                "--workers",
                "1",
            ),
        ]
        environment = {**os.environ, "SCHEMATHESIS_HOOKS": "scripts.fuzz_hooks", "PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
    if done.returncode or not quiet:
        sys.stdout.write(done.stdout)
    found = re.search(r"([\d,]+) generated", done.stdout)
    return (int(found[1].replace(",", "")) if found else 0), done.returncode


def described() -> dict[str, Any]:
    """Returns the OpenAPI document without what cannot be tried."""
    found: dict[str, Any] = json.loads(document())
    for path in LEFT_OUT:
        del found["paths"][path]
    return found


@contextmanager
def serving(home: Path) -> Iterator[str]:
    """Runs a server with two runs on it; yields its address."""
    server = Server(Settings(home=home, port=0, token=SecretStr(TOKEN), requests_per_second=0))
    up = threading.Event()
    thread = threading.Thread(target=server.run, args=(lambda _url: up.set(),))
    thread.start()
    try:
        if not up.wait(60):
            raise RuntimeError("the server did not come up")
        ship(server.url)
        yield server.url
    finally:
        server.stop()
        thread.join(60)


def ship(url: str) -> None:
    """Ships runs that have some of everything, non-finite values too."""
    import httpx2

    for run in RUNS:
        recorded: list[events.Event] = [events.RunStarted(time=1e9, name=run, pid=1, max_steps=100, policy="protect")]
        for number in range(1, 60):
            loss = math.nan if number == 50 else math.inf if number == 51 else 1.0 / number
            recorded.append(events.StepEnded(time=1e9 + number, step=number, values={"train/loss": loss}))
        recorded.append(
            events.FindingRaised(
                time=1e9 + 50,
                rule="nonfinite_loss",
                severity="critical",
                state="firing",
                step=50,
                rank=0,
                parameters={},
            )
        )
        raw = [msgspec.Raw(events.encode(event)) for event in recorded]
        batch = Batch(run=run, project="fuzzed", node="n", source="rank0", rank=0, first=0, events=raw)
        body = msgspec.msgpack.encode(Shipment(batches=[batch], node="n", sent_at=1e9))
        headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/msgpack"}
        httpx2.post(f"{url}/api/ingest", content=body, headers=headers).raise_for_status()


if __name__ == "__main__":
    sys.exit(main())
