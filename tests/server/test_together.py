from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from tests.server.shipping import batch, shipment, started, step
from trainwatch import events
from trainwatch.server.db import Database
from trainwatch.server.ingest.shipments import Ingest
from trainwatch.server.ingest.together import Together
from trainwatch.server.store import points


class Slow:
    """Doubles numbers, the first of them only when told to go on; 13 breaks it."""

    def __init__(self) -> None:
        self.groups: list[list[int]] = []
        self.busy = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, items: list[int]) -> list[int]:
        self.groups.append(items)
        self.busy.set()
        assert self.go_on.wait(20)
        if 13 in items:
            raise ValueError("13")
        return [2 * item for item in items]


def ask_all(together: Together[int, int], slow: Slow, first: int, others: list[int]) -> list[int | str]:
    def ask(item: int) -> int | str:
        try:
            return together(item)
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(16) as pool:
        answers = [pool.submit(ask, first)]
        assert slow.busy.wait(20)
        answers += [pool.submit(ask, item) for item in others]
        while len(together._waiting) < len(others):
            pass
        slow.go_on.set()
        return [answer.result(20) for answer in answers]


def test_what_waits_is_done_at_once_and_everybody_gets_their_own_answer() -> None:
    slow = Slow()
    together = Together(slow, weigh=lambda _: 1, most=100)
    assert ask_all(together, slow, 1, [2, 3, 4, 5]) == [2, 4, 6, 8, 10]
    assert [sorted(group) for group in slow.groups] == [[1], [2, 3, 4, 5]]


def test_no_more_is_done_at_once_than_weighs_so_much() -> None:
    slow = Slow()
    together = Together(slow, weigh=lambda item: item, most=10)
    assert ask_all(together, slow, 1, [50, 5, 5, 5]) == [2, 100, 10, 10, 10]
    assert all(sum(group) <= 10 or len(group) == 1 for group in slow.groups)


def test_what_breaks_the_work_fails_alone() -> None:
    slow = Slow()
    together = Together(slow, weigh=lambda _: 1, most=100)
    assert ask_all(together, slow, 1, [2, 13, 3]) == [2, 4, "13", 6]
    hopeless = Together(slow, weigh=lambda _: 1, most=100, hopeless=(ValueError,))
    slow.go_on.clear()
    slow.busy.clear()
    assert ask_all(hopeless, slow, 1, [2, 13, 3]) == [2, "13", "13", "13"]


def test_shipments_of_many_agents_at_once_are_each_stored_once(database: Database) -> None:
    told: list[int] = []
    ingest = Ingest(database, lambda _run, _version: None, lambda: 0.0, told.append)
    agents, shipments, steps = 12, 6, 40

    def work(agent: int) -> None:
        run = f"run{agent % 4}"  # three nodes each
        source = f"rank{agent // 4}"
        first = 0
        for at in range(shipments):
            content: list[events.Event] = [] if at else [started()]
            content += [step(n) for n in range(at * steps + 1, (at + 1) * steps + 1)]
            sent = batch(content, run=run, source=source, rank=agent // 4, first=first)
            first += len(content)
            for _ in range(2):  # the second time as after an answer that was lost
                assert ingest.accept(shipment(sent)).next == {run: {source: first}}

    with ThreadPoolExecutor(agents) as pool:
        list(pool.map(work, range(agents)))
    assert sum(told) == agents * shipments * steps
    with database.read() as connection:
        for run in range(4):
            listed = points.listed(connection, f"run{run}")
            assert [(one.rank, one.points) for one in listed] == [(rank, shipments * steps) for rank in range(3)]
            for one in listed:
                stored = points.read(connection, one.id)
                assert stored.step.tolist() == list(range(1, shipments * steps + 1))
