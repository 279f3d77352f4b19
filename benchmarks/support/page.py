"""What a run's page in a real Chromium says of itself: when its chart stood, and what is drawn in it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

_CHART: Final = "[data-testid=chart][data-chart=loss]"

# Notes when the chart says that it is drawn, and when the frame that shows it has been painted: what runs in a task
# after an animation frame runs behind the painting.
_WATCH: Final = f"""
new MutationObserver((_, observer) => {{
  if (!document.querySelector('{_CHART}[data-ready]')) return;
  observer.disconnect();
  const ready = performance.now();
  requestAnimationFrame(() => setTimeout(() => {{ window.drawnAt = [ready, performance.now()] }}));
}}).observe(document, {{ subtree: true, childList: true, attributes: true }});
"""

_TIMES: Final = """() => new Promise(done => {
  const look = () => window.drawnAt ? done(window.drawnAt) : setTimeout(look, 20);
  look();
})"""

_REQUEST: Final = """() => {
  const found = performance.getEntriesByType('resource').find(one => one.name.includes('/charts/loss'));
  return [found.startTime, found.requestStart, found.responseStart, found.responseEnd,
          found.encodedBodySize, found.decodedBodySize];
}"""

# The pixels of the plot: the highest point of the loss's line, the median of its points, and the markers of NaN.
_DRAWN: Final = f"""() => {{
  const chart = document.querySelector('{_CHART}');
  const area = chart.querySelector('.nsewdrag').getBoundingClientRect();
  const traces = [...chart.querySelectorAll('.scatterlayer .trace')].map(g => [g.__data__[0].trace, g]);
  const line = traces.find(([trace]) => trace.mode.includes('lines') && !trace.meta?.drops)[1];
  const pieces = [...line.querySelectorAll('.js-line')].map(path => path.getAttribute('d'));
  const ys = pieces.flatMap(d => [...d.matchAll(/[MLHV]([-\\d.]+)(?:,([-\\d.]+))?/g)]
    .filter(m => m[2] !== undefined).map(m => Number(m[2])));
  const marks = traces.filter(([trace]) => trace.meta?.kind === 'NaN')
    .flatMap(([, g]) => [...g.querySelectorAll('.point')]).map(point => {{
      const box = point.getBoundingClientRect();
      return [(box.x + box.width / 2 - area.x) / area.width, (box.y + box.height / 2 - area.y) / area.height];
    }});
  const steps = traces.filter(([trace]) => trace.meta?.kind === 'NaN')
    .flatMap(([trace]) => trace.customdata.map(one => one[0]));
  ys.sort((a, b) => a - b);
  return {{ pieces: pieces.length, points: ys.length, top: ys[0] / area.height,
            middle: ys[Math.floor(ys.length / 2)] / area.height,
            high: ys.filter(y => y < area.height / 2).length, marks, steps }};
}}"""


@dataclass(frozen=True)
class Visit:
    """One cold visit of a run's page. Times are milliseconds from the start of the navigation.

    Attributes:
        painted: When the first chart was on the screen.
        ready: When it was drawn.
        requested: When it was asked for.
        answered: How long the server took for its first byte.
        wire: Bytes of the chart as they travelled.
        size: The same unpacked.
        drawn: What :meth:`spike_is_seen` and :meth:`nan_is_seen` look at.
    """

    painted: float
    ready: float
    requested: float
    answered: float
    wire: int
    size: int
    drawn: dict[str, Any]

    def spike_is_seen(self) -> bool:
        """Whether the line, low in the plot, has one point high up (a vertex of the drawn line, or two)."""
        return bool(self.drawn["top"] < 0.25 and self.drawn["middle"] > 0.75 and self.drawn["high"] in (1, 2))

    def nan_is_seen(self, share: float, step: int) -> bool:
        """Whether there is a marker for the NaN, where it belongs, and a gap in the line.

        Args:
            share: Where on the x axis it belongs, from 0 to 1.
            step: Its step.
        """
        at_place = [x for x, y in self.drawn["marks"] if abs(x - share) < 0.03 and y < 0.2]
        return bool(at_place) and step in self.drawn["steps"] and self.drawn["pieces"] == 2


def visit(browser: Any, address: str) -> Visit:
    """Opens a run's page in a fresh context of a browser: no cache, nothing kept.

    Args:
        browser: Playwright's.
        address: The page.
    """
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    try:
        page = context.new_page()
        page.add_init_script(_WATCH)
        page.goto(address, wait_until="commit")
        page.wait_for_selector(f"{_CHART}[data-ready]", timeout=60_000)
        ready, painted = page.evaluate(_TIMES)
        _, asked, began, _, wire, size = page.evaluate(_REQUEST)
        drawn = page.evaluate(_DRAWN)
        return Visit(painted, ready, asked, began - asked, int(wire), int(size), json.loads(json.dumps(drawn)))
    finally:
        context.close()
