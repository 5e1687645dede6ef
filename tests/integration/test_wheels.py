"""Both wheels as users install them: they have no file in common, and their declared dependencies are sufficient.

Nothing is downloaded. An empty environment gets the wheel and its dependencies, which are linked from the environment
of the tests.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support.paths import ROOT
from tests.support.processes.node import NodeProcess

_OURS = {"sandq", "sandq-client"}

ROUND = """
import sandq.sync
with sandq.sync.connect({address!r}) as client:
    client.admin.create_topic("t")
    client.produce("t", b"by the client", key="k", delay="10ms")
    with client.subscribe("t", group="g") as subscription:
        message = next(iter(subscription))
        message.ack().wait()
        print(message.value.decode())
"""


def build(project: Path, into: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(into)]
    subprocess.run(command, cwd=project, check=True, capture_output=True)
    (wheel,) = into.iterdir()
    return wheel


def needed(requirements: Iterable[str], seen: dict[str, importlib.metadata.Distribution]) -> None:
    """Add these packages and all their dependencies, as they are installed here."""
    for line in requirements:
        requirement = Requirement(line)
        name = requirement.name.lower()
        is_meant = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        if not is_meant or name in seen or name in _OURS:
            continue
        seen[name] = importlib.metadata.distribution(name)
        needed(seen[name].requires or (), seen)


def tops(distribution: importlib.metadata.Distribution) -> Iterator[tuple[str, Path]]:
    """Return the files and directories of a package directly below site-packages."""
    files = distribution.files or []
    for top in {file.parts[0] for file in files if file.parts[0] != ".."}:
        yield top, Path(str(distribution.locate_file(top)))


class Environment:
    """A new environment with our wheels and links to their dependencies."""

    def __init__(self, directory: Path, *wheels: Path) -> None:
        venv.create(directory, with_pip=False)
        self.bin = directory / "bin"
        pip = [sys.executable, "-m", "pip", "--python", str(self.bin / "python"), "--disable-pip-version-check"]
        install = ["install", "--quiet", "--no-compile", "--no-deps", "--no-index", *map(str, wheels)]
        subprocess.run([*pip, *install], check=True, capture_output=True)
        (site,) = directory.glob("lib/python3*/site-packages")
        found: dict[str, importlib.metadata.Distribution] = {}
        for ours in importlib.metadata.distributions(path=[str(site)]):
            needed(ours.requires or (), found)
        for distribution in found.values():
            for top, place in tops(distribution):
                if not (site / top).exists():
                    (site / top).symlink_to(place)
        self.packages = {*found}

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        program, *arguments = map(str, command)
        environ = {"PATH": "/usr/bin:/bin", "HOME": str(self.bin)}
        return subprocess.run(
            [self.bin / program, *arguments], env=environ, cwd=self.bin, capture_output=True, text=True
        )


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The wheels of sandq and of its client."""
    whole, slim = (build(ROOT / project, tmp_path_factory.mktemp("wheel")) for project in (".", "packaging/client"))
    return whole, slim


def files_of(wheel: Path) -> set[str]:
    return {name for name in zipfile.ZipFile(wheel).namelist() if not name.partition("/")[0].endswith(".dist-info")}


def test_every_module_is_in_one_wheel(wheels: tuple[Path, Path]) -> None:
    whole, slim = map(files_of, wheels)
    sources = {
        str(path.relative_to(ROOT))
        for package in ("sandq", "sandctl", "pyspark_sandq")
        for path in (ROOT / package).rglob("*.py")
    }
    assert whole & slim == set()
    assert sources <= whole | slim
    assert {"sandq/__init__.py", "sandq/py.typed", "sandctl/main.py"} <= slim
    static = ROOT / "sandq" / "server" / "http" / "static"
    assert {str(path.relative_to(ROOT)) for path in static.rglob("*") if path.is_file()} <= whole
    assert "sandq/server/http/static/console/LICENSE.uplot" in whole
    assert {"sandq/node/node.py", "sandq/spark/datasource.py", "sandq/testing/__init__.py"} <= whole


def test_sandq_wants_its_own_version_of_the_client(wheels: tuple[Path, Path]) -> None:
    metadata = [
        next(
            zipfile.ZipFile(wheel).read(n).decode() for n in zipfile.ZipFile(wheel).namelist() if n.endswith("METADATA")
        )
        for wheel in wheels
    ]
    version = re.search(r"^Version: (\S+)$", metadata[1], re.MULTILINE)
    assert version
    assert f"Requires-Dist: sandq-client=={version[1]}\n" in metadata[0]
    assert f"\nVersion: {version[1]}\n" in metadata[0]
    assert all("License-File: LICENSE" in one for one in metadata)


def test_client_wheel_works_with_a_node_of_the_full_install(wheels: tuple[Path, Path], tmp_path: Path) -> None:
    whole = Environment(tmp_path / "whole", *wheels)
    slim = Environment(tmp_path / "slim", wheels[1])
    assert {"anyio", "msgpack", "xxhash", "zstandard", "click"} <= slim.packages
    assert not slim.packages & {"trio", "pydantic", "plyvel", "pysyncobj", "fastapi", "cryptography"}

    doctor = whole.run("sandq", "doctor", "--json")
    packages = [check for check in json.loads(doctor.stdout)["checks"] if check["what"].startswith("package")]
    assert [check["state"] for check in packages] == ["ok"], packages

    node = NodeProcess(tmp_path, python=whole.bin / "python", PYTHONPATH="")
    node.start()
    try:
        ctl = ("sandctl", "--server", node.address)
        done = slim.run("python", "-c", ROUND.format(address=node.address))
        assert done.stdout == "by the client\n", done.stderr
        assert slim.run(*ctl, "produce", "t", "by sandctl").returncode == 0
        assert slim.run(*ctl, "consume", "t", "--group", "g", "--max", "1").stdout == "by sandctl\n"
        by_directory = ("sandctl", "--data", node.data_dir, "-o", "jsonl", "topic", "list")
        assert '"name":"t"' in slim.run(*by_directory).stdout.replace(" ", "")  # through the socket of the node
    finally:
        node.kill()
    done = slim.run(*by_directory)
    assert (done.returncode, "pip install sandq" in done.stderr) == (3, True), done.stderr
    assert '"name":"t"' in whole.run(*by_directory).stdout.replace(" ", "")


def test_client_wheel_names_the_missing_extra(wheels: tuple[Path, Path], tmp_path: Path) -> None:
    slim = Environment(tmp_path / "slim", wheels[1])
    assert not (slim.bin / "sandq").exists()
    done = slim.run("sandctl", "pipeline", "report", "t")
    assert "pip install 'sandq[spark]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert slim.run("sandctl", "pipeline", "report", "--help").returncode == 0
    for use in ("sandq.embedded", "sandq.sync.embedded"):
        done = slim.run("python", "-c", f"import sandq; {use}")
        assert done.stderr.splitlines()[-1].startswith(f"ImportError: {use} needs the broker"), done.stderr
