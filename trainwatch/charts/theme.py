"""Colours and fonts of the charts, for a light and for a dark page.

The series colours can be told apart with every common colour blindness (they differ in lightness as well as in hue);
red is kept for what is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

ThemeName = Literal["light", "dark"]

FONT: Final = "Inter, ui-sans-serif, system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif"


@dataclass(frozen=True)
class Theme:
    """One palette.

    Attributes:
        text: Legend and labels.
        muted: Tick labels and faint lines.
        strong: Lines that stand for all ranks together.
        grid: Grid lines.
        edge: Axis line.
        surface: Background of hover boxes and labels.
        border: Their border.
        alarm: Non-finite values, died and failed runs.
        warn: A run that was halted.
        series: One colour a rank (or a metric, where there is one rank only).
        phases: Fill of the bands.
        spike_line: Whether the cursor is a line from top to bottom.
    """

    text: str
    muted: str
    strong: str
    grid: str
    edge: str
    surface: str
    border: str
    alarm: str
    warn: str
    series: tuple[str, ...]
    phases: dict[str, str]
    spike_line: bool

    def colour(self, number: int) -> str:
        """Colour of a rank, or of a metric's slot."""
        return self.series[number % len(self.series)]


THEMES: Final[dict[ThemeName, Theme]] = {
    "light": Theme(
        text="#30363d",
        muted="#656d76",
        strong="#1f2328",
        grid="rgba(31,35,40,0.08)",
        edge="rgba(31,35,40,0.22)",
        surface="rgba(255,255,255,0.96)",
        border="rgba(31,35,40,0.15)",
        alarm="#d1213a",
        warn="#a85500",
        series=("#2563d6", "#dd7400", "#07906f", "#b44a95", "#2aa3d6", "#9a8100", "#6548c4", "#87553a"),
        phases={
            "eval": "rgba(101,72,196,0.13)",
            "save": "rgba(7,144,111,0.20)",
            "load": "rgba(101,109,118,0.14)",
        },
        spike_line=True,
    ),
    "dark": Theme(
        text="#d0d5db",
        muted="#949ca6",
        strong="#f0f3f6",
        grid="rgba(240,246,252,0.08)",
        edge="rgba(240,246,252,0.22)",
        surface="rgba(33,36,41,0.96)",
        border="rgba(240,246,252,0.18)",
        alarm="#ff5d73",
        warn="#ffb14a",
        series=("#6ea6ff", "#ffa63d", "#3ccd9c", "#e888c8", "#6fd6fa", "#e0cb50", "#a995ff", "#cf9d7c"),
        phases={
            "eval": "rgba(169,149,255,0.17)",
            "save": "rgba(60,205,156,0.22)",
            "load": "rgba(148,156,166,0.18)",
        },
        spike_line=False,
    ),
}


def fade(colour: str, alpha: float) -> str:
    """A ``#rrggbb`` colour made translucent."""
    red, green, blue = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return f"rgba({red},{green},{blue},{alpha})"
