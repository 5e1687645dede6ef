"""Tests of the counts of loaded runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.support.flaky import loaded_runs
from tests.support.flaky.loaded_runs import add, code_of, load, store, table


def test_runs_of_the_same_subject_add_up(tmp_path: Path) -> None:
    counted: dict[str, Any] = {}
    add(counted, "unit", "s", "c1", [set(), {"tests/unit/test_a.py::test_b"}])
    store(counted, tmp_path / "runs.json")
    counted = load(tmp_path / "runs.json")
    add(counted, "unit", "s", "c2", [set(), {"tests/unit/test_a.py::test_b"}])
    assert counted["unit"] == {
        "subject": "s",
        "commit": "c2",
        "runs": 4,
        "green": 2,
        "failures": {"tests/unit/test_a.py::test_b": 2},
    }
    assert load(tmp_path / "none.json") == {}


def test_runs_of_an_earlier_subject_do_not_count() -> None:
    counted: dict[str, Any] = {}
    add(counted, "unit", "s1", "c1", [{"tests/unit/test_a.py::test_b"}])
    add(counted, "property", "s1", "c1", [set()])
    add(counted, "unit", "s2", "c2", [set()])
    assert counted["unit"]["runs"] == counted["unit"]["green"] == counted["property"]["runs"] == 1
    assert counted["unit"]["failures"] == {}
    lines = table(counted, ("unit", "faults")).splitlines()
    assert lines[1].split() == ["unit", "1", "1", "c2"] and lines[2].split() == ["faults", "0", "0", "-"]


def test_texts_and_comments_do_not_change_the_subject() -> None:
    assert code_of('"""One."""\ndef f():\n    """Two."""\n    return "a"  # why\n') == code_of('def f(): return "a"\n')
    assert code_of('def f(): return "a"\n') != code_of('def f(): return "b"\n')


def test_subject_of_a_suite_has_its_tests_and_the_packages() -> None:
    names = {str(path.relative_to(loaded_runs.ROOT)) for path in loaded_runs._sources("property")}
    assert {"sandq/cli.py", "sandctl/main.py", "tests/support/paths.py", "tests/property/test_batch.py"} <= names
    assert not any(name.startswith(("tests/unit/", "docs/")) for name in names)
