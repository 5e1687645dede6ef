"""Tests of tables that fit the terminal, and of foreign text that is made harmless."""

from __future__ import annotations

import json
from typing import Any

import pytest

from sandctl.output.escaping import in_json, lines, printable, value_text
from sandctl.output.results import to_json
from sandctl.output.tables import cell_len, cut, table_lines
from tests.support.sandctl.fake_client import Ctl, FakeClient, letter, stored, text

HEADINGS = ["ID", "STATE", "MAX ATTEMPTS", "KEY", "VALUE"]
ID = "01HN7K2B6R0000000001000000"
ROWS = [[ID, "ready", "10", "k" * 30, "v" * 60], [ID, "delayed", "1,000", "-", "short"]]
HOSTILE = "\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202eevil\u2028\x7f"


def test_as_wide_as_it_must_be_where_there_is_no_terminal() -> None:
    found = table_lines(ROWS, HEADINGS, None)
    assert len(found) == 3 and "v" * 60 in found[1] and "…" not in "".join(found)
    assert found[0].split("  ")[0].strip() == "ID" and "MAX ATTEMPTS" in found[0]


@pytest.mark.parametrize("width", range(20, 200, 7))
def test_rows_fit_the_terminal_and_ids_are_complete(width: int) -> None:
    found = table_lines(ROWS, HEADINGS, width)
    assert sum(ID in line for line in found) == 2
    assert all(cell_len(line) <= max(width, 14 + len(ID)) for line in found)
    if width >= 75:
        assert all(cell_len(line) <= width for line in found) and len(found) <= 4, "a table with folded headings"


def test_widest_columns_are_cut_first() -> None:
    wide, narrow = table_lines(ROWS, HEADINGS, 130), table_lines(ROWS, HEADINGS, 85)
    assert "k" * 30 in wide[-2] and wide[-2].endswith("…")
    assert "k" * 30 not in narrow[-2] and narrow[-2].count("…") == 2 and narrow[1].split() == ["ATTEMPTS"]
    blocks = table_lines(ROWS, HEADINGS, 50)
    assert blocks[0] == f"ID            {ID}" and blocks[5] == "" and len(blocks) == 11


def test_numbers_stand_at_the_right() -> None:
    found = table_lines(ROWS, HEADINGS, None)
    assert found[1].index("10  ") + 2 == found[2].index("1,000") + 5


def test_wide_characters_and_marks_count_as_they_are_shown() -> None:
    assert [cell_len(one) for one in ("abc", "日本", "é", "e\u0301")] == [3, 4, 1, 1]
    assert cut("日本語", 5) == "日本…" and cell_len(cut("日本語", 4)) <= 4 and cut("abc", 3) == "abc"


def test_control_characters_are_escaped() -> None:
    shown = printable(HOSTILE)
    assert shown.isprintable() and shown.startswith(r"\x1b]0;owned\x07\x1b[2J\r\x9b31m\u202eevil")
    assert lines("a\nb\x1b") == "a\nb\\x1b" and lines("plain") == "plain"
    assert value_text(b"a\tb\n\x1b[0m\xff") == rb"a	b" + b"\n" + rb"\x1b[0m\xff"
    for found in table_lines([[HOSTILE, "a\nb"]], ["VALUE", HOSTILE], None):
        assert found.isprintable()


def test_json_stays_the_same_json() -> None:
    value = {"text": HOSTILE, "half": "\ud800"}
    written = to_json(value)
    assert written.isascii() or all(c.isprintable() for c in written)
    assert json.loads(written) == value and len(written.splitlines()) == 1
    assert in_json('"é"') == '"é"'


@pytest.mark.parametrize(
    "args",
    [
        ["message", "list", "t", "--values"],
        ["message", "get", "t", text(1, 1)],
        ["message", "why", "t", text(1, 1)],
        ["dead", "list", "t", "-g", "g", "--values"],
        ["group", "list", "t"],
        ["group", "show", "t", "g"],
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("output", ["table", "json", "jsonl"])
def test_control_characters_are_removed_from_all_output(
    offline: Ctl, client: FakeClient, args: list[str], output: str
) -> None:
    data = HOSTILE.encode()
    client.rows = [stored(1, id=text(1, 1), value=data, key=data, unique_key=data, headers={HOSTILE: HOSTILE})]
    client.letters = [letter(1, value=data, key=data, error=HOSTILE)]
    client.groups = [{"group": "g", "partition": 0, "reason": HOSTILE, "ready": 1, "dead_reasons": {HOSTILE: 1}}]
    client.biography = {
        "id": text(1, 1),
        "state": "leased",
        "key": data,
        "created_ms": 1,
        "groups": [{"group": HOSTILE, "state": "leased", "consumer": HOSTILE, "attempt": 1, "error": HOSTILE}],
    }
    result = offline(*args, "-o", output)
    assert result.exit_code == 0, result.output
    assert all(line.isprintable() for line in result.stdout.split("\n")), ascii(result.stdout)
    assert "evil" in result.stdout


def test_an_error_of_the_server_is_harmless(ctl: Any, server: Any) -> None:
    from sandq.model.errors import Conflict
    from sandq.protocol.frames import Type

    server.script[Type.TOPIC_CREATE] += [Conflict(f"no {HOSTILE}")]
    result = ctl("topic", "create", "x")
    assert result.exit_code == 1 and "evil" in result.stderr and result.stderr.rstrip("\n").isprintable()
