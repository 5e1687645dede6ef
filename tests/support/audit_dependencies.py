"""Check the packages that sandq ships for known vulnerabilities: `python -m tests.support.audit_dependencies`.

pip-audit is installed in a directory of its own, so that its dependencies do not influence what is shipped or tested.
It downloads its data. If the data are not available, the check says so and does not fail."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.support.paths import ROOT

TOOL_LOCK: Final = ROOT / "requirements-audit.lock"
SHIPPED: Final = ("requirements.lock", "requirements-spark.lock")
INSTALL_S: Final = 120.0
AUDIT_S: Final = 60.0
"""Time limit for the audit of one lock file, in seconds. After this time, its data count as unavailable."""
NO_DATA: Final = "not looked for known vulnerabilities: their data cannot be had here"


def main() -> int:
    tool = _tool()
    if tool is None:
        print(f"{NO_DATA} (pip-audit cannot be installed)")
        return 0
    code = 0
    for lock in SHIPPED:
        found, line = verdict(lock, _audit(tool, ROOT / lock))
        print(line)
        code = max(code, int(found))
    return code


def verdict(lock: str, report: Mapping[str, Any] | None) -> tuple[bool, str]:
    """Return whether there are vulnerabilities, and a text about the lock file.

    `report`: the report of pip-audit; None if pip-audit returned no report."""
    dependencies: Sequence[Mapping[str, Any]] = report["dependencies"] if report is not None else ()
    looked_at = [each for each in dependencies if "skip_reason" not in each]
    if not looked_at:
        return False, f"{lock}: {NO_DATA}"
    lines = [
        f"  {each['name']} {each['version']}: {vulnerability['id']}, "
        f"fixed in {', '.join(vulnerability['fix_versions']) or 'no version yet'}"
        for each in looked_at
        for vulnerability in each["vulns"]
    ]
    missing = len(dependencies) - len(looked_at)
    said = f"{lock}: {len(looked_at)} packages, {len(lines)} known vulnerabilities"
    return bool(lines), "\n".join([said + (f", {missing} packages without data" if missing else ""), *lines])


def _tool() -> Path | None:
    """Return the directory with the packages of pip-audit. None if pip-audit cannot be installed on this machine."""
    place = ROOT / ".venv" / "audit"
    stamp = place / ".up-to-date"
    if not stamp.is_file() or stamp.stat().st_mtime < TOOL_LOCK.stat().st_mtime:
        shutil.rmtree(place, ignore_errors=True)
        install = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
        try:
            done = subprocess.run(
                [*install, "--target", place, "--no-deps", "--require-hashes", "-r", TOOL_LOCK],
                timeout=INSTALL_S,
                capture_output=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None
        if done.returncode:
            return None
        stamp.touch()
    return place


def _audit(tool: Path, lock: Path) -> Mapping[str, Any] | None:
    command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "-r", lock, "--format", "json"]
    environ = {**os.environ, "PYTHONPATH": str(tool)}
    try:
        done = subprocess.run(
            [*command, "--progress-spinner", "off"], env=environ, timeout=AUDIT_S, capture_output=True, check=False
        )
        report: Mapping[str, Any] = json.loads(done.stdout)
    except (subprocess.TimeoutExpired, ValueError):
        return None
    return report


if __name__ == "__main__":
    sys.exit(main())
