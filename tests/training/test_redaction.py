"""Secrets on their real way: into a training, through the callback, to the bytes of the journal."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.training import secrets
from tests.training.tiny import InOrder, make_trainer, of, read_events
from trainwatch.events import RunEnded, RunStarted
from trainwatch.training.redaction import redact, redact_command, redact_trace
from trainwatch.training.scrub import scrub

SCRIPT = """
import os, sys
from pathlib import Path
from tests.training import secrets
from tests.training.tiny import *

class Config(dict):
    def to_dict(self):
        return dict(self)

class Failing(InOrder):
    def training_step(self, *args, **kwargs):
        raise RuntimeError("403 with " + os.environ["WANDB_API_KEY"] + " and the rest")

trainer = make_trainer(Path(sys.argv[1]), kind=Failing, hub_token=secrets.made(203))
trainer.args.accelerator_config = {"note": "password=" + secrets.made(204), "db_password": 12345678}
trainer.model.config = Config(
    _name_or_path=f"https://me:{secrets.made(200)}@example.org/model",
    api_key=secrets.made(201),
    auto_map={"hub_token": secrets.made(202), "tokens": 5},
)
trainer.train()
"""


def journal_bytes(home: Path) -> bytes:
    files = [path for path in home.rglob("*") if path.is_file()]
    assert any(path.suffix == ".twj" for path in files)
    return b"\n".join(path.read_bytes() for path in files)


def assert_absent(secret: str, recorded: bytes) -> None:
    """Neither the secret is there nor a good part of its begin or end."""
    for part in (secret, secret[:8], secret[-8:]):
        assert part.encode() not in recorded, secret


def test_no_secret_of_environment_arguments_or_configuration_reaches_the_journal(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    environment = {name: text.format(secret) for name, (text, secret) in secrets.VARIABLES.items()}
    command = [part.format(secret) for parts, secret in secrets.COMMAND for part in parts]
    result = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "out"), *command, "--learning_rate", "7.25"],
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(sys.path), "NCCL_DEBUG": "INFO"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "403 with" in result.stderr, result.stderr
    recorded = journal_bytes(home)
    for _, secret in [*secrets.VARIABLES.values(), *secrets.COMMAND]:
        assert_absent(secret, recorded)
    for number in (200, 201, 202, 203, 204):
        assert_absent(secrets.made(number), recorded)
    assert b"12345678" not in recorded
    (start,) = of(RunStarted, read_events(home))
    # All of them were looked at: what is not secret about them is there.
    assert set(secrets.VARIABLES) <= set(start.environment["variables"]) | {"WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY"}
    assert start.environment["variables"]["NCCL_DEBUG"] == "INFO"
    assert start.environment["variables"]["HF_TOKEN"] == "[redacted]"
    assert "--learning_rate 7.25" in start.environment["command"]
    assert "--hub_token=[redacted]" in start.environment["command"]
    assert start.arguments["learning_rate"] == 0.01
    assert start.model["config"]["_name_or_path"] == "https://[redacted]@example.org/model"
    assert start.model["config"]["auto_map"]["tokens"] == 5
    (end,) = of(RunEnded, read_events(home))
    assert end.error == "RuntimeError: 403 with [redacted] and the rest", "a bare key, known from its variable"


def chunks(size: int) -> list[list[tuple[int, str, str]]]:
    """The corpus in pieces that fit an error message, each text with its number in front."""
    numbered = [(number, text, secret) for number, (text, secret) in enumerate(secrets.TEXTS)]
    return [numbered[begin : begin + size] for begin in range(0, len(numbered), size)]


@pytest.mark.parametrize("texts", chunks(10), ids=lambda texts: f"from{texts[0][0]}")
def test_no_secret_in_an_exception_reaches_the_journal(
    home: Path, tmp_path: Path, texts: list[tuple[int, str, str]], capsys: pytest.CaptureFixture[str]
) -> None:
    message = "\n".join(f"case{number}: {text.format(secret)}\nend{number}" for number, text, secret in texts)

    class Failing(InOrder):
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            raise RuntimeError(message)

    trainer = make_trainer(tmp_path / "out", steps=2, kind=Failing)
    try:
        trainer.train()
    except RuntimeError as error:
        sys.excepthook(type(error), error, error.__traceback__)
    (end,) = of(RunEnded, read_events(home))
    assert end.outcome == "failed"
    recorded = journal_bytes(home)
    for number, _, secret in texts:
        assert f"case{number}: ".encode() in recorded, "it was looked at"
        assert f"end{number}".encode() in recorded
        assert_absent(secret, recorded)


def test_the_corpus_is_large_and_each_secret_is_its_own() -> None:
    found = [secret for _, secret in [*secrets.VARIABLES.values(), *secrets.TEXTS, *secrets.COMMAND]]
    assert len(found) >= 90
    assert len({secret[:8] for secret in found}) == len(found)


@pytest.mark.parametrize("text", secrets.HARMLESS)
def test_what_only_looks_secret_stays(text: str) -> None:
    assert redact(text) == text
    assert redact_trace(text) == text
    assert redact({"note": [text]}) == {"note": [text]}
    assert redact_command(text.split()) == text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("HF_TOKEN", "abc"),
        ("hub_token", "abc"),
        ("WANDB_API_KEY", "abc"),
        ("PGPASSWORD", "abc"),
        ("Authorization", "Bearer abc"),
        ("password", 71234567),
        ("credentials", {"user": "a", "x": "abc"}),
        ("authToken", "abc"),
        ("x", [("password", "abc")]),
        ("x", ["--token", "abc"]),
        ("env", [{"name": "HF_TOKEN", "value": "abc"}]),
        ("x", {"hf_abcdefghijklmnopqrstuvwx": 1}),
    ],
)
def test_secrets_are_known_by_the_name_they_stand_under(key: str, value: Any) -> None:
    text = str(redact({key: value}))
    assert "abc" not in text
    assert "7123" not in text
    assert "[redacted]" in text


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tokenizers", "0.21"),
        ("include_tokens_per_second", True),
        ("num_input_tokens_seen", 5),
        ("eos_token", "<|im_end|>"),
        ("boi_token", "<begin_of_image>"),
        ("cls_token", "[CLS]"),
        ("token", 17),
        ("use_auth_token", True),
        ("hub_token", None),
        ("hub_token", "<HUB_TOKEN>"),
        ("HF_TOKEN_PATH", "/root/.cache/huggingface/token"),
        ("hub_private_repo", "no"),
        ("tokens", ["a", "b"]),
        ("keys", "q_proj"),
        ("PWD", "/work"),
        ("key", "abc"),
    ],
)
def test_names_that_only_sound_secret(key: str, value: Any) -> None:
    assert redact({key: value}) == {key: value}


PATTERNS = ["a", "token", "token=", "eyJ-", "://", "://a:", "key", "sk-", "&a", '\\"', "a-", "x=1&token=a,b;", "<a>"]
PATTERNS += ["tokenizer=", "pwd=/", "password='\\'", "Bearer ", "login a ", "-----BEGIN PRIVATE KEY-----", "--token "]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_no_text_takes_long(pattern: str) -> None:
    """Twice the text takes about twice the time; a pattern that reads on to the end at each place takes four times."""
    texts = [pattern * (size // len(pattern)) for size in (50_000, 100_000)]

    def seconds(text: str) -> float:
        began = time.process_time()
        scrub(text)
        return time.process_time() - began

    short, long = (min(seconds(text) for _ in range(8)) for text in texts)
    assert long < max(3 * short, 0.1)


def test_a_megabyte_takes_less_than_a_second() -> None:
    text = "Traceback: token_type_ids=3 https://example.org/a?b=c 'x': y, " * 17_000
    began = time.process_time()
    redact_trace(text)
    redact(text)
    assert time.process_time() - began < 1


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=40) | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=10) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(deadline=None)
@given(value=plain, key=st.sampled_from(["", "token", "password", "name", "x" * 100]))
def test_anything_becomes_plain_and_nothing_raises(value: Any, key: str) -> None:
    msgspec.msgpack.encode(redact(value, key))


@settings(deadline=None)
@given(st.text(alphabet="token=:'\"\\ -@/?&<>sk_{}[],;.\n", max_size=200))
def test_no_text_breaks_it(text: str) -> None:
    assert isinstance(redact(text), str)
    redact_command(text.split(" "))


def test_odd_objects_become_plain() -> None:
    class Silent:
        def __str__(self) -> str:
            raise RuntimeError("no")

    class Lost(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise KeyError("no")

    endless: list[Any] = []
    endless.append(endless)
    value = {"a": {1, 2}, 3: object, "big": 2**80, "long": "x" * 10_000, "e": endless, "s": Silent(), "lost": Lost(a=1)}
    found = redact(value)
    msgspec.msgpack.encode(found)
    assert len(found["long"]) < 2100
    assert found["s"] == "<Silent>"
    assert found["lost"] == "<Lost>"
    assert len(redact(list(range(10_000)))) < 3000
    assert redact_trace("x" * 100_000).count("characters left out") == 1
