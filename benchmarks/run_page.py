"""How long until a run's page shows its first chart, for a run with a million points in one series.

The run comes to the server as every run does, through HTTP. The loss has a single point a thousand times as high as the
others and a lone NaN in it, and both have to be in what is drawn. Each visit is cold: a fresh context of a headless
Chromium, with nothing cached. A run with a thousand points is visited in turns with it, for comparison.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.support.page import Visit, visit
from benchmarks.support.report import Report, options, say
from benchmarks.support.shipments import BEGAN, Client, encode, pieces
from tests.browser import ARGS, find_chromium
from tests.e2e.world import World
from trainwatch import events

_SHIPMENT: Final = 20_000
_SMALL: Final = 1000


@dataclass(frozen=True)
class LongRun:
    """A run with many points, two of them special."""

    points: int

    @property
    def name(self) -> str:
        """Its id."""
        return f"points{self.points}"

    @property
    def spike(self) -> int:
        """The step with the spike."""
        return self.points * 2 // 5

    @property
    def nan(self) -> int:
        """The step with the NaN."""
        return self.points * 7 // 10

    def loss(self, step: int, chance: random.Random) -> float:
        """Returns a step's loss."""
        usual = 2.0 + chance.gauss(0, 0.1)
        return {self.spike: usual * 1000, self.nan: math.nan}.get(step, usual)

    def ship(self, server: str) -> None:
        """Ships the run."""
        chance = random.Random(self.points)
        client = Client(server, self.name)
        client.start(self.name, self.points)
        for numbers in pieces(self.points, _SHIPMENT):
            client.ship(
                encode(
                    events.StepEnded(
                        time=BEGAN + number * 0.01, step=number, values={"train/loss": self.loss(number, chance)}
                    )
                    for number in numbers
                )
            )
        end = BEGAN + self.points * 0.01
        client.ship(encode([events.RunEnded(time=end, step=self.points, outcome="finished")]))
        client.close()


def chart_seconds(server: str, run: str, visits: int) -> list[float]:
    """Asks for the chart as the page does, without a browser; returns how long each answer took."""
    took = []
    for _ in range(visits):
        began = time.perf_counter()
        with urllib.request.urlopen(f"{server}/api/runs/{run}/charts/loss?width=600", timeout=60) as answer:
            answer.read()
        took.append(time.perf_counter() - began)
    return took


def browse(world: World, chromium: str, runs: list[LongRun], visits: int) -> dict[str, list[Visit]]:
    """Visits the runs' pages in turns; the first visit of each, in a browser that has just begun, is not kept."""
    from playwright.sync_api import sync_playwright

    found: dict[str, list[Visit]] = {run.name: [] for run in runs}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGS)
        try:
            for number in range(visits + 1):
                for run in runs if number % 2 == 0 else reversed(runs):
                    seen = visit(browser, f"{world.url}/runs/{run.name}")
                    if number:
                        found[run.name].append(seen)
        finally:
            browser.close()
    return found


def main() -> None:
    """Measures."""
    parser = options(__doc__)
    parser.add_argument("--points", type=int, help="points of the long run (1,000,000; with --quick 100,000)")
    parser.add_argument("--visits", type=int, help="how often the page is opened (15; with --quick 3)")
    chosen = parser.parse_args()
    points = chosen.points or (100_000 if chosen.quick else 1_000_000)
    visits = chosen.visits or (3 if chosen.quick else 15)
    chromium = find_chromium()
    if chromium is None:
        sys.exit("There is no Chromium: name one with TRAINWATCH_CHROMIUM, or run `playwright install chromium`.")
    report = Report("run_page", chosen.quick)
    long, short = LongRun(points), LongRun(_SMALL)
    with tempfile.TemporaryDirectory() as folder:
        world = World(Path(folder))
        try:
            world.start_server()
            say(f"shipping {points:,} points")
            began = time.perf_counter()
            long.ship(world.url)
            shipping = time.perf_counter() - began
            short.ship(world.url)
            say("opening the page")
            found = browse(world, chromium, [long, short], visits)
            answers = chart_seconds(world.url, long.name, visits)
        finally:
            world.close()
    add_figures(report, long, found[long.name], found[short.name])
    report.many("chart request, answered to a client without a browser", [one * 1000 for one in answers], "ms")
    report.one("shipping the run", shipping, "s", note="made, encoded, sent and stored")
    report.finish()


def add_figures(report: Report, run: LongRun, visits: list[Visit], short: list[Visit]) -> None:
    """Adds what the visits gave."""
    seconds = [one.painted / 1000 for one in visits]
    report.many(f"first chart on the screen, {run.points:,} points", seconds, "s", target=1.5)
    report.many(f"first chart on the screen, {_SMALL:,} points", [one.painted / 1000 for one in short], "s")
    ratio = [one.painted / other.painted for one, other in zip(visits, short, strict=True)]
    report.many("long run to short run", ratio)
    report.many("chart asked for after", [one.requested for one in visits], "ms")
    report.many("chart request, server's time", [one.answered for one in visits], "ms", note="to the first byte")
    report.one("chart as it travels", statistics.median(one.wire for one in visits) / 1024, "KiB")
    report.one("chart unpacked", statistics.median(one.size for one in visits) / 1024, "KiB")
    spikes = sum(not one.spike_is_seen() for one in visits)
    nans = sum(not one.nan_is_seen(run.nan / run.points, run.nan) for one in visits)
    report.one("visits without the spike in the drawn line", spikes, f"of {len(visits)}", target=0)
    report.one("visits without the NaN at its step", nans, f"of {len(visits)}", target=0)
    report.note("Visits are cold and the server's process is warm. Seen: looked for in the drawn line and markers.")


if __name__ == "__main__":
    main()
