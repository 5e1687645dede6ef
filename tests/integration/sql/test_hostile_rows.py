"""Rows on which SQL does not fail, and which it does not change."""

from __future__ import annotations

import base64
import datetime
import json
from collections.abc import AsyncIterator
from typing import Any

import msgpack
import pytest

import sandq
from sandq.model.batch import Column, encode
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from sandq.sql import Budget, Ducks, Session, SqlError
from sandq.sql.errors import MESSAGE_CHARS
from tests.integration.conftest import Dial
from tests.support.hostile_rows import CELLS, HEADERS, NO_HEADERS, TEXTS, accept_any_headers

CASES = [(cell, cell, None) for cell in CELLS.values()] + [
    (b"%d" % number, b"key %d" % number, headers)
    for number, headers in enumerate([*NO_HEADERS.values(), *HEADERS.values()])
]
"""Value, key and headers of each row."""


@pytest.fixture
async def session(api: sandq.Client) -> AsyncIterator[Session]:
    ducks = Ducks(Budget())
    yield Session(api, ducks, Budget())
    ducks.close()


async def rows(session: Session, text: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await session.run(text)).table.to_pylist()
    return found


def text_of(cell: bytes) -> str | None:
    try:
        return cell.decode()
    except UnicodeDecodeError:
        return None


def check(found: list[dict[str, Any]]) -> None:
    """Check that all rows are there, each unchanged."""
    by_key = {row["key_bytes"]: row for row in found}
    assert by_key.keys() == {key for _, key, _ in CASES}
    for value, key, headers in CASES:
        row = by_key[key]
        assert (row["key"], row["text"]) == (text_of(key), text_of(value))
        shown = json.loads(row["headers"])
        if not headers:
            assert shown == {}
        elif headers in NO_HEADERS.values():
            assert base64.b64decode(shown) == headers
        else:
            assert shown.keys() == msgpack.unpackb(headers).keys()


async def test_messages_and_dead_letters(
    node: Serving, api: sandq.Client, dial: Dial, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept_any_headers(monkeypatch)
    await api.admin.create_topic("t", delete_on_ack=False)
    raw = await dial(node)
    values, keys, headers = zip(*CASES, strict=True)
    assert (await raw.produce(*values, key=keys, headers=headers))[0] == Type.REPLY
    columns = "key_bytes, `key`, text, headers"
    check(await rows(session, f"SELECT {columns} FROM messages WHERE topic = 't' LIMIT 100"))
    check(await rows(session, f"SELECT {columns} FROM messages WHERE topic = 't' AND state = 'ready' LIMIT 100"))
    leases = api.leases("t", "g")
    taken = await leases.take(100)
    errors = {one.id: TEXTS[number % len(TEXTS)] for number, one in enumerate(taken)}
    for one in taken:
        await leases.dead([one], error=errors[one.id])
    found = await rows(session, f"SELECT id, error, history, {columns} FROM dead_letters WHERE topic = 't' LIMIT 100")
    check(found)
    assert {row["id"]: row["error"] for row in found} == errors
    assert all(json.loads(row["history"])[-1]["error"] == row["error"] for row in found)


async def test_keys(
    node: Serving, api: sandq.Client, dial: Dial, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept_any_headers(monkeypatch)
    await api.admin.create_topic("kv", kind="compacted")
    raw = await dial(node)
    values, keys, headers = zip(*CASES, strict=True)
    columns = {Column.VALUE: values, Column.KEY: keys, Column.HEADERS: headers}
    assert (await raw.produce_batch(encode(columns), "kv"))[0] == Type.REPLY
    check(await rows(session, "SELECT key_bytes, `key`, text, headers FROM keys WHERE topic = 'kv' LIMIT 100"))


FAR_MS = (1 << 48) - 1
"""Largest duration of a request in ms. The resulting time is after the year 9999."""
LAST = datetime.datetime(9999, 12, 31, 23, 59, 59, 999_000)


async def test_keys_that_expire_after_the_year_9999_are_shown(
    api: sandq.Client, node: Serving, dial: Dial, session: Session
) -> None:
    await api.admin.create_topic("t", kind="compacted")
    raw = await dial(node)
    assert (await raw.produce(b"1", key=[b"far"], ttl_ms=[FAR_MS]))[0] == Type.REPLY
    assert (await raw.produce(b"2", key=[b"near"]))[0] == Type.REPLY
    found = await rows(session, "SELECT `key`, expires_at FROM `keys` WHERE topic = 't' AND `key` > 'a' ORDER BY `key`")
    assert found == [{"key": "far", "expires_at": LAST}, {"key": "near", "expires_at": None}]


async def test_leases_retried_after_the_year_9999_are_shown(api: sandq.Client, session: Session) -> None:
    await api.admin.create_topic("t")
    for text in (b"1", b"2"):
        await api.produce("t", text)
    leases = api.leases("t", "g")
    far, _ = await leases.take(2)
    await leases.nack([far], delay=f"{FAR_MS}ms")
    found = await rows(session, "SELECT state, retry_at FROM leases WHERE topic = 't' ORDER BY state")
    assert found == [{"state": "leased", "retry_at": None}, {"state": "waiting", "retry_at": LAST}]


async def test_error_that_quotes_a_long_value_is_cut(session: Session) -> None:
    with pytest.raises(SqlError) as caught:
        await session.run("SELECT CAST(REPEAT('9', 60000) AS DECIMAL(38, 0))")
    assert len(caught.value.message) == MESSAGE_CHARS
