"""The files under deploy/, and those beside them, name what exists and hold what they promise."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import httpx2
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import trainwatch
from tests.server.conftest import running
from tests.server.shipping import batch, send, started, step
from trainwatch.server.settings import Settings

ROOT: Final = Path(trainwatch.__file__).parent.parent
SECRETS: Final = {"POSTGRES_PASSWORD": "hunter2", "TRAINWATCH_TOKEN": "correct-horse"}
_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::([-?])([^}]*))?\}")


def filled(text: str) -> str:
    """Fills in variables as Compose does."""

    def value(match: re.Match[str]) -> str:
        name, kind, rest = match.groups()
        if name in SECRETS:
            return SECRETS[name]
        assert kind == "-", f"{name} has no default and is no secret"
        return str(rest)

    return _VARIABLE.sub(value, text)


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    """What docker-compose.yml says, with the usual values."""
    found: dict[str, Any] = yaml.safe_load(filled((ROOT / "docker-compose.yml").read_text("utf-8")))
    return found


@pytest.mark.skipif(shutil.which("docker-compose") is None, reason="there is no docker-compose here")
def test_compose_itself_takes_the_file() -> None:
    command = ["docker-compose", "--file", str(ROOT / "docker-compose.yml"), "config"]
    kept = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    done = subprocess.run(command, env=kept | SECRETS, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    without = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=120, check=False)
    assert without.returncode != 0
    assert "fill it in" in without.stderr


def test_the_database_keeps_its_data_and_is_waited_for(compose: dict[str, Any]) -> None:
    services = compose["services"]
    postgres = services["postgres"]
    assert any(volume.startswith("database:") for volume in postgres["volumes"])
    assert "database" in compose["volumes"]
    assert postgres["healthcheck"]["test"][:2] == ["CMD", "pg_isready"]
    assert services["migrate"]["depends_on"]["postgres"]["condition"] == "service_healthy"
    assert services["server"]["depends_on"]["migrate"]["condition"] == "service_completed_successfully"
    assert services["migrate"]["command"][:3] == ["trainwatch", "db", "upgrade"]
    assert services["server"]["environment"]["TRAINWATCH_MIGRATE_ON_START"] == "0"
    assert "ports" not in postgres


def test_every_service_has_limits_and_starts_again(compose: dict[str, Any]) -> None:
    for name, service in compose["services"].items():
        assert {"cpus", "memory"} <= set(service["deploy"]["resources"]["limits"]), name
        assert service["restart"] == ("no" if name == "migrate" else "unless-stopped"), name
        assert service["logging"]["options"]["max-size"], name


def test_the_servers_can_do_little(compose: dict[str, Any]) -> None:
    for name in ("server", "migrate"):
        service = compose["services"][name]
        assert service["read_only"] is True
        assert service["cap_drop"] == ["ALL"]
        assert "no-new-privileges:true" in service["security_opt"]
        assert "ports" not in service, "only the proxy is reached from outside"


def test_the_settings_of_containers_exist(compose: dict[str, Any]) -> None:
    named = {name for name in compose["services"]["server"]["environment"] if name.startswith("TRAINWATCH_")}
    [config] = [one for one in kubernetes() if one["kind"] == "ConfigMap"]
    [secret] = [one for one in kubernetes() if one["kind"] == "Secret"]
    named |= set(config["data"]) | set(secret["stringData"])
    fields = {f"TRAINWATCH_{name.upper()}" for name in Settings.model_fields}
    assert len(named) >= 6
    assert named <= fields


def test_the_example_names_all_that_must_be_set() -> None:
    example = (ROOT / ".env.example").read_text("utf-8")
    set_there = dict(re.findall(r"^(\w+)=(.*)$", example, re.MULTILINE))
    used = {match[0] for match in _VARIABLE.findall((ROOT / "docker-compose.yml").read_text("utf-8"))}
    assert set(SECRETS) <= set(set_there) <= used | {"SITE"}
    assert not any(set_there[name] for name in SECRETS), "an example has no secrets"
    assert ".env" in (ROOT / ".gitignore").read_text("utf-8").split()


def kubernetes() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "trainwatch.yaml").read_text("utf-8")))


def test_probes_on_kubernetes_ask_what_exists(compose: dict[str, Any]) -> None:
    kinds = {one["kind"]: one for one in kubernetes()}
    assert {"Secret", "ConfigMap", "Job", "Deployment", "Service", "Ingress"} <= set(kinds)
    pod = kinds["Deployment"]["spec"]["template"]["spec"]
    [server] = pod["containers"]
    [port] = server["ports"]
    probes = {name: probe["httpGet"] for name, probe in server.items() if name.endswith("Probe")}
    assert probes["livenessProbe"]["path"] == "/api/health"
    assert probes["readinessProbe"]["path"] == "/api/ready"
    assert {probe["port"] for probe in probes.values()} == {port["name"]}
    job = kinds["Job"]["spec"]["template"]["spec"]["containers"][0]
    assert job["args"][:3] == ["trainwatch", "db", "upgrade"]
    assert job["image"] == server["image"]
    assert server["image"].endswith(f":{trainwatch.__version__}")
    for container in (job, server):
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert {one["configMapRef"]["name"] for one in container["envFrom"] if "configMapRef" in one} == {"trainwatch"}
    labels = kinds["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert kinds["Service"]["spec"]["selector"].items() <= labels.items()
    assert kinds["Ingress"]["metadata"]["annotations"]["nginx.ingress.kubernetes.io/proxy-buffering"] == "off"


@pytest.mark.skipif(shutil.which("nginx") is None, reason="there is no nginx here")
def test_nginx_takes_its_file(tmp_path: Path) -> None:
    text = (ROOT / "deploy" / "nginx.conf").read_text("utf-8")
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    make = f"openssl req -x509 -newkey rsa:2048 -nodes -subj /CN=localhost -keyout {key} -out {certificate}"
    subprocess.run(make.split(), capture_output=True, check=True)
    text = text.replace("/etc/nginx/tls/trainwatch.pem", str(certificate)).replace(
        "/etc/nginx/tls/trainwatch.key", str(key)
    )
    folder = str(tmp_path)
    whole = tmp_path / "nginx.conf"
    whole.write_text(f"pid {folder}/pid;\nerror_log {folder}/log;\nevents {{}}\nhttp {{\n{text}\n}}\n", "utf-8")
    done = subprocess.run(["nginx", "-t", "-c", str(whole)], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("caddy") is None, reason="there is no Caddy here")
def test_caddy_takes_its_file(tmp_path: Path) -> None:
    command = ["caddy", "validate", "--adapter", "caddyfile", "--config", str(ROOT / "deploy" / "Caddyfile")]
    kept = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "SITE": "trainwatch.example.com"}
    done = subprocess.run(command, env=kept, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def exposed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """The names of all samples that a server can have."""
    names = set()
    settings = Settings(home=tmp_path_factory.mktemp("home"), port=0, metrics_series=10)
    with running(settings) as server, httpx2.Client(base_url=server.url) as client:
        send(client, batch([started(), step(1)]))
        for family in text_string_to_metric_families(client.get("/metrics").text):
            ends = {"counter": ["_total"], "histogram": ["_bucket", "_sum", "_count"]}.get(family.type, [""])
            names |= {family.name + end for end in ends}
    return names


def expressions() -> Iterator[str]:
    dashboards = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
    for path in dashboards:
        for panel in json.loads(path.read_text("utf-8"))["panels"]:
            yield from (target["expr"] for target in panel.get("targets", ()) if "expr" in target)
    rules = yaml.safe_load((ROOT / "deploy" / "prometheus" / "trainwatch-rules.yml").read_text("utf-8"))
    yield from (rule["expr"] for group in rules["groups"] for rule in group["rules"])


def test_every_figure_that_is_asked_for_exists(exposed: set[str]) -> None:
    asked = [name for text in expressions() for name in re.findall(r"\b(?:trainwatch|process)_\w+", text)]
    assert len(asked) >= 30
    assert not set(asked) - exposed
    ours = {name for name in exposed if name.startswith("trainwatch_") and not name.endswith(("_created", "_sum"))}
    assert not ours - set(asked), "a figure that no panel shows"


def test_dashboards_are_sound() -> None:
    for path in (ROOT / "deploy" / "grafana").glob("*.json"):
        dashboard = json.loads(path.read_text("utf-8"))
        ids = [panel["id"] for panel in dashboard["panels"]]
        assert len(set(ids)) == len(ids)
        for panel in dashboard["panels"]:
            place = panel["gridPos"]
            assert place["x"] + place["w"] <= 24
            assert panel["type"] == "row" or (panel["targets"] and panel["title"])
        cells = [
            (x, y)
            for panel in dashboard["panels"]
            for x in range(panel["gridPos"]["x"], panel["gridPos"]["x"] + panel["gridPos"]["w"])
            for y in range(panel["gridPos"]["y"], panel["gridPos"]["y"] + panel["gridPos"]["h"])
        ]
        assert len(set(cells)) == len(cells), f"{path.name}: panels overlap"
