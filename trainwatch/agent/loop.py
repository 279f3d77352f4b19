"""The agent's main loop: read, evaluate, sample, notice deaths, end. Shipping has a thread of its own.

The thread is there because a server may take long to answer, and a death must be seen and a sample taken meanwhile. The
two share nothing but the files, a wake-up and the counters of :class:`~trainwatch.agent.trouble.Trouble`.
"""

from __future__ import annotations

import os
import select
import signal
import threading
from pathlib import Path
from typing import Final

from trainwatch.agent.act import Actions
from trainwatch.agent.clock import SYSTEM, Clock
from trainwatch.agent.control import ControlFile
from trainwatch.agent.ending import Ending, Verdict
from trainwatch.agent.link import Link
from trainwatch.agent.ranks import RankState
from trainwatch.agent.record import Recorder
from trainwatch.agent.sample import Sampler
from trainwatch.agent.settled import settle
from trainwatch.agent.ship import Shipper
from trainwatch.agent.trouble import Trouble
from trainwatch.agent.watch import Watch

TROUBLE_SECONDS: Final = 2.0
TERMINATION_SECONDS: Final = 2.0
# Reading goes on at this pace when samples are taken more seldom.
_TICK_SECONDS: Final = 0.25
# A quick training makes dozens of steps in a second, and the last of them must not pass unseen.
_HASTY_SECONDS: Final = 0.05


class ShippingThread:
    """Runs a shipper until told to stop.

    Args:
        shipper: What it runs.
        trouble: Counts what escapes from it.
    """

    def __init__(self, shipper: Shipper, trouble: Trouble) -> None:
        self.shipper = shipper
        self._trouble = trouble
        self._wake = threading.Event()
        self._stop = False
        # A daemon: a server that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name="shipping", daemon=True)

    def start(self) -> None:
        """Starts it."""
        self._thread.start()

    def wake(self, *, hurry: bool | None = None) -> None:
        """Ships now instead of at the next interval.

        Args:
            hurry: Whether somebody waits for everything to be shipped; None leaves that as it is.
        """
        if hurry is not None:
            self.shipper.hurry = hurry
        self._wake.set()

    def stop(self, seconds: float) -> None:
        """Lets a shipment that is under way finish.

        Args:
            seconds: Longest wait.
        """
        self._stop = True
        self._wake.set()
        self._thread.join(seconds)

    def _run(self) -> None:
        while not self._stop:
            wait = 1.0
            with self._trouble.guard("shipping"):
                try:
                    wait = self.shipper.step()
                except FileNotFoundError:
                    wait = 0.1  # the folder is gone: the main loop ends the process
            if wait > 0:
                self._wake.wait(wait)
                self._wake.clear()


class Agent:
    """One run's agent on one node. The caller holds the folder's lock.

    Args:
        node_directory: ``journals/RUN/NODE``.
        link: The way to the server.
        sample_seconds: Time between two readings.
        trouble: Counts our own faults.
        clock: The clock.
    """

    def __init__(
        self, node_directory: Path, link: Link, sample_seconds: float, trouble: Trouble, clock: Clock = SYSTEM
    ) -> None:
        self._node_directory = node_directory
        self._sample_seconds = sample_seconds
        self._clock = clock
        self._trouble = trouble
        self._recorder = Recorder(node_directory, trouble)
        self._actions = Actions(ControlFile(node_directory), node_directory.parent.name, node_directory.name)
        self._watch = Watch(node_directory, self._recorder, trouble, self._actions)
        self._sampler = Sampler()
        self._shipping = ShippingThread(Shipper(node_directory, link, trouble, clock), trouble)
        self._ending = Ending(clock.monotonic())
        self._sample_at = 0.0
        self._trouble_at = 0.0
        self._seen_alive: set[str] = set()
        self._terminated = False

    def run(self) -> None:
        """Works until everything has ended, the folder is gone, or SIGTERM or SIGINT comes."""
        wake_up = self._catch_signals()
        self._shipping.start()
        while not self._terminated:
            began = self._clock.monotonic()
            if not self._node_directory.is_dir():
                self._trouble.say("folder gone", f"{self._node_directory} was removed")
                return
            more = self._tick(began)
            verdict = self._verdict(began)
            if verdict in (Verdict.DONE, Verdict.LEAVE):
                break
            tick = _HASTY_SECONDS if self._watch.is_near_end(self._clock.time()) else _TICK_SECONDS
            pause = min(self._sample_seconds, tick) - (self._clock.monotonic() - began)
            if not more and pause > 0:
                select.select([wake_up], [], [], pause)
        self._finish()

    def _tick(self, now: float) -> bool:
        more = False
        running = self._watch.ranks.running
        alive = {s.source.name for s in running if s.is_alive(self._clock.time())}
        with self._trouble.guard("reading journals"):
            self._watch.scan()
            more = self._watch.read()
            if len(alive) < len(running):
                # A process that ended well said so before it went, so its journal is read to the end first.
                while self._watch.read():
                    pass
        with self._trouble.guard("watching processes"):
            for state in running:
                if state.source.name not in alive and not state.over:
                    seen = state.source.name in self._seen_alive or not state.last_time
                    time = self._clock.time() if seen else state.last_time
                    self._watch.bury(state, time, self._sampler.oom_kills(state))
            self._seen_alive |= alive
        with self._trouble.guard("sampling"):
            known = {state.source.name for state in running}
            states = [
                state
                for state in self._watch.ranks.running
                if (state.source.name in alive if state.source.name in known else state.is_alive(self._clock.time()))
            ]
            self._sample(states, now, is_read=not more)
        if not more:  # settings that were recorded before are not known until then, and hold from where they stand
            with self._trouble.guard("setting rules"):
                self._watch.set_rules(self._shipping.shipper.rules, self._clock.time())
        with self._trouble.guard("carrying out actions"):
            self._actions.carry_out(self._clock.time(), is_read=not more)
        if now >= self._trouble_at:
            self._note_trouble()
            self._trouble_at = now + TROUBLE_SECONDS
        if self._watch.is_urgent:
            self._watch.is_urgent = False
            self._shipping.wake()
        return more

    def _sample(self, states: list[RankState], now: float, *, is_read: bool) -> None:
        """Takes readings when they are due, and at once of a rank that has just appeared: it may not live for long.

        Args:
            states: The ranks whose processes run.
            now: Monotonic seconds.
            is_read: Their journals are read to the end, so that it is known where a rank that is new stands.
        """
        is_due, is_new = now >= self._sample_at, any(self._sampler.is_new(state) for state in states)
        if not states or not (is_read if is_new else is_due):
            return
        if is_due:
            self._sample_at = max(self._sample_at + self._sample_seconds, now + self._sample_seconds / 2)
        for sample in self._sampler.sample(states, self._clock.time(), now):
            self._watch.record(sample, sample.rank)

    def _verdict(self, now: float) -> Verdict:
        ranks, shipper = self._watch.ranks, self._shipping.shipper
        verdict = self._ending.judge(
            now,
            ranks=len(ranks.states),
            running=len(ranks.running),
            empty_at=shipper.empty_at,
            progress_at=shipper.last_progress,
        )
        hurry = verdict is not Verdict.WATCH
        if hurry and not shipper.hurry:
            self._note_trouble()
        if hurry or shipper.hurry:
            self._shipping.wake(hurry=hurry)
        if verdict is Verdict.LEAVE:
            problem = shipper.problem or "no answer yet"
            self._trouble.say("leave", f"not everything could be shipped ({problem}); `trainwatch sync` ships the rest")
        if verdict is Verdict.DONE:
            with self._trouble.guard("marking the folder"):
                settle(self._node_directory)
        return verdict

    def _note_trouble(self) -> None:
        event = self._trouble.take()
        if event:
            self._recorder.record(event)

    def _finish(self) -> None:
        self._note_trouble()
        if self._terminated:
            shipper = self._shipping.shipper
            asked = self._clock.monotonic()
            self._shipping.wake(hurry=True)
            while shipper.empty_at < asked and self._clock.monotonic() - asked < TERMINATION_SECONDS:
                threading.Event().wait(0.02)
        self._shipping.stop(0.2)
        self._recorder.close()

    def _catch_signals(self) -> int:
        # Not an Event: setting one in a handler can block on the lock that the interrupted wait holds.
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._terminate)
        signal.signal(signal.SIGINT, self._terminate)
        if hasattr(signal, "SIGHUP"):
            signal.signal(signal.SIGHUP, signal.SIG_IGN)
        return read_end

    def _terminate(self, number: int, frame: object) -> None:
        self._terminated = True
