"""Builds a release: wheels, source, what they depend on, a bill of materials, and checksums. `make release` runs it.

    dist/sandq-X-py3-none-any.whl, sandq_client-X-...whl    what is installed
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
import subprocess
import sys
import tomllib
import uuid
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
CLIENT = ROOT / "packaging" / "client"
LOCK = "requirements.lock"
SBOM = "sbom.cdx.json"
SUMS = "SHA256SUMS"
# A virtual environment may be a link, which is no part of them.
SOURCES = (".", ":(exclude).venv")
OURS = frozenset({"sandq", "sandq-client"})
_BLOCK = re.compile(r"^([A-Za-z0-9._-]+)==([^ \\;]+)(.*?)(?=^\S|\Z)", re.M | re.S)
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")
_NAMESPACE = uuid.UUID("6f1b62f4-7a52-5d0c-9d5a-6a0a5d2b7c11")


def build(into: Path) -> list[Path]:
    """Make all files of a release in an empty directory."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct")
    into.mkdir(parents=True, exist_ok=True)
    if any(into.iterdir()):
        raise SystemExit(f"{into} is not empty: a release has nothing in it but what is built now")
    for project, kinds in ((CLIENT, ("wheel",)), (ROOT, ("wheel", "sdist"))):
        _hatch(project, kinds, into, epoch)
    pinned = locked((ROOT / LOCK).read_text(encoding="utf-8"))
    needs = needed(wanted())
    missing = needs.keys() - pinned.keys()
    if missing:
        raise SystemExit(f"{LOCK} does not have {', '.join(sorted(missing))}")
    runtime = {name: pinned[name] for name in sorted(needs)}
    (into / LOCK).write_text("".join([text for _, text in runtime.values()]), encoding="utf-8")
    found = bill_of_materials(runtime, needs, version_of(ROOT), int(epoch))
    (into / SBOM).write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    files = sorted(into.iterdir())
    (into / SUMS).write_text("".join([f"{_sha256(file)}  {file.name}\n" for file in files]), encoding="utf-8")
    return [*files, into / SUMS]


def check_committed(root: Path) -> None:
    """Whatever lies among the sources gets into what is built, and nobody could build it again."""
    if not (root / ".git").exists():
        return  # the source of a release
    changed = _git("status", "--porcelain", "--", *SOURCES, root=root).splitlines()
    if changed:
        more = "" if len(changed) == 1 else f", and {len(changed) - 1} more"
        raise SystemExit(f"not committed: {changed[0].split(maxsplit=1)[-1]}{more}: a release is of a commit")


def wanted() -> list[str]:
    """What both projects say that they need."""
    found: list[str] = []
    for project in (ROOT, CLIENT):
        found += tomllib.loads((project / "pyproject.toml").read_text(encoding="utf-8"))["project"]["dependencies"]
    return found


def needed(requirements: Iterable[str]) -> dict[str, list[str]]:
    """These and all that they depend on, by name, each with what it needs itself: as it is installed here."""
    found: dict[str, list[str]] = {}
    left = [_name(line) for line in requirements if _applies(line)]
    while left:
        name = left.pop()
        if name in found or name in OURS:
            continue
        found[name] = sorted({_name(line) for line in importlib.metadata.requires(name) or () if _applies(line)})
        left += found[name]
    return found


def locked(text: str) -> dict[str, tuple[str, str]]:
    """By name: version, and the lines of the lock file."""
    return {
        canonicalize_name(name): (version, f"{name}=={version}{rest}") for name, version, rest in _BLOCK.findall(text)
    }


def bill_of_materials(
    runtime: Mapping[str, tuple[str, str]], needs: Mapping[str, list[str]], version: str, epoch: int
) -> dict[str, Any]:
    """CycloneDX 1.6, of sandq and everything that it needs to run."""
    refs = {name: f"pkg:pypi/{name}@{pinned}" for name, (pinned, _) in runtime.items()}
    own = f"pkg:pypi/sandq@{version}"
    direct = sorted({_name(line) for line in wanted() if _applies(line)} - OURS)
    tree = [{"ref": own, "dependsOn": [refs[name] for name in direct]}]
    tree += [{"ref": refs[name], "dependsOn": [refs[need] for need in needs[name] if need in refs]} for name in runtime]
    content: dict[str, Any] = {
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "component": {
                **{"type": "application", "bom-ref": own, "name": "sandq", "version": version, "purl": own},
                "licenses": [{"expression": "Apache-2.0"}],
            },
        },
        "components": [_component(name, *runtime[name], refs[name]) for name in runtime],
        "dependencies": tree,
    }
    serial = uuid.uuid5(_NAMESPACE, json.dumps(content, sort_keys=True))
    head = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
    }
    return {**head, "serialNumber": f"urn:uuid:{serial}", "version": 1, **content}


def _component(name: str, version: str, text: str, ref: str) -> dict[str, Any]:
    metadata = importlib.metadata.metadata(name)
    component = {"type": "library", "bom-ref": ref, "name": name, "version": version, "purl": ref}
    expression, text_of_license = metadata.get("License-Expression"), metadata.get("License")
    if expression:
        component["licenses"] = [{"expression": expression}]
    elif text_of_license and "\n" not in text_of_license:
        component["licenses"] = [{"license": {"name": text_of_license}}]
    # A release of a package is several files: whoever installs has one of them.
    files = [{"alg": "SHA-256", "content": found} for found in _HASH.findall(text)]
    where = {"type": "distribution", "url": ref, "comment": "any of its files", "hashes": files}
    return {**component, "externalReferences": [where]}


def version_of(project: Path) -> str:
    """What the sources say."""
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


def _applies(line: str) -> bool:
    marker = Requirement(line).marker
    return marker is None or marker.evaluate({"extra": ""})


def _sha256(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def main() -> None:
    parser = argparse.ArgumentParser(description="Build a release.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="an empty directory (default: dist)")
    into = parser.parse_args().out
    check_committed(ROOT)
    for file in build(into):
        print(file)


if __name__ == "__main__":
    main()
