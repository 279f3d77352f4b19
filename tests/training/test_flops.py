from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, MixtralConfig, MixtralForCausalLM

from trainwatch.training.signals.flops import Flops, cost_of, peak_of


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA H200", 989e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA A10G", 70e12),
        ("NVIDIA L40S", 362e12),
        ("NVIDIA L4", 121e12),
        ("Tesla V100-SXM2-32GB", 125e12),
        ("Tesla T4", 65e12),
        ("NVIDIA GeForce RTX 4090", 165e12),
        ("AMD Instinct MI300X", 1307e12),
        ("NVIDIA A100 80GB PCIe", 312e12),
        ("NVIDIA GH200 480GB", 989e12),
        ("nvidia a40", 150e12),
        ("NVIDIA GeForce GTX 1080", 0.0),
        ("NVIDIA RTX A1000", 0.0),
        ("NVIDIA RTX A3000", 0.0),
        ("NVIDIA RTX A4000", 0.0),
        ("NVIDIA T400 4GB", 0.0),
        ("NVIDIA L400", 0.0),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 0.0),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", 0.0),
        ("NVIDIA GeForce RTX 4090 D", 0.0),
        ("NVIDIA GeForce RTX 3090 Ti", 0.0),
        ("GRID A100-10C", 0.0),
        ("NVIDIA A10-8Q", 0.0),
        ("", 0.0),
    ],
)
def test_a_device_is_known_by_its_name(name: str, peak: float) -> None:
    assert peak_of(name) == peak


def test_the_cost_of_a_token_is_what_torch_counts() -> None:
    from torch.utils.flop_counter import FlopCounterMode

    config = GPT2Config(vocab_size=96, n_embd=64, n_layer=3, n_head=2, n_positions=64, attn_implementation="eager")
    model = GPT2LMHeadModel(config)
    ids = torch.randint(0, 96, (2, 64))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=ids)["loss"].backward()
    own, per_length = cost_of(model)
    assert (own + per_length * 64) * ids.numel() == pytest.approx(counter.get_total_flops(), rel=0.03)


def test_what_does_not_go_through_all_parameters_is_not_counted() -> None:
    config = MixtralConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_local_experts=2,
    )
    assert cost_of(MixtralForCausalLM(config)) == (0.0, 0.0)
    assert cost_of(torch.nn.Linear(2, 2)) == (0.0, 0.0)


def test_nothing_is_said_where_the_device_is_not_known() -> None:
    values = {"train/padded_tokens": 100.0, "train/step_seconds": 1.0}
    Flops(torch.nn.Linear(2, 2), half=True).add(values)
    assert "train/mfu" not in values


class OnGpu:
    """A model whose parameters say that they are on a GPU: the lowest that can be simulated without one."""

    def __init__(self, model: torch.nn.Module) -> None:
        self.model = model

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def parameters(self) -> Any:
        for parameter in self.model.parameters():
            yield SimpleNamespace(device=torch.device("cuda", 0), dtype=parameter.dtype)


@pytest.mark.parametrize(("replicas", "said"), [(False, True), (True, False)])
def test_replicas_on_devices_that_nobody_counted_have_no_utilisation(
    replicas: bool, said: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA A100-SXM4-80GB")
    model = OnGpu(GPT2LMHeadModel(GPT2Config(vocab_size=96, n_embd=64, n_layer=1, n_head=2, n_positions=64)))
    values = {"train/padded_tokens": 1e6, "train/step_seconds": 1.0}
    Flops(model, half=True, replicas=replicas).add(values)
    assert ("train/mfu" in values) == said
