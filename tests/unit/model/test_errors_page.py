"""docs/errors.md has every code, with the class, the status and `retriable` that the code has."""

from __future__ import annotations

import re
from collections.abc import Iterator

import sandq.errors
from sandq.model.errors import CODES, SandqError
from tests.support.documents import document
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "errors.md").read_text()
ROWS = {
    row[0]: row[1:]
    for row in re.findall(
        r"^\| `([A-Z_]+)` \| (\d+|-) \| (?:`(\w+)`|-) \| (yes|no) \| ([^|]+) \| ([^|]+) \|$", PAGE, re.MULTILINE
    )
}
NEVER_BY_HTTP = {"FORKED", "STARTUP", "CONFIG", "CORRUPTION", "DATA_DIR_IN_USE"}
HTTP_DIR = ROOT / "sandq" / "server" / "http"


def kinds() -> Iterator[type[SandqError]]:
    for name in sandq.errors.__all__:
        yield getattr(sandq.errors, name)


def test_every_class_has_its_row() -> None:
    classes = {kind.code: kind for kind in kinds()}
    assert classes.keys() == CODES
    for code, kind in classes.items():
        status, name, retriable, *texts = ROWS[code]
        # Between nodes the error is "misdirected"; an HTTP client retries.
        expected = "-" if code in NEVER_BY_HTTP else "503" if kind.http_status == 421 else str(kind.http_status)
        assert (status, name, retriable) == (expected, kind.__name__, "yes" if kind.retriable else "no"), code
        assert all(text.strip() for text in texts)


def test_codes_of_http_alone_have_rows_without_a_class() -> None:
    sources = "".join(path.read_text() for path in HTTP_DIR.glob("*.py"))
    said = set(re.findall(r"(?:problem|Refused)\(\s*(?:[\w.]+, )?\d{3},\s*\"([A-Z_]+)\"", sources))
    said |= {"NO_ROUTE", "NO_METHOD"}
    assert {"FOREIGN_HOST", "FOREIGN_ORIGIN", "OVERLOADED", "TOO_LARGE"} <= said
    assert said <= ROWS.keys()
    assert {code for code, row in ROWS.items() if not row[1]} == said - CODES
    assert ROWS.keys() == CODES | said


def test_codes_of_the_protocol_are_on_its_page_as_they_are_here() -> None:
    page = document("protocol")
    section = page[page.index("\n## Errors") :].split("\n## ")[1]
    for names, retriable in re.findall(r"^\| ((?:`[A-Z_]+`(?:, )?)+) \| (yes|no) \|", section, re.MULTILINE):
        for code in re.findall(r"`([A-Z_]+)`", names):
            assert ROWS[code][2] == retriable, code
