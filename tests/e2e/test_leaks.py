"""A leak under a real memory limit is halted before the kernel kills; ``benchmarks/leaks.py`` has the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.leaking import MIB, run
from tests.e2e.memory_limit import why_not

REASON = why_not()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.skipif(bool(REASON), reason=REASON)]

LEAK = 20
HEADROOM = 1800 * MIB


def test_a_leak_is_halted_with_a_checkpoint_where_the_same_training_dies(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("dies", "halted")]
    for folder in folders:
        folder.mkdir()
    dying = run(folders[0], leak=LEAK, headroom=HEADROOM, pause=0.05, watch="notify")
    assert dying.killed
    assert dying.ended is None
    halted = run(folders[1], leak=LEAK, headroom=HEADROOM, pause=0.05, watch="halt")
    assert halted.halted, halted
    assert dying.steps - halted.steps >= 20
    said = [one for one in dying.findings if one.rule == "oom_forecast" and one.state == "firing"]
    early = [one for one in said if one.step is not None and one.step <= dying.steps * 0.6]
    assert early, "half the headroom is gone, and nothing was forecast"
    for one in said:
        assert one.parameters["oom_step"] == pytest.approx(dying.steps, rel=0.15)
        assert one.parameters["bytes_per_step"] == pytest.approx(LEAK * MIB, rel=0.15)
    assert {"memory_growth", "memory_headroom", "process_gone"} <= {one.rule for one in dying.findings}


def test_a_saw_of_the_same_height_is_left_alone(tmp_path: Path) -> None:
    saw = run(tmp_path, leak=150, headroom=HEADROOM, pause=0.05, watch="halt", saw=10, steps=150)
    assert saw.steps == 150
    assert saw.ended is not None
    assert saw.ended.outcome == "finished"
    assert "oom_forecast" not in {one.rule for one in saw.findings}
