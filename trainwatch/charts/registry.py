"""The charts that exist: the explicit tuple :data:`CHARTS`, and one made on demand for any other metric."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal

from trainwatch.metrics import describe

_METRIC_PREFIX: Final = "metric:"


@dataclass(frozen=True)
class Chart:
    """One chart.

    Attributes:
        id: Name in addresses.
        title: Heading for people; the page shows it, the figure does not.
        unit: Base unit of the values, as in :class:`trainwatch.metrics.Metric`.
        metrics: What is drawn, the most important first.
        bands: Whether phases (eval, save, load) are shown as background bands.
        checkpoints: Whether checkpoints are marked.
        log: Whether values of very different size are drawn on a log axis (only when all are above 0).
        counters: Metrics that only grow; a mark says where one did.
        kind: How it is drawn: ``lines``; ``stack``, parts of a whole, which comes last; ``layers``, a heat map.
        quantity: For ``layers``: norms, zeros or updates.
    """

    id: str
    title: str
    unit: str
    metrics: tuple[str, ...]
    bands: bool = False
    checkpoints: bool = False
    log: bool = False
    counters: tuple[str, ...] = ()
    kind: Literal["lines", "stack", "layers"] = "lines"
    quantity: Literal["", "norms", "zeros", "updates"] = ""

    def shows(self, metrics: Collection[str]) -> bool:
        """Whether a run that has these metrics has something to show on this chart."""
        # The whole is no split: one part of it at least.
        own = self.metrics[:-1] if self.kind == "stack" else (*self.metrics, *self.counters)
        return any(metric in metrics for metric in own)


CHARTS: Final[tuple[Chart, ...]] = (
    Chart(
        "loss",
        "Loss",
        "",
        ("train/loss", "train/loss_logged", "eval/loss", "eval/loss_reported"),
        checkpoints=True,
        log=True,
    ),
    Chart(
        "gradients",
        "Gradient norm",
        "",
        ("train/grad_norm", "train/grad_norm_local"),
        checkpoints=True,
        log=True,
    ),
    Chart("learning_rate", "Learning rate", "", ("train/learning_rate",)),
    Chart(
        "memory",
        "Memory",
        "bytes",
        (
            "memory/peak",
            "memory/allocated",
            "memory/reserved",
            "memory/peak_reserved",
            "memory/inactive_split",
            "memory/process_used",
            "memory/outside",
            "memory/others_used",
            "memory/resident",
            "memory/tree_resident",
            "memory/mapped",
            "memory/shared",
            "memory/device_used",
            "memory/capacity",
        ),
        bands=True,
        checkpoints=True,
    ),
    Chart(
        "fragmentation",
        "Fragmentation and retries",
        "bytes",
        ("memory/inactive_split",),
        checkpoints=True,
        counters=("memory/alloc_retries", "memory/ooms"),
    ),
    Chart("batch", "Batch", "tokens", ("train/padded_tokens", "train/tokens", "train/supervised_tokens")),
    Chart("speed", "Step time", "seconds", ("train/step_seconds",), bands=True, checkpoints=True, log=True),
    Chart(
        "time",
        "Where a step's time goes",
        "seconds",
        ("train/data_seconds", "train/compute_seconds", "train/optimizer_seconds", "train/step_seconds"),
        kind="stack",
    ),
    Chart("padding", "Padding", "ratio", ("train/padding_share",)),
    Chart("throughput", "Tokens a second", "1/s", ("train/tokens_per_second",)),
    Chart("mfu", "Model FLOPs utilisation", "ratio", ("train/mfu",)),
)

LAYER_CHARTS: Final[tuple[Chart, ...]] = (
    Chart("layers", "Gradient norm of each layer", "", (), kind="layers", quantity="norms", log=True),
    Chart("layers/zeros", "Zero gradients of each layer", "ratio", (), kind="layers", quantity="zeros"),
    Chart("layers/updates", "Update to weight of each layer", "", (), kind="layers", quantity="updates", log=True),
)

_BY_ID: Final = {chart.id: chart for chart in (*CHARTS, *LAYER_CHARTS)}


def chart_for(chart_id: str) -> Chart:
    """Returns a chart by its id; ``metric:NAME`` is a chart of that one metric.

    Raises:
        KeyError: There is no such chart; the message lists those there are.
    """
    chart = _BY_ID.get(chart_id)
    if chart is not None:
        return chart
    name = chart_id.removeprefix(_METRIC_PREFIX)
    if name and name != chart_id:
        metric = describe(name)
        return Chart(chart_id, metric.title, metric.unit, (name,), log=metric.unit in ("", "seconds"))
    raise KeyError(f"there is no chart {chart_id!r}: use one of {', '.join(_BY_ID)}, or {_METRIC_PREFIX}NAME")
