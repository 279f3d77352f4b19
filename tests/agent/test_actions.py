"""From a finding to the control file: at once, once, and without a server."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

from tests.agent.scripted import NODE, RUN, Clock, Rank, ending, node_folder, serving, start_agent, wait_for
from tests.agent.test_parts import quiet
from tests.patience import PATIENCE, timing
from trainwatch import events, journal
from trainwatch.agent.act import CURRENT_SECONDS, Actions
from trainwatch.agent.control import LOCAL_KEPT, SAID_KEPT, ControlFile
from trainwatch.agent.record import Recorder
from trainwatch.agent.watch import Watch
from trainwatch.events import Evaluated, FindingRaised, RulesSet
from trainwatch.shipment import LOCAL, Command

RULES = {"nonfinite_eval_loss": {"action": "halt"}}
BAD = {"eval/nonfinite_batches": 3.0, "eval/batches": 10.0, "eval/loss": float("nan")}
GOOD = {"eval/nonfinite_batches": 0.0, "eval/batches": 10.0, "eval/loss": 1.0}


def finding(moment: float = 1.0, **changes: Any) -> FindingRaised:
    fields: dict[str, Any] = {"rule": "r", "severity": "warning", "step": 5, "action": "halt", "parameters": {"a": 1}}
    return FindingRaised(time=moment, **{**fields, **changes})


def command(number: int, **changes: Any) -> Command:
    return Command(id=number, run=RUN, action="checkpoint", **changes)


def test_server_and_machine_share_the_file_and_neither_takes_the_others_commands(tmp_path: Path) -> None:
    folder = node_folder(tmp_path)
    control = ControlFile(folder)
    assert control.add(command(LOCAL + 9))
    control.put([command(3), command(1), Command(id=2, run="another", action="halt")])
    assert ControlFile(folder).add(command(LOCAL + 2))
    assert [c.id for c in control.read()] == [1, 3, LOCAL + 9, LOCAL + 2]
    assert not control.add(command(LOCAL + 9))
    control.put([])
    assert [c.id for c in control.read()] == [LOCAL + 9, LOCAL + 2]
    for number in range(LOCAL_KEPT):
        control.add(command(LOCAL + 100 + number))
    assert len(control.read()) == LOCAL_KEPT


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    folder = node_folder(tmp_path)

    def add(first: int) -> None:
        for number in range(10):
            ControlFile(folder).add(command(LOCAL + first + number))

    def put() -> None:
        for number in range(1, 30):
            ControlFile(folder).put([command(number)])

    threads = [threading.Thread(target=add, args=(first,)) for first in (100, 200, 300)]
    threads.append(threading.Thread(target=put))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = {29, *(LOCAL + first + number for first in (100, 200, 300) for number in range(10))}
    assert {c.id for c in ControlFile(folder).read()} == wanted


def test_an_alert_gives_one_command_until_it_is_resolved_or_training_begins_anew(tmp_path: Path) -> None:
    control = ControlFile(node_folder(tmp_path))
    actions = Actions(control, RUN, NODE)

    def after(*found: FindingRaised) -> int:
        for one in found:
            actions.take(one)
        actions.carry_out(1000.0, is_read=True)
        return len(control.read())

    assert after(finding(action="notify", severity="info"), finding(state="pending")) == 0
    assert after(finding(1.0), finding(2.0, severity="critical")) == 1
    (made,) = control.read()
    assert (made.action, made.rule, made.parameters, made.step, made.time) == ("halt", "r", {"a": 1}, 5, 1.0)
    assert after(finding(3.0, rank=1), finding(3.0, key="cuda:0")) == 3
    assert after(finding(4.0, state="resolved"), finding(5.0)) == 4
    actions.begin()
    assert after(finding(6.0)) == 5


def test_what_was_resolved_before_the_backlog_is_read_is_left_alone(tmp_path: Path) -> None:
    control = ControlFile(node_folder(tmp_path))
    actions = Actions(control, RUN, NODE)
    actions.take(finding(1.0))
    actions.carry_out(1000.0, is_read=False)
    assert control.read() == []
    actions.take(finding(2.0, state="resolved"))
    actions.carry_out(1000.0, is_read=True)
    assert control.read() == []
    actions.take(finding(999.0))
    actions.carry_out(999.0 + CURRENT_SECONDS / 2, is_read=False)
    assert len(control.read()) == 1


def test_a_file_that_could_not_be_written_is_written_later(tmp_path: Path) -> None:
    folder = node_folder(tmp_path)
    control = ControlFile(folder)
    actions = Actions(control, RUN, NODE)
    (folder / "control").mkdir()
    actions.take(finding())
    trouble = quiet(tmp_path)
    with trouble.guard("carrying out actions"):
        actions.carry_out(1.0, is_read=True)
    assert trouble.take() is not None
    (folder / "control").rmdir()
    actions.carry_out(1.0, is_read=True)
    assert len(control.read()) == 1


def orders(folder: Path) -> list[Command]:
    """What is asked for, besides a line in the log."""
    return [command for command in ControlFile(folder).read() if command.action != "say"]


def watch_to_the_end(folder: Path, tmp_path: Path) -> None:
    """What an agent does with a folder, up to the present end of its journals."""
    trouble = quiet(tmp_path)
    recorder = Recorder(folder, trouble)
    actions = Actions(ControlFile(folder), RUN, NODE)
    watch = Watch(folder, recorder, trouble, actions)
    watch.scan()
    while watch.read():
        pass
    actions.carry_out(Clock().time(), is_read=True)
    recorder.close()
    assert trouble.take() is None


def test_an_agent_that_starts_again_neither_repeats_nor_forgets(tmp_path: Path) -> None:
    folder = node_folder(tmp_path)
    rank = Rank(folder)
    rank.start(time=10.0, rules=RULES)
    rank.write(Evaluated(time=11.0, step=1, values=BAD))
    watch_to_the_end(folder, tmp_path)
    (made,) = orders(folder)
    assert (made.rule, made.action, made.step, made.time) == ("nonfinite_eval_loss", "halt", 1, 11.0)
    watch_to_the_end(folder, tmp_path)
    assert orders(folder) == [made]
    # It had recorded the finding and was killed before it wrote the file.
    (folder / "control").unlink()
    watch_to_the_end(folder, tmp_path)
    assert orders(folder) == [made]
    # Still so: no second command. Over and again: another.
    rank.write(Evaluated(time=12.0, step=2, values=BAD))
    watch_to_the_end(folder, tmp_path)
    assert orders(folder) == [made]
    rank.write(Evaluated(time=13.0, step=3, values=GOOD), Evaluated(time=14.0, step=4, values=BAD))
    watch_to_the_end(folder, tmp_path)
    assert [c.time for c in orders(folder)] == [11.0, 14.0]


def test_the_agent_writes_the_command_within_a_tick_and_needs_no_server(tmp_path: Path) -> None:
    folder = node_folder(tmp_path)
    rank = Rank(folder)
    rank.start(rules=RULES)
    with ending(agent := start_agent(folder, "http://127.0.0.1:9")):
        wait_for(lambda: list(folder.glob("agent@*")))
        for attempt in range(1, 6):
            rank.write(Evaluated(time=time.time(), step=2 * attempt, values=BAD))
            with timing(agent.pid) as timed:
                wait_for(lambda: len(orders(folder)) == attempt)  # noqa: B023
            assert timed.took < 1.0
            rank.write(Evaluated(time=time.time(), step=2 * attempt + 1, values=GOOD))
        assert agent.poll() is None


def of_type(folder: Path, kind: type[Any]) -> list[Any]:
    """What the agents of a folder recorded of a type."""
    found = []
    for source in journal.sources(folder.parent.parent):
        if source.rank is None:
            reader = journal.Reader(source.directory)
            while records := reader.read():
                decoded = [events.decode(record.payload) for record in records]
                found += [event for event in decoded if isinstance(event, kind)]
    return found


def test_a_projects_rules_reach_a_running_run_and_a_restarted_agent_knows_them(tmp_path: Path) -> None:
    folder = node_folder(tmp_path)
    rank = Rank(folder)
    rank.start()
    with serving() as server:
        with ending(agent := start_agent(folder, server.url)):
            wait_for(lambda: server.store.shipments)
            rank.write(Evaluated(time=time.time(), step=1, values=BAD))
            wait_for(lambda: of_type(folder, FindingRaised))
            assert orders(folder) == []
            server.store.rules = {RUN: RULES, "another": {}}
            wait_for(lambda: of_type(folder, RulesSet))
            rank.write(
                Evaluated(time=time.time(), step=2, values=GOOD), Evaluated(time=time.time(), step=3, values=BAD)
            )
            wait_for(lambda: orders(folder))
            assert [e.rules for e in of_type(folder, RulesSet)] == [RULES]
            agent.kill()
            agent.wait(PATIENCE)
        with ending(start_agent(folder, server.url)):
            heard = len(server.store.shipments)
            wait_for(lambda: len(server.store.shipments) > heard + 2)
            assert len(of_type(folder, RulesSet)) == 1, "it read in the journal what holds"
            server.store.rules = {RUN: {}}
            wait_for(lambda: len(of_type(folder, RulesSet)) == 2)
            rank.write(
                Evaluated(time=time.time(), step=4, values=GOOD), Evaluated(time=time.time(), step=5, values=BAD)
            )
            wait_for(lambda: 5 in [f.step for f in of_type(folder, FindingRaised)])
            assert len(orders(folder)) == 1


def test_a_script_goes_before_the_project(tmp_path: Path) -> None:
    folder = node_folder(tmp_path)
    rank = Rank(folder)
    rank.start(time=10.0, rules={"nonfinite_eval_loss": {"action": "notify"}})
    agent = Rank(folder, f"agent@{NODE}")
    agent.write(RulesSet(time=9.0, rules=RULES))
    rank.write(Evaluated(time=11.0, step=1, values=BAD))
    watch_to_the_end(folder, tmp_path)
    assert orders(folder) == []


def test_a_warning_is_said_once_for_each_severity_and_a_note_is_not(tmp_path: Path) -> None:
    control = ControlFile(node_folder(tmp_path))
    actions = Actions(control, RUN, NODE)
    told = [
        finding(1.0, action="notify", severity="info"),
        finding(2.0, action="notify"),
        finding(3.0, action="notify"),
        finding(4.0, action="notify", severity="critical"),
        finding(5.0, action="notify", rule="nonfinite_loss"),
    ]
    for one in told:
        actions.take(one)
        actions.carry_out(1000.0, is_read=True)
    assert [(one.action, one.time) for one in control.read()] == [("say", 2.0), ("say", 4.0)]


def test_words_push_no_order_out_of_the_file(tmp_path: Path) -> None:
    control = ControlFile(node_folder(tmp_path))
    actions = Actions(control, RUN, NODE)
    actions.take(finding(1.0))
    for number in range(200):
        actions.take(finding(2.0 + number, action="notify", key=str(number)))
    actions.carry_out(1000.0, is_read=True)
    kept = [one.action for one in control.read()]
    assert kept.count("halt") == 1
    assert kept.count("say") == SAID_KEPT


def test_a_halt_may_follow_a_checkpoint_and_no_checkpoint_a_halt(tmp_path: Path) -> None:
    control = ControlFile(node_folder(tmp_path))
    actions = Actions(control, RUN, NODE)
    for moment, action in enumerate(("checkpoint", "checkpoint", "halt", "checkpoint", "halt")):
        actions.take(finding(float(moment), action=action))
        actions.carry_out(1000.0, is_read=True)
    assert [(one.action, one.time) for one in control.read()] == [("checkpoint", 0.0), ("halt", 2.0)]
