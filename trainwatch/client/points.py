"""A run's series and their points."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from trainwatch.client.link import Link
from trainwatch.client.listing import needed, number

if TYPE_CHECKING:
    import pandas
    import pyarrow


@dataclass(frozen=True, eq=False)
class Points:
    """All points of a series, in the order of their arrival; a step that was done again is there again.

    Attributes:
        metric: The metric's name.
        rank: The rank; None for a series of no rank.
        device: The device; empty for a series of no device.
        step: int64, one for each point; -1 where the step is not known.
        time: float64, Unix seconds by the training machine's clock.
        value: float64, exactly as it was recorded, NaN and ±Inf included.
    """

    metric: str
    rank: int | None
    device: str
    step: NDArray[np.int64]
    time: NDArray[np.float64]
    value: NDArray[np.float64]

    def __len__(self) -> int:
        """Returns how many points there are."""
        return len(self.step)

    def __repr__(self) -> str:
        """Says what they are of, without listing them."""
        return f"Points({self.metric!r}, rank={self.rank}, device={self.device!r}, {len(self):,} points)"

    def to_pandas(self) -> pandas.DataFrame:
        """Returns a data frame with the columns step, time and value.

        Raises:
            ImportError: pandas is not installed.
        """
        return needed("pandas").DataFrame({"step": self.step, "time": self.time, "value": self.value})

    def to_arrow(self) -> pyarrow.Table:
        """Returns an Arrow table with the columns step, time and value.

        Raises:
            ImportError: pyarrow is not installed.
        """
        columns = {"step": self.step, "time": self.time, "value": self.value}
        arrow = needed("pyarrow")
        # NaN is a value, not a missing one.
        return arrow.table({name: arrow.array(column, from_pandas=False) for name, column in columns.items()})


@dataclass(frozen=True)
class Series:
    """A metric of a run, on a rank and a device.

    Attributes:
        run: The run's id.
        metric: The metric's name.
        rank: The rank; None: of no rank.
        device: The device; empty: of none.
        unit: The unit of its values.
        count: How many points it has.
        nonfinite: How many of them are NaN or ±Inf.
        last: The newest value.
        last_step: Its step; None when it is not known.
    """

    run: str
    metric: str
    rank: int | None
    device: str
    unit: str
    count: int
    nonfinite: int
    last: float
    last_step: int | None
    _link: Link

    @classmethod
    def of(cls, link: Link, run: str, info: dict[str, Any]) -> Series:
        """Makes a series of what the API says."""
        return cls(
            run=run,
            metric=info["metric"],
            rank=info["rank"],
            device=info["device"],
            unit=info["unit"],
            count=info["points"],
            nonfinite=info["nonfinite"],
            last=number(info["last"]),
            last_step=info["last_step"],
            _link=link,
        )

    def __repr__(self) -> str:
        """Names it."""
        return f"Series({self.metric!r}, rank={self.rank}, device={self.device!r}, {self.count:,} points)"

    def as_row(self) -> dict[str, Any]:
        """Returns column to value."""
        names = ("run", "metric", "rank", "device", "unit", "count", "nonfinite", "last", "last_step")
        return {name: getattr(self, name) for name in names}

    def pages(self, *, limit: int = 1_000_000) -> Iterator[Points]:
        """Yields the series' points a page at a time, for series that do not fit into memory.

        Args:
            limit: Points of a page at most, up to a million.
        """
        position: int | None = 0
        while position is not None:
            page = self._link.get_packed(
                f"/runs/{self.run}/series/points",
                metric=self.metric,
                rank=self.rank,
                device=self.device,
                first=position,
                limit=limit,
                format="msgpack",
            )
            yield Points(
                metric=self.metric,
                rank=self.rank,
                device=self.device,
                step=np.frombuffer(page["step"], dtype="<i8"),
                time=np.frombuffer(page["time"], dtype="<f8"),
                value=np.frombuffer(page["value"], dtype="<f8"),
            )
            position = page["next"]

    def points(self) -> Points:
        """Returns all points, at full resolution."""
        pages = list(self.pages())
        return Points(
            metric=self.metric,
            rank=self.rank,
            device=self.device,
            step=np.concatenate([page.step for page in pages]),
            time=np.concatenate([page.time for page in pages]),
            value=np.concatenate([page.value for page in pages]),
        )
