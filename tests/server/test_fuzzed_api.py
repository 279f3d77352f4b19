"""A short run of schemathesis over the whole API, with a fixed seed; scripts/fuzz_api.py makes long ones."""

from __future__ import annotations

import pytest

pytest.importorskip("schemathesis")

from scripts.fuzz_api import LEFT_OUT, described, fuzz


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_generated_requests_find_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    made, status = fuzz(seed=7, examples=1, quiet=True)
    assert status == 0, capsys.readouterr().out
    assert made >= 10 * len(described()["paths"]), "it tried hardly anything"


def test_nothing_is_left_out_but_the_stream() -> None:
    assert LEFT_OUT == ("/api/events",)
