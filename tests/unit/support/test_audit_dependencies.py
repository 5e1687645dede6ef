from __future__ import annotations

from typing import Any

from tests.support.audit_dependencies import NO_DATA, SHIPPED, TOOL_LOCK, verdict
from tests.support.paths import ROOT

MISSING = {"name": "a", "skip_reason": "not found"}
SOUND: dict[str, Any] = {"name": "b", "version": "1.0", "vulns": []}
UNSOUND: dict[str, Any] = {"name": "c", "version": "2.0", "vulns": [{"id": "CVE-1", "fix_versions": ["2.1"]}]}


def test_vulnerabilities_are_named() -> None:
    found, said = verdict("x.lock", {"dependencies": [MISSING, SOUND, UNSOUND]})
    assert found
    assert said == (
        "x.lock: 2 packages, 1 known vulnerabilities, 1 packages without data\n  c 2.0: CVE-1, fixed in 2.1"
    )


def test_sound_ones_are_counted() -> None:
    assert verdict("x.lock", {"dependencies": [SOUND]}) == (False, "x.lock: 1 packages, 0 known vulnerabilities")


def test_without_data_that_is_said() -> None:
    for report in (None, {"dependencies": [MISSING]}):
        assert verdict("x.lock", report) == (False, f"x.lock: {NO_DATA}")


def test_lock_files_exist() -> None:
    assert all((ROOT / lock).is_file() for lock in SHIPPED) and TOOL_LOCK.is_file()
