from __future__ import annotations

from typing import Any, Literal

import pytest

from tests.server.shipping import RUN, T0, batch, ended, shipment, started, step
from trainwatch import events
from trainwatch.rules import RULES, Engine
from trainwatch.server import drawing, liveness
from trainwatch.server.db import Database
from trainwatch.server.ingest.shipments import Ingest
from trainwatch.server.jobs import silence
from trainwatch.server.store import points, records, runs
from trainwatch.server.store.records import Rank


def ranks(*states: str, **changes: Any) -> list[Rank]:
    return [
        Rank(run=RUN, rank=number, node="n", state=state, ended_at=T0 + number, **changes)
        for number, state in enumerate(states)
    ]


@pytest.mark.parametrize(
    ("states", "world_size", "silent", "outcome"),
    [
        ([], 1, False, None),
        (["running"], 1, False, None),
        (["finished"], 1, False, "finished"),
        (["halted"], 1, False, "halted"),
        (["failed"], 1, False, "failed"),
        (["died"], 1, False, "died"),
        # Several ranks: those that end well are waited for, a death or a failure is the end of all.
        (["finished"], 2, False, None),
        (["finished", "running"], 2, False, None),
        (["finished", "finished"], 2, False, "finished"),
        (["halted", "running"], 2, False, None),
        (["running", "died"], 2, False, "died"),
        (["running", "failed"], 2, False, "failed"),
        # What tells most counts.
        (["halted", "died"], 2, False, "halted"),
        (["halted", "failed"], 2, False, "halted"),
        (["died", "failed"], 2, False, "failed"),
        (["finished", "died"], 2, False, "died"),
        # After a silence there is nothing to wait for.
        (["running"], 1, True, None),
        (["finished"], 2, True, "finished"),
        (["halted", "running"], 2, True, "halted"),
        (["finished", "running"], 2, True, None),
        ([], 2, True, None),
    ],
)
def test_how_a_run_ended(states: list[str], world_size: int, silent: bool, outcome: str | None) -> None:
    found = liveness.ending(ranks(*states), world_size, silent=silent)
    assert (found and found.outcome) == outcome


def test_ranks_of_an_earlier_launch_do_not_count() -> None:
    again = Rank(run=RUN, rank=0, node="n", state="running", source="rank0.1~b", started_at=T0 + 60)
    before = ranks("died", "died", started_at=T0)[1:]
    assert liveness.ending([again, *before], 2, superseded_until=T0 + 50) is None
    assert liveness.ending([again, *before], 2) is not None


def test_the_oom_killer_comes_before_the_failures_that_it_caused() -> None:
    killed, failed = ranks("died", "failed")
    killed.oom_kills = 1
    found = liveness.ending([killed, failed], 2)
    assert found is not None
    assert (found.outcome, found.rank) == ("died", 0)


def test_the_rank_with_the_bad_value_tells_and_the_checkpoint_is_found() -> None:
    rank0, rank1 = ranks("halted", "halted")
    rank0.parameters = {"culprit": 1, "checkpoint": "out/checkpoint-7"}
    rank1.parameters = {"culprit": 1, "checkpoint": ""}
    found = liveness.ending([rank0, rank1], 2)
    assert found is not None
    assert (found.rank, found.parameters["checkpoint"]) == (1, "out/checkpoint-7")


# -- with a database ---------------------------------------------------------------------------------------------------


class Clock:
    def __init__(self) -> None:
        self.now = T0

    def __call__(self) -> float:
        return self.now


def gone(**changes: Any) -> events.ProcessGone:
    fields: dict[str, Any] = {"time": T0 + 50, "rank": 0, "pid": 100, "step": 3, "phase": "train"}
    return events.ProcessGone(**fields | changes)


def detail(database: Database) -> Any:
    with database.read() as connection:
        return runs.detail(connection, RUN, charts=[], now=T0 + 1000)


def test_a_halted_run_names_where_to_resume_from(database: Database) -> None:
    ingest = Ingest(database, lambda _run, _version: None, Clock())
    evidence = {
        "value": "NaN",
        "action": "halt",
        "in_a_row": 3,
        "recent": 3,
        "checkpoint": "out/checkpoint-6",
    }
    ingest.accept(
        shipment(batch([started(), step(6), ended(7, "halted", reason="nonfinite_loss", parameters=evidence)]))
    )
    found = detail(database)
    assert (found.state, found.ended_at) == ("halted", T0 + 7.5)
    assert (found.end.outcome, found.end.step, found.end.resume_from) == ("halted", 7, "out/checkpoint-6")
    assert found.sentence == found.end.sentence
    assert "NaN" in found.sentence
    assert "out/checkpoint-6" in found.sentence


def test_an_exception_is_kept_with_its_traceback(database: Database) -> None:
    ingest = Ingest(database, lambda _run, _version: None, Clock())
    error = "OutOfMemoryError: CUDA out of memory"
    ingest.accept(shipment(batch([started(), ended(4, "failed", error=error, traceback="Traceback …")])))
    found = detail(database)
    assert (found.state, found.end.error, found.end.traceback) == ("failed", error, "Traceback …")
    assert error in found.sentence


def test_a_death_is_shown_with_the_last_step_and_the_last_readings(database: Database) -> None:
    ingest = Ingest(database, lambda _run, _version: None, Clock())
    memory = {"cpu": {"memory/resident": 5.0, "memory/capacity": 8.0}}
    ingest.accept(shipment(batch([gone()], rank=None), batch([started(), step(3, devices=memory)])))
    found = detail(database)
    assert (found.state, found.step, found.ended_at) == ("died", 3, T0 + 50)
    assert "after step 3" in found.sentence
    assert found.ranks[0].devices[0].readings == memory["cpu"]


def test_the_last_word_of_a_process_counts_also_when_it_is_read_after_its_death(database: Database) -> None:
    ingest = Ingest(database, lambda _run, _version: None, Clock())
    ingest.accept(shipment(batch([started()])))
    ingest.accept(shipment(batch([gone()], rank=None)))
    assert detail(database).state == "died"
    ingest.accept(shipment(batch([step(4), ended(4)], first=1)))
    assert detail(database).state == "finished"
    ingest.accept(shipment(batch([gone()], rank=None, first=1)))
    assert detail(database).state == "finished"


def test_a_death_known_before_the_run_is_kept(database: Database) -> None:
    ingest = Ingest(database, lambda _run, _version: None, Clock())
    ingest.accept(shipment(batch([gone()], rank=None)))
    ingest.accept(shipment(batch([started(), step(3)])))
    assert detail(database).state == "died"


def test_a_process_that_started_again_makes_the_run_run_again(database: Database) -> None:
    ingest = Ingest(database, lambda _run, _version: None, Clock())
    two = {"world_size": 2}
    ingest.accept(shipment(batch([started(**two), step(30)]), batch([started(pid=101, **two), step(30)], rank=1)))
    ingest.accept(shipment(batch([gone(step=30), gone(rank=1, pid=101, step=30)], rank=None)))
    assert detail(database).state == "died"
    again = started(time=T0 + 100, pid=200, first_step=20, **two)
    ingest.accept(shipment(batch([again], source="rank0.1")))
    found = detail(database)
    assert (found.state, found.step, found.ended_at, found.end) == ("running", 20, None, None)
    assert found.started_at == T0
    # What is still read of the first attempt changes no more than its curves.
    ingest.accept(shipment(batch([gone(rank=1, pid=101)], rank=None, first=2), batch([step(31)], first=2)))
    assert (detail(database).state, detail(database).step) == ("running", 20)
    ingest.accept(
        shipment(batch([started(time=T0 + 100, pid=201, first_step=20, **two), ended(40)], rank=1, source="rank1.1"))
    )
    assert detail(database).state == "running"
    ingest.accept(shipment(batch([step(40), ended(40)], source="rank0.1", first=1)))
    found = detail(database)
    assert (found.state, found.step) == ("finished", 40)
    with database.read() as connection:
        assert {source.source: source.next for source in records.sources_of(connection, RUN).values()} == {
            "agent@node1": 3,
            "rank0": 3,
            "rank0.1": 3,
            "rank1": 2,
            "rank1.1": 2,
        }


def test_a_callback_on_rank_0_alone_is_enough(database: Database) -> None:
    clock = Clock()
    ingest = Ingest(database, lambda _run, _version: None, clock)
    ingest.accept(shipment(batch([started(world_size=2), step(1), ended(1)])))
    assert detail(database).state == "running"
    clock.now += 61
    silence.mark_silent(database, now=clock(), lost_after=60)
    assert detail(database).state == "finished"


def pod(suffix: str, begin: float, steps: range, **changes: Any) -> list[Any]:
    """What a rank ships in a pod of its own: it always begins as the first attempt, with the same process id."""
    fields: dict[str, Any] = {"time": T0 + begin, "pid": 7, "first_step": steps.start - 1}
    content = [started(**fields | changes), *(step(n, float(n), time=T0 + begin + n) for n in steps)]
    return [content, {"source": f"rank0~{suffix}", "node": f"pod-{suffix}"}]


def losses(database: Database, axis: Literal["step", "time"]) -> tuple[list[int], list[float]]:
    with database.read() as connection:
        [one] = points.listed(connection, RUN, ["train/loss"])
        found = drawing.column(connection, RUN, one, axis=axis, low=None, high=None, width=1000)
        return found.step.tolist(), found.time.tolist()


def test_a_fresh_disk_under_the_same_run_id_loses_nothing(database: Database) -> None:
    ingest = Ingest(database, lambda _run, _version: None, Clock())
    first, where = pod("aaaa0000", 0, range(1, 31))
    ingest.accept(shipment(batch(first, **where)))
    death = gone(pid=7, step=30, time=T0 + 40)
    ingest.accept(shipment(batch([death], rank=None, node="pod-aaaa0000", source="agent@pod~1")))
    assert detail(database).state == "died"
    second, elsewhere = pod("00bb1111", 100, range(21, 41))  # its name sorts before the first one's
    answer = ingest.accept(shipment(batch(second[:5], **elsewhere)))
    assert answer.next == {RUN: {"rank0~00bb1111": 5}}
    found = detail(database)
    assert (found.state, found.step, found.end, found.started_at) == ("running", 24, None, T0)
    assert [(rank.state, rank.node, rank.step) for rank in found.ranks] == [("running", "pod-00bb1111", 24)]
    # The first pod's death, told again by whoever finds its disk, is not the second one's, though the pid is the same.
    again = [death, gone(pid=7, step=30, time=T0 + 200)]
    ingest.accept(shipment(batch(again, rank=None, node="pod-aaaa0000", source="agent@pod~2")))
    assert detail(database).state == "running"
    ingest.accept(shipment(batch([*second[5:], ended(40, time=T0 + 141)], first=5, **elsewhere)))
    found = detail(database)
    assert (found.state, found.step, found.last_loss) == ("finished", 40, 40.0)
    assert found.trouble.lost == {}
    steps, times = losses(database, "time")
    assert steps == [*range(1, 31), *range(21, 41)]
    assert times == sorted(times)
    assert losses(database, "step")[0] == list(range(1, 41))
    assert found.sparkline.step == sorted(found.sparkline.step)
    with database.read() as connection:
        stored = {source.source: source.next for source in records.sources_of(connection, RUN).values()}
    assert stored == {"rank0~aaaa0000": 31, "rank0~00bb1111": 22, "agent@pod~1": 1, "agent@pod~2": 2}


def test_what_an_old_disk_ships_late_changes_only_the_curves(database: Database) -> None:
    ingest = Ingest(database, lambda _run, _version: None, Clock())
    second, elsewhere = pod("00bb1111", 100, range(21, 41))
    ingest.accept(shipment(batch(second, **elsewhere)))
    first, where = pod("aaaa0000", 0, range(1, 31), name="before", max_steps=5)
    ingest.accept(shipment(batch([*first, ended(30, "failed", error="ValueError: x")], **where)))
    found = detail(database)
    assert (found.state, found.step, found.last_loss, found.name) == ("running", 40, 40.0, "tiny")
    assert found.started_at == T0
    steps, times = losses(database, "time")
    assert steps == [*range(1, 31), *range(21, 41)]
    assert times == sorted(times)
    assert losses(database, "step")[0] == list(range(1, 41))
    assert found.sparkline.step == list(range(21, 41))


def test_the_newer_process_counts_whatever_the_numbers_of_the_attempts(database: Database) -> None:
    """Twice on one disk, then on a fresh one: the third process is a first attempt again."""
    ingest = Ingest(database, lambda _run, _version: None, Clock())
    for at, source in enumerate(["rank0~aa", "rank0.1~bb", "rank0~cc"]):
        ingest.accept(shipment(batch([started(time=T0 + 100 * at, pid=at + 1)], source=source)))
        assert (detail(database).state, detail(database).ranks[0].pid) == ("running", at + 1)
        ingest.accept(
            shipment(batch([ended(5, "failed", error="E: x", time=T0 + 100 * at + 9)], source=source, first=1))
        )
        assert detail(database).state == "failed"


def test_two_nodes_start_again_one_of_them_on_a_fresh_disk(database: Database) -> None:
    ingest = Ingest(database, lambda _run, _version: None, Clock())

    def begin(rank: int, time: float, source: str) -> None:
        first = started(time=T0 + time, pid=rank + 1, world_size=2)
        ingest.accept(shipment(batch([first, step(1, time=T0 + time + 1)], rank=rank, source=source, node=f"n{rank}")))

    begin(0, 0, "rank0~aa")
    begin(1, 0.5, "rank1~aa")
    failure = [ended(1, "failed", error="E: x", time=T0 + 5)]
    ingest.accept(shipment(batch(failure, first=2, source="rank0~aa", node="n0")))
    death = [gone(rank=1, pid=2, time=T0 + 6)]
    ingest.accept(shipment(batch(death, rank=None, node="n1", source="agent@n1~a")))
    assert detail(database).state == "failed"
    begin(0, 60.5, "rank0.1~bb")
    assert detail(database).state == "running"  # the other rank's death was in the launch before
    begin(1, 60, "rank1~bb")  # a little earlier by its own clock
    assert detail(database).state == "running"
    for rank, source in enumerate(["rank0.1~bb", "rank1~bb"]):
        last = [ended(9, time=T0 + 90)]
        ingest.accept(shipment(batch(last, first=2, rank=rank, source=source, node=f"n{rank}")))
    assert detail(database).state == "finished"


def test_a_process_and_its_successor_in_one_shipment_are_taken_in_order(database: Database) -> None:
    """As names, ``rank0.1~…`` comes before ``rank0~…``."""
    ingest = Ingest(database, lambda _run, _version: None, Clock())
    first = batch([started(), *(step(n) for n in range(1, 10)), ended(9, "failed", error="E: x")], source="rank0~aa")
    again = [started(time=T0 + 50, pid=101, first_step=5), *(step(n, 2.0, time=T0 + 50 + n) for n in range(6, 8))]
    ingest.accept(shipment(batch(again, source="rank0.1~bb"), first))
    found = detail(database)
    assert (found.state, found.step, found.last_loss) == ("running", 7, 2.0)
    assert found.sparkline.step == [1, 2, 3, 4, 5, 6, 7]
    assert found.sparkline.value == [1.0] * 5 + [2.0] * 2


def test_a_failure_is_said_in_the_words_of_its_rule(database: Database) -> None:
    ingest = Ingest(database, lambda _run, _version: None, Clock())
    failure = ended(12, "failed", error="RuntimeError: no\nmore")
    ingest.accept(shipment(batch([started(), failure])))
    found = [finding for finding in Engine(RULES).observe(failure, 0)]
    ingest.accept(shipment(batch(found, rank=None)))
    run = detail(database)
    assert run.end.sentence == run.sentence == "The training failed at step 12: RuntimeError: no"
    [alert] = run.alerts
    assert (alert.rule, alert.severity, alert.rank, alert.sentence) == ("training_failed", "critical", 0, run.sentence)
    assert run.end.error == "RuntimeError: no\nmore"


# -- late, and clocks --------------------------------------------------------------------------------------------------
