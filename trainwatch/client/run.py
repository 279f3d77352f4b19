"""A run, and what can be asked of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal
from urllib.parse import quote

from trainwatch.client.link import Link, NotFound
from trainwatch.client.listing import Listing, number
from trainwatch.client.points import Points, Series

if TYPE_CHECKING:
    import plotly.graph_objects

_ROW: Final = (
    "id",
    "name",
    "project",
    "state",
    "started_at",
    "ended_at",
    "last_event_at",
    "step",
    "max_steps",
    "world_size",
    "last_loss",
    "last_eval_loss",
    "sentence",
)


class _Any:
    """Stands for a rank or a device that was not given; None and empty name the series that have none."""

    def __repr__(self) -> str:
        return "any"


ANY: Final = _Any()


@dataclass(frozen=True)
class Alert:
    """A rule that matched.

    Attributes:
        info: All that the API says of it.
    """

    info: dict[str, Any]

    def __repr__(self) -> str:
        """Says what it says."""
        return f"Alert({self.severity}, {self.state}: {self.sentence!r})"

    @property
    def rule(self) -> str:
        """The rule's id."""
        return str(self.info["rule"])

    @property
    def severity(self) -> str:
        """info, warning or critical."""
        return str(self.info["severity"])

    @property
    def state(self) -> str:
        """pending, firing or resolved."""
        return str(self.info["state"])

    @property
    def sentence(self) -> str:
        """What it says, for people."""
        return str(self.info["sentence"])

    def as_row(self) -> dict[str, Any]:
        """Returns column to value; the evidence (``parameters``) differs between rules and is not among them."""
        return {name: number(value) for name, value in self.info.items() if not isinstance(value, dict | list)}


class Run:
    """A run as it was when it was asked for; :meth:`refresh` asks again.

    Attributes:
        info: All that the API says of it.
    """

    def __init__(self, link: Link, info: dict[str, Any]) -> None:
        self._link = link
        self.info = info

    def __repr__(self) -> str:
        """Names it."""
        return f"Run({self.id!r}, {self.name!r}, {self.state}, step {self.step:,})"

    @property
    def id(self) -> str:
        """The run's id."""
        return str(self.info["id"])

    @property
    def name(self) -> str:
        """The run's name, for people."""
        return str(self.info["name"])

    @property
    def project(self) -> str:
        """The run's project."""
        return str(self.info["project"])

    @property
    def state(self) -> str:
        """The run's state, such as running or finished."""
        return str(self.info["state"])

    @property
    def step(self) -> int:
        """The last finished step."""
        return int(self.info["step"])

    @property
    def url(self) -> str:
        """The run's page."""
        return f"{self._link.url}/runs/{quote(self.id)}"

    def as_row(self) -> dict[str, Any]:
        """Returns column to value."""
        return {name: number(self.info[name]) for name in _ROW}

    def refresh(self) -> Run:
        """Asks again, for all that is known of the run; returns the run itself."""
        self.info = self._link.get(self._path())
        return self

    def series(self, metric: str | None = None) -> Listing[Series]:
        """Returns the run's series.

        Args:
            metric: Only those of this metric.
        """
        found = self._link.get(self._path("/series"))
        return Listing(Series.of(self._link, self.id, one) for one in found if metric in (None, one["metric"]))

    def points(self, metric: str, rank: int | _Any | None = ANY, device: str | _Any = ANY) -> Points:
        """Returns all points of a series, at full resolution.

        Args:
            metric: The metric's name.
            rank: The rank, None for the series of no rank; may be left out where there is only one.
            device: The device, empty for the series of no device; may be left out where there is only one.

        Raises:
            NotFound: There is no such series.
            ValueError: Several fit; the message names them.
        """
        same = self.series(metric)
        fitting = [
            one
            for one in same
            if (isinstance(rank, _Any) or one.rank == rank) and (isinstance(device, _Any) or one.device == device)
        ]
        if not fitting:
            has = f"; of this metric it has {list(same)}" if same else ": see run.series() for what it has"
            raise NotFound(f"The run has no series {metric!r} with rank {rank} and device {device!r}{has}.", 404)
        if len(fitting) > 1:
            raise ValueError(f"several series fit, say rank or device: {fitting}")
        return fitting[0].points()

    def alerts(self) -> Listing[Alert]:
        """Returns the run's alerts, those that are over included."""
        return Listing(Alert(one) for one in self._link.get(self._path())["alerts"])

    def charts(self) -> dict[str, str]:
        """Returns the charts that the run has data for: name, for :meth:`figure`, to title."""
        return {one["id"]: one["title"] for one in self._link.get(self._path())["charts"]}

    def figure(
        self,
        name: str,
        *,
        x: Literal["step", "time"] = "step",
        rank: int | None = None,
        theme: Literal["light", "dark"] = "light",
        width: int = 1200,
        low: float | None = None,
        high: float | None = None,
    ) -> plotly.graph_objects.Figure | dict[str, Any]:
        """Returns a chart as the dashboard shows it; thinned to what the width can show, without losing extremes.

        Args:
            name: A chart's name (see :meth:`charts`), or ``metric:NAME`` for any metric.
            x: What the x axis shows.
            rank: Only what this rank says.
            theme: Its colours.
            width: Of the plot, in pixels.
            low: Left end, in steps or Unix seconds.
            high: Right end.

        Returns:
            A Plotly figure; its description as a dictionary where Plotly is not installed.
        """
        path = self._path(f"/charts/{quote(name, safe=':/')}")
        found = self._link.get(path, x=x, rank=rank, theme=theme, width=width, from_=low, to=high)
        description = {"data": found["data"], "layout": found["layout"]}
        try:
            import plotly.graph_objects
        except ImportError:
            return description
        return plotly.graph_objects.Figure(description)

    def halt(self, reason: str = "") -> None:
        """Asks the run to save a checkpoint and stop; it hears of it within seconds.

        Raises:
            ClientError: The run is over, or the token may not do this.
        """
        self._link.post(self._path("/commands"), {"action": "halt", "reason": reason})

    def checkpoint(self, reason: str = "") -> None:
        """Asks the run to save a checkpoint and go on."""
        self._link.post(self._path("/commands"), {"action": "checkpoint", "reason": reason})

    def delete(self) -> None:
        """Deletes the run with all that was recorded of it. This cannot be undone."""
        self._link.delete(self._path())

    def _path(self, rest: str = "") -> str:
        return f"/runs/{quote(self.id, safe='')}{rest}"
