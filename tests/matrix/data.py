"""Models from configurations and data from a seed: small, real, and never downloaded."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.matrix.faults import POISON

VOCABULARY = 64
Sample = dict[str, list[int]]


def tiny_llama(**settings: Any) -> LlamaForCausalLM:
    """Returns a causal language model of two layers; always the same weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        **settings,
    )
    return LlamaForCausalLM(config)


def samples(size: int, seed: int, poisoned: int | None = None) -> list[Sample]:
    """Returns samples of 6 to 15 tokens, the first third of which is a prompt that isn't trained on.

    Args:
        size: How many.
        seed: Of their tokens.
        poisoned: Index of the one that has the poison in it.
    """
    generator = torch.Generator().manual_seed(seed)
    found: list[Sample] = []
    for index in range(size):
        length = int(torch.randint(6, 16, (1,), generator=generator))
        tokens = torch.randint(3, POISON - 3, (length,), generator=generator).tolist()
        if index == poisoned:
            tokens[1] = POISON
        prompt = length // 3
        found.append({"input_ids": tokens, "labels": [-100] * prompt + tokens[prompt:]})
    return found


def collate(batch: list[Sample]) -> dict[str, torch.Tensor]:
    """Pads a batch."""

    def pad(name: str, value: int) -> torch.Tensor:
        rows = [torch.tensor(sample[name]) for sample in batch]
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=value)

    ids = [{"mask": [1] * len(sample["input_ids"])} for sample in batch]
    mask = torch.nn.utils.rnn.pad_sequence([torch.tensor(sample["mask"]) for sample in ids], batch_first=True)
    return {"input_ids": pad("input_ids", 0), "attention_mask": mask, "labels": pad("labels", -100)}


class Stream(torch.utils.data.IterableDataset[Sample]):
    """The samples one after the other; it has no length."""

    def __init__(self, entries: list[Sample]) -> None:
        self.entries = entries

    def __iter__(self) -> Iterator[Sample]:
        return iter(self.entries)


def tokenizer() -> Any:
    """Returns a tokenizer whose words are ``t0`` to ``t63``."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"t{number}": number for number in range(VOCABULARY)}
    inner = Tokenizer(models.WordLevel(words, unk_token="t3"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="t0", bos_token="t1", eos_token="t2")


def text(tokens: list[int]) -> str:
    """Returns words that :func:`tokenizer` makes these tokens of."""
    return " ".join(f"t{token}" for token in tokens)
