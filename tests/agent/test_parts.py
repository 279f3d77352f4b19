"""The agent's parts on their own: order, ending, counting, evaluating once."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.agent.scripted import NODE, Clock, Rank, node_folder, step
from trainwatch import events, journal
from trainwatch.agent import evaluate
from trainwatch.agent.ending import Ending, Verdict
from trainwatch.agent.evaluate import Evaluator, already_recorded
from trainwatch.agent.lock import FolderLock
from trainwatch.agent.ranks import NAMELESS_SECONDS, Ranks
from trainwatch.agent.record import Recorder
from trainwatch.agent.sample import CAPACITY_SECONDS, Sampler
from trainwatch.agent.settled import is_settled, settle
from trainwatch.agent.tail import Tail
from trainwatch.agent.trouble import LOG_BYTES, REPEAT_SECONDS, Trouble
from trainwatch.agent.watch import Watch
from trainwatch.events import (
    AnyEvent,
    FindingRaised,
    NonFiniteSeen,
    PhaseEntered,
    RunEnded,
    Sampled,
    StepEnded,
    TroubleCounted,
)
from trainwatch.rules import Options, Rule


def quiet(tmp_path: Path, clock: Clock | None = None) -> Trouble:
    return Trouble(clock or Clock(), os.open(tmp_path / "log", os.O_CREAT | os.O_RDWR | os.O_APPEND))


def at(moment: float, number: int = 1) -> StepEnded:
    return StepEnded(time=moment, step=number)


def test_events_of_all_sources_come_in_the_order_of_time(tmp_path: Path) -> None:
    node_directory = node_folder(tmp_path)
    ranks = [Rank(node_directory, f"rank{i}", segment_bytes=5000) for i in range(3)]
    for number in range(3000):
        ranks[number % 3].write(at(float(number)))
    tail = Tail(node_directory)
    assert [source.name for source in tail.scan()] == [rank.source for rank in ranks]
    times: list[float] = []
    while taken := tail.take(100):
        times += [event.time for _, event in taken]
    assert times == [float(number) for number in range(3000)]
    ranks[1].write(at(5.0))  # late, but it comes
    late = Rank(node_directory, "rank9")
    late.write(at(1.0))
    assert [source.name for source in tail.scan()] == [late.source]
    assert [(source.name, event.time) for source, event in tail.take()] == [
        (late.source, 1.0),
        (ranks[1].source, 5.0),
    ]


def test_what_cannot_be_decoded_is_passed_over(tmp_path: Path) -> None:
    node_directory = node_folder(tmp_path)
    rank = Rank(node_directory)
    rank.writer.append(b"\xc1")
    rank.writer.append(b"\x81\xa4type\xa6future")
    rank.write(at(1.0))
    tail = Tail(node_directory)
    tail.scan()
    assert [event for _, event in tail.take()] == [at(1.0)]


def test_a_source_of_ones_own_is_left_out(tmp_path: Path) -> None:
    node_directory = node_folder(tmp_path)
    recorder = Recorder(node_directory, quiet(tmp_path))
    assert not any(node_directory.glob("agent*"))
    recorder.record(at(1.0))
    assert recorder.source.startswith(f"agent@{NODE}~")
    tail = Tail(node_directory)
    assert tail.scan(except_for=recorder.source) == []


def judge(
    ending: Ending, now: float, running: int = 0, ranks: int = 1, empty: float = -1, progress: float = 0
) -> Verdict:
    return ending.judge(now, ranks=ranks, running=running, empty_at=empty, progress_at=progress)


def test_it_goes_when_all_have_ended_and_all_is_shipped() -> None:
    ending = Ending(0.0)
    assert judge(ending, 100, running=2) is Verdict.WATCH
    assert judge(ending, 101, empty=100.5) is Verdict.LINGER
    assert judge(ending, 101.9, empty=101.8) is Verdict.LINGER  # a moment for whoever starts again
    assert judge(ending, 102.1, empty=101.8) is Verdict.LINGER
    assert judge(ending, 102.3, empty=102.2) is Verdict.DONE


def test_a_rank_that_starts_again_puts_the_end_off() -> None:
    ending = Ending(0.0)
    judge(ending, 100)
    assert judge(ending, 100.5, running=1) is Verdict.WATCH
    assert judge(ending, 200, empty=150) is Verdict.LINGER
    assert judge(ending, 201, empty=201) is Verdict.DONE


def test_it_leaves_a_server_that_is_away_after_ten_seconds_but_not_one_that_takes_a_backlog() -> None:
    ending = Ending(0.0)
    judge(ending, 100, progress=50)
    assert judge(ending, 108, progress=50) is Verdict.LINGER
    assert judge(ending, 110, progress=50) is Verdict.LEAVE
    assert judge(ending, 110, progress=109) is Verdict.LINGER
    assert judge(ending, 500, progress=495) is Verdict.LINGER
    assert judge(ending, 505, progress=495) is Verdict.LEAVE


def test_without_any_rank_it_waits_half_a_minute() -> None:
    ending = Ending(0.0)
    assert judge(ending, 29, ranks=0) is Verdict.WATCH
    assert judge(ending, 31, ranks=0) is Verdict.LINGER
    assert judge(ending, 33, ranks=0, empty=32) is Verdict.DONE


def test_trouble_is_counted_and_told_when_it_changed(tmp_path: Path) -> None:
    trouble = quiet(tmp_path)
    assert trouble.take() is None
    with trouble.guard("sampling"):
        raise OSError("gone")
    with trouble.guard("sampling"):
        raise ValueError("odd")
    trouble.lose("disk full", 3)
    trouble.lose("disk full")
    event = trouble.take()
    assert isinstance(event, TroubleCounted)
    assert (event.errors, event.lost) == ({"sampling": 2}, {"disk full": 4})
    assert event.message == "sampling: ValueError: odd"
    assert trouble.take() is None


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_is_no_error_passes_through(tmp_path: Path, kind: type[BaseException]) -> None:
    with pytest.raises(kind), quiet(tmp_path).guard("anywhere"):
        raise kind


def test_the_log_repeats_itself_once_a_minute_and_stays_small(tmp_path: Path) -> None:
    clock = Clock()
    trouble = quiet(tmp_path, clock)
    log = tmp_path / "log"
    for _ in range(100):
        trouble.say("a", "the same")
        trouble.say("b", "another")
    assert len(log.read_text().splitlines()) == 2
    clock.now += REPEAT_SECONDS
    trouble.say("a", "the same")
    assert len(log.read_text().splitlines()) == 3
    for number in range(30):
        trouble.say(f"long {number}", "x" * 100_000)
    assert log.stat().st_size < LOG_BYTES + 200_000
    Trouble(clock, 987).say("a", "no such descriptor")


def test_a_rule_that_fails_is_counted_and_the_next_event_is_evaluated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing(Rule[Options]):
        """Fails once."""

        id = "r"
        listens = (type(at(1.0)),)

        def observe(self, event: AnyEvent, rank: int | None) -> list[FindingRaised]:
            if event.time == 1.0:
                raise ZeroDivisionError("a rule's fault")
            return [self.finding(event, "info", rank=rank, evidence={})]

    monkeypatch.setattr(evaluate, "RULES", (Failing,))
    trouble = quiet(tmp_path)
    evaluator = Evaluator(trouble, {})
    assert evaluator.observe(at(1.0), 0) == []
    assert [(f.rank, is_new) for f, is_new in evaluator.observe(at(2.0), 3)] == [(3, True)]
    event = trouble.take()
    assert event
    assert event.errors == {"rule r": 1}


def nonfinite(number: int) -> NonFiniteSeen:
    return NonFiniteSeen(time=float(number), step=number, where="loss", value=float("nan"), action="skipped")


def recorded_findings(node_directory: Path) -> list[tuple[str, int | None]]:
    found = []
    for source in journal.sources(node_directory.parent.parent):
        if source.rank is None:
            for record in journal.Reader(source.directory).read():
                event = events.decode(record.payload)
                if isinstance(event, FindingRaised):
                    found.append((source.name.partition("~")[0], event.step))
    return sorted(found)


def test_a_new_agent_raises_only_what_the_one_before_it_did_not_record(tmp_path: Path) -> None:
    node_directory = node_folder(tmp_path)
    rank = Rank(node_directory)
    rank.start(time=0.0)
    rank.write(nonfinite(1), step(1), nonfinite(2), step(2))

    def watch() -> None:
        trouble = quiet(tmp_path)
        recorder = Recorder(node_directory, trouble)
        watch = Watch(node_directory, recorder, trouble)
        watch.scan()
        while watch.read():
            pass
        recorder.close()
        assert trouble.take() is None

    watch()
    assert recorded_findings(node_directory) == [(f"agent@{NODE}", 1), (f"agent@{NODE}", 2)]
    watch()
    assert len(recorded_findings(node_directory)) == 2
    rank.write(nonfinite(3), step(3))
    watch()
    assert recorded_findings(node_directory)[2:] == [(f"agent@{NODE}.1", 3)]
    (found,) = already_recorded(node_directory).findings["nonfinite_loss", "", "firing", "warning", 0, 2]
    assert found.time == 2.0


def test_it_hurries_when_memory_ends_within_seconds(tmp_path: Path) -> None:
    node_directory = node_folder(tmp_path)
    rank = Rank(node_directory)
    rank.start(time=0.0)
    trouble = quiet(tmp_path)
    watch = Watch(node_directory, Recorder(node_directory, trouble), trouble)

    def leak(first: int, last: int) -> None:
        for number in range(first, last):
            held = {"memory/resident": 1e9 + 1e7 * number, "memory/capacity": 5e9}
            rank.write(StepEnded(time=0.1 * number, step=number, devices={"cpu": held}))
        watch.scan()
        while watch.read():
            pass

    leak(1, 150)
    assert not watch.is_near_end(15.0)  # 250 steps of 0.1 s are left
    leak(150, 250)
    assert watch.is_near_end(25.0)
    for number in range(250, 400):
        rank.write(StepEnded(time=0.1 * number, step=number, devices={"cpu": {"memory/resident": 1e9}}))
    leak(400, 400)
    assert not watch.is_near_end(40.0), "it came back"


def test_a_rank_is_what_its_journal_says(tmp_path: Path) -> None:
    node_directory = node_folder(tmp_path)
    rank = Rank(node_directory, "rank3")
    source = next(journal.sources(node_directory.parent.parent))
    ranks = Ranks()
    ranks.add(source)
    state = ranks.states[rank.source]
    now = time.time()
    assert state.is_alive(now)
    assert not state.is_alive(now + NAMELESS_SECONDS + 1)  # it never said who it is
    rank.start(first_step=40)
    for payload in rank.payloads:
        ranks.observe(source, events.decode(payload))
    assert (state.rank, state.step, state.phase, state.over) == (3, 40, None, False)
    assert state.is_alive(now + 1000)
    ranks.observe(source, PhaseEntered(time=now, phase="eval", step=40))
    ranks.observe(source, StepEnded(time=now, step=41, devices={"cpu": {"memory/peak": 5.0}}))
    state.note({"cpu": {"memory/resident": 3.0}})
    gone = state.gone(now, oom_kills=1)
    assert (gone.rank, gone.pid, gone.step, gone.phase, gone.oom_kills) == (3, os.getpid(), 41, "eval", 1)
    assert gone.devices == {"cpu": {"memory/peak": 5.0, "memory/resident": 3.0}}
    ranks.observe(source, RunEnded(time=now, step=41, outcome="finished"))
    assert ranks.running == []


def test_samples_carry_step_and_phase_and_repeat_capacities_seldom(tmp_path: Path) -> None:
    node_directory = node_folder(tmp_path)
    rank = Rank(node_directory)
    rank.start(environment={"device": "cuda", "cuda_visible_devices": None}, model={"devices": ["cuda:0"]})
    rank.write(PhaseEntered(time=1.0, phase="train", step=0), step(4))
    watch = Watch(node_directory, Recorder(node_directory, quiet(tmp_path)), quiet(tmp_path))
    watch.scan()
    watch.read()
    sampler = Sampler()

    def sample(now: float) -> list[Sampled]:
        return sampler.sample(watch.ranks.running, 1000.0 + now, now)

    own, node = sample(0.0)
    assert (own.time, own.rank, own.step, own.phase) == (1000.0, 0, 4, "train")
    assert own.devices["cpu"]["memory/resident"] > 1e6
    assert own.devices["cpu"]["memory/capacity"] > own.devices["cpu"]["memory/resident"]
    assert (node.rank, node.step, list(node.devices)) == (None, None, ["host"])
    assert node.devices["host"]["memory/capacity"] > 0
    time.sleep(0.05)
    own, node = sample(0.25)
    assert "memory/capacity" not in own.devices["cpu"]
    assert "memory/capacity" not in node.devices["host"]
    assert 0 <= node.devices["host"]["host/cpu"] <= 1
    own, _ = sample(CAPACITY_SECONDS + 1)
    assert "memory/capacity" in own.devices["cpu"]
    assert watch.ranks.states[rank.source].devices["cpu"]["memory/capacity"] > 0
    assert sampler.oom_kills(watch.ranks.states[rank.source]) == 0


def test_a_torn_tail_of_a_dead_rank_is_counted(tmp_path: Path) -> None:
    node_directory = node_folder(tmp_path)
    rank = Rank(node_directory)
    rank.start()
    rank.steps(1, 3)
    file = next(rank.directory.glob("*.twj"))
    os.truncate(file, file.stat().st_size - 2)
    trouble = quiet(tmp_path)
    recorder = Recorder(node_directory, trouble)
    watch = Watch(node_directory, recorder, trouble)
    watch.scan()
    assert not watch.read()
    assert watch.bury(watch.ranks.states[rank.source], 5.0)
    assert not watch.bury(watch.ranks.states[rank.source], 6.0)
    event = trouble.take()
    assert event
    assert event.lost == {"torn record at the end of a journal": 1}


def test_a_journal_of_the_agents_own_that_cannot_be_written_is_counted(tmp_path: Path) -> None:
    node_directory = node_folder(tmp_path)
    trouble = quiet(tmp_path)
    recorder = Recorder(node_directory, trouble)
    (node_directory / "project").unlink()
    node_directory.rmdir()
    node_directory.write_text("a file where the folder was")
    recorder.record(at(1.0))
    event = trouble.take()
    assert event
    assert event.lost == {"journal not writable": 1}


def test_the_lock_belongs_to_one(tmp_path: Path) -> None:
    first, second = FolderLock(tmp_path), FolderLock(tmp_path)
    assert first.acquire()
    assert first.acquire()
    assert not second.acquire()
    first.release()
    first.release()
    assert second.acquire()
    second.release()


@pytest.mark.parametrize("change", ["more events", "another source", "position", "none"])
def test_a_mark_counts_until_something_changes(tmp_path: Path, change: str) -> None:
    node_directory = node_folder(tmp_path)
    rank = Rank(node_directory)
    rank.start()
    assert not is_settled(node_directory)
    settle(node_directory)
    changes: dict[str, Any] = {
        "more events": lambda: rank.steps(1, 1),
        "another source": lambda: Rank(node_directory).start(),
        "position": lambda: journal.acknowledge(rank.directory, journal.Position(1, 0, 10)),
        "none": lambda: None,
    }
    changes[change]()
    assert is_settled(node_directory) is (change == "none")
