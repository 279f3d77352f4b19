"""``trainwatch.watch``: the loss that is trained on, whatever computes it, and a Trainer left as it was."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from packaging.version import Version, parse
from transformers import Trainer, TrainerCallback

import trainwatch
from tests.training.tiny import InOrder, TinyData, make_trainer, of, read_events
from trainwatch import TrainWatchCallback
from trainwatch.events import Evaluated, LayersMeasured, NonFiniteSeen, RunEnded, RunStarted, SignalsFound, StepEnded


class Truth(TrainerCallback):
    """Sums up what ``training_step`` returned, and the norm of the gradients that it left, by itself."""

    def __init__(self, trainer: Trainer) -> None:
        self.losses: list[float] = []
        self.norms: list[float] = []
        self.norm = self.loss = 0.0
        original = trainer.training_step

        def training_step(model: Any, inputs: Any, *rest: Any, **options: Any) -> Any:
            loss = original(model, inputs, *rest, **options)
            self.loss += float(loss)
            gradients = [p.grad for p in trainer.model.parameters() if p.grad is not None]
            self.norm = math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))
            return loss

        trainer.training_step = training_step
        trainer.add_callback(self)

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        self.losses.append(self.loss)
        self.norms.append(self.norm)
        self.loss = 0.0


class OwnLoss(InOrder):
    """Trains on something that is not the model's loss."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        outputs = model(**inputs)
        loss = 3 * outputs["loss"] + 1
        return (loss, outputs) if return_outputs else loss


class KeepsLabels(InOrder):
    """Takes the labels away from the model, as the Trainer does to smooth them."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = torch.nn.functional.cross_entropy(outputs["logits"].flatten(0, 1), labels.flatten(), label_smoothing=0.1)
        return (loss, outputs) if return_outputs else loss


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("kind", [InOrder, OwnLoss, KeepsLabels])
def test_loss_and_norm_are_those_that_are_trained_with(
    home: Path, tmp_path: Path, parts: int, kind: type[Trainer]
) -> None:
    trainer = make_trainer(tmp_path / "out", steps=5, kind=kind, policy=None, gradient_accumulation_steps=parts)
    truth = Truth(trainer)
    trainwatch.watch(trainer)
    trainer.train()
    found = read_events(home)
    steps = of(StepEnded, found)
    # transformers 4.46 trains on the sum of the micro-batches, and reports their mean.
    factor = parts if parse(transformers.__version__) < Version("4.47") else 1
    assert [event.values["train/loss"] / factor for event in steps] == pytest.approx(truth.losses, rel=1e-5)
    assert [event.values["train/grad_norm"] for event in steps] == pytest.approx(truth.norms, rel=1e-5)
    assert [event.values["train/micro_batches"] for event in steps] == [parts] * 5
    labels = iter([sum(len(tokens) for tokens in trainer.train_dataset.tokens[i : i + 2]) for i in range(0, 30, 2)])
    expected = [sum(next(labels) for _ in range(parts)) for _ in steps]
    assert [event.values["train/supervised_tokens"] for event in steps] == expected
    assert of(RunStarted, found)[0].loss_source == "loss function"
    assert of(SignalsFound, found)[-1].sources["loss"] == "what the Trainer trains on"


@pytest.mark.parametrize("kind", [OwnLoss, KeepsLabels])
def test_the_callback_alone_gives_no_loss_rather_than_a_wrong_one(
    home: Path, tmp_path: Path, kind: type[Trainer]
) -> None:
    trainer = make_trainer(
        tmp_path / "out", steps=4, kind=kind, evaluation=TinyData(4), eval_strategy="steps", eval_steps=2
    )
    truth = Truth(trainer)
    trainer.train()
    found = read_events(home)
    steps = of(StepEnded, found)
    assert not any("train/loss" in event.values for event in steps)
    assert [event.values["train/grad_norm"] for event in steps] == pytest.approx(truth.norms, rel=1e-5)
    assert not any("eval/loss" in event.values for event in of(Evaluated, found))
    assert "trainwatch.watch" in of(SignalsFound, found)[-1].missing["loss"]


def test_a_penalty_on_top_of_the_models_loss_shows_in_the_trainers_log(home: Path, tmp_path: Path) -> None:
    class Penalty(InOrder):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            outputs = model(**inputs)
            loss = outputs["loss"] + sum(parameter.square().sum() for parameter in model.parameters())
            return (loss, outputs) if return_outputs else loss

    make_trainer(tmp_path / "out", steps=6, kind=Penalty).train()
    found = read_events(home)
    assert [event.step for event in of(StepEnded, found) if "train/loss" in event.values] == [1]
    assert "trainwatch.watch" in of(SignalsFound, found)[-1].missing["loss"]


def test_a_loss_that_only_compute_loss_sees_is_found_non_finite(home: Path, tmp_path: Path) -> None:
    class Broken(InOrder):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **kwargs: Any) -> Any:
            outputs = model(**inputs)
            loss = outputs["loss"] * (math.nan if self.state.global_step == 2 else 1.0)
            return (loss, outputs) if return_outputs else loss

    trainer = make_trainer(tmp_path / "out", steps=5, kind=Broken, policy=None)
    trainwatch.watch(trainer)
    trainer.train()
    (seen,) = of(NonFiniteSeen, read_events(home))
    assert (seen.step, seen.where, seen.action) == (3, "loss", "skipped")
    assert all(bool(parameter.isfinite().all()) for parameter in trainer.model.parameters())


def test_the_loss_of_an_evaluation_is_that_of_compute_loss(home: Path, tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path / "out",
        steps=2,
        kind=OwnLoss,
        policy=None,
        evaluation=TinyData(4),
        eval_strategy="steps",
        eval_steps=2,
    )
    trainwatch.watch(trainer)
    trainer.train()
    (evaluated,) = of(Evaluated, read_events(home))
    assert evaluated.values["eval/loss"] == pytest.approx(evaluated.values["eval/loss_reported"], rel=1e-5)


@pytest.mark.parametrize("error", [RuntimeError("planted"), KeyboardInterrupt("planted")])
def test_an_exception_that_the_script_catches_ends_the_run_at_once(
    home: Path, tmp_path: Path, error: BaseException
) -> None:
    class Broken(TinyData):
        def __getitem__(self, index: int) -> dict[str, Any]:
            if index == 9 and trainer.state.global_step:  # not when its length is looked at before the training
                raise error
            return super().__getitem__(index)

    trainer = make_trainer(tmp_path / "out", data=Broken(16), policy=None)
    trainwatch.watch(trainer)
    with pytest.raises(type(error), match="planted"):
        trainer.train()
    (end,) = of(RunEnded, read_events(home))
    assert (end.outcome, end.error) == ("failed", f"{type(error).__name__}: planted")
    assert "__getitem__" in end.traceback
    assert not trainer.model._forward_hooks, "nothing is left on the model"
    assert "backward" not in vars(trainer.accelerator)


def test_a_notebook_that_lives_on_says_that_the_run_failed(home: Path, tmp_path: Path) -> None:
    cell = (
        "from pathlib import Path\nfrom tests.training.tiny import *\n"
        "class Broken(TinyData):\n"
        "    def __getitem__(self, index):\n"
        "        if index == 7: raise RuntimeError('sample 7 is broken')\n"
        "        return super().__getitem__(index)\n"
        f"trainer = make_trainer(Path({str(tmp_path / 'out')!r}), data=Broken(16))\n"
        "trainer.train()"
    )
    script = (
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell.instance()\n"
        "shell.run_cell('1 / 0')\n"
        f"shell.run_cell({cell!r})\n"
        "from tests.training.tiny import read_events, of\nfrom trainwatch import events\nfrom pathlib import Path\n"
        f"print([e.error for e in of(events.RunEnded, read_events(Path({str(home)!r})))])\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.splitlines()[-1] == "['RuntimeError: sample 7 is broken']"


@pytest.mark.skipif(
    parse(transformers.__version__) < Version("4.49") and parse(torch.__version__) >= Version("2.6"),
    reason="this transformers cannot resume with this torch: its own torch.load is refused",
)
@pytest.mark.parametrize("tapped", [False, True])
def test_a_resumed_training_goes_on_as_the_same_run(home: Path, tmp_path: Path, tapped: bool) -> None:
    def make(folder: str, steps: int) -> Trainer:
        trainer = make_trainer(
            tmp_path / folder,
            steps=steps,
            data=TinyData(40),
            policy=None if tapped else "protect",
            save_strategy="steps",
            save_steps=3,
        )
        if tapped:
            trainwatch.watch(trainer)
        return trainer

    make("out", 5).train()
    # Where it was told to begin is known to watch(); to the callback alone only what lies in its own folder.
    checkpoint = tmp_path / "out" / "checkpoint-3"
    make("elsewhere" if tapped else "out", 8).train(resume_from_checkpoint=str(checkpoint))
    assert len(list((home / "journal").iterdir())) == 1
    first, second = sorted(of(RunStarted, read_events(home)), key=lambda event: event.time)
    assert (first.first_step, second.first_step) == (0, 3)
    assert second.environment["resumed"]["continued"] is True
    assert "run_started" not in first.environment.get("resumed", {})


def test_the_trainer_is_left_as_it_was(home: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "out", steps=2, policy=None)
    trainwatch.watch(trainer)
    before = dict(vars(trainer)), dict(vars(trainer.accelerator))
    trainer.train()
    for owner, attributes in zip((trainer, trainer.accelerator), before, strict=True):
        for name in ("compute_loss", "backward", "clip_grad_norm_"):
            assert (name in vars(owner)) == (name in attributes)
    trainer.args.max_steps = 4
    trainer.train()
    runs = {folder.name for folder in (home / "journal").iterdir()}
    assert len(runs) == 2, "watched again, as a run of its own"


def test_a_callback_that_is_there_is_told(home: Path, tmp_path: Path) -> None:
    callback = TrainWatchCallback("halt")
    trainer = make_trainer(tmp_path / "out", steps=2, policy=None, callbacks=[callback])
    assert trainwatch.watch(trainer) is callback
    assert trainwatch.watch(trainer, "halt") is callback
    with pytest.raises(ValueError, match="already"):
        trainwatch.watch(trainer, "record")
    with pytest.raises(TypeError, match=r"takes a transformers\.Trainer, not int"):
        trainwatch.watch(3)


def test_weights_are_bit_for_bit_those_without_it(home: Path, tmp_path: Path) -> None:
    def trained(watched: bool) -> list[torch.Tensor]:
        trainer = make_trainer(tmp_path / f"out{watched}", steps=12, policy=None, gradient_accumulation_steps=2)
        if watched:
            trainwatch.watch(trainer)
        trainer.train()
        return [parameter.detach().clone() for parameter in trainer.model.parameters()]

    assert all(torch.equal(a, b) for a, b in zip(trained(True), trained(False), strict=True))


def test_layers_are_measured_now_and_then(home: Path, tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path / "out", steps=25, policy=None)
    weights: list[list[torch.Tensor]] = []
    gradients: list[list[torch.Tensor]] = []

    class Copy(TrainerCallback):
        def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
            weights.append([p.detach().clone() for p in trainer.model.parameters()])

        def on_pre_optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            gradients.append([p.grad.clone() for p in trainer.model.parameters()])

    trainer.args.max_grad_norm = 1e9
    trainer.add_callback(Copy())
    trainwatch.watch(trainer)
    trainer.train()
    weights.append([p.detach().clone() for p in trainer.model.parameters()])
    found = read_events(home)
    measured = of(LayersMeasured, found)
    assert [event.step for event in measured][:2] == [1, 11]
    names = [name for name, _ in trainer.model.named_parameters()]
    for event in measured:
        whole = math.sqrt(sum(norm**2 for norm in event.norms if norm is not None))
        step = next(one for one in of(StepEnded, found) if one.step == event.step)
        assert whole == pytest.approx(step.values["train/grad_norm"], rel=1e-5)
        before, after = weights[event.step - 1], weights[event.step]
        for number, layer in enumerate(event.layers):
            own = [i for i, name in enumerate(names) if name.startswith(layer + ".")]
            norm = math.sqrt(sum(float(gradients[event.step - 1][i].double().square().sum()) for i in own))
            assert event.norms[number] == pytest.approx(norm, rel=1e-5)
            zeros = sum(int((gradients[event.step - 1][i] == 0).sum()) for i in own)
            assert event.zeros[number] == pytest.approx(zeros / sum(before[i].numel() for i in own))
            change = math.sqrt(sum(float((after[i] - before[i]).double().square().sum()) for i in own))
            size = math.sqrt(sum(float(before[i].double().square().sum()) for i in own))
            assert event.updates[number] == pytest.approx(change / size, rel=1e-3, abs=1e-9)


def test_the_time_of_a_step_is_split(home: Path, tmp_path: Path) -> None:
    import time

    class Slow(TinyData):
        def __getitem__(self, index: int) -> dict[str, Any]:
            time.sleep(0.03)
            return super().__getitem__(index)

    trainer = make_trainer(tmp_path / "out", steps=6, data=Slow(64), policy=None)
    trainwatch.watch(trainer)
    trainer.train()
    left = []
    for event in of(StepEnded, read_events(home))[1:]:
        values = event.values
        parts = values["train/compute_seconds"] + values["train/optimizer_seconds"]
        left.append(1.0 - parts / values["train/step_seconds"])
        assert values["train/data_seconds"] >= 0.03
        assert 0 <= values["train/padding_share"] < 1
    # On a busy machine somebody else may have a turn between the parts, but not in each step.
    assert -1e-6 <= min(left) < 0.05
