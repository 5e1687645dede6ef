"""Tests of tests/install-system-packages: the packages that it installs, and its error without permission."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT
from tests.support.waiting import PATIENCE_S

SCRIPT = ROOT / "tests" / "install-system-packages"
INSTALL = "apt-get install -y -qq --no-install-recommends serf"


class Machine:
    """A machine with only the given programs. Fake programs record their calls."""

    def __init__(self, directory: Path) -> None:
        self.policy = directory / "policy-rc.d"
        self._bin = directory / "bin"
        self._bin.mkdir()
        self._calls = directory / "calls"
        self._calls.touch()
        for tool in ("bash", "chmod", "rm"):
            (self._bin / tool).symlink_to(shutil.which(tool) or pytest.fail(f"there is no {tool}"))

    def has(self, program: str, does: str = "") -> None:
        path = self._bin / program
        path.write_text(f'#!/bin/bash\necho "{program} $*" >>"{self._calls}"\n{does}\n')
        path.chmod(0o755)

    def run(self) -> tuple[list[str], str]:
        """Run the script. Return its calls in order, and its stderr."""
        environ = {"PATH": str(self._bin), "POLICY_RC_D": str(self.policy)}
        done = subprocess.run(["/bin/bash", SCRIPT], env=environ, capture_output=True, text=True, timeout=PATIENCE_S)
        assert done.returncode == 0, done.stderr
        calls = self._calls.read_text().splitlines()
        return [call for call in calls if not call.startswith(("id ", "systemctl ", "update-rc.d "))], done.stderr


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Return a machine of root with apt-get and all required programs except serf."""
    machine = Machine(tmp_path)
    for program in ("java", "prometheus", "chromium", "chromedriver", "mysql", "node", "debootstrap"):
        machine.has(program)
    for program, does in {"id": "echo 0", "apt-get": "", "apt-cache": "", "systemctl": "", "update-rc.d": ""}.items():
        machine.has(program, does)
    return machine


def test_existing_packages_are_not_installed(machine: Machine) -> None:
    machine.has("serf")
    assert machine.run() == ([], "")


def test_root_installs_and_nothing_is_started(machine: Machine) -> None:
    machine.has("apt-get", f'test -x "{machine.policy}" && ! "{machine.policy}"')
    assert machine.run() == (["apt-cache show serf", INSTALL], "")
    assert not machine.policy.exists()


def test_java_is_installed_where_it_is_missing(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "bin" / "java").unlink()
    assert machine.run()[0][1] == f"{INSTALL} default-jre-headless"
    machine.has("serf")
    assert machine.run()[0][-1] == INSTALL.replace("serf", "default-jre-headless")


def test_existing_policy_of_the_machine_is_kept(machine: Machine) -> None:
    machine.policy.write_text("its own")
    machine.run()
    assert machine.policy.read_text() == "its own"


def test_packages_that_are_not_known_yet_are_asked_for(machine: Machine) -> None:
    machine.has("apt-cache", "exit 100")
    assert machine.run()[0] == ["apt-cache show serf", "apt-get update -qq", INSTALL]


def test_script_uses_sudo_if_it_may(machine: Machine) -> None:
    machine.has("id", f'if [ -e "{machine.policy}.root" ]; then echo 0; else echo 1000; fi')
    machine.has("sudo", f'shift; if [ "$1" = bash ]; then : >"{machine.policy}.root"; "$@"; fi')
    calls, said = machine.run()
    assert calls == ["sudo -n true", f"sudo -n bash {SCRIPT}", "apt-cache show serf", INSTALL] and said == ""


@pytest.mark.parametrize(
    ("program", "does", "why"),
    [
        ("apt-get", "exit 100", "because apt-get failed"),
        ("id", "echo 1000", "because root is required"),
        ("apt-get", None, "because apt-get is missing"),
    ],
)
def test_missing_permission_prints_the_command(
    machine: Machine, tmp_path: Path, program: str, does: str | None, why: str
) -> None:
    if does is None:
        (tmp_path / "bin" / program).unlink()
    else:
        machine.has(program, does)
    _, said = machine.run()
    assert f"Not installed, {why}: serf. Tests that need it are skipped" in said
    assert "sudo apt-get install --no-install-recommends serf" in said
    assert not machine.policy.exists()
