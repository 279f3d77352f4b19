"""The documentation names what exists, and what it names exists."""

from __future__ import annotations

import argparse
import inspect
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import trainwatch
from trainwatch import cli, settings
from trainwatch.rules import RULES
from trainwatch.rules.base import Options, Rule
from trainwatch.rules.ended import RUN_LOST

ROOT = Path(trainwatch.__file__).parent.parent
SERVER_RULES = {RUN_LOST}
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def read(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def test_every_variable_of_the_training_side_is_described() -> None:
    names = set(re.findall(r'"(TRAINWATCH_[A-Z_]+)"', inspect.getsource(settings)))
    assert len(names) >= 10
    assert not {name for name in names if f"`{name}`" not in read("docs/configuration.md")}


def test_every_variable_of_the_server_is_described() -> None:
    pytest.importorskip("pydantic_settings")
    from trainwatch.server.settings import Settings

    names = {f"TRAINWATCH_{name.upper()}" for name in Settings.model_fields}
    assert not {name for name in names if f"`{name}`" not in read("docs/configuration.md")}


def test_every_variable_that_is_described_exists() -> None:
    sources = "".join(path.read_text("utf-8") for path in (ROOT / "trainwatch").rglob("*.py"))
    sources += read("hatch_build.py") + read("tests/browser.py")
    fields = set(re.findall(r"^    (\w+): ", read("trainwatch/server/settings.py"), re.MULTILINE))
    for name in set(re.findall(r"TRAINWATCH_[A-Z_]+", "".join(page.read_text("utf-8") for page in PAGES))):
        assert name in sources or name.removeprefix("TRAINWATCH_").lower() in fields, name


def test_every_command_and_option_is_described() -> None:
    text = read("docs/cli.md")
    parser = cli._parser()
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for name, command in commands.choices.items():
        part = text.partition(f"## `trainwatch {name}")[2].partition("\n## ")[0]
        assert part, name
        for action in command._actions:
            for option in action.option_strings:
                assert option in {"-h", "--help"} or f"`{option}" in part, f"{name} {option}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        path, _, anchor = target.partition("#")
        if target.startswith("http") or path.startswith("docs/images/"):
            continue
        found = page if not path else page.parent / path
        assert found.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", found.read_text("utf-8"), re.MULTILINE)
            assert anchor in {
                re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings
            }


def test_every_make_target_that_is_named_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    assert len(targets) <= 13
    text = "".join(page.read_text("utf-8") for page in PAGES)
    named = {word for line in re.findall(r"(?:\$|`)\s?make ([a-z -]+)", text) for word in line.split()}
    assert {"demo", "test", "bench"} <= named
    assert named <= targets


def _as_toml(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else f"{value:g}"


def _options_to_tell(rule: type[Rule[Any]]) -> dict[str, str]:
    """Returns a rule's own options, and those of every rule whose default is another for this one."""
    usual, own = Options(), rule.options_type()
    fields = msgspec.structs.fields(rule.options_type)
    return {
        field.encode_name: _as_toml(getattr(own, field.name))
        for field in fields
        if not hasattr(usual, field.name) or getattr(own, field.name) != getattr(usual, field.name)
    }


_OPTION_ROW = re.compile(r"^\| `(\w+)` \| `([^`]+)` \| \S", re.MULTILINE)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
def test_every_rule_has_a_page_with_its_options(rule: type[Rule[Any]]) -> None:
    path = ROOT / "docs" / "rules" / f"{rule.id}.md"
    assert path.exists(), f"rule {rule.id} has no page: write docs/rules/{rule.id}.md"
    text = path.read_text("utf-8")
    assert text.startswith(f"# {rule.id}\n")
    for heading in ("What it sees", "Why it matters", "What to do", "How to tune"):
        assert f"\n## {heading}\n" in text, f"{path.name} has no part {heading!r}"
    assert re.search(r"\b(info|warning|critical)\b", text), f"{path.name} does not say how severe it is"
    told = dict(_OPTION_ROW.findall(text.partition("\n## How to tune\n")[2]))
    assert told == _options_to_tell(rule), f"{path.name}: the table of options is not what the rule has"


def test_the_options_of_every_rule_are_described() -> None:
    usual = {field.encode_name: _as_toml(getattr(Options(), field.name)) for field in msgspec.structs.fields(Options)}
    assert dict(_OPTION_ROW.findall(read("docs/rules/README.md"))) == usual


def test_the_index_of_rules_lists_all_of_them_once() -> None:
    listed = re.findall(r"^\| \[`(\w+)`\]\((\w+)\.md\) \| \S", read("docs/rules/README.md"), re.MULTILINE)
    assert all(name == page for name, page in listed)
    # The server's own rules need more than one node to see them, and are no part of RULES.
    assert sorted(name for name, _ in listed) == sorted([rule.id for rule in RULES] + sorted(SERVER_RULES))


def test_every_page_of_a_rule_is_of_one_that_exists() -> None:
    pages = {path.stem for path in (ROOT / "docs" / "rules").glob("*.md")} - {"README"}
    assert pages == {rule.id for rule in RULES} | SERVER_RULES
