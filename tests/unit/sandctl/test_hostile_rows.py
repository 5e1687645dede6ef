"""Tests with hostile rows: no command fails on them, changes them, or passes control characters to a terminal."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import pytest
from click.testing import CliRunner, Result

from sandctl.main import main
from sandctl.output.jsonl import BadLine, parse_line
from sandq.client import Attempt, Change, Entry, Life
from sandq.client.messages.log_page import LogPiece
from sandq.model.batch import Column, encode
from sandq.protocol.requests_keys import KeyValue
from tests.support.hostile_rows import CELLS, HEADERS, NO_HEADERS, TEXTS, shown, shown_value
from tests.support.sandctl.fake_client import NOW_MS, Ctl, FakeClient, connected_to, letter, stored, text
from tests.support.sandctl.fake_keys import FakeKeys, version

UNSAFE = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")
"""Characters that a terminal may execute or hide. Line ends are allowed."""
OUTPUTS = ("table", "json", "jsonl")
ID = text(NOW_MS + 3_600_000, 1)


@pytest.fixture
def ctl(offline: Ctl) -> Ctl:
    return offline


def rows_of(ctl: Ctl, *args: str, output: str) -> list[dict[str, Any]]:
    """Run a command, and return its rows if they are JSON."""
    result = ctl(*args, "-o", output)
    assert result.exit_code == 0, result.output
    assert UNSAFE.search(result.output) is None, result.output
    if output == "table":
        return []
    rows = json.loads(result.stdout) if output == "json" else [json.loads(line) for line in result.stdout.splitlines()]
    return rows if isinstance(rows, list) else [rows]


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("name", CELLS)
def test_values_and_keys_of_any_bytes(ctl: Ctl, client: FakeClient, name: str, output: str) -> None:
    cell = CELLS[name]
    client.rows = [stored(1, value=cell, key=cell, unique_key=cell)]
    client.letters = [letter(1, value=cell, key=cell, unique_key=cell)]
    for args in (
        ("message", "list", "t", "--values"),
        ("message", "get", "t", ID),
        ("dead", "list", "t", "-g", "g", "--values"),
    ):
        for row in rows_of(ctl, *args, output=output):
            assert (shown_value(row), shown(row, "key"), shown(row, "unique_key")) == (cell, cell, cell)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("name", [*NO_HEADERS, *HEADERS])
def test_headers_of_any_bytes(ctl: Ctl, client: FakeClient, name: str, output: str) -> None:
    cell = NO_HEADERS[name] if name in NO_HEADERS else HEADERS[name]
    client.rows, client.letters = [stored(1, _headers=cell)], [letter(1, _headers=cell)]
    client.biography = {"id": ID, "state": "delayed", "created_ms": NOW_MS, "headers_bytes": cell, "groups": []}
    for args in (
        ("message", "list", "t", "--values"),
        ("message", "get", "t", ID),
        ("message", "why", "t", ID),
        ("dead", "list", "t", "-g", "g", "--values"),
    ):
        for row in rows_of(ctl, *args, output=output):
            if name in HEADERS:
                assert row["headers"].keys() and "headers_base64" not in row
            else:
                assert base64.b64decode(row.get("headers_base64", "")) == cell and "headers" not in row


def test_line_with_invalid_headers_is_refused_with_the_reason(ctl: Ctl, client: FakeClient) -> None:
    client.rows = [stored(1, _headers=b"\xc1")]
    line = ctl("message", "list", "t", "--values", "-o", "jsonl").stdout
    with pytest.raises(BadLine, match=r"^headers_base64: these headers are not a map with text keys"):
        parse_line(line.encode())


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("error", TEXTS)
def test_errors_and_consumer_ids_of_any_text(ctl: Ctl, client: FakeClient, error: str, output: str) -> None:
    history = [Attempt(1, error, NOW_MS - 1000, NOW_MS, "nacked", error)]
    client.letters = [letter(1, error=error, history=history)]
    group = {
        "group": "g", "state": "leased", "attempt": 1, "consumer": error, "token": 7, "lease_token": "1.0.7",
        "deadline_ms": NOW_MS, "due_ms": None, "error": error, "consumers": 1, "reason": f"{error} holds it",
        "history": history, "lives": [Life(1, 1, "nacked", error, NOW_MS, NOW_MS, history)],
    }  # fmt: skip
    client.biography = {
        "id": ID, "state": "leased", "created_ms": NOW_MS, "key": error.encode(), "unique_key": error.encode(),
        "headers_bytes": None, "groups": [group],
    }  # fmt: skip
    for row in rows_of(ctl, "dead", "list", "t", "-g", "g", "--values", output=output):
        assert (row["error"], row["history"][0]["consumer"]) == (error, error)
    for row in rows_of(ctl, "message", "why", "t", ID, output=output):
        (found,) = row["groups"]
        assert (found["error"], found["consumer"], found["lives"][0]["error"]) == (error, error, error)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("name", [*CELLS, *NO_HEADERS, *HEADERS])
def test_keys_of_compacted_topics(monkeypatch: pytest.MonkeyPatch, name: str, output: str) -> None:
    keys: Any = FakeKeys()
    monkeypatch.setattr("sandctl.options.common.connected", connected_to(keys))
    key, headers = CELLS.get(name, b"k"), NO_HEADERS.get(name) or HEADERS.get(name)
    value = Entry(key, KeyValue(version(1), key, headers, 0), 0, 0)
    piece = LogPiece(
        version(1), None, NOW_MS, encode({Column.VALUE: [key], Column.KEY: [key], Column.HEADERS: [headers]})
    )
    keys.rows, keys.changes = {key: value}, [Change(piece, 0, key, key, 0)]

    def kv(*args: str, input: bytes | None = None) -> Result:
        return CliRunner().invoke(main, ["kv", *args], input=input)

    for args in (("scan", "t"), ("watch", "t")):
        for row in rows_of(kv, *args, output=output):
            assert (shown_value(row), shown(row, "key")) == (key, key)
            if name in NO_HEADERS:
                assert base64.b64decode(row.get("headers_base64", "")) == NO_HEADERS[name]
