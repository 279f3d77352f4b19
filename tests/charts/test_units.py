from __future__ import annotations

import pytest

from trainwatch.charts.units import bytes_text, clock_text, duration_text, duration_ticks, log_ticks, scale_for


@pytest.mark.parametrize(
    ("seconds", "short", "exact"),
    [
        (0, "0s", "0s"),
        (0.25, "0.25s", "0.25s"),
        (59, "59s", "59s"),
        (59.9996, "1m", "1m 00s"),
        (60, "1m", "1m 00s"),
        (750, "12m 30s", "12m 30s"),
        (3600, "1h", "1h 00m 00s"),
        (7510, "2h 05m", "2h 05m 10s"),
        (86400 * 3 + 6 * 3600 + 61, "3d 6h", "3d 6h 01m 01s"),
        (-90, "-1m 30s", "-1m 30s"),
        (float("nan"), "?", "?"),
    ],
)
def test_durations(seconds: float, short: str, exact: str) -> None:
    assert duration_text(seconds) == short
    assert clock_text(seconds) in (exact, short)


@pytest.mark.parametrize("span", [0.004, 1, 42, 90, 3600, 40_000, 86400 * 4, 86400 * 45, 86400 * 800])
@pytest.mark.parametrize("begin", [0.0, 12_345.6])
def test_ticks_of_durations_are_few_and_distinct(span: float, begin: float) -> None:
    values, labels = duration_ticks(begin, begin + span)
    inside = [v for v in values if begin <= v <= begin + span]
    assert 3 <= len(inside) <= 8
    if begin == 0.0:
        assert len(set(labels)) == len(labels)
        assert min(values) == 0.0


def test_ticks_of_nothing() -> None:
    assert duration_ticks(5.0, 5.0) == ([5.0], ["5s"])


@pytest.mark.parametrize(
    ("value", "text"),
    [(25_125_558_681.0, "23.4 GiB"), (512.0, "0.5 KiB"), (1023 * 2.0**20, "1023 MiB"), (2.0**40, "1 TiB")],
)
def test_bytes(value: float, text: str) -> None:
    assert bytes_text(value) == text


@pytest.mark.parametrize(
    ("unit", "top", "suffix"),
    [
        ("bytes", 3.0 * 2**30, " GiB"),
        ("bytes", 900.0 * 2**20, " MiB"),
        ("bytes", 0.0, " KiB"),
        ("seconds", 0.02, " ms"),
        ("seconds", 3.0, " s"),
        ("tokens", 5.0, ""),
    ],
)
def test_scales(unit: str, top: float, suffix: str) -> None:
    assert scale_for(unit, ("x",), top).suffix == suffix


@pytest.mark.parametrize(("low", "high"), [(0.9, 1.1), (0.2, 15.0), (2e-3, 4e3), (1e-12, 1e9)])
def test_log_ticks_cover_the_range(low: float, high: float) -> None:
    values, labels = log_ticks(low, high)
    assert values == sorted(values)
    assert len(set(labels)) == len(labels) == len(values)
    assert values[0] <= low
    assert values[-1] >= high
    assert 2 <= sum(low <= value <= high for value in values) <= 9
