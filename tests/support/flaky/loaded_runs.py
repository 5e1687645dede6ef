"""Counts loaded runs of each suite in a file that is committed, so that slices of several days add up.

The runs of a suite count as long as its subject is the same: the code of the suite, of `tests/support` and of the
packages. Changes of comments, docstrings and formatting do not count as changes of the code.
"""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from tests.support.paths import ROOT

FILE: Final = Path(__file__).with_name("loaded_runs.json")
GOAL: Final = 10
"""Number of green loaded runs that each suite needs."""
_PACKAGES: Final = ("sandq", "sandctl", "pyspark_sandq", "demo", "tests/support")
_WITH_DOCSTRINGS: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def code_of(source: str) -> str:
    """Return the syntax tree of a source text, without strings that stand alone."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, _WITH_DOCSTRINGS):
            node.body = [one for one in node.body if not _is_text(one)]
    return ast.dump(tree)


def _is_text(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _sources(suite: str) -> Iterator[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--", *_PACKAGES, f"tests/{suite}"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in sorted(listed.stdout.split("\0")):
        path = ROOT / name
        if name and path != FILE and path.is_file():
            yield path


def subject_of(suite: str) -> str:
    """Return a hash of the code that the runs of a suite test."""
    found = hashlib.sha256()
    for path in _sources(suite):
        found.update(str(path.relative_to(ROOT)).encode())
        content = path.read_bytes()
        found.update(code_of(content.decode()).encode() if path.suffix == ".py" else content)
    return found.hexdigest()[:16]


def add(counted: dict[str, Any], suite: str, subject: str, commit: str, runs: Iterable[set[str]]) -> None:
    """Add runs to the counts of a suite. If the tested code has changed, forget earlier runs.

    `runs`: for each run, the names of its failed tests."""
    row = counted.get(suite)
    if row is None or row["subject"] != subject:
        row = counted[suite] = {"subject": subject, "runs": 0, "green": 0, "failures": {}}
    failures = Counter(row["failures"])
    for failed in runs:
        row["runs"] += 1
        row["green"] += not failed
        failures.update(failed)
    row["commit"], row["failures"] = commit, dict(sorted(failures.items()))


def load(path: Path = FILE) -> dict[str, Any]:
    """Return the counts by suite."""
    counted: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return counted


def store(counted: dict[str, Any], path: Path = FILE) -> None:
    path.write_text(json.dumps(counted, indent=2, sort_keys=True) + "\n")


def table(counted: dict[str, Any], suites: Iterable[str]) -> str:
    """Return a table of the suites: loaded runs, green ones, and each test that failed."""
    lines = [f"{'suite':12} {'runs':>5} {'green':>6}  (goal {GOAL}) at commit"]
    for suite in suites:
        row = counted.get(suite, {"runs": 0, "green": 0, "commit": "-", "failures": {}})
        lines.append(f"{suite:12} {row['runs']:5} {row['green']:6}  {row['commit']}")
        lines += [f"    {count} x {name}" for name, count in row["failures"].items()]
    return "\n".join(lines)


def current_commit() -> str:
    """Return the short hash of the checked-out commit."""
    found = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return found.stdout.strip()
