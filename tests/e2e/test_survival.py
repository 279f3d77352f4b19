"""Kill anything, at any moment: no number is lost, none is doubled, and what died is named."""

from __future__ import annotations

import itertools
import random
import threading
import time

import pytest

from tests.e2e.world import World, wait_for
from tests.patience import PATIENCE

KILLS = 20


@pytest.mark.slow
def test_a_training_killed_at_any_step_leaves_every_finished_step(world: World) -> None:
    world.start_server()
    world.train("--kills", str(KILLS), "--steps", "5000", "--name", "killed")
    for number in range(KILLS):
        run_id = f"killed{number}"
        run = world.wait_state(run_id, "died")
        finished = world.finished_steps(run_id)
        assert finished

        def whole(run_id: str = run_id, last: int = finished[-1]) -> list[int] | None:
            steps = world.steps(run_id)
            return steps if steps and steps[-1] >= last else None

        stored = wait_for(f"step {finished[-1]} of {run_id}", whole)
        # One more than noted is right: the step was recorded, and the kill came before the note.
        assert stored == list(range(1, len(stored) + 1)), "a step is missing or double"
        assert len(stored) - len(finished) in (0, 1)
        assert run["step"] == stored[-1]
        assert f"step {stored[-1]}" in run["sentence"]
        (rank,) = run["ranks"]
        readings = {reading["device"]: reading for reading in rank["devices"]}
        assert readings["cpu"]["readings"]["memory/resident"] > 0, "the last readings are gone"


@pytest.mark.slow
def test_a_server_killed_and_restarted_loses_nothing_and_delays_nobody(world: World) -> None:
    world.start_server()
    enough = world.folder / "enough"
    training = world.train(
        "--name", "steady", "--steps", "50000", "--pause", "0.01", "--until", str(enough), wait=False
    )
    wait_for("the first step", lambda: world.finished_steps("steady"))
    choose = random.Random(7)
    for _ in range(KILLS):
        time.sleep(choose.uniform(0.05, 0.5))
        world.kill_server()
        world.start_server()
    assert training.poll() is None, "the training should outlast the kills"
    enough.touch()
    assert training.wait(PATIENCE) == 0
    world.wait_state("steady", "finished")
    assert world.steps("steady") == list(range(1, world.finished_steps("steady")[-1] + 1))
    notes = [line.split() for line in (world.folder / "steady.steps").read_text().splitlines()]
    moments = [float(moment) - float(starved) for _, moment, starved in notes]
    waits = sorted(later - earlier for earlier, later in itertools.pairwise(moments))
    # A step that had waited for the server would have waited for its restart, which takes seconds.
    assert waits[-1] < 1.5, f"the longest step took {waits[-1]:.2f} s"


@pytest.mark.slow
def test_without_a_server_nothing_waits_and_serve_shows_the_run_later(world: World) -> None:
    world.train("--name", "alone", "--steps", "300")
    assert world.finished_steps("alone") == list(range(1, 301))
    notes = (world.folder / "alone.steps").read_text().splitlines()
    (first, starved), (last, starved_more) = (map(float, note.split()[1:]) for note in (notes[0], notes[-1]))
    assert last - first - (starved_more - starved) < 30
    world.start_server(sync=True)
    run = world.wait_state("alone", "finished")
    assert run["step"] == 300
    assert world.steps("alone") == list(range(1, 301))


@pytest.mark.slow
def test_two_ranks_are_one_run_and_stop_together(world: World) -> None:
    world.start_server()
    world.train("--name", "pair", "--steps", "40", "--bad", "20,21,22", "--bad-rank", "1", ranks=2)
    run = world.wait_state("pair", "halted")
    assert run["world_size"] == 2
    assert [rank["rank"] for rank in run["ranks"]] == [0, 1]
    for rank in (0, 1):
        assert world.steps("pair", rank=rank) == list(range(1, 23))
    assert "rank 1" in run["sentence"]
    assert {alert["rank"] for alert in run["alerts"]} == {1}


@pytest.mark.slow
def test_an_evaluation_that_hides_nan_batches_is_flagged(world: World) -> None:
    world.start_server()
    world.train("--name", "hidden", "--steps", "10", "--bad-evaluation", "9")

    def flagged() -> dict[str, object] | None:
        alerts = world.run("hidden")["alerts"]
        return next((alert for alert in alerts if alert["rule"] == "nonfinite_eval_loss"), None)

    wait_for("the run", lambda: [run for run in world.runs() if run["id"] == "hidden"])
    alert = wait_for("the alert", flagged)
    assert "9 of 10 batches" in str(alert["sentence"])


def test_waiting_is_bounded() -> None:
    """The tests' own patience, so that a hang fails instead of hanging."""
    began = time.monotonic()
    with pytest.raises(AssertionError, match="in vain"):
        wait_for("nothing", threading.Event().is_set, 0.2)
    assert time.monotonic() - began < 2
