"""Real leaks under a real memory limit: is the run halted with a checkpoint before the kernel kills it?

For leaks of 1 to 100 MiB a step a real training runs in a control group with a limit: as TrainWatch does by itself (is
it halted in time?), with the forecast told to notify only (does it die, and where was it said to?), without TrainWatch
(does it die?), and with teeth of a saw instead of a leak (is it left alone?). Where no limit can be set it says so.
"""

from __future__ import annotations

import json
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from benchmarks.support.report import describe_machine, say, table
from benchmarks.support.report import options as command_line
from tests.e2e.leaking import MIB, Outcome, run
from tests.e2e.memory_limit import why_not

HEADROOM: Final = {1: 300, 3: 750, 10: 1500, 30: 3600, 100: 8000}
"""MiB that a step keeps, to MiB between what a training needs and the limit."""
PAUSE: Final = 0.06
_HEAD: Final = ("Leak a step", "Halted", "Dies at step", "Steps ahead", "In time", "Forecast off", "Saws halted")
_QUICK_TOOTH: Final = 10
_SAW_STEPS: Final = 400


def once(leak: float, headroom: int, **how: Any) -> Outcome:
    """Trains once in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="trainwatch-leak-") as folder:
        return run(Path(folder), leak=leak, headroom=headroom * MIB, pause=PAUSE, **how)


def worst_forecast(dying: Outcome) -> float:
    """Returns by how much the forecasts were off, as a share of the true step, once half the steps were made."""
    said = [
        (finding.step, finding.parameters["oom_step"])
        for finding in dying.findings
        if finding.rule == "oom_forecast" and finding.state == "firing" and finding.step is not None
    ]
    # The first that was said counts, too, when it still stood at half of the way.
    standing = [oom for step, oom in said if step > dying.steps / 2]
    standing += [oom for step, oom in said if step <= dying.steps / 2][-1:]
    return max((abs(oom / dying.steps - 1) for oom in standing), default=1.0)


def measure(leak: int, times: int, workers: ThreadPoolExecutor) -> dict[str, Any]:
    """Measures one size of leak."""
    room = HEADROOM[leak]
    halts = [workers.submit(once, leak, room, watch="halt") for _ in range(times)]
    notify = workers.submit(once, leak, room, watch="notify")
    without = workers.submit(once, leak, room, watch="off")
    tooth = 0.85 * room / _QUICK_TOOTH
    saws = [workers.submit(once, tooth, room, watch="halt", saw=_QUICK_TOOTH, steps=_SAW_STEPS)]
    # A slow ramp can't be told from a leak before it comes down; it comes down in time here.
    slow = round(0.55 * room / leak)
    saws.append(workers.submit(once, leak, room, watch="halt", saw=slow, steps=max(_SAW_STEPS, 3 * slow)))
    dying = notify.result()
    halted = [one.result() for one in halts]
    ahead = [dying.steps - one.steps for one in halted]
    return {
        "leak_mib": leak,
        "headroom_mib": room,
        "halted": sum(one.halted for one in halted),
        "runs": times,
        "dies_at": dying.steps,
        "dies": dying.killed and without.result().killed,
        "steps_ahead": [min(ahead), max(ahead)],
        "in_time": sum(one >= min(20, 0.05 * dying.steps) for one in ahead),
        "forecast_off": round(worst_forecast(dying), 4),
        "saw_halted": sum(one.result().steps < _SAW_STEPS for one in saws),
        "saws": len(saws),
    }


def main() -> None:
    """Measures and prints."""
    parser = command_line(__doc__)
    parser.add_argument("--times", type=int, default=3, help="how often each leak is to be halted")
    parser.add_argument("--leaks", type=int, nargs="+", choices=list(HEADROOM), default=list(HEADROOM), metavar="MIB")
    parser.add_argument("--workers", type=int, default=2, help="trainings at the same time")
    options = parser.parse_args()
    if options.quick:
        options.times, options.leaks = 1, [10]
    reason = why_not()
    if reason:
        say(f"nothing measured: {reason}")
        say(json.dumps({"leaks": None, "reason": reason}))
        return
    rows = []
    with ThreadPoolExecutor(options.workers) as workers:
        for leak in options.leaks:
            rows.append(measure(leak, options.times, workers))
            say(f"- {leak} MiB a step: done")
    table([_HEAD, *map(_cells, rows)])
    say(json.dumps({"benchmark": "leaks", "quick": options.quick, "machine": describe_machine(), "leaks": rows}))


def _cells(row: dict[str, Any]) -> list[str]:
    low, high = row["steps_ahead"]
    return [
        f"{row['leak_mib']} MiB of {row['headroom_mib']}",
        f"{row['halted']} of {row['runs']}",
        str(row["dies_at"]) if row["dies"] else "lives",
        f"{low}-{high}",
        f"{row['in_time']} of {row['runs']}",
        f"{row['forecast_off']:.1%}",
        f"{row['saw_halted']} of {row['saws']}",
    ]


if __name__ == "__main__":
    main()
