"""What the HTTP API answers and takes; the OpenAPI document, and with it the web UI's types, are made from this."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from trainwatch.events import Action as RuleAction
from trainwatch.events import AlertState, Outcome, Policy, Severity
from trainwatch.server.http.spelling import Document, Model, Number

State = Literal["running", "late", "finished", "halted", "failed", "died", "lost"]
RankState = Literal["waiting", "running", "finished", "halted", "failed", "died"]
Axis = Literal["step", "time"]
Theme = Literal["light", "dark"]
Action = Literal["halt", "checkpoint"]


class Health(Model):
    """The server is up; as an answer to ``/ready``, it can serve."""

    status: Literal["ok"]
    version: str
    database: str = Field(description="Kind of database: sqlite or postgresql.")


class Problem(Model):
    """Why a request was refused, in one sentence."""

    detail: str = Field(examples=["There is no run '0123456789abcdef'."])


class MetricInfo(Model):
    """An entry of the metric catalogue."""

    name: str
    unit: str
    title: str
    meaning: str
    source: str


class Sparkline(Model):
    """At most 60 points of train/loss; a bucket that held a non-finite value shows that value."""

    step: list[int]
    value: list[Number]


class AlertCounts(Model):
    """How many alerts of a run fire and are not silenced, by severity."""

    info: int
    warning: int
    critical: int


class Headroom(Model):
    """The device with the least memory left: its capacity minus its last known use, in bytes."""

    bytes: float
    capacity: float
    device: str
    rank: int | None


class RunBase(Model):
    """What is shown of a run everywhere."""

    id: str
    name: str
    project: str
    state: State
    started_at: float = Field(description="Unix seconds, by the clock of the training machine.")
    ended_at: float | None
    last_event_at: float
    step: int = Field(description="The last finished step of the newest attempt.")
    max_steps: int = Field(description="0 when unknown.")
    world_size: int
    nodes: list[str]
    last_loss: Number | None
    last_eval_loss: Number | None
    sparkline: Sparkline
    sentence: str = Field(description="What is or was the matter with the run; empty when it is healthy.")
    headroom: Headroom | None
    version: int = Field(description="Grows with every change of the run.")


class RunSummary(RunBase):
    """A run as the list of runs shows it."""

    alerts: AlertCounts


class RunList(Model):
    """A page of the list of runs, newest first."""

    runs: list[RunSummary]
    total: int = Field(description="How many runs match, on all pages together.")
    projects: list[str] = Field(description="All projects that have runs.")


class DeviceInfo(Model):
    """The last known memory of a device as one rank (or the whole node) saw it, in bytes."""

    device: str
    time: float
    used: float | None
    capacity: float | None
    readings: dict[str, Number] = Field(description="Metric name to its last value.")


class RankInfo(Model):
    """A rank and what was last known of it."""

    rank: int
    node: str
    pid: int
    state: RankState
    step: int
    phase: str = Field(description="load, train, eval, save, idle, or empty when not known.")
    last_event_at: float
    devices: list[DeviceInfo]


class Checkpoint(Model):
    """A checkpoint that lies on the training machine's disk."""

    step: int
    path: str
    reason: str
    time: float
    rank: int


class NonFiniteStep(Model):
    """A step in which a rank saw a NaN or an Inf."""

    step: int
    rank: int
    time: float
    where: str
    value: Number
    action: str
    micro_batches: int
    local: bool
    parameters: list[str]
    parameter_count: int
    in_a_row: int
    replaced: bool = Field(description="The run was taken up again before this step, and did it anew.")


class Alert(Model):
    """A rule that matched, once or often, for one rank or for the run as a whole."""

    id: int
    rule: str
    severity: Severity
    state: AlertState
    sentence: str
    rank: int | None
    first_step: int | None
    last_step: int | None
    count: int = Field(description="How often it was found.")
    first_at: float
    last_at: float
    parameters: Document
    key: str = Field(description="What tells it from other alerts of its rule and rank: a device, a metric.")
    action: RuleAction = Field(description="What was done about it.")
    resolved_at: float | None = Field(description="When it was over; null while it is not.")
    silenced: bool
    silenced_until: Number | None = Field(description="By the server's clock; Infinity: for ever.")


class SilenceRequest(Model):
    """For how long nobody wants to hear of an alert."""

    hours: float | None = Field(default=None, gt=0, le=24 * 365, description="null: for ever.")


class End(Model):
    """How the run ended."""

    outcome: Outcome | Literal["died"]
    sentence: str
    step: int
    rank: int
    time: float
    error: str
    traceback: str
    resume_from: str = Field(description="Path of the checkpoint to resume from; empty when there is none.")


class Trouble(Model):
    """What failed or was lost within TrainWatch itself, over all of the run's sources."""

    errors: dict[str, int]
    lost: dict[str, int]
    message: str


class Signal(Model):
    """Where something is read, or why it is not."""

    signal: str
    source: str = Field(description="For people; empty when it is missing.")
    missing: str = Field(description="Why it cannot be read; empty when it can.")
    ranks: str = Field(description="The ranks of which this is true, like 0-3, 5; empty for all.")


class Holder(Model):
    """A value, and the ranks that have it."""

    value: str | None = Field(description="As text, shortened; null where the ranks have none.")
    ranks: str = Field(description="Like 0-3, 5.")


class Difference(Model):
    """Something in which ranks differ and should not."""

    key: str = Field(description="Where it stands: environment.packages.torch.")
    severity: Severity
    holders: list[Holder] = Field(description="The value of the most ranks first.")
    more: int = Field(description="How many further values are not listed.")


class TensorInfo(Model):
    """A tensor in few words."""

    name: str
    shape: list[int]
    dtype: str
    device: str
    low: Number | None = Field(description="Smallest finite value; null when there is none.")
    high: Number | None
    nan: int
    inf: int


class Autopsy(Model):
    """What a non-finite step looked like from inside: its batch was run once more, with hooks."""

    id: int
    rank: int
    step: int
    time: float
    sentence: str
    cause: str
    parameters: Document
    micro_batch: int | None = Field(description="Which of the step's micro-batches on this rank, from 0.")
    samples: list[int] = Field(description="Indices in the data set, where the sampler tells.")
    reproduced: bool
    module: str = Field(description="The first whose output, or gradient, was not finite; empty when none was found.")
    module_kind: str
    inputs: list[TensorInfo]
    outputs: list[TensorInfo] = Field(description="Of the last finite modules and of the first that was not.")
    weights: list[TensorInfo]
    tokens: int | None
    padded_tokens: int | None
    supervised_tokens: int | None
    loss: Number | None
    loss_scale: Number | None
    learning_rate: Number | None
    seconds: float
    note: str


class OutOfMemory(Model):
    """A request that an allocator could not serve; sizes in bytes."""

    id: int
    rank: int
    step: int
    time: float
    sentence: str
    device: str
    requested: int
    allocated: int
    free: int
    phase: str
    summary: str = Field(description="The allocator's own, as text.")


class PhaseTotal(Model):
    """How often a rank was in a phase, for how long, and the most memory that it took there."""

    rank: int
    phase: str
    entered: int
    seconds: float = Field(description="Of the times that it was left again.")
    peak: dict[str, dict[str, Number]] = Field(description="Device to metric to the highest value, in bytes.")


class ChartInfo(Model):
    """A chart for which the run has data."""

    id: str
    title: str
    unit: str


class RunDetail(RunBase):
    """A run as its own page shows it."""

    ranks: list[RankInfo]
    hosts: list[DeviceInfo] = Field(description="Readings that belong to a whole node.")
    arguments: Document
    environment: Document
    model: Document
    dataset: Document
    differences: list[Difference] = Field(description="Between the ranks of the newest launch; warnings first.")
    signals: list[Signal]
    policy: Policy
    loss_source: str
    output_dir: str
    checkpoints: list[Checkpoint]
    nonfinite: list[NonFiniteStep] = Field(description="The first and the last of them, at most 100 each.")
    nonfinite_count: int
    autopsies: list[Autopsy] = Field(description="The newest, newest first.")
    autopsy_count: int
    out_of_memory: list[OutOfMemory] = Field(description="The newest, newest first.")
    out_of_memory_count: int
    phases: list[PhaseTotal]
    alerts: list[Alert]
    end: End | None
    trouble: Trouble
    charts: list[ChartInfo]


class Figure(Model):
    """A Plotly figure as plotly.py writes it; arrays may be ``{dtype, bdata}`` with base64 bytes."""

    data: list[dict[str, Any]]
    layout: dict[str, Any]


class CommandRequest(Model):
    """What a person wants of a run."""

    action: Action
    reason: str = Field(default="", max_length=1000)


class CommandInfo(Model):
    """A command; it is delivered with the answer to the next shipment that names the run."""

    id: int
    run: str
    action: Action
    reason: str
    created_at: float


class Login(Model):
    """The token, to be exchanged for a session cookie."""

    token: str = Field(max_length=1000)


class Changed(Model):
    """The data of the event ``changed``: something new is known of the run."""

    run: str
    version: int
