from __future__ import annotations

from typing import Any, get_args

import pytest

from trainwatch.events import Autopsied, Cause
from trainwatch.rules.autopsy import autopsy_sentence, short_name


def said(cause: Any, parameters: dict[str, Any] | None = None, **fields: Any) -> str:
    return autopsy_sentence(Autopsied(time=1.0, step=7, cause=cause, parameters=parameters or {}, **fields))


ACT: dict[str, Any] = {"module": "transformer.h.1.mlp.act", "module_kind": "GELUActivation"}


@pytest.mark.parametrize(
    ("cause", "parameters", "fields", "expected"),
    [
        (
            "no_supervised_tokens",
            {"labels": 512, "supervised": 0},
            {},
            "All 512 labels of this batch are -100, so the mean over zero tokens is NaN.",
        ),
        (
            "no_supervised_tokens",
            {"labels": 1, "supervised": 0},
            {},
            "The only label of this batch is -100, so the mean over zero tokens is NaN.",
        ),
        (
            "no_supervised_tokens",
            {"labels": 32, "supervised": 1},
            {},
            "The only label of this batch that is not -100 is its sample's first, which nothing predicts: the mean"
            " over zero tokens is NaN.",
        ),
        (
            "no_supervised_tokens",
            {"labels": 32, "supervised": 2},
            {},
            "The only 2 labels of this batch that are not -100 are their samples' first, which nothing predicts: the"
            " mean over zero tokens is NaN.",
        ),
        (
            "label_out_of_range",
            {"label": 50300, "classes": 50257, "vocabulary": 50257},
            {},
            "Label 50300 lies outside of the vocabulary of 50257.",
        ),
        ("label_out_of_range", {"label": 3, "classes": 3}, {}, "Label 3 lies outside of the 3 classes, 0 to 2."),
        (
            "input_out_of_range",
            {"input": "input_ids", "id": 50300, "size": 50257},
            {},
            "Token id 50300 in input_ids lies outside of the 50257 entries of the model's embedding.",
        ),
        (
            "input_out_of_range",
            {"id": 1024, "size": 1024},
            {"module": "transformer.wpe", "module_kind": "Embedding"},
            "Index 1024 lies outside of the 1024 entries of transformer.wpe (Embedding).",
        ),
        (
            "nonfinite_input",
            {"input": "inputs_embeds", "nan": 2, "inf": 0, "size": 1024},
            {},
            "The batch itself is not finite: in inputs_embeds, 2 of 1,024 values are NaN.",
        ),
        (
            "nonfinite_weights",
            {"parameter": "base_model.model.lm_head.weight", "nan": 1, "inf": 0, "size": 4096},
            {},
            "The weights are not finite: in lm_head.weight, 1 of 4,096 values is NaN.",
        ),
        (
            "half_overflow",
            {"nan": 0, "inf": 7, "size": 64, "dtype": "float16", "limit": 65504.0, "value": 81554.7},
            {"module": "model.layers.1.mlp.up_proj", "module_kind": "Linear"},
            "model.layers.1.mlp.up_proj (Linear) overflows float16: its output reaches 81,555, and the type ends at"
            " 65,504.",
        ),
        (
            "half_overflow",
            {"nan": 7, "inf": 0, "size": 64, "dtype": "float16", "limit": 65504.0, "value": 3.5},
            {"module": "attn", "module_kind": "Attention"},
            "attn (Attention) overflows float16 on the way to its output: 7 of 64 values are NaN, and in float32 it is"
            " finite.",
        ),
        (
            "half_overflow",
            {"nan": 0, "inf": 1, "size": 64, "dtype": "float16", "limit": 65504.0, "backward": True},
            {"module": "head", "module_kind": "Linear", "loss_scale": 65536.0},
            "With the loss scale of 65,536 a gradient in head (Linear) overflows float16, which ends at 65,504: 1 of 64"
            " values is Inf; without it the gradient is finite.",
        ),
        (
            "module_forward",
            {"nan": 3, "inf": 0, "size": 8192},
            ACT,
            "transformer.h.1.mlp.act (GELUActivation) is the first module whose output is not finite: 3 of 8,192 values"
            " are NaN; its inputs were finite.",
        ),
        (
            "module_forward",
            {"nan": 1, "inf": 2, "size": 8192, "call": 2, "calls": 3},
            ACT,
            "transformer.h.1.mlp.act (GELUActivation) is the first module whose output is not finite, in call 2 of 3: 1"
            " of 8,192 values is NaN and 2 are Inf; its inputs were finite.",
        ),
        (
            "module_forward",
            {"nan": 64, "inf": 0, "size": 64, "output": "logits"},
            {"module_kind": "GPT2LMHeadModel"},
            "All modules are finite, but GPT2LMHeadModel makes of them something that is not: in its logits all 64"
            " values are NaN.",
        ),
        (
            "module_forward",
            {"nan": 0, "inf": 8, "size": 8, "into": "inner"},
            {"module_kind": "TinyModel"},
            "TinyModel makes something that is not finite between its modules: of what goes into inner, all 8 values"
            " are Inf.",
        ),
        ("loss_function", {"value": "Inf", "own": False}, {}, "The loss function makes Inf of finite outputs."),
        (
            "loss_function",
            {"value": "NaN", "own": True},
            {"module_kind": "GPT2LMHeadModel"},
            "The model's own loss function makes NaN of finite outputs.",
        ),
        (
            "loss_function",
            {"nan": 0, "inf": 1, "size": 1, "operation": "Sqrt", "backward": True},
            {},
            "The forward pass is finite; the first gradient that is not comes from the loss function, out of Sqrt: it"
            " is Inf.",
        ),
        (
            "module_backward",
            {"nan": 1, "inf": 0, "size": 4096, "operation": "Sqrt", "backward": True},
            {"module": "inner", "module_kind": "Linear"},
            "The forward pass is finite; the first gradient that is not comes from inner (Linear), out of Sqrt: 1 of"
            " 4,096 values is NaN.",
        ),
        ("not_reproduced", {"attempts": 1}, {}, "The batch was finite when it was run once more."),
        (
            "not_reproduced",
            {"attempts": 4, "random": True},
            {},
            "The batch was finite when it was run 4 times more; the model draws random numbers (dropout), so that each"
            " run differs.",
        ),
        (
            "not_examined",
            {},
            {"note": "not available under FSDP2: each rank holds a part of each parameter"},
            "The step could not be examined: not available under FSDP2: each rank holds a part of each parameter.",
        ),
    ],
)
def test_the_sentence(cause: str, parameters: dict[str, Any], fields: dict[str, Any], expected: str) -> None:
    assert said(cause, parameters, **fields) == expected


@pytest.mark.parametrize("cause", get_args(Cause))
@pytest.mark.parametrize("parameters", [{}, {"nan": None, "size": "?", "labels": None, "label": 1}])
def test_every_cause_has_a_sentence_even_without_evidence(cause: str, parameters: dict[str, Any]) -> None:
    sentence = said(cause, parameters)
    assert sentence.endswith(".")
    assert sentence[0].isupper()


def test_a_cause_of_a_later_version_is_said_in_its_own_words() -> None:
    assert said("broken_clock") == "Broken clock."


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("transformer.h.1.mlp.act", "transformer.h.1.mlp.act"),
        ("_orig_mod.module.base_model.model.lm_head", "lm_head"),
        (
            "model.vision_tower.encoder.layers.11.self_attention.projection.lora_A.default",
            "model…projection.lora_A.default",
        ),
        ("", ""),
    ],
)
def test_names_are_shortened_for_people(name: str, expected: str) -> None:
    assert short_name(name) == expected
