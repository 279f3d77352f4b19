"""Compares what TrainWatch recorded of a cell with what the witness saw; of a setup only its data is known here."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.matrix.faults import Fault
from tests.matrix.play import cell_folder
from tests.matrix.setup import EVAL_SAMPLES, PLANTED_STEP, STEPS, How, Setup
from tests.training.tiny import of, read_events
from trainwatch.events import (
    AnyEvent,
    Autopsied,
    Evaluated,
    FindingRaised,
    LayersMeasured,
    Logged,
    NonFiniteSeen,
    RunEnded,
    RunStarted,
    SignalsFound,
    StepEnded,
    TroubleCounted,
    Values,
)
from trainwatch.rules import RULES, Engine

TOLERANCE = 1e-5
FOUND = "found, but the update was not held back: "


@dataclass(frozen=True)
class Cell:
    """A cell that was played.

    Attributes:
        witness: What the witness of each rank wrote.
        journals: What each rank recorded.
    """

    setup: Setup
    fault: Fault
    how: How
    witness: list[dict[str, Any]]
    journals: list[list[AnyEvent]]


def load(setup: Setup, fault: Fault, how: How, folder: Path) -> Cell:
    """Reads a cell.

    Raises:
        AssertionError: A rank's training raised, or left no testimony.
    """
    cell = cell_folder(folder, fault, how)
    witness = []
    for rank in range(setup.world):
        path = cell / f"witness-{rank}.json"
        assert path.is_file(), f"rank {rank} left no testimony"
        witness.append(json.loads(path.read_text()))
        assert not witness[-1]["error"], witness[-1]["error"]
    # A resumed training is two runs, whose folders have no order.
    journals = [sorted(read_events(cell / "home", rank), key=lambda event: event.time) for rank in range(setup.world)]
    return Cell(setup, fault, how, witness, journals)


# -- the signals -------------------------------------------------------------------------------------------------------


def loss(cell: Cell) -> str:
    """The loss of each step is what was back-propagated; returns why it isn't available, if so."""
    return _signal(cell, "loss", "train/loss", lambda step: math.fsum(step["losses"]), "loss")


def norms(cell: Cell) -> str:
    """The gradient norm of each step, before clipping."""
    return _signal(cell, "norm", "train/grad_norm", lambda step: step["norm"], "gradients")


def local_norms(cell: Cell) -> str:
    """The norm of this rank's own gradient."""
    if cell.setup.world == 1:
        _absent(cell, "train/grad_norm_local")
        return ""
    return _signal(
        cell,
        "local",
        "train/grad_norm_local",
        lambda step: math.hypot(*step["own_norms"].values()) if step["own_norms"] else None,
        "layers",
    )


def layers(cell: Cell) -> str:
    """The norm of each layer's gradient, this rank's own."""
    why = cell.setup.why_missing("layers", cell.how)
    for rank, witness, journal in _ranks(cell):
        measured = of(LayersMeasured, journal)
        if why:
            assert not measured, f"rank {rank}: layers were measured, which are {why}"
            _said(cell, journal, "layers", why)
            continue
        assert measured, f"rank {rank}: no layers were measured"
        for event in measured:
            at = f"rank {rank}, step {event.step}"
            own = witness["steps"][str(event.step)]["own_norms"]
            assert own, f"{at}: nothing to compare the layers with"
            grouped: dict[str, list[float]] = {name: [] for name in event.layers}
            for name, norm in own.items():
                fitting = [layer for layer in event.layers if name == layer or name.startswith(layer + ".")]
                assert fitting, f"{at}: {name} belongs to no layer of {event.layers}"
                grouped[max(fitting, key=len)].append(norm)
            for layer, norm in zip(event.layers, event.norms, strict=True):
                if not grouped[layer]:
                    assert norm is None, f"{at}: {layer} has no gradient, but a norm of {norm}"
                else:
                    assert norm is not None, f"{at}: {layer} has no norm"
                    _agree(norm, math.hypot(*grouped[layer]), f"{at}: norm of {layer}")
            for share in event.zeros:
                assert share is None or 0 <= share <= 1
    return why


def counters(cell: Cell) -> str:
    """Micro-batches, non-finite ones, samples, tokens, supervised tokens."""
    why = cell.setup.why_missing("counters", cell.how)
    if why:
        for metric in ("micro_batches", "nonfinite_micro_batches", "samples", "tokens", "supervised_tokens"):
            _absent(cell, f"train/{metric}")
        for _, _, journal in _ranks(cell):
            _said(cell, journal, "batch", why)
        return why
    for rank, witness, journal in _ranks(cell):
        for event in of(StepEnded, journal):
            at, values = f"rank {rank}, step {event.step}", event.values
            truth = witness["steps"][str(event.step)]
            assert values["train/micro_batches"] == len(truth["losses"]) == cell.setup.accumulation, at
            if not cell.setup.why_missing("bad loss", cell.how):
                bad = sum(not math.isfinite(value) for value in truth["losses"])
                assert values.get("train/nonfinite_micro_batches", 0) == bad, at
            for name, key in (
                ("train/samples", "samples"),
                ("train/tokens", "tokens"),
                ("train/supervised_tokens", "supervised"),
            ):
                if cell.setup.why_missing(key, cell.how):
                    assert name not in values, f"{at}: {name} is {values[name]}, which is {key}"
                else:
                    assert values.get(name) == truth[key], f"{at}: {name} is {values.get(name)}, not {truth[key]}"
    return ""


def evaluation(cell: Cell) -> str:
    """The plain mean over the losses of all evaluation batches of this rank, non-finite when one is."""
    why = cell.setup.why_missing("eval", cell.how)
    for rank, witness, journal in _ranks(cell):
        evaluated = of(Evaluated, journal)
        assert [event.step for event in evaluated] == [3, 6], f"rank {rank}: {evaluated}"
        for event in evaluated:
            at, values = f"rank {rank}, evaluation at step {event.step}", event.values
            losses = witness["evaluations"][str(event.step)]["losses"]
            if why:
                assert "eval/loss" not in values, f"{at}: eval/loss is {values['eval/loss']}, which is {why}"
                continue
            assert len(losses) == values.get("eval/batches"), f"{at}: {values.get('eval/batches')} batches"
            _agree(values["eval/loss"], math.fsum(losses) / len(losses), f"{at}: eval/loss")
            bad = sum(not math.isfinite(value) for value in losses)
            assert values["eval/nonfinite_batches"] == bad, f"{at}: non-finite batches"
    return why


# -- the faults --------------------------------------------------------------------------------------------------------


def course(cell: Cell) -> None:
    """The training went as planned: every step once, nothing of ours failed, the weights stayed finite."""
    for rank, witness, journal in _ranks(cell):
        assert [event.step for event in of(StepEnded, journal)] == list(range(1, STEPS + 1)), f"rank {rank}"
        assert not of(TroubleCounted, journal), f"rank {rank}: {of(TroubleCounted, journal)}"
        starts = of(RunStarted, journal)
        assert [event.first_step for event in starts] == ([0, 3] if cell.setup.resume else [0])
        assert {event.world_size for event in starts} == {cell.setup.world}
        assert {event.outcome for event in of(RunEnded, journal)} == {"finished"}
        if not cell.setup.why_missing("protection", cell.how):
            assert all(witness["weights_finite"].values()), f"rank {rank}: weights are not finite"
        poisoned = sum(len(step["poisoned"]) for step in witness["steps"].values())
        expected = cell.fault.how and not cell.fault.evaluation and rank == cell.setup.planted_rank
        assert poisoned == bool(expected), f"rank {rank}: {poisoned} poisoned batches, the test is wrong"
        if cell.fault.evaluation:
            seen = {at: found["poisoned"] for at, found in witness["evaluations"].items()}
            assert set(seen.values()) == {int(rank == cell.setup.planted_rank)}, f"rank {rank}: {seen}"
            assert all(len(found["losses"]) == EVAL_SAMPLES for found in witness["evaluations"].values())


def planted_step(cell: Cell) -> int:
    """The step in which the poison came by."""
    steps = cell.witness[cell.setup.planted_rank]["steps"]
    (step,) = (int(number) for number, step in steps.items() if step["poisoned"])
    assert step == PLANTED_STEP or not cell.setup.ordered, f"poisoned in step {step}, the test is wrong"
    return step


def findings(cell: Cell) -> list[tuple[str, int | None, int | None]]:
    """What the rules find in the journals: rule, step, rank."""
    engine = Engine(RULES)
    timeline = sorted(
        ((event, rank) for rank, journal in enumerate(cell.journals) for event in journal),
        key=lambda entry: entry[0].time,
    )
    found: list[FindingRaised] = [finding for event, rank in timeline for finding in engine.observe(event, rank)]
    return [(finding.rule, finding.step, finding.rank) for finding in found if finding.state == "firing"]


def verdict(cell: Cell) -> str:
    """The rules find what was planted, where and when it was, and nothing else."""
    setup, fault, rank = cell.setup, cell.fault, cell.setup.planted_rank
    culprit = rank if setup.world > 1 else None
    expected: list[tuple[str, int, int]] = []
    if fault.evaluation:
        why = setup.why_missing("eval", cell.how)
        if not why or not _hidden(cell.journals[rank]):
            expected = [("nonfinite_eval_loss", step, rank) for step in (3, 6)]
    elif fault.how:
        unseen = setup.why_missing("finding", cell.how, fault.name)
        if unseen:
            assert findings(cell) == [], f"found {findings(cell)}"
            return unseen
        why = setup.why_missing("protection", cell.how)
        in_loss = fault.how != "gradient" and not setup.why_missing("bad loss", cell.how)
        if not in_loss and setup.why_missing("culprit", cell.how):
            rank, culprit = 0, None  # nobody knows whose it was, and the first speaks for all
        expected = [("nonfinite_loss" if in_loss else "nonfinite_gradient", planted_step(cell), rank)]
        unseen = setup.why_missing("finding", cell.how, fault.name)
        if unseen:
            assert not findings(cell), f"found {findings(cell)}"
            return unseen
        if why:
            assert expected[0] in findings(cell), f"found {findings(cell)}"
            return FOUND + why
    else:
        why = ""
    assert findings(cell) == expected, f"found {findings(cell)}, not {expected}"
    if fault.how and not fault.evaluation:
        for number, journal in enumerate(cell.journals):
            (seen,) = of(NonFiniteSeen, journal)
            assert seen.action == "skipped", f"rank {number}: {seen}"
            assert seen.local == (number == rank), f"rank {number}: {seen}"
            assert seen.culprit == culprit, f"rank {number}: {seen}"
    return why


def _hidden(journal: list[AnyEvent]) -> bool:
    """Tells whether this Trainer leaves bad batches out of its eval_loss; before transformers 5 none did."""
    return all(math.isfinite(event.values["eval/loss_reported"]) for event in of(Evaluated, journal))


def autopsy(cell: Cell) -> str:
    """The first bad module that the autopsy names is the one that was spoilt."""
    why = cell.setup.why_missing("autopsy", cell.how, cell.fault.name)
    rank = cell.setup.planted_rank
    for number, journal in enumerate(cell.journals):
        found = of(Autopsied, journal)
        if cell.fault.how and not cell.fault.evaluation and why:
            assert all(not one.module and one.note == why for one in found), f"rank {number}: {found}"
            continue
        if not cell.fault.how or cell.fault.evaluation or number != rank:
            assert not found, f"rank {number}: {found}"
            continue
        (one,) = found
        assert one.step == planted_step(cell)
        assert one.reproduced, f"{one}"
        assert one.micro_batch == cell.witness[rank]["steps"][str(one.step)]["poisoned"][0], f"{one}"
        # A gradient is blamed on the layer or parameter behind the module that spoilt it.
        assert cell.fault.module in one.module, f"{one.module}, not {cell.fault.module}"
        told = any("samples" in event.sources for event in of(SignalsFound, journal))
        assert told == bool(one.samples), f"{one.samples}"
        if told and cell.setup.ordered:
            assert cell.setup.planted_sample in one.samples, f"{one.samples}, not {cell.setup.planted_sample}"
    return why


# -- helpers -----------------------------------------------------------------------------------------------------------


def _ranks(cell: Cell) -> Iterator[tuple[int, dict[str, Any], list[AnyEvent]]]:
    return zip(range(cell.setup.world), cell.witness, cell.journals, strict=True)


def _signal(cell: Cell, signal: str, metric: str, truth: Any, said_of: str) -> str:
    why = cell.setup.why_missing(signal, cell.how)
    if why:
        _absent(cell, metric)
        for _, _, journal in _ranks(cell):
            _said(cell, journal, said_of, why)
        return why
    for rank, witness, journal in _ranks(cell):
        logged: dict[int, Values] = {}
        for event in of(Logged, journal):
            logged.setdefault(event.step, {}).update(event.values)
        for event in of(StepEnded, journal):
            at = f"rank {rank}, step {event.step}: {metric}"
            # What we can't read ourselves is taken from the Trainer's log, under the same name.
            values = {**logged.get(event.step, {}), **event.values}
            expected = truth(witness["steps"][str(event.step)])
            assert expected is not None, f"{at}: the witness saw nothing"
            assert metric in values, f"{at} is missing, and is {expected}"
            _agree(values[metric], expected, at)
    return ""


def _absent(cell: Cell, metric: str) -> None:
    for rank, journal in enumerate(cell.journals):
        for event in [*of(StepEnded, journal), *of(Logged, journal)]:
            assert metric not in event.values, f"rank {rank}, step {event.step}: {metric} is {event.values[metric]}"


def _said(cell: Cell, journal: list[AnyEvent], signal: str, why: str) -> None:
    """The run's page says why a signal is missing, and the table says the same."""
    reasons = {event.missing.get(signal) for event in of(SignalsFound, journal)}
    assert reasons == {why}, f"the page says {reasons} of {signal}, the table {why!r}"


def _agree(value: float, truth: float, at: str) -> None:
    if math.isfinite(truth):
        assert math.isclose(value, truth, rel_tol=TOLERANCE), f"{at} is {value!r}, and really {truth!r}"
    else:
        assert not math.isfinite(value), f"{at} is {value!r}, and really {truth!r}"


ASPECTS = {
    "loss": loss,
    "gradient norms": norms,
    "local norms": local_norms,
    "layers": layers,
    "counters": counters,
    "evaluation": evaluation,
    "verdict": verdict,
    "autopsy": autopsy,
}
"""What is judged of every cell; each returns why it isn't available, empty when it is as it should be."""
