"""The demo's text: the functions of Python's own standard library, which is on every machine that runs the demo.

Their lengths are those of real code (half are short, one in a hundred is very long), so batches padded to their
longest sample make memory rise and fall as in real fine-tuning.
"""

from __future__ import annotations

import ast
import math
import random
import sysconfig
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

VOCABULARY: Final = 1024
MAX_TOKENS: Final = 768
_PAD: Final = "<pad>"
_END: Final = "<end>"


class Function(NamedTuple):
    """One sample: a function's source code, and the module it was found in."""

    module: str
    text: str


class Sample(NamedTuple):
    """A tokenised function.

    Attributes:
        tokens: Token ids, at most :data:`MAX_TOKENS`.
        weight: How much it counts in the loss.
    """

    tokens: list[int]
    weight: float


def read_functions(library: Path | None = None) -> list[Function]:
    """Reads every function and method of the standard library's top-level modules.

    Args:
        library: Where to look; by default where this Python keeps its library.

    Raises:
        FileNotFoundError: There is no source code (some minimal Pythons come compiled only).
    """
    folder = library or Path(sysconfig.get_paths()["stdlib"])
    functions: list[Function] = []
    for path in sorted(folder.glob("*.py")):
        try:
            text = path.read_text("utf-8")
            tree = ast.parse(text)
        except (OSError, UnicodeDecodeError, SyntaxError):
            continue
        lines = text.splitlines(keepends=True)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions.append(Function(path.stem, "".join(lines[node.lineno - 1 : node.end_lineno])))
    if len(functions) < 100:
        raise FileNotFoundError(f"{folder} holds no source code of the standard library to train on")
    return functions


def inverse_frequency(modules: Sequence[str], counts: Counter[str]) -> list[float]:
    """Weighs samples so that the functions of small modules are not drowned by those of large ones.

    Args:
        modules: The module of each sample.
        counts: How many samples each module has.

    Returns:
        One weight each: the square root of how much smaller the module is than the average one. A module that was not
        counted weighs nothing. That becomes of class weights which are older than the newest classes: a batch of such
        samples alone has a mean of 0/0, and it is what the demo's second run trips over.
    """
    typical = sum(counts.values()) / max(1, len(counts))
    return [math.sqrt(typical / counts[module]) if counts[module] else 0.0 for module in modules]


class Corpus:
    """The functions, shuffled, tokenised and split.

    Args:
        seed: Of the shuffling; the same seed gives the same corpus.
        library: As in :func:`read_functions`.
    """

    def __init__(self, seed: int = 0, library: Path | None = None) -> None:
        from tokenizers import ByteLevelBPETokenizer

        functions = read_functions(library)
        random.Random(seed).shuffle(functions)
        # Byte-level, so that every text has tokens; its merges are learnt here, from the text itself, in a second.
        self._tokenizer = ByteLevelBPETokenizer()
        self._tokenizer.train_from_iterator(
            (function.text for function in functions),
            vocab_size=VOCABULARY,
            special_tokens=[_PAD, _END],
            show_progress=False,
        )
        self.pad: int = self._tokenizer.token_to_id(_PAD)
        self.end: int = self._tokenizer.token_to_id(_END)
        held_out = len(functions) // 40
        self._eval, self._train = functions[:held_out], functions[held_out:]

    def evaluation(self, size: int) -> list[Sample]:
        """Returns held-out samples, each with weight 1."""
        return [Sample(self._encode(function), 1.0) for function in self._eval[:size]]

    def training(self, size: int) -> list[Sample]:
        """Returns samples with sound weights, repeated if there are not enough."""
        counts = Counter(function.module for function in self._train)
        return self._weighed(_repeat(self._train, size), counts)

    def training_with_stale_weights(self, size: int, sound: int) -> list[Sample]:
        """Returns samples in the order in which they were collected, with weights from an old count.

        The newest modules were added after the count that the weights come from, and their samples lie at the end.

        Args:
            size: How many samples.
            sound: How many of them come before the first of a module that was not counted.
        """
        modules = sorted({function.module for function in self._train})
        new = set(modules[2::3])
        old_part = [function for function in self._train if function.module not in new]
        new_part = [function for function in self._train if function.module in new]
        counts = Counter(function.module for function in old_part)
        return self._weighed(_repeat(old_part, sound) + _repeat(new_part, size - sound), counts)

    def _weighed(self, functions: list[Function], counts: Counter[str]) -> list[Sample]:
        weights = inverse_frequency([function.module for function in functions], counts)
        return [Sample(self._encode(function), weight) for function, weight in zip(functions, weights, strict=True)]

    def _encode(self, function: Function) -> list[int]:
        tokens: list[int] = self._tokenizer.encode(function.text).ids
        return [*tokens[: MAX_TOKENS - 1], self.end]


def _repeat(functions: list[Function], size: int) -> list[Function]:
    times = -(-size // len(functions))
    return (functions * times)[:size]
