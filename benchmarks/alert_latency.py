"""How long from a NaN in a training process to the arrival of the message at a webhook.

Real trainings with the real Trainer, one after the other in a process of their own, each with its own agent; a real
server on SQLite; a receiver on a socket in this process. The moment of a NaN is taken in the model's forward pass,
before anybody can have seen it; that of the arrival when the receiver has read the message.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.support.report import Report, options, quantile, say
from benchmarks.support.stores import store
from tests.e2e.world import ROOT, World
from tests.server.receiver import receiving

_NAN_AT: Final = 12
_STEPS: Final = 600
_STEP_SECONDS: Final = 0.02
"""A pause in each step: a training that leaves no time to anybody else measures the scheduler."""
_RULE: Final = "nonfinite_loss"
_TARGET_SECONDS: Final = 1.5


@dataclass(frozen=True)
class Seen:
    """One NaN.

    Attributes:
        run: The run's name.
        at: When it was there, in Unix seconds.
        seconds: Until the message arrived.
    """

    run: str
    at: float
    seconds: float


def train(folder: Path, number: int) -> None:
    """Trains once in this process, and writes down when the loss became NaN.

    Args:
        folder: Where the note goes.
        number: Which training it is; the moment of the NaN differs, against all that happens in beats.
    """
    import torch
    from transformers import TrainerCallback

    from tests.training.tiny import TinyData, TinyModel, make_trainer

    note = folder / f"{number}.nan"

    def look(_module: Any, _inputs: Any, found: dict[str, torch.Tensor]) -> None:
        if not math.isfinite(float(found["loss"].detach())) and not note.exists():
            note.write_text(json.dumps({"at": time.time()}))

    class Waiting(TrainerCallback):
        """Goes on to the NaN when the agent is at work, as it is in any training that has lasted for a while."""

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            time.sleep(_STEP_SECONDS)
            if state.global_step == _NAN_AT - 2:
                _wait_for_run(_name(number))
                time.sleep(1.0 + 0.13 * number)
            if (folder / f"{number}.arrived").exists():
                control.should_training_stop = True

    data = TinyData(_STEPS * 2, scales={(_NAN_AT - 1) * 2: math.nan})
    model = TinyModel()
    model.register_forward_hook(look)
    make_trainer(
        folder / "out", steps=_STEPS, data=data, model=model, callbacks=[Waiting()], run_name=_name(number)
    ).train()


def _name(number: int) -> str:
    return f"latency-{number}"


def _wait_for_run(name: str) -> None:
    url = f"{os.environ['TRAINWATCH_SERVER']}/api/runs?limit=100"
    for _ in range(1200):
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if any(run["name"] == name and run["step"] > 0 for run in json.load(answer)["runs"]):
                    return
        except OSError:
            pass
        time.sleep(0.05)
    raise TimeoutError("the server never heard of the run")


def measure(count: int, folder: Path, database: str) -> list[Seen]:
    """Trains so often, one training after the other, and waits for each message."""
    world = World(folder)
    world.environment["TRAINWATCH_DATABASE"] = database
    world.environment["TRAINWATCH_ALERT_PRIVATE_HOSTS"] = "127.0.0.1"
    world.start_server()
    seen = []
    try:
        with receiving() as receiver:
            wish = {"name": "bench", "kind": "webhook", "url": receiver.url, "key": "k" * 32, "digest": {"most": 1000}}
            _post(f"{world.url}/api/projects/default/channels", wish)
            command = [sys.executable, "-m", "benchmarks.alert_latency", "--train", str(count), str(folder)]
            with (folder / "training.log").open("ab") as log:
                training = subprocess.Popen(command, env=world.environment, stdout=log, stderr=log, cwd=ROOT)
            for number in range(count):
                run = _name(number)
                arrived = _arrival(receiver, run, training, folder / "training.log")
                (folder / f"{number}.arrived").touch()
                at = json.loads((folder / f"{number}.nan").read_text())["at"]
                seen.append(Seen(run, at, arrived - at))
                say(f"  NaN {number + 1:2d}: {arrived - at:.3f} s")
            training.wait(120)
    finally:
        world.close()
    return seen


def _arrival(receiver: Any, run: str, training: subprocess.Popen[bytes], log: Path) -> float:
    """Returns when the message about a run's NaN arrived."""
    end = time.monotonic() + 180
    while time.monotonic() < end:
        for taken in list(receiver.taken):
            if any(one["run"]["name"] == run and one["rule"] == _RULE for one in taken.json["alerts"]):
                return float(taken.at)
        if training.poll() not in (None, 0):
            raise RuntimeError(f"the training failed: {log.read_text()[-2000:]}")
        time.sleep(0.01)
    raise TimeoutError("no message came")


def _post(url: str, content: dict[str, Any]) -> None:
    request = urllib.request.Request(
        url, json.dumps(content).encode(), {"Content-Type": "application/json"}, method="POST"
    )
    with urllib.request.urlopen(request, timeout=20) as answer:
        answer.read()


def main() -> None:
    """Measures and reports."""
    if sys.argv[1:2] == ["--train"]:
        for number in range(int(sys.argv[2])):
            train(Path(sys.argv[3]), number)
        return
    parser = options(__doc__)
    parser.add_argument("--count", type=int, default=None, help="how many NaNs; 20 by default")
    parser.add_argument("--database", choices=("sqlite", "postgres"), default="sqlite")
    chosen = parser.parse_args()
    count = chosen.count or (5 if chosen.quick else 20)
    report = Report("alert_latency", chosen.quick)
    with tempfile.TemporaryDirectory() as folder, store(chosen.database, Path(folder)) as found:
        seen = measure(count, Path(folder), found.url)
    seconds = [one.seconds for one in seen]
    report.many("NaN to webhook", seconds, "s", note=f"{count} trainings")
    report.one("NaN to webhook, p50", quantile(seconds, 0.5), "s")
    report.one("NaN to webhook, p95", quantile(seconds, 0.95), "s", target=_TARGET_SECONDS)
    report.one("NaN to webhook, slowest", max(seconds), "s")
    report.note(f"One training after the other, on {found.name}; {count} messages, each of rule {_RULE}.")
    report.finish()


if __name__ == "__main__":
    main()
