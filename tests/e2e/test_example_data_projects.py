"""The example projects with data in docs/examples/: their tests pass, and their READMEs and compose files are right.

The tests of spark-archive run in tests/spark, with the session of that suite."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder

from sandq.model.config import load_config
from tests.e2e.test_keys_page import is_like
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes.forks import Fork
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S
from tests.unit.deploy.test_manifests import compose

EXAMPLES = ROOT / "docs" / "examples"
PROJECTS = ("django-tasks", "spark-archive")
WITH_TESTS = ("django-tasks",)
"""Projects whose tests run in a process of their own."""
FILES = {"README.md", "pyproject.toml", "compose.yaml", "Containerfile", "tests"}
HEADINGS = ("Run it", "Test it", "Deploy it", "What to change first")
SERVICE_KEYS = {
    *("build", "command", "depends_on", "entrypoint", "environment", "image", "ports", "profiles", "restart"),
    *("stop_grace_period", "volumes"),
}
"""Keys of a service in the Compose specification that the projects use."""


def environ(**more: str) -> dict[str, str]:
    """Return the environment of a command of a project: the programs of this Python, and sandq of this repository."""
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return os.environ | {"PATH": programs, "PYTHONPATH": str(ROOT), **more}


def readme(project: str) -> str:
    return (EXAMPLES / project / "README.md").read_text(encoding="utf-8")


def blocks(project: str, kind: str) -> list[str]:
    """Return the fenced blocks of a kind in a README."""
    return re.findall(rf"^```{kind}\n(.*?)^```", readme(project), re.M | re.S)


def block(project: str, kind: str) -> str:
    """Return the only fenced block of a kind in a README."""
    (found,) = blocks(project, kind)
    return found


@pytest.mark.parametrize("project", PROJECTS)
def test_project_has_all_parts(project: str) -> None:
    assert {path.name for path in (EXAMPLES / project).iterdir()} >= FILES
    headings = re.findall(r"^## (.+)$", readme(project), re.M)
    assert [heading for heading in headings if heading in HEADINGS] == list(HEADINGS)


@pytest.mark.parametrize("project", PROJECTS)
def test_wheel_has_all_modules(project: str, tmp_path: Path) -> None:
    directory = EXAMPLES / project
    (wheel,) = WheelBuilder(str(directory)).build(directory=str(tmp_path), versions=["standard"])
    packed = {path for path in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in path}
    modules = {path.relative_to(directory) for path in directory.rglob("*.py")}
    assert packed == {str(path) for path in modules if path.parts[0] not in ("tests", "manage.py")}


@pytest.mark.parametrize("project", PROJECTS)
def test_dependencies_have_the_tested_versions(project: str) -> None:
    def named(requirements: list[str]) -> dict[str, str]:
        return {re.split(r"[>=<\[]", one)[0]: one for one in requirements}

    loaded = tomllib.loads((EXAMPLES / project / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    ours = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    tested = named(ours["optional-dependencies"]["dev"])
    required = named(loaded["dependencies"] + loaded["optional-dependencies"]["test"])
    assert required.keys() <= tested.keys() | {"gunicorn", "sandq", "sandq-client"}
    assert all(required[name] == tested[name] for name in required.keys() & tested.keys())


@pytest.mark.parametrize("project", PROJECTS)
def test_compose_file_is_valid(project: str) -> None:
    directory = EXAMPLES / project
    loaded: dict[str, Any] = yaml.safe_load((directory / "compose.yaml").read_text(encoding="utf-8"))
    services = loaded["services"]
    assert {key for key in loaded if not key.startswith("x-")} == {"name", "services", "volumes"}
    assert loaded["name"] == project
    for service in services.values():
        assert service.keys() <= SERVICE_KEYS and {"image", "environment"} <= service.keys()
        for name, condition in service.get("depends_on", {}).items():
            assert name in services
            assert condition["condition"] in ("service_healthy", "service_completed_successfully")
        for volume in service.get("volumes", ()):
            assert volume.split(":")[0] in loaded["volumes"]
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
        if "build" in service:
            assert (directory / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    node = services["sandq"]
    assert node["image"] == compose()["services"]["node1"]["image"]
    config = load_config(None, {"SANDQ_NODE__DATA_DIR": "/var/lib/sandq", **node["environment"]})
    assert config.listen.client.host == "0.0.0.0" and config.security.insecure
    brokers = {service["environment"]["BROKER"] for name, service in services.items() if name != "sandq"}
    assert brokers == {f"{config.node.advertise_host}:{config.listen.client.port}"} == {"sandq:7170"}


@pytest.mark.parametrize("project", WITH_TESTS)
def test_own_tests_of_project_succeed(project: str, tmp_path: Path) -> None:
    assert "```sh\npytest\n```" in readme(project)
    # The other plugins of this repository take three seconds to load.
    alone = environ(PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    arguments = ["-q", "-W", "error", "-p", "no:cacheprovider", "--basetemp", str(tmp_path / "t")]
    with (tmp_path / "printed").open("wb") as out:
        process = Fork("pytest", arguments, env=alone, cwd=EXAMPLES / project, out=out.fileno())
        code = process.wait(PATIENCE_S)
    assert code == 0, (tmp_path / "printed").read_text()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path)
    process.start()
    yield process
    process.close()


def test_commands_of_django_tasks_send_the_mails_on_the_page(node: NodeProcess, tmp_path: Path) -> None:
    directory, port = EXAMPLES / "django-tasks", str(free_port())
    found = environ(BROKER=node.address, DATABASE=str(tmp_path / "db.sqlite3"), SANDCTL_SERVERS=node.address)

    def command(line: str) -> list[str]:
        return ["bash", "-c", line.replace("127.0.0.1:8000", f"127.0.0.1:{port}")]

    def run(line: str) -> str:
        done = subprocess.run(command(line), cwd=directory, env=found, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout.removesuffix("\n")

    (sandq, *programs), expected = block("django-tasks", "sh start").splitlines(), block("django-tasks", "printed")
    assert sandq == "sandq"
    tables, lines = blocks("django-tasks", "sh run")
    run(tables)
    running = []
    try:
        for line in programs:
            started = command(f"exec {line}")
            running.append(subprocess.Popen(started, cwd=directory, env=found, stdout=subprocess.PIPE, text=True))
        server, worker = running
        assert server.stdout is not None and worker.stdout is not None
        while not server.stdout.readline().startswith("Quit the server"):
            assert server.poll() is None
        printed = "\n".join([run(line) for line in lines.splitlines()])
        assert is_like(printed, block("django-tasks", "output")), printed
        mails = "".join([worker.stdout.readline() for _ in expected.splitlines()])
        assert is_like(mails, expected), mails
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(PATIENCE_S) == 0
    finally:
        for process in running:
            process.kill()
            process.communicate()
