"""From events to what is to be stored: a run and its ranks as they are afterwards, and the rows to add.

Pure: records and events in, records and rows out. The ingest reads the one and writes the other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, MutableMapping
from typing import Any, Final

import msgspec

from trainwatch import events, journal
from trainwatch.server.ingest.plausible import NAME_LIMIT, plausible
from trainwatch.server.models import NO_RANK
from trainwatch.server.store.evidence import PhaseTotal
from trainwatch.server.store.layers import Measurement
from trainwatch.server.store.points import Fresh, Key, SeriesOfRun
from trainwatch.server.store.records import Rank, Run, Sketch, Source
from trainwatch.server.store.sparkline import Sparkline

LOSS: Final = "train/loss"
EVAL_LOSS: Final = "eval/loss"
LOGGED_LOSS: Final = "train/loss_logged"
REPORTED_EVAL_LOSS: Final = "eval/loss_reported"
UNKNOWN_EVENT: Final = "unknown event"
NAME_TOO_LONG: Final = "metric name too long"

_TEXT_LIMIT: Final = 65_536
_TENSORS_KEPT: Final = 200
_SAMPLES_KEPT: Final = 4096

_Place = tuple[Callable[[int], None], Callable[[float], None], Callable[[float], None]]


class Digest:
    """Takes the events of one run's batches, in order.

    Args:
        run: The run's record; changed in place.
        ranks: Its ranks, as far as they are stored; changed and added to in place.
    """

    def __init__(self, run: Run, ranks: MutableMapping[int, Rank]) -> None:
        self.run = run
        self.ranks = ranks
        # With what they were before; None: they are new.
        self.changed_ranks: dict[int, Sketch | None] = {}
        self.described = False
        self.restarted = False
        self.lives_changed = False
        self.points: defaultdict[Key, Fresh] = defaultdict(Fresh)
        # By rank and device, then by metric: where its points go.
        self._places: defaultdict[tuple[int, str], dict[str, _Place]] = defaultdict(dict)
        self.phases: list[dict[str, Any]] = []
        self.checkpoints: list[dict[str, Any]] = []
        self.nonfinite: list[dict[str, Any]] = []
        self.findings: list[tuple[events.FindingRaised, Source]] = []
        self.setups: dict[int, dict[str, Any]] = {}
        self.signals: dict[int, dict[str, Any]] = {}
        self.phase_totals: defaultdict[tuple[int, str], PhaseTotal] = defaultdict(PhaseTotal)
        self.layers: list[Measurement] = []
        self.autopsies: list[dict[str, Any]] = []
        self.out_of_memory: list[dict[str, Any]] = []

    def take(self, event: events.AnyEvent, source: Source) -> str | None:
        """Takes one event.

        Returns:
            None, or the reason why it cannot be kept.
        """
        if not plausible(event):
            return UNKNOWN_EVENT
        kind = type(event)
        if kind in _OF_A_RANK and source.rank is None:
            return UNKNOWN_EVENT
        reason = None
        if isinstance(event, events.StepEnded):
            self._progress(event.step, source)
            reason = self._values(event, event.step, NO_RANK if source.rank is None else source.rank, event.values)
            reason = self._devices(event, event.step, source.rank, source, event.devices) or reason
        elif isinstance(event, events.Sampled):
            step = -1 if event.step is None else event.step
            reason = self._devices(event, step, event.rank, source, event.devices)
        elif isinstance(event, events.Logged | events.Evaluated):
            if source.node == journal.IMPORTED_NODE:  # it knows no steps but those at which something was logged
                self._progress(event.step, source)
            reason = self._values(event, event.step, NO_RANK if source.rank is None else source.rank, event.values)
        elif isinstance(event, events.RunStarted):
            self._started(event, source)
        elif isinstance(event, events.RunEnded):
            self._ended(event, source)
        elif isinstance(event, events.ProcessGone):
            self._gone(event, source)
        elif isinstance(event, events.PhaseEntered):
            self._phase(event, source)
        elif isinstance(event, events.NonFiniteSeen):
            self._nonfinite(event, source)
        elif isinstance(event, events.CheckpointSaved):
            self._checkpoint(event, source)
        elif isinstance(event, events.SignalsFound):
            self._signals(event, source)
        elif isinstance(event, events.LayersMeasured):
            self.layers.append(
                Measurement(
                    source.rank or 0, event.step, event.time, event.layers, event.norms, event.zeros, event.updates
                )
            )
        elif isinstance(event, events.Autopsied):
            self._autopsy(event, source)
        elif isinstance(event, events.OutOfMemorySeen):
            self._out_of_memory(event, source)
        elif isinstance(event, events.FindingRaised):
            self.findings.append((event, source))
        elif isinstance(event, events.TroubleCounted):
            source.reported_errors = dict(event.errors)
            source.reported_lost = dict(event.lost)
            source.message = event.message[:_TEXT_LIMIT]
        self.run.last_event_at = max(self.run.last_event_at, event.time)
        if source.rank is not None:
            rank = self._rank(source.rank, source)
            rank.last_event_at = max(rank.last_event_at, event.time)
        return reason

    def summarize(self, series: SeriesOfRun) -> None:
        """Brings the run's own last loss, eval loss and sparkline up to date with the points taken.

        Args:
            series: The series of the ranks concerned, these points included.
        """
        imported = self.run.node == journal.IMPORTED_NODE
        loss, eval_loss = (LOGGED_LOSS, REPORTED_EVAL_LOSS) if imported else (LOSS, EVAL_LOSS)
        for key in sorted(self.points, key=lambda key: key.rank):
            if key.device or key.rank == NO_RANK or key.metric not in (loss, eval_loss):
                continue
            fresh, run = self.points[key], self.run
            if fresh.time[-1] < series[key.rank][key].last_time:
                continue  # of a process long replaced, shipped late
            if key.metric == eval_loss:
                if run.eval_rank is None or key.rank <= run.eval_rank:
                    run.eval_rank, run.last_eval_loss = key.rank, fresh.value[-1]
            elif run.loss_rank is None or key.rank <= run.loss_rank:
                line = Sparkline(run.sparkline if run.loss_rank == key.rank else None)
                line.extend(zip(fresh.step, fresh.value, strict=True))
                run.loss_rank, run.last_loss, run.sparkline = key.rank, fresh.value[-1], line.to_bytes()

    # -- points --------------------------------------------------------------------------------------------------

    def _values(self, event: events.Event, step: int, rank: int, values: events.Values, device: str = "") -> str | None:
        reason, time = None, event.time
        places = self._places[rank, device]
        for metric, value in values.items():
            place = places.get(metric)
            if place is None:
                if len(metric) > NAME_LIMIT or len(device) > NAME_LIMIT:
                    reason = NAME_TOO_LONG
                    continue
                fresh = self.points[Key(_clean(metric), rank, _clean(device))]
                place = places[metric] = (fresh.step.append, fresh.time.append, fresh.value.append)
            add_step, add_time, add_value = place
            add_step(step)
            add_time(time)
            add_value(value)
        return reason

    def _devices(
        self, event: events.Event, step: int, rank: int | None, source: Source, devices: events.DeviceValues
    ) -> str | None:
        reason = None
        for device, values in devices.items():
            # Readings of a node have no rank to tell them apart: those of the run's other nodes carry their names.
            name = f"{device}@{source.node}" if rank is None and source.node != self.run.node else device
            reason = self._values(event, step, NO_RANK if rank is None else rank, values, name) or reason
        return reason

    # -- the lives of ranks and run ------------------------------------------------------------------------------

    def _rank(self, number: int, source: Source) -> Rank:
        rank = self.ranks.get(number)
        if rank is None:
            rank = self.ranks[number] = Rank(run=self.run.id, rank=number, node=source.node)
            self.changed_ranks[number] = None
        elif number not in self.changed_ranks:
            self.changed_ranks[number] = rank.sketch()
        return rank

    def _progress(self, step: int, source: Source) -> None:
        if source.rank is None:
            return
        if source.first_step is None:
            source.first_step = step
        rank = self._rank(source.rank, source)
        if rank.is_newest(source.source):
            rank.step = max(rank.step, step)
            if rank.takes_part(self.run.superseded_until):
                self.run.step = max(self.run.step, step)

    def _started(self, event: events.RunStarted, source: Source) -> None:
        run, rank = self.run, self._rank(source.rank or 0, source)
        source.started_at, source.world_size = event.time, event.world_size
        # An agent's first sample may be older, or its clock off: a rank knows better when the run began.
        run.started_at = event.time if run.described_by is None else min(run.started_at, event.time)
        replaced_at = None if rank.is_newest(source.source) else rank.started_at
        if replaced_at is not None and not _is_newer(event, source, rank):
            return  # of a process long replaced, shipped late
        relaunched = replaced_at is not None and rank.takes_part(run.superseded_until)
        if replaced_at is not None:
            # Should it seem to live on (the clocks of two machines differ), nothing later than its begin is sure.
            until = rank.last_event_at if rank.last_event_at < event.time else replaced_at
            run.superseded_until = max(run.superseded_until, until)
        known_dead = rank.state == "died" and rank.pid == event.pid and (rank.ended_at or 0.0) >= event.time
        if rank.source != source.source and not known_dead:
            rank.state, rank.ended_at, rank.reason, rank.parameters = "running", None, "", {}
            rank.error, rank.traceback, rank.oom_kills = "", "", 0
            rank.step, rank.phase = event.first_step, ""
        self.setups[rank.rank] = {
            "environment": event.environment,
            "model": event.model,
            "arguments": event.arguments,
            "dataset": event.dataset,
        }
        if rank.source != source.source:
            self.signals[rank.rank] = {}
        rank.source, rank.started_at, rank.pid, rank.node = source.source, event.time, event.pid, source.node
        takes_part = rank.takes_part(run.superseded_until)
        if relaunched:
            run.step = event.first_step
            self.restarted = True
        elif takes_part:
            run.step = max(run.step, event.first_step)
        self.lives_changed = True
        if run.described_by is None or (takes_part and (source.rank == run.described_by or rank.rank == 0)):
            run.described_by, self.described = rank.rank, True
            run.name, run.world_size, run.max_steps = event.name[:NAME_LIMIT], event.world_size, event.max_steps
            run.policy, run.loss_source, run.output_dir = event.policy, event.loss_source, event.output_dir
            run.arguments, run.environment, run.model = event.arguments, event.environment, event.model
            run.dataset = event.dataset

    def _ended(self, event: events.RunEnded, source: Source) -> None:
        rank = self._rank(source.rank or 0, source)
        if not rank.is_newest(source.source):
            return
        # Also after ProcessGone: the process's own last word was only read later.
        rank.state, rank.ended_at, rank.reason, rank.parameters = (
            event.outcome,
            event.time,
            event.reason,
            event.parameters,
        )
        rank.error, rank.traceback = event.error[:_TEXT_LIMIT], event.traceback[-_TEXT_LIMIT:]
        rank.step = max(rank.step, event.step)
        self.lives_changed = True

    def _gone(self, event: events.ProcessGone, source: Source) -> None:
        rank = self._rank(event.rank, source)
        if rank.pid not in (0, event.pid) or rank.state not in ("waiting", "running"):
            return  # another process of this rank, or one that could say itself how it ended
        if rank.started_at is not None and (event.time < rank.started_at or source.node != rank.node):
            return  # the same number before, or elsewhere: in containers every training has the same one
        rank.state, rank.ended_at, rank.pid = "died", event.time, event.pid
        rank.oom_kills, rank.reason = event.oom_kills, "process_gone"
        rank.parameters = {"phase": event.phase or "", "oom_kills": event.oom_kills}
        rank.phase = event.phase or rank.phase
        if event.step is not None:
            rank.step = max(rank.step, event.step)
        rank.last_event_at = max(rank.last_event_at, event.time)
        self.lives_changed = True

    def _phase(self, event: events.PhaseEntered, source: Source) -> None:
        rank = self._rank(source.rank or 0, source)
        if rank.is_newest(source.source):
            rank.phase = event.phase
        self.phases.append(
            {"run": self.run.id, "rank": rank.rank, "phase": event.phase, "step": event.step, "time": event.time}
        )
        self.phase_totals[rank.rank, event.phase].entered += 1
        if event.left is not None:
            self.phase_totals[rank.rank, event.left].leave(event.seconds, event.peak)

    def _signals(self, event: events.SignalsFound, source: Source) -> None:
        rank = self._rank(source.rank or 0, source)
        if rank.is_newest(source.source):
            self.signals[rank.rank] = {"step": event.step, "sources": event.sources, "missing": event.missing}

    # -- rows ----------------------------------------------------------------------------------------------------

    def _nonfinite(self, event: events.NonFiniteSeen, source: Source) -> None:
        self.nonfinite.append(
            {
                "run": self.run.id,
                "rank": source.rank,
                "step": event.step,
                "time": event.time,
                "where": event.where,
                "value": event.value,
                "action": event.action,
                "micro_batches": event.micro_batches,
                "local": event.local,
                "parameters": {"names": event.parameters[:8]},
                "parameter_count": event.parameter_count,
                "in_a_row": event.in_a_row,
                "recent": event.recent,
            }
        )

    def _checkpoint(self, event: events.CheckpointSaved, source: Source) -> None:
        self.checkpoints.append(
            {
                "run": self.run.id,
                "rank": source.rank,
                "step": event.step,
                "path": event.path,
                "reason": event.reason,
                "time": event.time,
            }
        )

    def _autopsy(self, event: events.Autopsied, source: Source) -> None:
        content = msgspec.to_builtins(event)
        for tensors in ("inputs", "outputs", "weights"):
            if tensors in content:
                content[tensors] = content[tensors][:_TENSORS_KEPT]
        if "samples" in content:
            content["samples"] = content["samples"][:_SAMPLES_KEPT]
        content["note"] = event.note[:_TEXT_LIMIT]
        self.autopsies.append(
            {"run": self.run.id, "rank": source.rank, "step": event.step, "time": event.time, "content": content}
        )

    def _out_of_memory(self, event: events.OutOfMemorySeen, source: Source) -> None:
        self.out_of_memory.append(
            {
                "run": self.run.id,
                "rank": source.rank,
                "step": event.step,
                "time": event.time,
                "device": event.device[:NAME_LIMIT],
                "requested": event.requested,
                "allocated": event.allocated,
                "free": event.free,
                "phase": event.phase or "",
                "summary": event.summary[:_TEXT_LIMIT],
            }
        )


_OF_A_RANK: Final = (
    events.RunStarted,
    events.RunEnded,
    events.PhaseEntered,
    events.NonFiniteSeen,
    events.CheckpointSaved,
    events.SignalsFound,
    events.LayersMeasured,
    events.Autopsied,
    events.OutOfMemorySeen,
)


def _is_newer(event: events.RunStarted, source: Source, rank: Rank) -> bool:
    """Tells whether a process replaces the rank's newest one.

    By time: the number in a source's name counts the attempts on one disk, and begins anew on another machine.
    """
    if rank.started_at is None or event.time != rank.started_at:
        return rank.started_at is None or event.time > rank.started_at
    return journal.attempt_of(source.source) > journal.attempt_of(rank.source)


def lost_of(source: Source, reasons: Counter[str]) -> None:
    """Adds to what was lost of a source."""
    if reasons:
        source.lost = dict(reasons + Counter(source.lost))


def _clean(name: str) -> str:
    return name.replace("\x00", "") if "\x00" in name else name
