"""Wheels exist, with the hashes of the lock files, for every Python version and platform that the documents name.

`pip download` requests each from the package index. Nothing is built. The downloaded files must have the hashes of the
lock file.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import pytest
from packaging.markers import Marker, default_environment

from tests.support.paths import ROOT

pytestmark = pytest.mark.long

VERSIONS: Final = ("3.11", "3.12", "3.13", "3.14")
LINUX: Final = {
    "x86_64": ("manylinux_2_17_x86_64", "manylinux_2_28_x86_64", "manylinux2014_x86_64"),
    "aarch64": ("manylinux_2_17_aarch64", "manylinux_2_28_aarch64", "manylinux2014_aarch64"),
}
DESKTOPS: Final = {
    "macOS, Apple silicon": ("darwin", "arm64", ("macosx_12_0_arm64",)),
    "macOS, Intel": ("darwin", "x86_64", ("macosx_12_0_x86_64",)),
    "Windows": ("win32", "AMD64", ("win_amd64",)),
}
SOURCE_ONLY: Final = {"pysyncobj"}
"""A pure Python package without a wheel. Pip can build it on any platform."""
CLIENT_WITH_C: Final = ("google-crc32c", "msgpack", "xxhash", "zstandard")


def locked(name: str, version: str, system: str, machine: str) -> dict[str, str]:
    """Return the blocks of a lock file that apply to a Python version and a machine, by package, with their hashes."""
    environment = {
        **default_environment(),
        "python_version": version,
        "python_full_version": f"{version}.5",
        "sys_platform": system,
        "os_name": "nt" if system == "win32" else "posix",
        "platform_machine": machine,
    }
    found = {}
    for block in re.split(r"^(?=[A-Za-z0-9])", (ROOT / name).read_text(encoding="utf-8"), flags=re.M)[1:]:
        head, _, rest = block.partition("\\\n")
        requirement, _, marker = head.partition(" ; ")
        if not marker or Marker(marker.strip()).evaluate({**environment}):
            hashes = " ".join(re.findall(r"--hash=sha256:[0-9a-f]{64}", rest))
            found[requirement.partition("==")[0]] = f"{requirement.strip()} {hashes}"
    return found


def download(
    packages: Mapping[str, str], names: Iterable[str], version: str, platforms: Iterable[str], to: Path
) -> None:
    """Download the wheels of packages for these platforms, with the hashes of the lock."""
    lock = to / "lock.txt"
    lock.write_text("".join(f"{packages[name]}\n" for name in names))
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--require-hashes", "--dest", str(to / "wheels"), "--python-version", version]
    for platform in platforms:
        command += ["--platform", platform]
    done = subprocess.run([*command, "-r", str(lock)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("machine", LINUX)
@pytest.mark.parametrize("version", VERSIONS)
def test_a_node_installs_from_wheels(version: str, machine: str, tmp_path: Path) -> None:
    packages = locked("packaging/release.lock", version, "linux", machine)
    names = packages.keys() - SOURCE_ONLY
    assert ("plyvel-next" in names) == (version != "3.11") == ("plyvel" not in names)
    if (version, machine) == ("3.11", "aarch64"):
        names -= {"plyvel"}  # docs/releases.md: this platform needs a compiler
    download(packages, names, version, LINUX[machine], tmp_path)


@pytest.mark.parametrize("desktop", DESKTOPS)
@pytest.mark.parametrize("version", VERSIONS)
def test_c_dependencies_of_client_have_wheels_for_desktops(version: str, desktop: str, tmp_path: Path) -> None:
    system, machine, platforms = DESKTOPS[desktop]
    packages = locked("packaging/release.lock", version, system, machine)
    download(packages, CLIENT_WITH_C, version, platforms, tmp_path)


@pytest.mark.parametrize("machine", LINUX)
@pytest.mark.parametrize("version", VERSIONS)
def test_make_setup_installs_from_wheels(version: str, machine: str, tmp_path: Path) -> None:
    packages = locked("requirements.lock", version, "linux", machine)
    names = packages.keys() - SOURCE_ONLY
    if (version, machine) == ("3.11", "aarch64"):
        names -= {"plyvel"}
    download(packages, names, version, LINUX[machine], tmp_path)
