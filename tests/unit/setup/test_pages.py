"""Tests that the start pages name every page of docs/, and that no page calls a documented feature missing."""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.paths import ROOT

DOCS = ROOT / "docs"
PAGES = sorted(
    path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md") if not {"adr", "examples"} & {*path.parts}
)
FENCED = re.compile(r"^```.*?^```$", re.M | re.S)
FEATURES = "backup|console|http|push|schedules|slo|spark|sql"
MISSING = re.compile(
    rf"\b(?:{FEATURES})\b[^.|]*\b(?:is|are) (?:missing|not (?:yet )?(?:there|available|supported|built)(?: yet)?)\b",
    re.I,
)
MISSING_SECTION = re.compile(r"^#+ .*\b(?:not there yet|missing|not supported)\b", re.I)


PAGE_BYTES = 15 << 10
"""Maximum size of a page, so that a reader finds things in it."""


def test_no_page_is_too_long() -> None:
    long = {path: size for path in PAGES if (size := (ROOT / path).stat().st_size) > PAGE_BYTES}
    assert not long, "divide these pages by subject"


def _above(page: Path) -> Path:
    """Return the page that must link a page: its `index.md`, or `docs/topics.md` for `docs/topics/order.md`."""
    if page == DOCS / "index.md":
        return ROOT / "README.md"
    directory = page.parent
    candidates = (directory / "index.md", directory.with_suffix(".md"), DOCS / "index.md")
    return next(each for each in candidates if each != page and each.exists())


def test_every_page_is_linked_from_the_page_above() -> None:
    missing = []
    for page in (ROOT / path for path in PAGES):
        above = _above(page)
        if f"]({page.relative_to(above.parent)}" not in above.read_text(encoding="utf-8"):
            missing.append(f"{page.relative_to(ROOT)}: link it from {above.relative_to(ROOT)}")
    assert missing == []


def test_documented_features_are_not_called_missing() -> None:
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


LINK = re.compile(r"\]\(([^()\s]*(?:\([^()\s]*\))?[^()\s]*)\)")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings as on GitHub."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*)$", FENCED.sub("", page.read_text(encoding="utf-8")), re.M):
        text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = 0
        while (f"{anchor}-{number}" if number else anchor) in found:
            number += 1
        found.add(f"{anchor}-{number}" if number else anchor)
    return found


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    pages = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]
    dead = []
    for page in pages:
        for link in LINK.findall(FENCED.sub("", page.read_text(encoding="utf-8"))):
            if re.match(r"[a-z]+:", link):
                continue
            path, _, anchor = link.partition("#")
            target = (page.parent / path).resolve() if path else page
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
                dead.append(f"{page.relative_to(ROOT)}: {link}")
    assert dead == [], "\n".join(dead)
