"""Every page of docs/ is named where a reader begins, and no page calls a feature missing that has a page."""

from __future__ import annotations

import re

from tests.support.paths import ROOT

PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md") if "adr" not in path.parts)
FEATURES = "backup|console|http|push|schedules|slo|spark|sql"
MISSING = re.compile(
    rf"\b(?:{FEATURES})\b[^.|]*\b(?:is|are) (?:missing|not (?:yet )?(?:there|available|supported|built)(?: yet)?)\b",
    re.I,
)
MISSING_SECTION = re.compile(r"^#+ .*\b(?:not there yet|missing|not supported)\b", re.I)


def test_the_readme_names_every_page() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert [page for page in PAGES if f"]({page}" not in readme] == []


def test_no_page_calls_a_feature_missing_that_has_a_page() -> None:
    wrong = []
    for name in ("README.md", *PAGES):
        is_missing = False
        for number, line in enumerate((ROOT / name).read_text(encoding="utf-8").splitlines(), 1):
            if line.startswith("#"):
                is_missing = MISSING_SECTION.search(line) is not None
            named = re.search(rf"\b(?:{FEATURES})\b", line, re.I)
            if MISSING.search(line) or (is_missing and named):
                wrong.append(f"{name}:{number}: {line.strip()}")
    assert wrong == []


def test_a_feature_called_missing_is_found() -> None:
    assert MISSING.search("SQL over MySQL's wire is not there yet.")
    assert MISSING.search("Push and schedules are missing.")
    assert MISSING_SECTION.search("## What is not there yet")
    assert not MISSING.search("The key is missing: the request is refused.")
