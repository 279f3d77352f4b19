from __future__ import annotations

import math
from collections import Counter
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")

from trainwatch.demo.corpus import MAX_TOKENS, VOCABULARY, Corpus, inverse_frequency, read_functions


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return Corpus()


def test_functions_are_whole_and_real_source_code() -> None:
    functions = read_functions()
    modules = {function.module for function in functions}
    assert len(functions) > 3000
    assert {"argparse", "random", "tempfile"} <= modules
    choice = next(f for f in functions if f.module == "random" and "def choice(" in f.text)
    assert choice.text.strip().splitlines()[-1].strip().startswith("return")


def test_a_python_without_its_sources_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no source code"):
        read_functions(tmp_path)


def test_what_cannot_be_parsed_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "good.py").write_text("".join(f"def f{i}():\n    return {i}\n" for i in range(150)), "utf-8")
    (tmp_path / "old.py").write_text("print 'python 2'\n", "utf-8")
    (tmp_path / "odd.py").write_bytes(b"# \xff\xfe\n")
    assert {function.module for function in read_functions(tmp_path)} == {"good"}


def test_lengths_vary_so_that_a_batch_is_as_long_as_its_longest(corpus: Corpus) -> None:
    lengths = [len(sample.tokens) for sample in corpus.training(1000)]
    longest = [max(lengths[at : at + 4]) for at in range(0, 1000, 4)]
    assert max(lengths) == MAX_TOKENS
    assert sorted(lengths)[500] < MAX_TOKENS / 5
    assert sorted(longest)[25] * 4 < sorted(longest)[225]
    assert max(max(sample.tokens) for sample in corpus.training(1000)) < VOCABULARY


def test_it_is_the_same_every_time(corpus: Corpus) -> None:
    assert Corpus().training(20) == corpus.training(20)


def test_held_out_samples_are_not_trained_on(corpus: Corpus) -> None:
    trained = {tuple(sample.tokens) for sample in corpus.training(5000)}
    held_out = [tuple(sample.tokens) for sample in corpus.evaluation(40)]
    assert len(held_out) == 40
    # Some functions exist twice in the library, word for word.
    assert sum(tokens in trained for tokens in held_out) < 5


def test_sound_weights_are_finite_and_positive(corpus: Corpus) -> None:
    weights = [sample.weight for sample in corpus.training(2000)]
    assert all(0 < weight < 50 for weight in weights)
    assert 0.3 < sum(weights) / len(weights) < 3


def test_stale_weights_vanish_exactly_where_the_new_modules_begin(corpus: Corpus) -> None:
    samples = corpus.training_with_stale_weights(400, 240)
    assert [sample.weight == 0 for sample in samples] == [False] * 240 + [True] * 160


def test_a_class_that_was_never_counted_weighs_nothing() -> None:
    assert inverse_frequency(["a", "b", "new"], Counter(a=8, b=2)) == [math.sqrt(5 / 8), math.sqrt(5 / 2), 0.0]
