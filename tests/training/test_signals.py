"""Each signal against an independent measurement."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainerCallback

from tests.training.tiny import TinyData, make_trainer, of, read_events
from trainwatch.events import StepEnded
from trainwatch.training.signals.gradients import GradientSignal
from trainwatch.training.signals.loss import LossSignal, find_loss, value_of
from trainwatch.training.signals.memory import ProcessMemory
from trainwatch.training.signals.reading import to_host


def parameters(*gradients: torch.Tensor) -> list[tuple[str, torch.nn.Parameter]]:
    named = []
    for index, gradient in enumerate(gradients):
        parameter = torch.nn.Parameter(torch.zeros(gradient.shape, dtype=gradient.dtype))
        parameter.grad = gradient
        named.append((f"p{index}", parameter))
    return named


def measured(*gradients: torch.Tensor) -> float:
    norm = GradientSignal(parameters(*gradients)).measure()
    assert norm is not None
    return float(norm)


def expected(*gradients: torch.Tensor) -> float:
    return math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients))


@pytest.mark.parametrize("sizes", [[5], [3, 4], [1_000, 17], [2_500_000, 2_500_000]], ids=str)
def test_the_norm_is_the_2_norm_over_all_gradients(sizes: list[int]) -> None:
    torch.manual_seed(0)
    gradients = [torch.randn(size) for size in sizes]
    assert measured(*gradients) == pytest.approx(expected(*gradients), rel=1e-5)


def test_the_norm_of_half_precision_gradients_is_computed_in_full() -> None:
    gradients = [torch.full((300_000,), 0.01, dtype=torch.bfloat16), torch.ones(7)]
    assert measured(*gradients) == pytest.approx(expected(*gradients), rel=1e-5)


def test_a_norm_too_large_for_float32_is_still_finite() -> None:
    assert measured(torch.full((10,), 1e30)) == pytest.approx(math.sqrt(10) * 1e30, rel=1e-5)


def test_sparse_gradients_count() -> None:
    embedding = torch.nn.Embedding(10, 4, sparse=True)
    embedding(torch.tensor([1, 1, 3])).sum().backward()
    assert embedding.weight.grad is not None
    norm = GradientSignal(embedding.named_parameters()).measure()
    assert norm is not None
    assert float(norm) == pytest.approx(float(embedding.weight.grad.to_dense().norm()), rel=1e-6)


def test_the_culprits_are_the_parameters_that_are_not_finite() -> None:
    signal = GradientSignal(parameters(torch.ones(3), torch.tensor([1.0, math.inf]), torch.ones(2)))
    signal.measure()
    assert signal.culprits() == ["p1"]


class Independent(TrainerCallback):
    """Computes each step's gradient norm from copies that hooks on the parameters took."""

    def __init__(self) -> None:
        self.norms: list[float] = []
        self.gradients: dict[str, torch.Tensor] = {}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for name, parameter in kwargs["model"].named_parameters():
            parameter.register_post_accumulate_grad_hook(
                lambda p, name=name: self.gradients.update({name: p.grad.detach().clone()})
            )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.norms.append(math.sqrt(sum(float(g.double().square().sum()) for g in self.gradients.values())))


@pytest.mark.parametrize("accumulation", [1, 4])
def test_norms_in_a_run_are_those_before_clipping(home: Path, tmp_path: Path, accumulation: int) -> None:
    independent = Independent()
    make_trainer(
        tmp_path / "out", max_grad_norm=0.01, gradient_accumulation_steps=accumulation, callbacks=[independent]
    ).train()
    norms = [event.values["train/grad_norm"] for event in of(StepEnded, read_events(home))]
    assert norms == pytest.approx(independent.norms, rel=1e-5)
    assert min(norms) > 0.01


def test_a_model_whose_loss_is_computed_elsewhere_still_has_norms(home: Path, tmp_path: Path) -> None:
    from tests.training.tiny import InOrder

    class Custom(InOrder):
        def compute_loss(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            logits = model(**inputs)["logits"]
            return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), inputs["labels"][:, 1:].flatten())

    make_trainer(tmp_path / "out", kind=Custom).train()
    steps = of(StepEnded, read_events(home))
    # The first step teaches that the model's own loss isn't the one; from the second on the norm is there.
    assert all("train/grad_norm" in event.values for event in steps[1:])


def test_find_loss_knows_the_shapes_of_model_outputs() -> None:
    loss = torch.tensor(1.5)
    assert find_loss({"loss": loss}, True) is loss
    assert find_loss((loss, torch.ones(3)), True) is loss
    assert find_loss((torch.ones(3),), False) is None
    assert find_loss({"logits": loss}, True) is None
    assert find_loss("nothing", True) is None
    per_sample = find_loss({"loss": torch.tensor([1.0, 3.0])}, True)
    assert per_sample is not None
    signal = LossSignal()
    signal.fold(value_of(per_sample))
    assert signal.mean(float(signal.total)) == 2.0


def test_losses_fold() -> None:
    signal = LossSignal()
    for value in (1.0, math.inf, 3.0):
        signal.fold(value_of(torch.tensor(value)))
    read = to_host({"total": signal.total, "bad": signal.nonfinite})
    assert read["bad"] == 1
    assert signal.mean(read["total"]) == math.inf


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_losses_fold_on_a_gpu_without_waiting_for_it() -> None:
    signal = LossSignal()
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.cuda.set_sync_debug_mode("error")
        try:
            for value in torch.tensor([1.0, math.nan, 3.0], device="cuda").unbind():
                signal.fold(value_of(value))
        finally:
            torch.cuda.set_sync_debug_mode("default")
    read = to_host({"total": signal.total, "bad": signal.nonfinite})
    assert read["bad"] == 1
    assert math.isnan(signal.mean(read["total"]))


class Sampler(threading.Thread):
    """Samples the resident memory of this process as fast as it can, about a thousand times a second."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.samples: list[tuple[float, int]] = []
        self.stop = False

    def run(self) -> None:
        import os

        page = os.sysconf("SC_PAGE_SIZE")
        with open("/proc/self/statm", "rb", buffering=0) as file:
            while not self.stop:
                file.seek(0)
                self.samples.append((time.perf_counter(), int(file.read(100).split()[1]) * page))
                time.sleep(0.0005)


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's high-water mark is Linux's")
def test_the_peak_of_a_step_is_what_a_fast_sampler_sees() -> None:
    memory = ProcessMemory()
    sampler = Sampler()
    sampler.start()
    peaks: list[tuple[float, float, float]] = []
    for index in range(12):
        memory.begin()
        began = time.perf_counter()
        block = torch.ones((10 if index % 3 else 60) * 1024 * 1024 // 4)
        # On a busy machine the sampler comes late: it must have seen what the kernel saw, or nothing is compared.
        enough = len(sampler.samples) + 5
        while len(sampler.samples) < enough:
            time.sleep(0.005)
        del block
        peaks.append((began, time.perf_counter(), memory.read()["cpu"]["memory/peak"]))
    sampler.stop = True
    sampler.join()
    memory.close()
    for began, ended, peak in peaks:
        seen = max(size for moment, size in sampler.samples if began <= moment <= ended)
        assert peak == pytest.approx(seen, rel=0.05)
    heights = [peak for _, _, peak in peaks]
    # By 50 MiB, less the one block of 10 that malloc may have kept meanwhile.
    assert min(heights[0::3]) - max(heights[1::3]) > 30 * 1024 * 1024, "a long batch stands out of the short ones"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's high-water mark is Linux's")
def test_the_memory_of_a_large_launcher_is_not_taken_for_ours() -> None:
    # getrusage of a process that subprocess starts (by vfork) begins at its parent's peak.
    script = (
        "from trainwatch.training.signals.memory import ProcessMemory\n"
        "memory = ProcessMemory(); memory.begin(); print(memory.read()['cpu']['memory/peak'])\n"
        "block = b'1' * 50_000_000; del block; print(memory.read()['cpu']['memory/peak'])\n"
        "memory.begin(); values = memory.read()['cpu']; print(max(values['memory/peak'], values['memory/resident']))"
    )
    launcher = f"x = b'1' * 1_000_000_000\nimport subprocess, sys\nsubprocess.run([sys.executable, '-c', {script!r}])"
    done = subprocess.run([sys.executable, "-c", launcher], capture_output=True, text=True, timeout=60, check=True)
    before, peak, after = map(float, done.stdout.split())
    assert before < 300e6
    assert peak - before == pytest.approx(50e6, rel=0.05)
    assert after == pytest.approx(before, rel=0.05)


def test_culprits_are_named_among_those_that_have_a_gradient() -> None:
    named = parameters(torch.ones(3), torch.tensor([math.nan]), torch.ones(2))
    named[0][1].grad = None
    signal = GradientSignal(named)
    signal.measure()
    assert signal.culprits() == ["p1"]


def test_data_of_one_sample_and_no_padding(home: Path, tmp_path: Path) -> None:
    make_trainer(tmp_path / "out", steps=2, batch=1, data=TinyData(2)).train()
    for event in of(StepEnded, read_events(home)):
        assert event.values["train/tokens"] == event.values["train/padded_tokens"]
