"""A device that has nothing to do although the run trains."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from trainwatch.events import FindingRaised, RunEnded, RunStarted, Sampled, StepEnded
from trainwatch.rules.base import Options, Rule, Seconds, Share

# Samples farther apart tell nothing of the time between them.
_FARTHEST: Final = 30.0
_WARM_UP_STEPS: Final = 3


class IdleOptions(Options, frozen=True, kw_only=True):
    """Options of :class:`IdleDevice`.

    Attributes:
        seconds: How much time of training is looked at.
        share: Below which mean utilization a device idles.
    """

    seconds: Seconds = 120.0
    share: Share = 0.05


class _Watched:
    """One device of one rank."""

    __slots__ = ("busy", "said", "seconds", "since")

    def __init__(self, since: int) -> None:
        self.seconds = self.busy = 0.0
        self.since = since
        self.said = False


class _Trained:
    """What is known of a rank's steps."""

    __slots__ = ("at", "devices", "steps")

    def __init__(self) -> None:
        self.steps = 0
        self.at: float | None = None
        self.devices: dict[str, _Watched] = {}


class IdleDevice(Rule[IdleOptions]):
    """A device is hardly used while the rank that owns it trains."""

    id = "gpu_idle"
    listens = (Sampled, StepEnded, RunStarted, RunEnded)
    options_type = IdleOptions
    actions = ("notify",)

    def __init__(self, options: IdleOptions) -> None:
        super().__init__(options)
        self._ranks: dict[int | None, _Trained] = {}

    def observe(self, event: Any, rank: int | None) -> Iterable[FindingRaised]:
        """See :class:`~trainwatch.rules.base.Rule`."""
        kind = type(event)
        if kind is StepEnded:
            trained = self._ranks.get(rank)
            if trained is None:
                trained = self._ranks[rank] = _Trained()
            trained.steps += 1
            return ()
        if kind is Sampled:
            trained = self._ranks.get(rank)
            if trained is None or trained.steps <= _WARM_UP_STEPS:
                return ()
            passed = event.time - trained.at if trained.at is not None else 0.0
            trained.at = event.time
            # Evaluation, saving, a compiler at work: other things than training may leave a device alone.
            if event.phase != "train" or not 0.0 < passed <= _FARTHEST:
                return ()
            return self._look(event, rank, trained, passed)
        gone = self._ranks.pop(rank, None)
        if gone is None:
            return ()
        return [self.cleared(event, rank=rank, key=device) for device, watched in gone.devices.items() if watched.said]

    def _look(self, event: Sampled, rank: int | None, trained: _Trained, passed: float) -> list[FindingRaised]:
        found: list[FindingRaised] = []
        for device, values in event.devices.items():
            share = values.get("device/utilization")
            if share is None or not 0.0 <= share <= 1.0:
                continue
            watched = trained.devices.get(device)
            if watched is None:
                watched = trained.devices[device] = _Watched(trained.steps)
            watched.seconds += passed
            watched.busy += passed * share
            if watched.seconds < self.options.seconds:
                continue
            seconds, mean, steps = watched.seconds, watched.busy / watched.seconds, trained.steps - watched.since
            watched.seconds, watched.busy, watched.since = 0.0, 0.0, trained.steps
            # Where no step ends, nothing trains: that is a hang, or one very long step.
            idle = mean < self.options.share and steps > 0
            if idle and not watched.said:
                watched.said = True
                evidence = {"device": device, "share": mean, "seconds": seconds, "steps": steps}
                found.append(self.finding(event, "warning", rank=rank, step=event.step, key=device, evidence=evidence))
            elif watched.said and not idle and mean > 2 * self.options.share:
                watched.said = False
                found.append(self.cleared(event, rank=rank, key=device))
        return found
