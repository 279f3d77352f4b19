"""``sync``: what an agent would have done, afterwards."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.agent.scripted import (
    NODE,
    RUN,
    Rank,
    ending,
    find_source,
    node_folder,
    serving,
    start_agent,
    start_rank,
    wait_for,
)
from tests.patience import PATIENCE, timing
from trainwatch import journal, settings
from trainwatch.agent.lock import FolderLock
from trainwatch.agent.sync import sync
from trainwatch.events import FindingRaised, NonFiniteSeen, ProcessGone, RunEnded, Sampled, StepEnded
from trainwatch.settings import Settings


def configured(home: Path, server: str) -> Settings:
    return msgspec.structs.replace(settings.load({"TRAINWATCH_HOME": str(home)}), server=server, node=NODE)


def ended_run(home: Path, run: str, node: str = NODE) -> Rank:
    rank = Rank(node_folder(home, run, node))
    rank.start()
    rank.steps(1, 30)
    rank.write(RunEnded(time=time.time(), step=30, outcome="finished"))
    return rank


def test_every_run_on_disk_is_shipped_once(tmp_path: Path) -> None:
    ranks = {run: ended_run(tmp_path, run) for run in ("aa", "bb", "cc")}
    with serving() as server:
        report = sync(configured(tmp_path, server.url))
        assert (report.runs, report.events, report.left, report.problem) == (["aa", "bb", "cc"], 96, [], "")
        for run, rank in ranks.items():
            assert list(server.store.events[(run, rank.source)].values()) == rank.payloads
        requests = len(server.times)
        report = sync(configured(tmp_path, server.url))
        assert report.events == 0
        assert len(server.times) == requests  # nothing left to do is not even asked about
        rank = Rank(tmp_path / "journal" / "bb" / NODE)
        rank.start()
        rank.write(RunEnded(time=time.time(), step=0, outcome="finished"))
        assert sync(configured(tmp_path, server.url)).runs == ["bb"]


def test_one_run_can_be_asked_for(tmp_path: Path) -> None:
    ended_run(tmp_path, "aa")
    ended_run(tmp_path, "bb")
    with serving() as server:
        assert sync(configured(tmp_path, server.url), run="bb").runs == ["bb"]
        assert {run for run, _ in server.store.events} == {"bb"}


def test_a_folder_with_a_living_agent_is_left_to_it(tmp_path: Path) -> None:
    rank = ended_run(tmp_path, "aa")
    lock = FolderLock(rank.directory.parent)
    assert lock.acquire()
    with serving() as server:
        report = sync(configured(tmp_path, server.url))
        assert (report.watched, report.events) == ([f"aa/{NODE}"], 0)
        lock.release()
        assert sync(configured(tmp_path, server.url)).events == 32


def test_findings_are_made_for_runs_that_had_no_agent(tmp_path: Path) -> None:
    rank = Rank(node_folder(tmp_path))
    rank.start()
    rank.write(NonFiniteSeen(time=time.time(), step=4, where="loss", value=float("inf"), action="halt"))
    rank.write(RunEnded(time=time.time(), step=4, outcome="halted", reason="nonfinite_loss"))
    with serving() as server:
        sync(configured(tmp_path, server.url))
        (finding,) = server.store.of_type(FindingRaised)
        assert (finding.rule, finding.severity, finding.rank, finding.step) == ("nonfinite_loss", "critical", 0, 4)
        rank.steps(5, 6)
        sync(configured(tmp_path, server.url))
        assert len(server.store.of_type(FindingRaised)) == 1


def test_the_dead_are_found_and_the_living_are_not_disturbed(tmp_path: Path) -> None:
    dead = start_rank(node_folder(tmp_path, "dead"), steps=12, pause=0)
    alive = start_rank(node_folder(tmp_path, "alive"), pause=0.05)
    elsewhere = Rank(node_folder(tmp_path, "elsewhere", "another-node"))
    elsewhere.start(pid=dead.pid)
    with ending(dead, alive), serving() as server:
        names = {run: find_source(tmp_path / f"journal/{run}/{NODE}", "rank0").name for run in ("dead", "alive")}
        wait_for(lambda: (tmp_path / f"journal/dead/{NODE}/{names['dead']}/{0:020d}.twj").stat().st_size > 1200)
        dead.kill()
        dead.wait()
        report = sync(configured(tmp_path, server.url))
        assert report.gone == 1
        (gone,) = server.store.of_type(ProcessGone)
        last = max(e.time for e in server.store.decoded(names["dead"], "dead"))
        assert (gone.pid, gone.step, gone.time) == (dead.pid, 12, last)
        assert server.store.decoded(names["alive"], "alive")
        assert sync(configured(tmp_path, server.url)).gone == 0
        assert len(server.store.of_type(ProcessGone)) == 1
        (finding,) = server.store.of_type(FindingRaised)
        assert (finding.rule, finding.severity, finding.rank, finding.step) == ("process_gone", "critical", 0, 12)


def test_each_death_is_told_also_under_one_process_id(tmp_path: Path) -> None:
    """In a container the training has the same number every time; its disk may outlive it."""
    node_directory = node_folder(tmp_path)
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    with serving() as server:
        begin = time.time() - 1000
        for attempt in range(3):
            rank = Rank(node_directory)
            rank.start(time=begin + 100 * attempt, pid=dead.pid)
            rank.write(StepEnded(time=begin + 100 * attempt + 50, step=7))
            assert sync(configured(tmp_path, server.url)).gone == 1
            assert sync(configured(tmp_path, server.url)).gone == 0
        assert [gone.time - begin for gone in server.store.of_type(ProcessGone)] == pytest.approx([50, 150, 250])
        assert [finding.rule for finding in server.store.of_type(FindingRaised) if finding.state == "firing"] == [
            "process_gone"
        ] * 3


def test_the_death_of_which_an_agent_could_not_say_more_is_found_by_the_next(tmp_path: Path) -> None:
    rank = Rank(node_folder(tmp_path))
    rank.start(pid=1_000_000_000)
    cut_short = Rank(rank.directory.parent, f"agent@{NODE}")
    cut_short.write(ProcessGone(time=time.time(), rank=0, pid=1_000_000_000, step=4))  # killed before the finding
    with serving() as server:
        assert sync(configured(tmp_path, server.url)).gone == 0
        assert [(f.rule, f.step) for f in server.store.of_type(FindingRaised)] == [("process_gone", 4)]


def test_without_a_server_it_gives_up_and_says_what_is_left(tmp_path: Path) -> None:
    for run in ("aa", "bb", "cc"):
        ended_run(tmp_path, run)
    with serving() as server:
        nowhere = server.url
    with timing() as timed:
        report = sync(configured(tmp_path, nowhere), patience=0.5)
    assert timed.took < 3
    assert report.left == [f"{run}/{NODE}" for run in ("aa", "bb", "cc")]
    assert "cannot ship" in report.problem


def test_a_folder_that_cannot_be_read_does_not_keep_the_others_from_going(tmp_path: Path) -> None:
    broken = node_folder(tmp_path, "aa")
    (broken / "agent.lock").mkdir()
    ended_run(tmp_path, "bb")
    with serving() as server:
        report = sync(configured(tmp_path, server.url))
    assert (report.runs, report.left) == (["bb"], [f"aa/{NODE}"])
    assert "agent.lock" in report.problem


def test_what_an_agent_left_is_shipped_to_the_end(tmp_path: Path) -> None:
    node_directory = node_folder(tmp_path)
    with serving() as server:
        nowhere = server.url
    rank = start_rank(node_directory, steps=10)
    agent = start_agent(node_directory, nowhere)
    with ending(rank, agent):
        wait_for(lambda: list(node_directory.glob("agent@*")))
        own, directory = find_source(node_directory, f"agent@{NODE}"), find_source(node_directory, "rank0")
        wait_for(lambda: journal.Reader(directory).read()[-1].sequence == 11)
        rank.kill()
        rank.wait()
        wait_for(lambda: any(b"process_gone" in record.payload for record in journal.Reader(own).read()))
        agent.terminate()
        assert agent.wait(PATIENCE) == 0
    with serving() as server:
        report = sync(configured(tmp_path, server.url))
        assert report.gone == 0  # the agent had said so already
        assert len(server.store.of_type(ProcessGone)) == 1
        assert len(server.store.of_type(StepEnded)) == 10
        assert server.store.of_type(Sampled)
        assert journal.acknowledged(directory).sequence == 12


def answer(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=PATIENCE) as response:
        return json.load(response)


def start_server(home: Path) -> subprocess.Popen[bytes]:
    environment = {**os.environ, "TRAINWATCH_HOME": str(home), "TRAINWATCH_PORT": "0"}
    return subprocess.Popen([sys.executable, "-m", "trainwatch.server"], env=environment, stdout=subprocess.PIPE)


def test_agent_and_sync_against_the_real_server(tmp_path: Path) -> None:
    server = start_server(tmp_path / "server")
    node_directory = node_folder(tmp_path)
    ended_run(tmp_path, "offline")
    with ending(server):
        assert server.stdout
        url = server.stdout.readline().decode().strip()
        rank = start_rank(node_directory, pause=0.02)
        agent = start_agent(node_directory, url)
        with ending(rank, agent):
            directory = find_source(node_directory, "rank0")
            wait_for(lambda: journal.acknowledged(directory).sequence > 20)
            rank.kill()
            rank.wait()
            assert agent.wait(PATIENCE) == 0
        assert (node_directory / "agent.log").read_text() == ""
        run = answer(f"{url}/api/runs/{RUN}")
        steps = sum(b"step_ended" in record.payload for record in journal.Reader(directory).read())
        assert (run["state"], run["step"]) == ("died", steps)
        (alert,) = (alert for alert in run["alerts"] if alert["rule"] == "process_gone")
        assert (alert["rule"], alert["severity"], alert["rank"]) == ("process_gone", "critical", 0)
        assert alert["sentence"] == run["end"]["sentence"]
        assert f"died after step {steps}" in alert["sentence"]
        report = sync(configured(tmp_path, url))
        assert (report.runs, report.left) == (["offline"], [])
        run = answer(f"{url}/api/runs/offline")
        assert (run["state"], run["step"]) == ("finished", 30)
        server.stdout.close()


def test_a_pod_that_starts_again_on_a_fresh_disk_under_the_same_run_id_loses_nothing(tmp_path: Path) -> None:
    """Same run, same node, same rank, nothing left on disk: the server must not take the new events for the old."""
    server = start_server(tmp_path / "server")
    with ending(server):
        assert server.stdout
        url = server.stdout.readline().decode().strip()
        pods = [node_folder(tmp_path / pod) for pod in ("first", "second")]
        stored = {}
        rank = start_rank(pods[0], pause=0.02)
        agent = start_agent(pods[0], url)
        with ending(rank, agent):
            wait_for(lambda: list(pods[0].glob("rank0~*/acknowledged")))
            rank.kill()  # the agent lives long enough to see it
            rank.wait()
            assert agent.wait(PATIENCE) == 0
        assert answer(f"{url}/api/runs/{RUN}")["state"] == "died"
        rank = start_rank(pods[1], steps=40, pause=0.05, ending="end")
        rank.send_signal(signal.SIGSTOP)  # on a busy machine it would be over before the agent has begun
        agent = start_agent(pods[1], url)
        with ending(rank, agent):
            wait_for(lambda: answer(f"{url}/api/runs/{RUN}")["state"] == "running")
            rank.send_signal(signal.SIGCONT)
            rank.wait(PATIENCE)
            assert agent.wait(PATIENCE) == 0
        run = answer(f"{url}/api/runs/{RUN}")
        assert (run["state"], run["step"], run["trouble"]["lost"]) == ("finished", 40, {})
        for pod in pods:
            records = journal.Reader(find_source(pod, "rank0")).read()
            stored[pod] = sum(b"step_ended" in record.payload for record in records)
        data = answer(f"{url}/api/runs/{RUN}/series/data?metric=train/loss&rank=0&points=100000&x=time")
        assert data["step"] == [*range(1, stored[pods[0]] + 1), *range(1, 41)]
        samples = sum(
            b"sampled" in record.payload and b"memory/resident" in record.payload
            for pod in pods
            for record in journal.Reader(find_source(pod, f"agent@{NODE}")).read()
        )
        series = {(s["metric"], s["device"]): s["points"] for s in answer(f"{url}/api/runs/{RUN}/series")}
        assert series["memory/resident", "cpu"] == samples >= 2
        server.stdout.close()
