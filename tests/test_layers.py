"""Who may import whom, as docs/architecture.md says: read from the source, and tried with the others out of reach."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import trainwatch

PACKAGE: Final = Path(trainwatch.__file__).parent
STANDARD: Final = frozenset(sys.stdlib_module_names) | {"compression", "tomllib"}  # since Python 3.14 and 3.11


class Layer(NamedTuple):
    """One row of the table.

    Attributes:
        own: Parts of TrainWatch it may import, besides itself.
        others: Packages of others it may import, besides the standard library.
        lazily: Packages it may import inside functions only.
        pure: It judges values: no clock, no files, no network, no processes.
    """

    own: frozenset[str]
    others: frozenset[str]
    lazily: frozenset[str] = frozenset()
    pure: bool = False


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


LANGUAGE: Final = names("events shipment metrics journal settings configfile")
BASE: Final = names("msgspec psutil pynvml numpy")
SERVING: Final = names(
    "alembic anyio fastapi httpcore2 plotly prometheus_client psycopg pydantic pydantic_core pydantic_settings "
    "sqlalchemy sse_starlette starlette structlog uvicorn zstandard"
)
LAYERS: Final = {
    "__init__": Layer(frozenset(), frozenset(), lazily=names("trainwatch")),
    "__main__": Layer(names("cli"), frozenset()),
    "events": Layer(frozenset(), names("msgspec"), pure=True),
    "shipment": Layer(names("events"), names("msgspec"), pure=True),
    "metrics": Layer(frozenset(), names("msgspec"), pure=True),
    "journal": Layer(names("events"), names("msgspec")),
    "settings": Layer(frozenset(), names("msgspec")),
    "configfile": Layer(frozenset(), frozenset(), lazily=names("tomli")),
    "local": Layer(frozenset(), frozenset()),
    "rules": Layer(names("events metrics forecast diagnosis"), names("msgspec"), lazily=names("numpy"), pure=True),
    "forecast": Layer(names("events metrics"), names("msgspec"), lazily=names("numpy"), pure=True),
    "charts": Layer(names("events metrics"), names("numpy plotly"), pure=True),
    "diagnosis": Layer(names("events metrics"), names("msgspec"), lazily=names("numpy"), pure=True),
    "probes": Layer(names("events metrics"), names("msgspec psutil"), lazily=names("pynvml")),
    "importing": Layer(names("events metrics journal settings"), names("msgspec")),
    "training": Layer(
        LANGUAGE | names("rules probes"),
        names("msgspec psutil torch transformers"),
        lazily=names("accelerate pynvml numpy"),
    ),
    "agent": Layer(LANGUAGE | names("rules forecast diagnosis probes"), BASE, lazily=names("zstandard")),
    "server": Layer(
        LANGUAGE | names("rules forecast diagnosis charts migrations"),
        SERVING | names("msgspec numpy"),
        lazily=names("apprise authlib pyarrow"),
    ),
    "client": Layer(names("settings"), names("httpx2 msgspec numpy"), lazily=names("plotly")),
    "migrations": Layer(names("server"), names("alembic sqlalchemy")),
    "cli": Layer(
        LANGUAGE | names("agent server demo local importing rules"),
        names("msgspec"),
        lazily=names("pydantic sqlalchemy"),
    ),
    "demo": Layer(
        LANGUAGE | names("training local"), names("psutil torch transformers"), lazily=names("tokenizers safetensors")
    ),
}
"""Every part of the package; one that is not listed fails the tests until somebody decided where it belongs."""

UNTOUCHED_BY_PURE: Final = names(
    "asyncio http multiprocessing os pathlib psutil random socket sqlite3 subprocess tempfile threading time urllib"
)


class Import(NamedTuple):
    """One import statement, told by what it names."""

    module: str
    line: int
    inside_function: bool


def layer_of(path: Path) -> str:
    part = path.relative_to(PACKAGE).parts[0]
    return part.removesuffix(".py")


def imports(path: Path) -> Iterator[Import]:
    """Yields the imports of a file, without those that only type checkers see."""

    def walk(node: ast.AST, inside: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, child.lineno, inside)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{path}:{child.lineno}: relative imports hide where they lead"
                if child.module == "trainwatch":
                    yield from (Import(f"trainwatch.{alias.name}", child.lineno, inside) for alias in child.names)
                else:
                    yield Import(child.module or "", child.lineno, inside)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for other in child.orelse:
                    yield from walk(other, inside)
            else:
                yield from walk(child, inside or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))

    yield from walk(ast.parse(path.read_text("utf-8")), False)


def violations(path: Path) -> Iterator[str]:
    name = layer_of(path)
    layer = LAYERS[name]
    for found in imports(path):
        top, _, rest = found.module.partition(".")
        where = f"{path.relative_to(PACKAGE.parent)}:{found.line} imports {found.module}"
        if top == "trainwatch":
            part = rest.partition(".")[0]
            public = not part or not ((PACKAGE / part).is_dir() or (PACKAGE / f"{part}.py").is_file())
            if part != name and part not in layer.own and not public:
                yield f"{where}: {name} may not know {part}"
        elif top in STANDARD:
            if layer.pure and top in UNTOUCHED_BY_PURE:
                yield f"{where}: {name} is pure"
        elif top in layer.lazily and not found.inside_function:
            yield f"{where}: only inside functions"
        elif top not in layer.others | layer.lazily:
            yield f"{where}: {name} may not use {top}"


SOURCES: Final = sorted(PACKAGE.rglob("*.py"))


def test_every_part_of_the_package_has_a_place() -> None:
    assert {layer_of(path) for path in SOURCES} <= set(LAYERS)


@pytest.mark.parametrize("name", sorted(LAYERS))
def test_a_part_imports_only_what_it_may(name: str) -> None:
    found = [text for path in SOURCES if layer_of(path) == name for text in violations(path)]
    assert not found, "\n".join(found)


def test_the_check_notices_what_is_forbidden(tmp_path: Path) -> None:
    """The checks above would pass on an empty list too."""
    path = PACKAGE / "agent" / "made_up.py"
    text = "def f():\n    import torch\nfrom trainwatch.server.db import Store\nimport trainwatch.rules\n"
    file = tmp_path / "made_up.py"
    file.write_text(text, "utf-8")
    modules = [found.module for found in imports(file)]
    assert modules == ["torch", "trainwatch.server.db", "trainwatch.rules"]
    layer = LAYERS[layer_of(path)]
    assert "torch" not in layer.others | layer.lazily
    assert "server" not in layer.own
    assert "rules" in layer.own


_TRY = """
import importlib, pkgutil, sys

blocked = {blocked!r}.split()

class Wall:
    def find_spec(self, name, path=None, target=None):
        if any(name == wall or name.startswith(wall + ".") for wall in blocked):
            raise ImportError("out of reach: " + name)

sys.meta_path.insert(0, Wall())
for start in {starts!r}.split():
    module = importlib.import_module(start)
    for found in pkgutil.walk_packages(getattr(module, "__path__", []), start + "."):
        if not found.name.endswith("__main__"):
            importlib.import_module(found.name)
loaded = [name for name in blocked if name in sys.modules]
assert not loaded, loaded
"""

HEAVY: Final = "torch transformers accelerate"
SERVER_ONLY: Final = "fastapi starlette uvicorn sqlalchemy alembic plotly psycopg"
WEB: Final = f"{SERVER_ONLY} pydantic zstandard httpx httpx2"


@pytest.mark.parametrize(
    ("starts", "blocked"),
    [
        ("trainwatch", ""),
        ("trainwatch.events trainwatch.metrics", f"{HEAVY} {WEB} numpy psutil pynvml"),
        ("trainwatch.journal trainwatch.settings", f"{HEAVY} {WEB} numpy psutil pynvml"),
        ("trainwatch.rules", f"{HEAVY} {WEB} psutil pynvml trainwatch.journal trainwatch.agent trainwatch.training"),
        (
            "trainwatch.diagnosis",
            f"{HEAVY} {WEB} psutil pynvml trainwatch.journal trainwatch.agent trainwatch.training",
        ),
        ("trainwatch.charts", f"{HEAVY} fastapi sqlalchemy trainwatch.server trainwatch.agent trainwatch.training"),
        (
            "trainwatch.importing",
            f"{HEAVY} {WEB} numpy psutil pynvml wandb tensorboard trainwatch.server trainwatch.agent",
        ),
        ("trainwatch.probes", f"{HEAVY} {WEB} trainwatch.server trainwatch.agent trainwatch.training"),
        ("trainwatch.agent", f"{HEAVY} {WEB} trainwatch.server trainwatch.training trainwatch.demo"),
        ("trainwatch.training", f"{SERVER_ONLY} trainwatch.server trainwatch.agent trainwatch.demo trainwatch.charts"),
        ("trainwatch.server", f"{HEAVY} pynvml trainwatch.training trainwatch.agent trainwatch.demo trainwatch.cli"),
        (
            "trainwatch.client",
            f"{HEAVY} {SERVER_ONLY} pydantic pandas pyarrow trainwatch.server trainwatch.agent trainwatch.training",
        ),
        ("trainwatch.cli trainwatch.demo.runner", f"{HEAVY} {WEB} trainwatch.server trainwatch.training"),
    ],
    ids=lambda text: text.split()[0] if text.startswith("trainwatch") else None,
)
def test_a_part_works_with_the_others_out_of_reach(starts: str, blocked: str) -> None:
    walk = starts != "trainwatch"
    code = _TRY.format(starts=starts if walk else "trainwatch.events", blocked=blocked)
    command = [sys.executable, "-c", code if walk else _ONLY_IMPORT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


_ONLY_IMPORT = """
import sys
before = set(sys.modules)
import trainwatch
heavy = {name.partition(".")[0] for name in set(sys.modules) - before} - set(sys.stdlib_module_names) - {"trainwatch"}
assert not heavy, heavy
"""
