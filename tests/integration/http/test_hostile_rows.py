"""Every route that reads shows strange rows unchanged, and does not fail. Headers that are no map are refused.

A restored backup may contain headers of any form, so this test removes the check of headers.
"""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import msgpack
import pytest

from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from sandq.server.http import routes_groups
from tests.integration.conftest import Dial, dial
from tests.integration.http.test_streams import streamed
from tests.support.hostile_rows import CELLS, HEADERS, NO_HEADERS, TEXTS, accept_any_headers, shown, shown_value
from tests.support.nodes.http_requests import Web

__all__ = ["dial"]

NAMES = [*CELLS, *NO_HEADERS, *HEADERS]
"""Names of the rows, in the order in which they are stored."""


def columns() -> dict[int, list[Any]]:
    """Return the rows: odd bytes as value, key and unique key, invalid headers, and strange headers."""
    cells = [*CELLS.values()]
    others = [*NO_HEADERS.values(), *HEADERS.values()]
    keys = cells + [f"key {number}".encode() for number in range(len(others))]
    return {
        Column.VALUE: cells + [b"with headers"] * len(others),
        Column.KEY: keys,
        Column.HEADERS: [None] * len(cells) + others,
    }


def check_rows(rows: list[dict[str, Any]], *, values: bool = True) -> None:
    """Check that all rows are there, each unchanged."""
    cells = columns()
    by_key = {shown(row, "key"): row for row in rows if row.get("text") != "good"}
    assert by_key.keys() == {*cells[Column.KEY]}
    for value, key, headers in zip(*cells.values(), strict=True):
        row = by_key[key]
        if values:
            assert shown_value(row) == value
        check_headers(row, headers)


def check_headers(row: dict[str, Any], cell: bytes | None) -> None:
    if not cell:
        assert "headers" not in row and "headers_base64" not in row
    elif cell in NO_HEADERS.values():
        assert base64.b64decode(row["headers_base64"]) == cell and "headers" not in row
    else:
        assert row["headers"] == as_json(msgpack.unpackb(cell))


def as_json(value: Any) -> Any:
    """Return a value in the form in which HTTP is expected to show it."""
    if isinstance(value, dict):
        return {name: as_json(part) for name, part in value.items()}
    if isinstance(value, list):
        return [as_json(part) for part in value]
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    return str(value) if value in (float("inf"),) or value != value else value


async def lines_of(web: Web, path: str) -> list[dict[str, Any]]:
    answer = await web.raw("GET", path, headers={"accept": "application/x-ndjson"})
    assert answer.status_code == 200, answer.text
    return [json.loads(line) for line in answer.text.split("\n") if line]


async def filled(web: Web, web_node: Serving, dial: Dial, monkeypatch: pytest.MonkeyPatch, **batch: Any) -> None:
    """Store the rows, with a good message before and after them."""
    accept_any_headers(monkeypatch)
    raw = await dial(web_node)
    await web.post("/topics", {"name": "t", "settings": {"delete_on_ack": False, "max_attempts": 1}})
    await web.post("/topics/t", {"text": "good"})
    assert (await raw.produce_batch(encode(columns() | batch)))[0] == Type.REPLY
    await web.post("/topics/t", {"text": "good"})
    monkeypatch.undo()


async def test_bad_message_does_not_block_leases_of_others(
    web: Web, web_node: Serving, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(web, web_node, dial, monkeypatch)
    found = (await web.post("/topics/t/groups/g/lease", {"max": 100}))["messages"]
    assert [row["text"] for row in (found[0], found[-1])] == ["good", "good"]
    check_rows(found)
    held = [{"lease_token": row["lease_token"], "offset": row["offset"]} for row in found]
    assert await web.post("/topics/t/groups/g/ack", {"messages": held}) == {"settled": len(NAMES) + 2}


async def test_messages_are_given_back_if_no_answer_can_be_made(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    await web.post("/topics", {"name": "t"})
    await web.post("/topics/t", {"messages": [{"text": "a"}, {"text": "b"}]})

    def fail(message: object) -> None:
        raise ValueError("planted")

    monkeypatch.setattr(routes_groups, "message_json", fail)
    await web.post("/topics/t/groups/g/lease", {"max": 10}, 500)
    monkeypatch.undo()
    found = (await web.post("/topics/t/groups/g/lease", {"max": 10}))["messages"]
    assert [(row["text"], row["attempt"]) for row in found] == [("a", 1), ("b", 1)]


async def test_every_route_that_reads_messages_shows_each_row(
    web: Web, web_node: Serving, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(web, web_node, dial, monkeypatch)
    for path in ("/topics/t/messages?values=true", "/topics/t/0"):
        answer = await web.raw("GET", path)
        assert answer.status_code == 200, answer.text
        check_rows(answer.json()["messages"])
        check_rows(await lines_of(web, path))
    for row in (await web.get("/topics/t/messages", limit=100))["messages"]:
        one = await web.get(f"/topics/t/messages/{row['id']}")
        why = await web.get(f"/topics/t/messages/{row['id']}/why")
        assert {**row, **one} == one
        for name in ("key", "key_base64", "headers", "headers_base64"):
            assert why.get(name) == row.get(name)


async def test_dead_letters_show_each_row_and_any_error(
    web: Web, web_node: Serving, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(web, web_node, dial, monkeypatch)
    found = (await web.post("/topics/t/groups/g/lease", {"max": 100}))["messages"]
    errors = [TEXTS[number % len(TEXTS)] for number in range(len(found))]
    for row, error in zip(found, errors, strict=True):
        await web.post(
            "/topics/t/groups/g/dead", {"lease_token": row["lease_token"], "offset": row["offset"], "error": error}
        )
    for letters in (
        (await web.get("/topics/t/groups/g/dead", limit=100))["messages"],
        await lines_of(web, "/topics/t/groups/g/dead"),
    ):
        check_rows(letters)
        assert [letter["error"] for letter in letters] == errors


async def test_a_stream_shows_each_row(
    web: Web, web_node: Serving, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    await filled(web, web_node, dial, monkeypatch)
    async with streamed(web_node, "max_in_flight=100") as events:
        rows = [event.message for event in await events.messages(len(NAMES) + 2)]
    check_rows(rows)


async def test_keys_and_their_changes_show_each_row(
    web: Web, web_node: Serving, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept_any_headers(monkeypatch)
    raw = await dial(web_node)
    await web.post("/topics", {"name": "t", "kind": "compacted"})
    assert (await raw.produce_batch(encode(columns())))[0] == Type.REPLY
    monkeypatch.undo()
    check_rows((await web.get("/topics/t/keys", values="true", limit=100))["keys"])
    check_rows((await web.get("/topics/t/changes", after="earliest"))["changes"])
    for key, headers in zip(columns()[Column.KEY], columns()[Column.HEADERS], strict=True):
        encoded = base64.urlsafe_b64encode(key).decode().rstrip("=")
        check_headers(await web.get(f"/topics/t/keys/{encoded}", encoding="base64"), headers)


async def test_unique_keys_of_any_bytes_are_shown(web: Web, web_node: Serving, dial: Dial) -> None:
    raw = await dial(web_node)
    await web.post("/topics", {"name": "t"})
    cells = [*CELLS.values(), b"\xff" * 1024]
    answer = await raw.produce(*cells, unique_key=cells, key=cells, deliver_ms=[2_000_000_000_000] * len(cells))
    assert answer[0] == Type.REPLY, answer
    rows = (await web.get("/topics/t/messages", limit=100))["messages"]
    assert {shown(row, "unique_key") for row in rows} == {*cells}


async def test_headers_that_are_no_map_are_refused_everywhere(web: Web, web_node: Serving, dial: Dial) -> None:
    raw = await dial(web_node)
    for name in ("t", "other"):
        await web.post("/topics", {"name": name})
    await web.post("/topics", {"name": "kv", "kind": "compacted"})
    await web.post("/topics/t", {"text": "held"})
    later = await web.post("/topics/t", {"text": "later", "delay": "1h"})
    assert (await raw.subscribe())[0] == Type.REPLY
    pushed = await raw.push()
    group, partition, token = pushed[2:5]
    for name, cell in NO_HEADERS.items():
        told = [
            await raw.produce(b"x", headers=[cell]),
            await raw.produce(b"x", headers=[cell], ttl_ms=[1000]),
            await raw.produce(b"x", headers=[cell], key=[b"k"], topic="kv"),
            await raw.call(Type.ACK_THEN, group, partition, token, None, [[None, None, False, {"headers": cell}]]),
            await raw.call(
                Type.ACK_THEN, group, partition, token, None, [["other", 1000, True, {"value": b"x", "headers": cell}]]
            ),
            await raw.call(
                Type.SCHEDULE_PUT,
                "t",
                0,
                [["s", None, {"every_ms": 60_000}, encode({Column.VALUE: [b"x"], Column.HEADERS: [cell]}), None]],
            ),
        ]
        if cell:  # empty bytes mean that there are no headers
            target = [0, offsets.from_text(later["id"])]
            told.append(await raw.call(Type.MOVE, "t", 0, [[target, None, False, None, {"headers": len(cell)}]], cell))
            told.append(
                await raw.call(Type.NACK, group, partition, [[token, None, None, None, True, {"headers": cell}]])
            )
        for answer in told:
            assert answer[0] == Type.ERROR and answer[2] == "INVALID" and "headers" in answer[3], (name, answer)
    assert (await raw.ack(pushed))[0] == Type.REPLY, "the lease must still be held"
    rows = (await web.get("/topics/t/messages", values="true"))["messages"]
    assert {row["text"] for row in rows} <= {"held", "later"}
    assert (await web.get("/topics/other/messages"))["messages"] == (await web.get("/topics/kv/keys"))["keys"] == []


@pytest.mark.parametrize("consumer", TEXTS)
async def test_consumer_ids_of_any_text_are_shown(web: Web, web_node: Serving, dial: Dial, consumer: str) -> None:
    raw = await dial(web_node)
    await web.post("/topics", {"name": "t"})
    stored = await web.post("/topics/t", {"text": "x"})
    assert (await raw.subscribe(consumer=consumer))[0] == Type.REPLY
    await raw.push()
    (group,) = (await web.get(f"/topics/t/messages/{stored['id']}/why"))["groups"]
    assert group["consumer"] == consumer


@pytest.mark.parametrize("name", [*CELLS])
async def test_names_of_groups_and_tenants_are_plain(web: Web, web_node: Serving, dial: Dial, name: str) -> None:
    raw = await dial(web_node)
    await web.post("/topics", {"name": "t"})
    await web.post("/topics", {"name": "fair", "kind": "fair"})
    cell = CELLS[name]
    refused = await raw.produce(b"x", topic="fair", tenant=[cell])
    assert refused[0] == Type.ERROR and refused[2].startswith("INVALID"), refused
    if cell.decode("utf-8", "ignore").encode() == cell:
        refused = await raw.subscribe(group=cell.decode())
        assert refused[0] == Type.ERROR and refused[2] == "INVALID_NAME", refused
    group = quote(cell, safe="")
    answer = await web.raw("POST", f"/topics/t/groups/{group}/lease", json={})
    assert 400 <= answer.status_code < 500, answer.text
    assert (await web.get("/topics/t/groups"))["groups"] == []
