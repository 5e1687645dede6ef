"""Tests of packaging/python_support.py and choose-python: the Python versions that `make setup` accepts and refuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from packaging.specifiers import SpecifierSet

from sandq.tools.doctor import check_machine
from tests.support.paths import ROOT
from tests.support.pythons.roots import SUITES
from tests.support.release import packaging_script

PROJECTS = (ROOT / "pyproject.toml", ROOT / "packaging/client/pyproject.toml")
CHOOSE = ROOT / "packaging" / "choose-python"


support = packaging_script("python_support")


def project(path: Path) -> Any:
    return tomllib.loads(path.read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize(
    ("version", "changes", "reason"),
    [
        ((3, 11, 0), {}, None),
        ((3, 14, 10), {}, None),
        ((3, 10, 13), {}, "sandq needs CPython 3.11 to 3.14; this is CPython 3.10.13, which is too old"),
        ((3, 15, 0), {}, "sandq needs CPython 3.11 to 3.14; this is CPython 3.15.0, which is too new"),
        ((3, 11, 13), {"implementation": "PyPy"}, "sandq needs CPython 3.11 to 3.14; this is PyPy 3.11.13"),
        ((3, 14, 0), {"has_gil": False}, "this is CPython 3.14.0 without the GIL"),
        ((3, 13, 5), {"has_venv": False}, "on Debian and Ubuntu: apt-get install python3.13-venv"),
    ],
)
def test_an_interpreter_is_taken_or_refused_with_a_reason(
    version: tuple[int, ...], changes: dict[str, Any], reason: str | None
) -> None:
    found = support.problem(version, **{"implementation": "CPython", "has_gil": True, "has_venv": True, **changes})
    assert found == reason if reason is None else reason in found
    assert "\n" not in (found or "")


@pytest.mark.parametrize(
    ("version", "machine", "is_glibc", "can_compile", "reason"),
    [
        ((3, 11, 2), "x86_64", True, False, None),
        ((3, 12, 1), "aarch64", True, False, None),
        ((3, 11, 2), "aarch64", True, True, None),
        (
            (3, 11, 2),
            "aarch64",
            True,
            False,
            "no wheel for Python 3.11 on aarch64: use Python 3.12 or newer, or install",
        ),
        ((3, 14, 0), "riscv64", True, False, "no wheel for Python 3.14 on riscv64: install a compiler and its headers"),
        ((3, 14, 0), "x86_64", False, False, "no wheel for Python 3.14 on x86_64 without glibc: install a compiler"),
    ],
)
def test_missing_leveldb_wheel_is_named_with_advice(
    version: tuple[int, ...], machine: str, is_glibc: bool, can_compile: bool, reason: str | None
) -> None:
    found = support.missing_for_leveldb(version, machine, is_glibc, lambda: can_compile)
    assert found is None if reason is None else reason in found


def choose(*pythons: str | Path, path: Sequence[Path] = ()) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.pathsep.join([*map(str, path), "/usr/bin", "/bin"])}
    command = [str(CHOOSE), *map(str, pythons)]
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environ)


def program(directory: Path, name: str, script: str) -> Path:
    file = directory / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


def test_first_supported_interpreter_is_chosen(tmp_path: Path) -> None:
    old = program(tmp_path, "python3", "echo 'this is too old'; exit 1")
    other = program(tmp_path, "no-python", "exit 0")
    broken = program(tmp_path, "python3.14", "exit 127")
    done = choose("python-of-nowhere", old, other, broken, sys.executable)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{sys.executable}\n", "")


def test_unsupported_interpreter_prints_one_line_of_advice(tmp_path: Path) -> None:
    old = program(tmp_path, "python3", "echo 'sandq needs CPython 3.11 to 3.14; this is CPython 3.9.2'; exit 1")
    done = choose(old, "python-of-nowhere")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr == (
        f"{old}: sandq needs CPython 3.11 to 3.14; this is CPython 3.9.2. "
        "Name another interpreter: make setup PYTHON=/path/to/python3.14\n"
    )
    none = choose("python-of-nowhere")
    assert none.stderr.startswith("sandq needs CPython 3.11 to 3.14; none of these can be run: python-of-nowhere. Name")


def test_make_setup_refuses_before_it_downloads_anything(tmp_path: Path) -> None:
    old = program(tmp_path, "python3", "echo 'this is CPython 3.9.2, which is too old'; exit 1")
    for name in ("Makefile", "requirements.lock", "pyproject.toml", "packaging"):
        (tmp_path / name).symlink_to(ROOT / name)
    done = subprocess.run(
        ["make", "setup", f"PYTHON={old}"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode != 0 and not (tmp_path / ".venv").exists()
    assert "which is too old. Name another interpreter" in done.stderr
    assert "pip" not in done.stdout


def test_files_name_the_same_python_versions() -> None:
    versions = [f"3.{minor}" for minor in range(support.OLDEST[1], support.NEWEST[1] + 1)]
    assert (check_machine.PYTHON_OLDEST, check_machine.PYTHON_NEWEST) == (support.OLDEST, support.NEWEST)
    node, client = map(project, PROJECTS)
    beyond = f"3.{support.NEWEST[1] + 1}"
    for version in versions:
        assert version in SpecifierSet(node["requires-python"]) and version in SpecifierSet(client["requires-python"])
    assert beyond not in SpecifierSet(node["requires-python"])
    assert beyond in SpecifierSet(client["requires-python"]), "the client must have no upper bound"
    for each in (node, client):
        named = [line.rpartition(" ")[2] for line in each["classifiers"] if re.search(r"Python :: 3\.\d+$", line)]
        assert named == versions
        assert "Development Status :: 4 - Beta" in each["classifiers"]
    assert {*SUITES} <= {*versions} and versions[-1] in SUITES
    pages = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/releases.md")}
    assert f"Python {versions[0]} to {versions[-1]}" in pages["README.md"]
    assert all(f"| Python {version} |" in pages["docs/releases.md"] for version in versions)
    installer = (ROOT / "deploy/systemd/install.sh").read_text(encoding="utf-8")
    assert f"{support.OLDEST} <= sys.version_info[:2] <= {support.NEWEST}" in installer
    image = (ROOT / "deploy/container/Containerfile").read_text(encoding="utf-8")
    assert f"ARG PYTHON=python:{versions[-1]}-slim" in image


def test_only_one_module_imports_leveldb() -> None:
    binding = re.compile(r"^\s*(?:import|from) plyvel", re.M)
    trees = ("sandq", "sandctl", "pyspark_sandq", "demo", "benchmarks", "integrations", "tests", "packaging")
    found = [
        str(path.relative_to(ROOT))
        for tree in trees
        for path in sorted((ROOT / tree).rglob("*.py"))
        if binding.search(path.read_text(encoding="utf-8"))
    ]
    assert found == ["sandq/storage/leveldb.py"]


@pytest.mark.parametrize(
    "name",
    [
        "requirements.lock",
        "requirements-spark.lock",
        "requirements-audit.lock",
        "requirements-peers.lock",
        "requirements-docs.lock",
        "requirements-workers.lock",
        "requirements-suites.lock",
        "packaging/release.lock",
    ],
)
def test_a_lock_file_pins_every_package_by_hash_and_names_no_address(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8")
    assert "://" not in text
    blocks = re.split(r"^(?=[A-Za-z0-9])", text, flags=re.M)
    pinned = [block for block in blocks if block.strip()]
    assert pinned and all(re.match(r"[A-Za-z0-9._-]+==[^ ;]+", block) and "--hash=sha256:" in block for block in pinned)
    if "plyvel" in text:
        assert "\nplyvel==1.5.1 ; python_full_version < '3.12' \\" in text
        assert "\nplyvel-next==2.1.2 ; python_full_version >= '3.12' \\" in text
