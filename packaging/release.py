"""Builds a release: wheels, source, what they depend on, a bill of materials, and checksums. `make release` runs it.

    dist/sandq-X-py3-none-any.whl, sandq_client-X-...whl    what is installed, with the documentation site
    dist/sandq_workers-X-py3-none-any.whl                   Celery on sandq; its dependencies are not in the lock
    dist/sandq-X.tar.gz                                     the source
    dist/requirements.lock                                  all that the wheels need, each with its hashes
    dist/sbom.cdx.json                                      the same as a bill of materials: CycloneDX 1.6
    dist/SHA256SUMS                                         of all of these

The same commit gives the same bytes, whenever and wherever it is built: instants are those of the commit
(SOURCE_DATE_EPOCH, if it is not set).
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import uuid
import zipfile
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
CLIENT = ROOT / "packaging" / "client"
WORKERS = ROOT / "integrations" / "workers"
LOCK = "requirements.lock"
SITE = ROOT / "build" / "docs" / "site.zip"
"""The documentation site, which `make docs` builds."""
SITE_IN_WHEEL = ROOT / "sandq" / "server" / "http" / "static" / "site.zip"
"""Where the wheel has the site. The file is in the tree only while a release is built."""
SITE_BYTES = 3_000_000
"""Maximum size of the site in the wheel."""
RUNTIME_LOCK = ROOT / "packaging" / "release.lock"
"""Dependencies of the wheels, for all supported Python versions and machines; packaging/lock writes it."""
SBOM = "sbom.cdx.json"
SUMS = "SHA256SUMS"
# A virtual environment may be a link, which is not part of the sources.
SOURCES = (".", ":(exclude).venv")
OURS = frozenset({"sandq", "sandq-client"})
_BLOCK = re.compile(r"^([A-Za-z0-9._-]+)==([^ \\;]+)(.*?)(?=^\S|\Z)", re.M | re.S)
_MARKER = re.compile(r"^ ; ([^\\\n]+)")
_VIA = re.compile(r"^    #(?: via)? +([A-Za-z0-9._-]+)(?: \(.*pyproject\.toml\))?$", re.M)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_NAMESPACE = uuid.UUID("6f1b62f4-7a52-5d0c-9d5a-6a0a5d2b7c11")


def build(into: Path) -> list[Path]:
    """Make all files of a release in an empty directory."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct")
    into.mkdir(parents=True, exist_ok=True)
    if any(into.iterdir()):
        raise SystemExit(f"{into} is not empty: a release has nothing in it but what is built now")
    for project, kinds in ((CLIENT, ("wheel",)), (WORKERS, ("wheel",)), (ROOT, ("wheel", "sdist"))):
        _hatch(project, kinds, into, epoch)
    text = RUNTIME_LOCK.read_text(encoding="utf-8")
    runtime = locked(text)
    missing = {_name(line) for line in wanted()} - runtime.keys() - OURS
    if missing:
        raise SystemExit(f"{RUNTIME_LOCK} does not have {', '.join(sorted(missing))}: run packaging/lock")
    (into / LOCK).write_text(text, encoding="utf-8")
    found = bill_of_materials(runtime, version_of(ROOT), int(epoch))
    (into / SBOM).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    files = sorted(into.iterdir())
    (into / SUMS).write_text("".join([f"{_sha256(file)}  {file.name}\n" for file in files]), encoding="utf-8")
    return [*files, into / SUMS]


def check_committed(root: Path) -> None:
    """Raise SystemExit if the sources have uncommitted changes, which a build would include."""
    if not (root / ".git").exists():
        return  # the source of a release
    changed = _git("status", "--porcelain", "--", *SOURCES, root=root).splitlines()
    if changed:
        more = "" if len(changed) == 1 else f", and {len(changed) - 1} more"
        raise SystemExit(f"not committed: {changed[0].split(maxsplit=1)[-1]}{more}: a release is of a commit")


def check_site(site: Path) -> None:
    """Raise SystemExit if the documentation site is missing or too large for the wheel."""
    if not site.is_file():
        raise SystemExit(f"{site} is missing: run `make docs`, or `make release`, which does it")
    if site.stat().st_size > SITE_BYTES:
        raise SystemExit(
            f"{site} has {site.stat().st_size:,} bytes, and at most {SITE_BYTES:,} are allowed (SITE_BYTES): "
            "leave out files that readers do not need (UNUSED in packaging/site/build.py)"
        )
    try:
        with zipfile.ZipFile(site) as pages:
            is_whole = pages.testzip() is None and "index.html" in pages.namelist()
    except zipfile.BadZipFile:
        is_whole = False
    if not is_whole:
        raise SystemExit(f"{site} is no whole documentation site: run `make docs` again")


def wanted() -> list[str]:
    """Return the dependencies of both projects."""
    found: list[str] = []
    for project in (ROOT, CLIENT):
        found += tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    return found


class Locked(NamedTuple):
    """A package of a lock file."""

    version: str
    marker: str | None
    """For which environments it is; None: for all."""
    needed_by: frozenset[str]
    hashes: tuple[str, ...]


def locked(text: str) -> dict[str, Locked]:
    """Return the packages of a lock file that uv wrote, by name."""
    found = {}
    for name, version, rest in _BLOCK.findall(text):
        marker = _MARKER.match(rest)
        found[canonicalize_name(name)] = Locked(
            version=version,
            marker=marker[1].strip() if marker else None,
            needed_by=frozenset(canonicalize_name(each) for each in _VIA.findall(rest)),
            hashes=tuple(_HASH.findall(rest)),
        )
    return found


def bill_of_materials(runtime: Mapping[str, Locked], version: str, epoch: int) -> dict[str, Any]:
    """Return a bill in the format CycloneDX 1.6, of sandq and everything that it needs to run."""
    refs = {name: f"pkg:pypi/{name}@{package.version}" for name, package in runtime.items()}
    own = f"pkg:pypi/sandq@{version}"
    direct = [refs[name] for name, package in runtime.items() if package.needed_by & OURS]
    tree = [{"ref": own, "dependsOn": direct}]
    tree += [
        {"ref": ref, "dependsOn": [refs[need] for need, package in runtime.items() if name in package.needed_by]}
        for name, ref in refs.items()
    ]
    content: dict[str, Any] = {
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                **{"type": "application", "bom-ref": own, "name": "sandq", "version": version, "purl": own},
                "licenses": [{"expression": "Apache-2.0"}],
            },
        },
        "components": [_component(name, package, refs[name]) for name, package in runtime.items()],
        "dependencies": tree,
    }
    serial = uuid.uuid5(_NAMESPACE, json.dumps(content, sort_keys=True))
    head = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
    }
    return {**head, "serialNumber": f"urn:uuid:{serial}", "version": 1, **content}


def _component(name: str, package: Locked, ref: str) -> dict[str, Any]:
    component = {"type": "library", "bom-ref": ref, "name": name, "version": package.version, "purl": ref}
    # Other packages are not installed on every machine that builds, and all machines shall give the same bytes.
    if package.marker is None:
        metadata = importlib.metadata.metadata(name)
        expression, text_of_license = metadata.get("License-Expression"), metadata.get("License")
        if expression:
            component["licenses"] = [{"expression": expression}]
        elif text_of_license and "\n" not in text_of_license:
            component["licenses"] = [{"license": {"name": text_of_license}}]
    else:
        component["properties"] = [{"name": "sandq:marker", "value": package.marker}]
    # A release of a package is several files: an installation has one of them.
    files = [{"alg": "SHA-256", "content": found} for found in package.hashes]
    where = {"type": "distribution", "url": ref, "comment": "any of its files", "hashes": files}
    return {**component, "externalReferences": [where]}


def version_of(project: Path) -> str:
    """Return the version in the sources of a project."""
    text = (project / "sandq" / "__init__.py").read_text(encoding="utf-8")
    match = re.search(r'^__version__ = "([^"]+)"', text, re.M)
    assert match is not None
    return match[1]


def _hatch(project: Path, kinds: Iterable[str], into: Path, epoch: str) -> None:
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(into)]
    for kind in kinds:
        command += ["-t", kind]
    done = subprocess.run(
        command, cwd=project, env=os.environ | {"SOURCE_DATE_EPOCH": epoch}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)


def _git(*arguments: str, root: Path = ROOT) -> str:
    return subprocess.run(["git", *arguments], cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def _name(line: str) -> str:
    return canonicalize_name(Requirement(line).name)


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a release.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="an empty directory (default: dist)")
    into = parser.parse_args().out
    check_committed(ROOT)
    check_site(SITE)
    shutil.copyfile(SITE, SITE_IN_WHEEL)
    try:
        for file in build(into):
            print(file)
    finally:
        SITE_IN_WHEEL.unlink()


if __name__ == "__main__":
    main()
