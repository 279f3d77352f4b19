"""The build hook's decisions, with a real Node and npm on a dashboard small enough to be built in a second."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hatch_build import NODE, Dashboard, DashboardHook, WebBuildError, main, mode, provide

BUILD = "const fs = require('fs'); const to = '../trainwatch/server/static'; fs.mkdirSync(to, {recursive: true}); "
WRITE = "fs.copyFileSync('page.html', to + '/index.html')"


@pytest.fixture(autouse=True)
def no_node_on_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("path")
    (folder / "sh").symlink_to("/bin/sh")
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("TRAINWATCH_WEB", raising=False)


@pytest.fixture
def warnings() -> list[str]:
    return []


@pytest.fixture
def dashboard(tmp_path: Path) -> Dashboard:
    """A web project whose build calls npm from npm, and node by its name."""
    web = tmp_path / "web"
    web.mkdir()
    scripts = {"build": "npm run write", "write": "node build.js"}
    package = {"name": "small", "version": "1.0.0", "scripts": scripts}
    (web / "package.json").write_text(json.dumps(package), "utf-8")
    lock = {"name": "small", "version": "1.0.0", "lockfileVersion": 3, "packages": {"": package}}
    (web / "package-lock.json").write_text(json.dumps(lock), "utf-8")
    (web / "build.js").write_text(BUILD + WRITE, "utf-8")
    (web / "page.html").write_text("first", "utf-8")
    return Dashboard(tmp_path)


def index(dashboard: Dashboard) -> str:
    return (dashboard.built / "index.html").read_text("utf-8")


def test_it_is_built_when_missing_and_again_only_when_its_sources_changed(
    dashboard: Dashboard, warnings: list[str]
) -> None:
    assert not dashboard.is_fresh()
    provide(dashboard, "auto", warnings.append)
    assert index(dashboard) == "first"
    assert dashboard.is_fresh()

    (dashboard.built / "index.html").write_text("touched", "utf-8")
    provide(dashboard, "auto", warnings.append)
    assert index(dashboard) == "touched"  # nothing was built

    (dashboard.sources / "page.html").write_text("second", "utf-8")
    assert not dashboard.is_fresh()
    provide(dashboard, "auto", warnings.append)
    assert index(dashboard) == "second"
    assert warnings == []


def test_what_builds_and_editors_leave_behind_does_not_make_it_stale(dashboard: Dashboard) -> None:
    before = dashboard.digest()
    for name in ("node_modules/left-pad/index.js", "coverage/lcov.info", "dist/index.html"):
        (dashboard.sources / name).parent.mkdir(parents=True, exist_ok=True)
        (dashboard.sources / name).write_text("x", "utf-8")
    (dashboard.sources / "app.tsbuildinfo").write_text("{}", "utf-8")
    assert dashboard.digest() == before
    (dashboard.sources / "page.html").rename(dashboard.sources / "other.html")
    assert dashboard.digest() != before


def test_line_ends_make_no_other_dashboard(dashboard: Dashboard) -> None:
    (dashboard.sources / "page.html").write_bytes(b"a\nb\n")
    before = dashboard.digest()
    (dashboard.sources / "page.html").write_bytes(b"a\r\nb\r\n")
    assert dashboard.digest() == before


def test_packages_are_installed_once_per_lock(dashboard: Dashboard) -> None:
    dashboard.install_packages()
    kept = dashboard.sources / "node_modules" / "kept"
    kept.write_text("", "utf-8")
    dashboard.install_packages()
    assert kept.exists()
    lock = dashboard.sources / "package-lock.json"
    lock.write_text(lock.read_text("utf-8") + "\n", "utf-8")
    dashboard.install_packages()  # `npm ci` begins by removing node_modules
    assert not kept.exists()


def break_build(dashboard: Dashboard) -> None:
    (dashboard.sources / "build.js").write_text("process.exit(3)", "utf-8")


def test_auto_fails_with_a_way_out_when_there_would_be_no_dashboard(dashboard: Dashboard, warnings: list[str]) -> None:
    break_build(dashboard)
    with pytest.raises(WebBuildError, match=r"`npm run build`.*failed with status 3.*set TRAINWATCH_WEB=skip"):
        provide(dashboard, "auto", warnings.append)


def test_auto_keeps_an_older_dashboard_and_says_so(dashboard: Dashboard, warnings: list[str]) -> None:
    provide(dashboard, "auto", warnings.append)
    break_build(dashboard)
    provide(dashboard, "auto", warnings.append)
    assert index(dashboard) == "first"
    assert len(warnings) == 1
    assert "older than its sources" in warnings[0]


def test_require_takes_no_older_dashboard(dashboard: Dashboard, warnings: list[str]) -> None:
    provide(dashboard, "require", warnings.append)
    break_build(dashboard)
    with pytest.raises(WebBuildError, match="could not be built"):
        provide(dashboard, "require", warnings.append)


def test_a_build_that_writes_nothing_is_a_failure(dashboard: Dashboard, warnings: list[str]) -> None:
    (dashboard.sources / "build.js").write_text("", "utf-8")
    with pytest.raises(WebBuildError, match="left no"):
        provide(dashboard, "auto", warnings.append)


def test_skip_builds_nothing_and_warns_only_when_there_is_nothing(dashboard: Dashboard, warnings: list[str]) -> None:
    provide(dashboard, "skip", warnings.append)
    assert not dashboard.built.exists()
    assert "no dashboard" in warnings.pop()
    dashboard.build()
    break_build(dashboard)
    provide(dashboard, "skip", warnings.append)
    assert warnings == []


def test_without_sources_what_is_there_is_taken(dashboard: Dashboard, warnings: list[str]) -> None:
    dashboard.build()
    dashboard.sources.rename(dashboard.sources.with_name("elsewhere"))
    provide(dashboard, "require", warnings.append)
    assert warnings == []
    (dashboard.built / "index.html").unlink()
    provide(dashboard, "auto", warnings.append)
    assert "No dashboard" in warnings.pop()
    with pytest.raises(WebBuildError, match="no sources"):
        provide(dashboard, "require", warnings.append)


def test_an_unknown_mode_names_the_known_ones() -> None:
    assert mode({}) == mode({"TRAINWATCH_WEB": ""}) == "auto"
    with pytest.raises(WebBuildError, match="'always' is not one of auto, require, skip"):
        mode({"TRAINWATCH_WEB": "always"})


@pytest.mark.parametrize(("built", "web", "wanted"), [(False, "", [NODE]), (False, "skip", []), (True, "", [])])
def test_node_is_asked_for_only_when_it_is_needed(
    dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch, built: bool, web: str, wanted: list[str]
) -> None:
    from hatchling.builders.wheel import WheelBuilder

    if built:
        dashboard.build()
    monkeypatch.setenv("TRAINWATCH_WEB", web)
    root = str(dashboard.sources.parent)
    builder = WheelBuilder(root)
    hook = DashboardHook(root, {}, builder.config, builder.metadata, "", "wheel", builder.app)
    assert hook.dependencies() == wanted


def test_as_a_script_it_refuses_what_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["nmp"]) == 2
    assert "npm ARGUMENT" in capsys.readouterr().err
