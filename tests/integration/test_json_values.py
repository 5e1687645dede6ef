"""Messages and keys that are given as JSON, and read as JSON, by the client."""

from __future__ import annotations

from typing import Any

import pytest

import sandq
from sandq.errors import InvalidRequest

JSON_HEADERS = {"content-type": "application/json"}
ORDER: dict[str, Any] = {"order": 7, "lines": [None, 1.5, "é"]}


async def test_a_message_produced_as_json_is_read_as_json(api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=1)
    stored = await api.produce("t", json=ORDER, headers={"a": "b"})
    await (await api.send("t", json=None))
    async with api.producer("t") as producer:
        await producer.send(json="text", headers={"Content-Type": "application/vnd.x+json"})
        await producer.send_many([{"json": None}, {"json": [1], "key": "k"}, {"value": b"{}"}], headers={"c": "d"})
    taken = await api.leases("t", "g").take(10)
    assert [message.json() for message in taken] == [ORDER, None, "text", None, [1], {}]
    assert taken[0].value == '{"order":7,"lines":[null,1.5,"é"]}'.encode()
    assert [message.headers for message in taken] == [
        {"a": "b", **JSON_HEADERS},
        JSON_HEADERS,
        {"Content-Type": "application/vnd.x+json"},
        {"c": "d", **JSON_HEADERS},
        {"c": "d", **JSON_HEADERS},
        {"c": "d"},
    ]
    assert (await api.messages("t").get(stored)).json() == ORDER
    await api.leases("t", "g").ack(taken)


async def test_an_update_to_json_keeps_the_other_headers(api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=1)
    stored = await api.produce("t", b"text", headers={"a": "b"}, delay="1h")
    messages = api.messages("t")
    await messages.update(stored, json=ORDER)
    found = await messages.get(stored)
    assert (found.json(), found.headers) == (ORDER, {"a": "b", **JSON_HEADERS})
    await messages.update(stored, json=1, headers={})
    found = await messages.get(stored)
    assert (found.json(), found.headers) == (1, JSON_HEADERS)


async def test_keys_and_schedules_take_json(api: sandq.Client) -> None:
    await api.admin.create_topic("config", kind="compacted")
    kv = api.kv("config")
    version = await kv.put("a", json=ORDER)
    await kv.cas("a", json=[2], expected=version)
    entry = await kv.get("a")
    assert entry is not None and (entry.json(), entry.headers) == ([2], JSON_HEADERS)
    await api.admin.create_topic("t")
    schedules = api.schedules("t")
    made = await schedules.create("s", json=ORDER, every="1h", headers={"a": "b"})
    assert made.headers == {"a": "b", **JSON_HEADERS}
    await schedules.create("text", b"x", every="1h", headers={"a": "b"})
    changed = await schedules.update("text", json=1)
    assert (changed.value, changed.headers) == (b"1", {"a": "b", **JSON_HEADERS})
    await schedules.create_many([{"name": "many", "json": None, "every": "1h"}])
    many = await schedules.get("many")
    assert (many.value, many.headers) == (b"null", JSON_HEADERS)


async def test_values_that_are_not_json_are_refused(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"value": b"1", "json": 1}, "value and json: one of them"),
        ({}, "a value is expected, or json"),
        ({"json": float("nan")}, "json: "),
        ({"json": object()}, "json: "),
        ({"json": "\ud800"}, "json: "),
    ]
    for arguments, words in wrong:
        with pytest.raises(InvalidRequest, match=words):
            await api.produce("t", **arguments)
    await api.produce("t", b"{")
    (message,) = await api.leases("t", "g").take()
    with pytest.raises(InvalidRequest, match="the value is no JSON"):
        message.json()
