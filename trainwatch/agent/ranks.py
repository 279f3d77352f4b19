"""What is known of each rank's process on this node: its number, its step and phase, whether it has ended."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from trainwatch.agent.outside import Outside
from trainwatch.events import (
    AnyEvent,
    CheckpointSaved,
    DeviceValues,
    Evaluated,
    Logged,
    Phase,
    PhaseEntered,
    ProcessGone,
    RunEnded,
    RunStarted,
    StepEnded,
)
from trainwatch.journal import Source
from trainwatch.probes import host

# A journal without RunStarted names no process. Its writer begins within moments or has died before it could.
NAMELESS_SECONDS: Final = 30.0


class RankState:
    """One rank's source.

    Args:
        source: Where it writes.
        rank: Its number.
    """

    def __init__(self, source: Source, rank: int) -> None:
        self.source = source
        self.rank = rank
        self.started: RunStarted | None = None
        self.step: int | None = None
        self.phase: Phase | None = None
        self.over = False
        self.checkpoint = ""
        self.devices: DeviceValues = {}
        self.outside = Outside()
        self.last_time = 0.0

    def observe(self, event: AnyEvent) -> None:
        """Takes the next event of the rank."""
        self.last_time = max(self.last_time, event.time)
        self.outside.observe(event)
        if isinstance(event, RunStarted):
            self.started, self.over = event, False
            self.step = event.first_step or None
        elif isinstance(event, StepEnded | Logged | Evaluated | CheckpointSaved):
            self.step = max(self.step or 0, event.step)
        elif isinstance(event, PhaseEntered):
            self.phase = event.phase
        elif isinstance(event, RunEnded):
            self.over = True
        if isinstance(event, CheckpointSaved):
            self.checkpoint = event.path
        if isinstance(event, StepEnded):
            self.note(event.devices)

    def note(self, devices: DeviceValues) -> None:
        """Keeps the newest readings."""
        self.devices = {**self.devices, **{name: {**self.devices.get(name, {}), **v} for name, v in devices.items()}}

    def is_alive(self, now: float) -> bool:
        """Tells whether the rank's process runs.

        Args:
            now: Unix time.
        """
        if self.started is None or not self.started.pid:
            return now - max(self.last_time, _written_at(self.source.directory)) < NAMELESS_SECONDS
        return host.is_alive(self.started.pid, self.started.process_started)

    def gone(self, time: float, oom_kills: int = 0) -> ProcessGone:
        """Returns the event that says that the process is no more.

        Args:
            time: When it was seen, in Unix seconds.
            oom_kills: What the OOM killer took in its cgroup.
        """
        return ProcessGone(
            time=time,
            rank=self.rank,
            pid=self.started.pid if self.started else 0,
            step=self.step,
            phase=self.phase,
            devices=self.devices,
            oom_kills=oom_kills,
        )


class Ranks:
    """All ranks of a node folder, by source."""

    def __init__(self) -> None:
        self.states: dict[str, RankState] = {}

    def observe(self, source: Source, event: AnyEvent) -> None:
        """Takes an event from any source of the folder."""
        rank = source.rank
        if rank is None:
            return
        if source.name not in self.states:
            self.states[source.name] = RankState(source, rank)
        self.states[source.name].observe(event)

    def add(self, source: Source) -> None:
        """Makes a rank known of which nothing could be read yet."""
        if source.rank is not None:
            self.states.setdefault(source.name, RankState(source, source.rank))

    @property
    def running(self) -> list[RankState]:
        """Those that have not ended as far as is known."""
        return [state for state in self.states.values() if not state.over]


def _written_at(directory: Path) -> float:
    try:
        return max((path.stat().st_mtime for path in directory.glob("*.twj")), default=0.0)
    except OSError:
        return 0.0
