"""The autopsy, on real models with planted faults: it names what was planted, and training does not notice it."""

from __future__ import annotations

import copy
import dataclasses
import gc
import math
import random
import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from tests.training.forked import forked
from tests.training.tiny import TinyModel
from trainwatch.events import Autopsied, decode, encode
from trainwatch.rules.autopsy import autopsy_sentence
from trainwatch.training.autopsy import MicroBatch, examine, is_running
from trainwatch.training.autopsy.limits import Alone, NeedsOthers, Notes
from trainwatch.training.autopsy.tensors import look

NAN, INF, WORDS = math.nan, math.inf, 97
SMALL: dict[str, Any] = {"vocab_size": WORDS, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
LLAMA: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 3, "num_attention_heads": 2}


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    """Many threads on few cores wait for each other more than they work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def gpt2(dropout: float = 0.0) -> Any:
    drops = {"resid_pdrop": dropout, "embd_pdrop": dropout, "attn_pdrop": dropout}
    torch.manual_seed(0)
    config = GPT2Config(n_layer=3, n_embd=32, n_head=2, n_positions=64, **drops, **SMALL)
    return GPT2LMHeadModel(config).train()


def llama() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(num_key_value_heads=2, **LLAMA, **SMALL)).train()


def bert(kind: type[PreTrainedModel] = BertForSequenceClassification, labels: int = 3) -> Any:
    torch.manual_seed(0)
    return kind(BertConfig(**LLAMA, **SMALL, num_labels=labels)).train()


def t5() -> Any:
    torch.manual_seed(0)
    config = T5Config(
        d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, vocab_size=WORDS, decoder_start_token_id=0
    )
    return T5ForConditionalGeneration(config).train()


def mixtral() -> Any:
    torch.manual_seed(0)
    return MixtralForCausalLM(
        MixtralConfig(num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2, **LLAMA, **SMALL)
    ).train()


def text(rows: int = 2, length: int = 16) -> dict[str, torch.Tensor]:
    ids = torch.randint(3, WORDS, (rows, length), generator=torch.Generator().manual_seed(1))
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids.clone()}


def after(model: nn.Module, name: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Plants a fault: changes what a module gives."""

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)

    model.get_submodule(name).register_forward_hook(hook)


def first(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Sets the first value of each row."""
    return lambda tensor: tensor.masked_fill(torch.arange(tensor.shape[-1]) == 0, value)


class _Spoil(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        gradient.view(-1)[0] = NAN
        return gradient


def spoil(tensor: torch.Tensor) -> torch.Tensor:
    """Leaves a value as it is, and spoils its gradient."""
    return _Spoil.apply(tensor)  # type: ignore[no-any-return,no-untyped-call]


def autopsy(model: Any, given: dict[str, Any], where: Any = "loss", **more: Any) -> Autopsied:
    loss = more.pop("loss", NAN if where == "loss" else 2.0)
    event = examine(model, [MicroBatch(0, given, loss=loss)], step=3, where=where, **more)
    assert decode(encode(event)) is not None, "it can be sent"
    return event


def assert_found(event: Autopsied, cause: str, module: str = "") -> None:
    assert (event.cause, event.module, event.note) == (cause, module, ""), autopsy_sentence(event)
    assert event.reproduced


# -- the forward pass ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "module", "value"),
    [
        (gpt2, "transformer.h.1.mlp.act", NAN),
        (gpt2, "transformer.wte", NAN),
        (gpt2, "transformer.h.2.attn", INF),
        (gpt2, "lm_head", NAN),
        (llama, "model.layers.1.self_attn", INF),
        (llama, "model.layers.2.mlp.down_proj", -INF),
        (llama, "model.norm", NAN),
        (t5, "encoder.block.0.layer.1", NAN),
        (t5, "decoder.block.1.layer.1.EncDecAttention.o", NAN),
        (mixtral, "model.layers.1.mlp.experts", NAN),
        (mixtral, "model.layers.2.mlp", INF),
    ],
)
def test_the_first_module_that_is_not_finite_is_named(make: Any, module: str, value: float) -> None:
    model = make()
    after(model, module, first(value))
    event = autopsy(model, text())
    assert_found(event, "module_forward", module)
    assert event.module_kind == type(model.get_submodule(module)).__name__
    shown = event.outputs[-1] if event.outputs[-1].name == module else event.outputs[-2]
    assert shown.name.startswith(module)
    assert (shown.nan, shown.inf) == ((event.parameters["nan"], 0) if value != value else (0, event.parameters["inf"]))
    assert event.parameters["nan" if value != value else "inf"] == math.prod(shown.shape) // shown.shape[-1]
    assert all(output.nan == output.inf == 0 for output in event.outputs if not output.name.startswith(module))
    assert len(event.outputs) >= (1 if module == "transformer.wte" else 2)


class Repeated(nn.Module):
    """Calls one module three times; the second time it is too much for it."""

    def __init__(self, weight: float, between: float) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.out = nn.Linear(4, 1)
        self.between = between
        with torch.no_grad():
            self.inner.weight.fill_(weight)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        for _ in range(3):
            x = self.inner(x) * self.between
        return {"loss": self.out(x).mean()}


def test_code_between_modules() -> None:
    event = autopsy(Repeated(1e30, 1e30), {"x": torch.ones(2, 4)})
    assert_found(event, "module_forward")
    assert (event.module_kind, event.parameters["into"]) == ("Repeated", "inner")
    assert "between its modules: of what goes into inner, all 8 values are Inf." in autopsy_sentence(event)


def test_a_module_that_is_called_several_times() -> None:
    event = autopsy(Repeated(1e30, 1.0), {"x": torch.ones(2, 4)})
    assert_found(event, "module_forward", "inner")
    assert (event.parameters["call"], event.parameters["calls"]) == (2, 3)
    assert "in call 2 of 3" in autopsy_sentence(event)


class InPlace(nn.Module):
    """Modules that work in place, hand on tuples and dicts, and mask with -Inf."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
        self.mask = Mask()
        self.pair = Pair()
        self.root = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor, fault: torch.Tensor) -> dict[str, torch.Tensor]:
        x = self.first(x)
        x = x * self.mask(x)["weights"]
        low, high = self.pair(x)
        return {"loss": (self.root(low) + fault.log() + high).sum()}


class Mask(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = Masked()

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"weights": self.inner(x).softmax(-1)}


class Masked(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.masked_fill(torch.arange(4) == 3, -INF)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = x.clone().add_(1.0).mul_(self.scale)
        return x, x.sqrt()


def test_a_mask_of_minus_infinity_is_no_fault() -> None:
    model = InPlace()
    event = autopsy(model, {"x": torch.ones(2, 4), "fault": torch.tensor(-1.0)})
    assert (event.cause, event.module_kind) == ("loss_function", "InPlace"), "the log in the model's own code"
    healthy = autopsy(model, {"x": torch.ones(2, 4), "fault": torch.tensor(1.0)})
    assert (healthy.cause, healthy.reproduced) == ("not_reproduced", False)
    assert healthy.parameters == {"attempts": 1, "random": False}


def test_ruined_weights_are_told_from_a_module_that_fails() -> None:
    model = gpt2()
    with torch.no_grad():
        model.transformer.h[2].mlp.c_fc.weight[3, 4] = NAN
    event = autopsy(model, text())
    assert_found(event, "nonfinite_weights", "transformer.h.2.mlp.c_fc")
    assert event.parameters["parameter"] == "transformer.h.2.mlp.c_fc.weight"
    assert (event.weights[0].name, event.weights[0].nan) == ("transformer.h.2.mlp.c_fc.weight", 1)
    assert len(event.weights) == 8


def test_weights_that_took_no_part_are_not_blamed() -> None:
    model = gpt2()
    model.unused = nn.Parameter(torch.tensor([NAN]))
    after(model, "transformer.h.0.mlp", first(NAN))
    event = autopsy(model, text())
    assert_found(event, "module_forward", "transformer.h.0.mlp")
    assert event.weights[0].name == "unused"


def test_a_nan_in_the_inputs() -> None:
    model = gpt2()
    embedded = model.transformer.wte(text()["input_ids"]).detach()
    embedded[1, 2, 3] = NAN
    event = autopsy(model, {"inputs_embeds": embedded, "labels": text()["labels"]})
    assert_found(event, "nonfinite_input")
    assert autopsy_sentence(event) == "The batch itself is not finite: in inputs_embeds, 1 of 1,024 values is NaN."
    assert (event.inputs[0].name, event.inputs[0].nan, event.inputs[0].shape) == ("inputs_embeds", 1, [2, 16, 32])


# -- labels and ids --------------------------------------------------------------------------------------------------


def labelled(labels: Any) -> dict[str, Any]:
    return {**text(), "labels": torch.as_tensor(labels)}


@pytest.mark.parametrize(
    ("make", "given", "sentence"),
    [
        (gpt2, labelled(torch.full((2, 16), -100)), "All 32 labels of this batch are -100"),
        (t5, labelled(torch.full((2, 7), -100)), "All 14 labels of this batch are -100"),
        (bert, labelled([-100, -100]), "All 2 labels of this batch are -100"),
        (lambda: bert(BertForTokenClassification), labelled(torch.full((2, 16), -100)), "All 32 labels of this batch"),
        (TinyModel, {}, "All 8 labels of this batch are -100"),
    ],
    ids=["gpt2", "t5", "sequences", "tokens", "tiny"],
)
def test_labels_that_are_all_ignored(make: Any, given: dict[str, Any], sentence: str) -> None:
    if make is TinyModel:
        ids = torch.ones(2, 4, dtype=torch.long)
        one, none = torch.ones(2), torch.zeros(2, dtype=torch.bool)
        given = {"input_ids": ids, "attention_mask": ids, "labels": ids * -100, "scale": one, "kink": none}
    event = autopsy(make(), given)
    assert_found(event, "no_supervised_tokens")
    assert autopsy_sentence(event).startswith(sentence)
    assert event.supervised_tokens == 0


def test_a_causal_model_has_nothing_to_predict_a_first_token_from() -> None:
    labels = torch.full((2, 16), -100)
    labels[:, 0] = 5
    event = autopsy(gpt2(), labelled(labels))
    assert_found(event, "no_supervised_tokens")
    assert (event.parameters, event.supervised_tokens) == ({"labels": 32, "supervised": 2}, 2)


def test_ignored_labels_are_not_blamed_for_a_module() -> None:
    model = gpt2()
    after(model, "transformer.h.0.mlp", first(NAN))
    assert_found(autopsy(model, labelled(torch.full((2, 16), -100))), "module_forward", "transformer.h.0.mlp")


def must_not_run(model: nn.Module) -> Any:
    def forward(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("on a GPU this would have ended the process")

    model.forward = forward  # type: ignore[method-assign]
    return model


def changed(name: str, value: int) -> dict[str, Any]:
    given = text()
    given[name][1, 3] = value
    return given


@pytest.mark.parametrize(
    ("make", "given", "cause", "sentence"),
    [
        (gpt2, changed("labels", 500), "label_out_of_range", "Label 500 lies outside of the vocabulary of 97."),
        (gpt2, changed("labels", -1), "label_out_of_range", "Label -1 lies outside of the vocabulary of 97."),
        (t5, changed("labels", 97), "label_out_of_range", "Label 97 lies outside of the vocabulary of 97."),
        (bert, labelled([0, 3]), "label_out_of_range", "Label 3 lies outside of the 3 classes, 0 to 2."),
        (
            gpt2,
            changed("input_ids", 97),
            "input_out_of_range",
            "Token id 97 in input_ids lies outside of the 97 entries of the model's embedding.",
        ),
        (
            llama,
            changed("input_ids", -5),
            "input_out_of_range",
            "Token id -5 in input_ids lies outside of the 97 entries of the model's embedding.",
        ),
    ],
)
def test_what_is_out_of_range_is_found_without_running(make: Any, given: Any, cause: str, sentence: str) -> None:
    event = autopsy(must_not_run(make()), given)
    assert (event.cause, event.note) == (cause, "")
    assert autopsy_sentence(event) == sentence


def test_a_position_that_the_model_has_no_embedding_for_is_not_looked_up() -> None:
    event = autopsy(gpt2(), text(length=70))
    assert (event.cause, event.module, event.note) == ("input_out_of_range", "transformer.wpe", "")
    assert autopsy_sentence(event) == "Index 69 lies outside of the 64 entries of transformer.wpe (Embedding)."


@pytest.mark.parametrize(
    ("make", "labels"),
    [
        (bert, [0, 2]),
        (lambda: bert(labels=1), [0.5, 7.0]),
        (lambda: bert(labels=1), [5, 7]),
        (lambda: bert(BertForTokenClassification), torch.full((2, 16), 2)),
        (lambda: bert(labels=4), torch.eye(4)[:2]),
    ],
    ids=["classes", "regression", "whole numbers", "tokens", "several each"],
)
def test_labels_that_are_no_tokens_are_not_held_against_the_vocabulary(make: Any, labels: Any) -> None:
    model = make()
    if labels is not None and model.config.num_labels == 1:
        labels = torch.as_tensor(labels, dtype=torch.float32 if isinstance(labels[0], float) else torch.long)
    event = autopsy(model.eval(), labelled(labels))
    assert event.cause in ("not_reproduced", "not_examined"), autopsy_sentence(event)
    assert event.cause == "not_reproduced" or model.config.num_labels == 1


def test_what_the_batch_tells() -> None:
    given = text()
    given["attention_mask"][0, 10:] = 0
    given["labels"][0, 4:] = -100
    event = autopsy(gpt2(), given, learning_rate=1e-4)
    assert (event.tokens, event.padded_tokens, event.supervised_tokens) == (26, 32, 20)
    assert [(one.name, one.shape, one.dtype, one.device) for one in event.inputs] == [
        ("input_ids", [2, 16], "int64", "cpu"),
        ("attention_mask", [2, 16], "int64", "cpu"),
        ("labels", [2, 16], "int64", "cpu"),
    ]
    assert (event.inputs[2].low, event.inputs[2].high) == (-100.0, given["labels"].max().item())
    assert (event.learning_rate, event.step, event.micro_batch) == (1e-4, 3, 0)
    assert event.loss is not None
    assert math.isnan(event.loss)


# -- which micro-batch -----------------------------------------------------------------------------------------------


def test_the_micro_batch_with_the_bad_loss_is_the_one() -> None:
    batches = [
        MicroBatch(0, text(), loss=2.0, samples=[4, 5]),
        MicroBatch(1, labelled(torch.full((2, 16), -100)), loss=torch.tensor(NAN), samples=[6, 7]),
        MicroBatch(2, text(), loss=2.0, samples=[8, 9]),
    ]
    event = examine(gpt2(), batches, step=3, where="loss")
    assert (event.cause, event.micro_batch, event.samples) == ("no_supervised_tokens", 1, [6, 7])


def test_of_finite_losses_the_micro_batch_with_the_bad_gradient_is_found() -> None:
    model = TinyModel()
    batches = []
    for number, kink in enumerate([False, True, False]):
        ids = torch.ones(2, 4, dtype=torch.long)
        given = {"input_ids": ids, "attention_mask": ids, "labels": ids, "scale": torch.ones(2)}
        batches.append(MicroBatch(number, {**given, "kink": torch.tensor([kink, False])}, loss=3.0, samples=[number]))
    event = examine(model, batches, step=3, where="gradient", parameters=["inner.weight"])
    assert (event.cause, event.module_kind, event.micro_batch) == ("module_backward", "TinyModel", 1)
    assert event.parameters["operation"] == "Sqrt"
    assert event.samples == [], "one index does not fit a batch of two: some trainers load other batches than they use"
    finite = examine(model, [batches[0], batches[2]], step=3, where="gradient")
    assert (finite.cause, finite.micro_batch, finite.inputs) == ("not_reproduced", None, [])


def test_packed_samples_fit_one_row() -> None:
    event = examine(gpt2(), [MicroBatch(0, text(rows=1), loss=NAN, samples=[3, 4, 5])], step=1, where="loss")
    assert event.samples == [3, 4, 5]


# -- the backward pass -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [gpt2, llama, t5])
@pytest.mark.parametrize("checkpointing", [None, "reentrant", "plain"])
def test_the_first_layer_in_backward_order_is_named(make: Any, checkpointing: str | None) -> None:
    model = make()
    # In a bad gradient's way to the embedding lie a second fault and all other layers.
    bad = {
        "GPT2LMHeadModel": ("transformer.h.1.mlp.act", "transformer.h.0"),
        "LlamaForCausalLM": ("model.layers.1.mlp.act_fn", "model.layers.0.mlp"),
        "T5ForConditionalGeneration": ("decoder.block.1.layer.2.DenseReluDense.wi", "encoder.block.0.layer.0"),
    }[type(model).__name__]
    for name in bad:
        after(model, name, spoil)
    if checkpointing:
        enable = getattr(model, "activation_checkpointing_enable", model.gradient_checkpointing_enable)
        enable({"use_reentrant": checkpointing == "reentrant"})
    event = autopsy(model, text(), "gradient")
    assert_found(event, "module_backward", bad[0])
    assert event.parameters["operation"] == "_Spoil"
    assert event.parameters["nan"] == 1
    assert event.outputs[-1].name == bad[0]


def test_in_place_operations_and_tuples_backwards() -> None:
    model = InPlace()
    with torch.no_grad():
        model.pair.scale.zero_()  # the root of 0 has no finite derivative
    event = autopsy(model, {"x": torch.ones(2, 4), "fault": torch.tensor(1.0)}, "gradient")
    assert_found(event, "module_backward", "pair")
    assert event.parameters["operation"] == "Sqrt"


class Swallowing(nn.Module):
    """A bad gradient that is masked before it reaches a parameter, in front of one that is not."""

    def __init__(self) -> None:
        super().__init__()
        self.late = Masking()
        self.early = Pair()

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        _, root = self.early(x)
        return {"loss": (self.late(root)).sum()}


class Masking(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return spoil(x.masked_fill(torch.arange(x.numel()).view_as(x) == 0, 1.0))


def test_a_gradient_that_was_masked_is_not_blamed() -> None:
    event = autopsy(Swallowing(), {"x": torch.tensor([3.0, 4.0, -1.0])}, "gradient")
    assert_found(event, "module_backward", "early")
    healthy = autopsy(Swallowing(), {"x": torch.tensor([3.0, 4.0, 5.0])}, "gradient")
    assert healthy.cause == "not_reproduced"


def test_the_loss_function_of_the_users_own() -> None:
    given = text()

    def forward(model: Any, inputs: dict[str, Any]) -> Any:
        inputs.pop("labels")
        return model(**inputs).logits.mean() * NAN

    def backward(model: Any, inputs: dict[str, Any]) -> Any:
        return (model(**inputs).logits * 0).sum().sqrt()

    event = autopsy(gpt2(), given, compute_loss=forward)
    assert_found(event, "loss_function")
    assert autopsy_sentence(event) == "The loss function makes NaN of finite outputs."
    assert "labels" in given
    event = autopsy(gpt2(), given, "gradient", compute_loss=backward)
    assert_found(event, "loss_function")
    assert event.parameters["operation"] == "Sqrt"
    model = gpt2()
    after(model, "transformer.h.1", first(NAN))
    assert_found(autopsy(model, given, compute_loss=forward), "module_forward", "transformer.h.1")


def test_a_loss_is_computed_with_what_it_was_given() -> None:
    seen = []

    def compute_loss(model: Any, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Any:
        seen.append(num_items_in_batch)
        return model(**inputs, num_items_in_batch=num_items_in_batch).loss

    # No token of this micro-batch counts, and others of the step do: a loss of 0, not NaN.
    ignored = labelled(torch.full((2, 16), -100))
    one = MicroBatch(0, ignored, loss=0.0, loss_arguments={"num_items_in_batch": 40})
    event = examine(gpt2(), [one], step=1, where="gradient", compute_loss=compute_loss)
    assert (event.cause, event.note, seen) == ("not_reproduced", "", [40])
    event = autopsy(gpt2(), ignored, "gradient", loss=0.0, compute_loss=compute_loss)
    assert (event.cause, event.reproduced) == ("not_examined", False), "nothing is concluded from another loss"
    assert event.note == "its loss was finite in the training: it could not be computed in the same way"


# -- half precision --------------------------------------------------------------------------------------------------


def overflowing(model: Any, dtype: torch.dtype) -> Any:
    with torch.no_grad():
        model.model.layers[1].mlp.up_proj.weight *= 2e5 if dtype is torch.float16 else 1e38
    return model


def test_an_overflow_of_half_precision() -> None:
    event = autopsy(overflowing(llama().half(), torch.float16), text())
    assert_found(event, "half_overflow", "model.layers.1.mlp.up_proj")
    assert event.parameters["dtype"] == "float16"
    assert event.parameters["limit"] == 65504.0
    assert event.parameters["value"] > 65504.0
    assert "overflows float16: its output reaches" in autopsy_sentence(event)


def test_an_overflow_under_autocast_which_accelerate_puts_around_forward() -> None:
    model = overflowing(llama(), torch.float16)
    model.forward = torch.autocast("cpu", torch.float16)(model.forward)
    event = autopsy(model, text())
    assert_found(event, "half_overflow", "model.layers.1.mlp.up_proj")
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_infinity_that_is_no_overflow(dtype: torch.dtype) -> None:
    model = llama().to(dtype)
    after(model, "model.layers.1.mlp.up_proj", first(INF))
    assert_found(autopsy(model, text()), "module_forward", "model.layers.1.mlp.up_proj")


class HalfBackward(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.head = nn.Linear(4, 4)
        self.factor = factor

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = self.inner(x).half() * self.factor
        return {"loss": self.head(hidden.float()).sum() / 16}


def test_an_overflow_of_the_gradient_that_only_the_loss_scale_makes() -> None:
    given = {"x": torch.ones(2, 4)}
    torch.manual_seed(0)
    model = HalfBackward(30.0)
    event = autopsy(model, given, "gradient", loss_scale=65536.0)
    assert (event.cause, event.module_kind, event.loss_scale) == ("half_overflow", "HalfBackward", 65536.0)
    assert "With the loss scale of 65,536 a gradient in HalfBackward overflows float16" in autopsy_sentence(event)
    assert autopsy(model, given, "gradient").cause == "not_reproduced"
    torch.manual_seed(0)
    assert autopsy(HalfBackward(1e6), given, "gradient", loss_scale=65536.0).cause != "half_overflow"


# -- chance ----------------------------------------------------------------------------------------------------------


def unlucky(probability: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor * NAN if torch.rand(()) < probability else tensor


def test_what_depends_on_chance_is_tried_several_times() -> None:
    model = gpt2(dropout=0.1)
    after(model, "transformer.h.1.mlp", unlucky(0.7))
    torch.manual_seed(5)
    assert_found(autopsy(model, text()), "module_forward", "transformer.h.1.mlp")
    event = autopsy(gpt2(dropout=0.1), text())
    assert (event.cause, event.reproduced) == ("not_reproduced", False)
    assert event.parameters == {"attempts": 4, "random": True}
    assert "dropout" in autopsy_sentence(event)


# -- no trace --------------------------------------------------------------------------------------------------------


class Stateful(nn.Module):
    """A model with everything in it that a forward pass may change."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, 8, max_norm=None)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, WORDS)
        self.frozen = nn.Linear(8, 8).requires_grad_(False)
        self.register_buffer("seen", torch.tensor([0.0, NAN, -0.0]))
        self.generator = torch.Generator().manual_seed(3)
        self.calls = 0
        self.history: list[float] = [1.0]
        self.by_kind: dict[str, list[int]] = {"a": [1]}

    def forward(self, ids: torch.Tensor, labels: torch.Tensor, factor: float = 1.0) -> dict[str, torch.Tensor]:
        self.calls += 1
        self.history.append(float(self.calls))
        self.by_kind["a"].append(2)
        self.by_kind["b"] = []
        self.new = 1
        self.seen[0] += 1  # type: ignore[operator,index]
        self.seen = self.seen + 1  # type: ignore[operator]
        noise = torch.rand((), generator=self.generator) + random.random() + np.random.rand()
        hidden = self.drop(self.norm(self.frozen(self.embedding(ids)).transpose(1, 2)).transpose(1, 2))
        loss = nn.functional.cross_entropy(self.head(hidden).flatten(0, 1), labels.flatten())
        return {"loss": loss * factor + 0 * noise}


def everything(model: nn.Module) -> dict[str, Any]:
    """All that an autopsy may not change, in a form that can be compared bit by bit."""

    def plain(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return (id(value), value.detach().numpy().tobytes(), value.requires_grad, id(value.grad))
        if isinstance(value, torch.Generator):
            return value.get_state().numpy().tobytes()
        if isinstance(value, dict):
            return {key: plain(part) for key, part in value.items()}
        return [plain(part) for part in value] if isinstance(value, list) else value

    return {
        "modules": {name: plain(vars(module)) for name, module in model.named_modules()},
        "gradients": {
            name: None if one.grad is None else one.grad.numpy().tobytes() for name, one in model.named_parameters()
        },
        "python": random.getstate(),
        "numpy": np.random.get_state()[1].tobytes(),  # type: ignore[union-attr]
        "torch": torch.get_rng_state().numpy().tobytes(),
        "grad_enabled": torch.is_grad_enabled(),
    }


@pytest.mark.parametrize("where", ["loss", "gradient"])
@pytest.mark.parametrize("factor", [1.0, NAN])
def test_it_leaves_no_trace(where: Any, factor: float) -> None:
    torch.manual_seed(0)
    model = Stateful()
    ids = torch.randint(0, WORDS, (4, 6))
    given = {"ids": ids, "labels": ids, "factor": factor}
    model(**given)["loss"].backward()
    before, kept = everything(model), copy.deepcopy(given)
    event = autopsy(model, given, where)
    # The loss is said to be finite where only the gradient was not; from a NaN nothing is concluded then.
    bad = "loss_function" if where == "loss" else "not_examined"
    assert event.cause == ("not_reproduced" if factor == 1 else bad)
    assert everything(model) == before
    assert all(torch.equal(given[name], kept[name]) for name in ("ids", "labels"))  # type: ignore[arg-type]
    assert not is_running()


@pytest.mark.parametrize("make", [lambda: gpt2(dropout=0.1), mixtral, t5, lambda: bert().train()])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_training_goes_on_as_if_nothing_had_been(make: Any, where: Any) -> None:
    weights = []
    for examined in (False, True):
        model = make()
        given = labelled([0, 1]) if isinstance(model, BertForSequenceClassification) else text()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        torch.manual_seed(4)
        for _ in range(2):
            model(**given).loss.backward()
            if examined:
                autopsy(model, given, where)
            optimizer.step()
            optimizer.zero_grad()
        weights.append(model.state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


class Examine(TrainerCallback):
    """Does at every step of a Trainer what the watcher does at a bad one."""

    def __init__(self, where: Any) -> None:
        self.where = where
        self.kept: list[MicroBatch] = []
        self.events: list[Autopsied] = []

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        kwargs["model"].register_forward_hook(self.keep, with_kwargs=True)

    def keep(self, module: Any, args: Any, kwargs: Any, output: Any) -> None:
        if not is_running():
            self.kept.append(MicroBatch(len(self.kept), kwargs, args, loss=output["loss"].detach()))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.events.append(examine(kwargs["model"], self.kept, step=state.global_step, where=self.where))
        assert all(one.inputs["input_ids"].shape == (2, 16) for one in self.kept)
        self.kept.clear()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("where", ["loss", "gradient"])
@pytest.mark.parametrize(
    "arguments",
    [
        {"gradient_accumulation_steps": 2},
        {"bf16": True},
        {"gradient_checkpointing": True, "gradient_checkpointing_kwargs": {"use_reentrant": True}},
    ],
    ids=["accumulation", "bf16", "checkpointing"],
)
def test_a_trainer_goes_on_as_if_nothing_had_been(tmp_path: Any, where: Any, arguments: dict[str, Any]) -> None:
    data = [{name: row[0] for name, row in text(rows=1).items()} for _ in range(16)]
    for number, sample in enumerate(data):
        sample["input_ids"] = sample["labels"] = (sample["input_ids"] + number) % WORDS
    results = []
    for examined in (False, True):
        callback = Examine(where)
        settings: dict[str, Any] = {"max_steps": 4, "per_device_train_batch_size": 2, "save_strategy": "no"}
        settings |= {"report_to": [], "disable_tqdm": True, "use_cpu": True, "logging_steps": 1, **arguments}
        trainer = Trainer(
            model=gpt2(dropout=0.1),
            args=TrainingArguments(str(tmp_path), dataloader_pin_memory=False, **settings),
            train_dataset=data,  # type: ignore[arg-type]
            callbacks=[callback] if examined else [],
        )
        trainer.train()
        assert trainer.model is not None
        logged = [(line.get("loss"), line.get("grad_norm")) for line in trainer.state.log_history]
        results.append((logged, {name: one.clone() for name, one in trainer.model.state_dict().items()}))
    assert [event.cause for event in callback.events] == ["not_reproduced"] * 4
    assert not any(event.note for event in callback.events)
    assert results[0][0] == results[1][0]
    assert all(torch.equal(one, results[1][1][name]) for name, one in results[0][1].items())


def test_a_layer_wise_optimizer_makes_no_step() -> None:
    model = gpt2()
    steps = []
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda parameter: steps.append(parameter))
    after(model, "transformer.h.1.mlp", spoil)
    assert_found(autopsy(model, text(), "gradient"), "module_backward", "transformer.h.1.mlp")
    assert not steps


class Counting:
    """A Trainer whose loss counts things, as those of TRL do."""

    def __init__(self) -> None:
        self.tokens = 0
        self.metrics: dict[str, Any] = {"train": defaultdict(list)}

    def loss(self, model: Any, inputs: dict[str, Any]) -> Any:
        self.tokens += inputs["input_ids"].numel()
        self.metrics["train"]["entropy"].append(1.0)
        assert is_running()
        return model(**inputs).loss * NAN


def test_what_a_trainers_loss_counts_is_not_counted_twice() -> None:
    trainer = Counting()
    trainer.metrics["train"]["entropy"].append(0.5)
    event = autopsy(gpt2(), text(), compute_loss=trainer.loss, owners=[trainer])
    assert event.cause == "loss_function"
    assert (trainer.tokens, trainer.metrics) == (0, {"train": {"entropy": [0.5]}})


# -- bounds ----------------------------------------------------------------------------------------------------------


def test_it_stops_when_time_is_up() -> None:
    model = gpt2()
    after(model, "transformer.h.0.mlp", first(NAN))
    event = autopsy(model, labelled(text()["labels"]), seconds=0.0)
    assert event.cause == "not_examined"
    assert "it was stopped after 0 s" in event.note
    assert event.inputs, "what needs no forward pass is there"


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried"), "out of memory (CUDA out of memory. Tried)"),
        (MemoryError("host"), "out of memory (host)"),
        (ValueError("odd"), "running the batch once more: ValueError: odd"),
    ],
)
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_whatever_fails_is_said_and_not_raised(error: Exception, note: str, where: Any) -> None:
    model = gpt2()

    def fail(tensor: torch.Tensor) -> torch.Tensor:
        raise error

    after(model, "transformer.h.1.mlp", fail)
    before = torch.get_rng_state()
    event = autopsy(model, text(), where)
    assert (event.cause, event.module) == ("not_examined", "")
    assert note in event.note
    assert (event.tokens, len(event.weights)) == (32, 8)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(len(module._forward_pre_hooks) == 0 for module in model.modules())


@pytest.mark.parametrize("chained", [False, True])
@pytest.mark.parametrize("where", ["loss", "gradient"])
def test_what_fails_keeps_nothing_alive(where: Any, chained: bool) -> None:
    model, seen = gpt2(), []

    def fail(tensor: torch.Tensor) -> torch.Tensor:
        seen.append(weakref.ref(tensor))
        try:
            raise ValueError("first")
        except ValueError as error:
            if chained:
                raise RuntimeError("CUDA out of memory.") from error
        raise RuntimeError("CUDA out of memory.")

    after(model, "transformer.h.1.mlp.c_fc", fail)
    gc.collect()
    gc.disable()
    try:
        event = autopsy(model, text(), where)
        assert "out of memory" in event.note
        assert seen
        assert [one() for one in seen] == [None] * len(seen)
    finally:
        gc.enable()


def test_an_exception_that_the_training_is_ending_with_is_left_as_it_is() -> None:
    model = gpt2()

    def fail(tensor: torch.Tensor) -> torch.Tensor:
        raise ValueError("odd")

    after(model, "transformer.h.1.mlp", fail)
    before = KeyError("the training's own")
    try:
        raise before
    except KeyError:
        assert "ValueError: odd" in autopsy(model, text()).note
    assert before.__traceback__ is not None


@dataclasses.dataclass(frozen=True)
class Odd(Exception):
    """Lets nothing be set, and has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


def test_an_exception_of_the_users_own_may_be_odd() -> None:
    notes = Notes()
    notes.swallow("here", Odd())
    assert notes.texts == ["here: Odd: (its message could not be made)"]


def test_a_fault_in_front_of_an_exception_is_still_named() -> None:
    model = gpt2()
    after(model, "transformer.h.0.mlp", first(NAN))

    def fail(tensor: torch.Tensor) -> torch.Tensor:
        raise ValueError("not finite")

    after(model, "transformer.h.2.mlp", fail)
    event = autopsy(model, text())
    assert (event.cause, event.module) == ("module_forward", "transformer.h.0.mlp")
    assert "ValueError: not finite" in event.note


def test_interrupts_pass() -> None:
    model = gpt2()

    def interrupt(tensor: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    after(model, "transformer.h.1.mlp", interrupt)
    with pytest.raises(KeyboardInterrupt):
        autopsy(model, text())
    assert not is_running()
    assert all(len(module._forward_pre_hooks) == 0 for module in model.modules())


@pytest.mark.parametrize("model", [object(), None, nn.Linear(2, 2)])
def test_nonsense_is_not_fatal(model: Any) -> None:
    for batches in ([], [MicroBatch(0, {"x": object()}, loss="?")], [MicroBatch(0, {}, loss=NAN)]):
        event = examine(model, batches, step=1, where="loss")
        assert event.cause == "not_examined"
        assert event.note


# -- setups ----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("default")
def test_a_compiled_model_is_run_as_it_was_written() -> None:
    torch._dynamo.reset()
    model = gpt2()
    after(model, "transformer.h.1.mlp", first(NAN))
    compiled = torch.compile(model, backend="eager")
    compiled(**text())
    compilations = len(torch._dynamo.utils.compilation_time_metrics)
    for given in (compiled, model):
        assert_found(autopsy(given, text()), "module_forward", "transformer.h.1.mlp")
    inside = gpt2()
    after(inside, "transformer.h.1.mlp", first(NAN))
    inside.transformer.h[1] = torch.compile(inside.transformer.h[1], backend="eager")
    assert_found(autopsy(inside, text()), "module_forward", "transformer.h.1.mlp")
    compiled(**text())
    assert len(torch._dynamo.utils.compilation_time_metrics) == compilations, "nothing had to be compiled again"


def test_a_model_that_accelerate_has_spread_over_devices(tmp_path: Any) -> None:
    from accelerate import dispatch_model

    model = gpt2()
    after(model, "transformer.h.1.mlp", first(NAN))
    where = {"transformer.wte": "cpu", "transformer.wpe": "cpu", "transformer.drop": "cpu", "lm_head": "cpu"}
    where |= {"transformer.ln_f": "cpu", "transformer.h.0": "cpu", "transformer.h.1": "disk", "transformer.h.2": "cpu"}
    spread = dispatch_model(model, where, main_device="cpu", offload_dir=str(tmp_path), force_hooks=True)
    assert any(parameter.device.type == "meta" for parameter in spread.parameters())
    assert_found(autopsy(spread, text()), "module_forward", "transformer.h.1.mlp")
    assert "out of range" not in autopsy_sentence(autopsy(spread, text()))


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft's own, with the newest transformers
def test_peft_names_are_said_without_the_adapters_prefix() -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(gpt2(), peft.LoraConfig(target_modules=["c_fc"], fan_in_fan_out=True))
    after(model, "base_model.model.transformer.h.1.mlp.c_fc.lora_A.default", first(NAN))
    event = autopsy(model.train(), text())
    assert_found(event, "module_forward", "base_model.model.transformer.h.1.mlp.c_fc.lora_A.default")
    assert autopsy_sentence(event).startswith("transformer.h.1.mlp.c_fc.lora_A.default (Linear) is the first module")
    ignored = autopsy(model, labelled(torch.full((2, 16), -100)))
    assert ignored.cause == "module_forward"


@pytest.fixture
def one_rank() -> Any:
    torch.distributed.init_process_group("gloo", rank=0, world_size=1, store=torch.distributed.HashStore())
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_sharded_weights_are_not_run_but_the_batch_is_looked_at(one_rank: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = gpt2()
    fully_shard(must_not_run(model), mesh=init_device_mesh("cpu", (1,)))
    event = autopsy(model, text())
    assert event.cause == "not_examined"
    assert event.note == "not available under FSDP2: each rank holds a part of each parameter"
    assert (event.tokens, len(event.inputs), len(event.weights)) == (32, 3, 8)
    ignored = autopsy(model, labelled(torch.full((2, 16), -100)))
    assert (ignored.cause, ignored.reproduced) == ("no_supervised_tokens", False)
    assert ignored.note.startswith("not available under FSDP2")


def test_zero_3_is_not_run() -> None:
    model = must_not_run(gpt2())
    for number, parameter in enumerate(model.parameters()):
        parameter.ds_id = number
    assert autopsy(model, text()).note.startswith("not available under DeepSpeed ZeRO-3")


def test_collectives_are_refused(one_rank: None) -> None:
    tensor = torch.ones(2)
    with pytest.raises(NeedsOthers, match="allreduce"), Alone():  # type: ignore[no-untyped-call]
        torch.distributed.all_reduce(tensor * 2)
    with pytest.raises(NeedsOthers), Alone():  # type: ignore[no-untyped-call]
        torch.distributed.all_gather_object([None], 1)
    torch.distributed.all_reduce(tensor)


RANKS = """
import os, torch
from torch.nn.parallel import DistributedDataParallel
from tests.training.test_autopsy import NAN, after, first, gpt2, spoil, text
from trainwatch.training.autopsy import MicroBatch, examine
torch.distributed.init_process_group("gloo")
rank = torch.distributed.get_rank()

def talks(model, inputs):
    loss = model(**inputs).loss
    torch.distributed.all_reduce(loss)
    return loss

def train(fault, where, **more):
    model = gpt2()
    wrapped = DistributedDataParallel(model)
    if rank == 1:
        after(model, "transformer.h.1.mlp", fault)
    wrapped(**text()).loss.backward()
    before = [parameter.grad.clone() for parameter in model.parameters()]
    if rank == 1:  # alone, as in a training where only one rank saw the NaN in its own batch
        loss = NAN if where == "loss" else 2.0
        event = examine(model, [MicroBatch(0, text(), loss=loss)], step=1, where=where, **more)
        print(f"{event.cause}|{event.module}|{event.note}", flush=True)
    same = all(torch.equal(a.nan_to_num(), b.grad.nan_to_num()) for a, b in zip(before, model.parameters()))
    wrapped.zero_grad()
    wrapped(**text()).loss.backward()
    assert same
    torch.distributed.barrier()

train(first(NAN), "loss")
train(spoil, "gradient")
train(lambda tensor: tensor, "loss", compute_loss=talks)
os._exit(0)
"""


def test_one_rank_of_two_can_do_it_alone(tmp_path: Any) -> None:
    script = tmp_path / "ranks.py"
    script.write_text(RANKS)
    ran = forked(script, ranks=2)
    assert ran.returncode == 0, ran.stderr[-3000:]
    assert [line for line in ran.stdout.splitlines() if "|" in line] == [
        "module_forward|transformer.h.1.mlp|",
        "module_backward|transformer.h.1.mlp|",
        "not_examined||running the batch once more: it talks to the other ranks (allreduce_)",
    ]


# -- tensors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e5m2])
def test_extremes_are_those_of_the_finite_values(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainwatch.training.autopsy.tensors._PIECE", 7)
    values = torch.arange(24.0).view(4, 6)
    values[0, 0], values[1, 1], values[2, 2], values[3, 3] = NAN, INF, -INF, NAN
    found = look(values.to(dtype).t())
    assert (found.nan, found.inf, found.minus_inf) == (2, 1, 1)
    assert (found.low, found.high) == (1.0, look(values.to(dtype).float()).high)
    assert look(torch.full((3,), NAN).to(dtype)).low is None
    assert look(torch.empty(0, dtype=dtype)).finite
    assert look(torch.tensor([True, False])) == look(torch.tensor([0, 1]))
