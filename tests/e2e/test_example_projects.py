"""The projects in docs/examples pass their own tests, and the commands of their pages run, in a copy of the directory.

The code blocks of a README run in their order: `sh start` starts one program per line, `sh run` runs commands that
print the next block `output`, and `printed` are lines of the program that was started last. The programs find the node
by the variable BROKER. A line `sandq` means a node of the test.

Projects with Spark are also run in tests/spark, in the session of that suite."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder

from sandq.model.config import load_config
from tests.e2e.test_keys_page import is_like
from tests.support.paths import ROOT
from tests.support.ports import free_port
from tests.support.processes.forks import Fork
from tests.support.processes.node import NodeProcess
from tests.support.processes.shell import Shell
from tests.support.waiting import PATIENCE_S, wait_until

EXAMPLES = ROOT / "docs" / "examples"
INDEX = (ROOT / "docs" / "examples" / "README.md").read_text(encoding="utf-8")
_BLOCK = re.compile(r"^```(?P<kind>sh start|sh run|output|printed)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_PORT = re.compile(r"(?<=127\.0\.0\.1:)\d+|(?<=--port )\d+")


class Project(NamedTuple):
    """A project: a directory in docs/examples."""

    modules: tuple[str, ...]
    """Packages and modules that its wheel contains."""
    passed: int | None
    """Number of its own tests. None: tests/spark runs them, and the commands of the page."""


PROJECTS = {
    "django-tasks": Project(("invoices", "shop"), passed=28),
    "fastapi-reminders": Project(("reminders",), passed=15),
    "spark-archive": Project(("archive_topic.py",), passed=None),
    "webhook-gateway": Project(("gateway",), passed=19),
}
RUN_HERE = [name for name, project in PROJECTS.items() if project.passed is not None]


@pytest.fixture(params=PROJECTS)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def directory(name: str, tmp_path: Path) -> Path:
    """Return a copy of the project, as a user makes it."""
    ignored = shutil.ignore_patterns("__pycache__", ".*")
    return shutil.copytree(EXAMPLES / name, tmp_path / name, ignore=ignored)


def environ_of(directory: Path, **more: str) -> dict[str, str]:
    """Return an environment in which the project and sandq can be imported."""
    programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return os.environ | {"PYTHONPATH": f"{directory}{os.pathsep}{ROOT}", "PATH": programs, **more}


@pytest.mark.parametrize("name", RUN_HERE)
def test_suite_of_project_succeeds(name: str, directory: Path, tmp_path: Path) -> None:
    arguments = ["-q", "-p", "anyio", "-p", "no:cacheprovider", "-o", "pythonpath=.", "-W", "error"]
    # The process from which this one is forked has imported anyio.
    arguments += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    environ = environ_of(directory, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")
    printed = tmp_path / "printed"
    with printed.open("wb") as out:
        code = Fork("pytest", arguments, env=environ, cwd=directory, out=out.fileno()).wait(PATIENCE_S)
    assert code == 0, printed.read_text()
    assert f"{PROJECTS[name].passed} passed" in printed.read_text()


def test_wheel_of_project_has_its_modules(name: str, directory: Path, tmp_path: Path) -> None:
    (wheel,) = WheelBuilder(str(directory)).build(directory=str(tmp_path / "dist"), versions=["standard"])
    packed = {path for path in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in path}
    modules = [path.relative_to(directory) for path in directory.rglob("*.py")]
    assert packed == {str(path) for path in modules if path.parts[0] in PROJECTS[name].modules} != set()


def test_django_project_requires_the_version_of_the_tests() -> None:
    def required(path: Path, extra: str) -> str:
        project = tomllib.loads(path.read_text(encoding="utf-8"))["project"]
        (found,) = {
            one
            for one in (*project["dependencies"], *project["optional-dependencies"][extra])
            if one.startswith("Django")
        }
        return str(found)

    own = required(EXAMPLES / "django-tasks" / "pyproject.toml", "test")
    assert own == required(ROOT / "pyproject.toml", "dev")


def test_compose_file_of_project_is_consistent(directory: Path) -> None:
    check_compose(directory)


def check_compose(directory: Path) -> None:
    """Check a compose.yaml: its services fit together, the node can start, and the programs find it."""
    found: dict[str, Any] = yaml.safe_load((directory / "compose.yaml").read_text(encoding="utf-8"))
    assert {key for key in found if not key.startswith("x-")} == {"name", "services", "volumes"}
    assert found["name"] == directory.name
    node = found["services"]["sandq"]
    assert node["image"] == "sandq:local", "the image of deploy/compose"
    config = load_config(None, {"SANDQ_NODE__DATA_DIR": "/var/lib/sandq", **node["environment"]})
    assert config.listen.client.host == "0.0.0.0" and config.security.insecure, "a node without TLS must allow it"
    for name, service in found["services"].items():
        assert set(service) <= {
            "build", "command", "depends_on", "environment", "image", "ports", "profiles", "restart", "volumes",
            "stop_grace_period",
        }, name  # fmt: skip
        is_program = service.get("restart") == "unless-stopped"
        needed = service.get("depends_on", {})
        assert set(needed) <= {*found["services"]} - {name}
        assert all(volume.split(":")[0] in found["volumes"] for volume in service.get("volumes", ()))
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ())), "not reachable from outside"
        assert not is_program or service["stop_grace_period"] == "45s", "a program has 30 s to end"
        if service is not node:
            assert (directory / service["build"]["dockerfile"]).exists()
            healthy = {"condition": "service_healthy"}
            assert not is_program or needed["sandq"] == healthy, "the image has a health check"
            done = [other for other, condition in needed.items() if condition != healthy]
            assert all(needed[other] == {"condition": "service_completed_successfully"} for other in done)
            assert not any(found["services"][other]["restart"] == "unless-stopped" for other in done)
            assert service["environment"]["BROKER"] == f"sandq:{config.listen.client.port}"
            (module,) = re.findall(r"(?:uvicorn|python -m|gunicorn|python) ([\w.]+)", service["command"])
            assert (directory / f"{module.removesuffix('.py').replace('.', '/')}.py").exists()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    process = NodeProcess(tmp_path)
    process.start()
    yield process
    process.close()


class Page:
    """Runs the code blocks of a README in their order. Ports of the page become free ports."""

    def __init__(self, directory: Path, address: str) -> None:
        text = (directory / "README.md").read_text(encoding="utf-8")
        ports = {port: str(free_port()) for port in set(_PORT.findall(text))}
        self.blocks = [(match["kind"], match["text"]) for match in _BLOCK.finditer(text)]
        self.blocks = [(kind, _PORT.sub(lambda port: ports[port[0]], block)) for kind, block in self.blocks]
        self.directory = directory
        self.environ = {"BROKER": address, "SANDCTL_SERVERS": address}
        self.shell = Shell(directory, **self.environ)
        self.programs: list[subprocess.Popen[str]] = []

    def run(self) -> None:
        """Run all blocks, and compare their output with the page."""
        printed = ""
        for kind, block in self.blocks:
            if kind == "sh start":
                for line in block.splitlines():
                    self._start(line)
            elif kind == "sh run":
                printed = "\n".join([self.shell(line).removesuffix("\n") for line in block.splitlines()])
            elif kind == "output":
                assert is_like(printed, block), printed
            else:
                output = self.programs[-1].stdout
                assert output is not None
                assert is_like("".join([output.readline() for _ in block.splitlines()]), block)

    def _start(self, line: str) -> None:
        """Start a program, and wait until it listens on its port, if it has one."""
        if line == "sandq":
            return
        command, port = ["bash", "-c", f"exec {line}"], _PORT.search(line)
        environ = environ_of(self.directory, **self.environ)
        program = subprocess.Popen(command, cwd=self.directory, env=environ, stdout=subprocess.PIPE, text=True)
        self.programs.append(program)

        def listens() -> bool:
            assert program.poll() is None, f"{line} has ended"
            with socket.socket() as probe:
                return port is None or probe.connect_ex(("127.0.0.1", int(port[0]))) == 0

        wait_until(listens)

    def close(self) -> None:
        """Stop all programs as a terminal or compose does; each ends by itself."""
        for program in self.programs:
            program.terminate()
        codes = [program.wait(PATIENCE_S) for program in self.programs]
        for program in self.programs:
            program.communicate()
        assert set(codes) <= {0, -signal.SIGTERM}, codes  # uvicorn raises the signal again


@pytest.mark.parametrize("name", RUN_HERE)
def test_commands_of_readme_print_its_output(directory: Path, node: NodeProcess) -> None:
    page = Page(directory, node.address)
    kinds = [kind for kind, _ in page.blocks]
    assert kinds.count("sh start") and kinds.count("output") and kinds.count("printed")
    try:
        page.run()
    finally:
        page.close()


def test_every_project_is_tested_and_in_the_index() -> None:
    directories = {path.parent.name for path in EXAMPLES.glob("*/pyproject.toml")}
    assert directories == {*PROJECTS}
    assert set(re.findall(r"\(([\w-]+)/README\.md\)", INDEX)) == directories


def test_links_of_readme_lead_to_files_and_headings(name: str) -> None:
    page = EXAMPLES / name / "README.md"
    for target, anchor in re.findall(r"\]\(([^):#]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")):
        file = page.parent / target
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in anchors, f"{target}#{anchor}"
