"""Pending messages are updated over HTTP; responses report unique keys that were taken."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from tests.integration.http.test_messages import taken, topic
from tests.support.nodes.http_requests import Web, value_of


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ({"text": "new"}, b"new"),
        ({"value": base64.b64encode(b"\xff\x00").decode()}, b"\xff\x00"),
        ({"json": {"a": 1}}, b'{"a":1}'),
        ({"json": None}, b"null"),
        ({"text": ""}, b""),
    ],
)
async def test_value_of_pending_message_is_updated(web: Web, body: dict[str, Any], value: bytes) -> None:
    await topic(web)
    stored = await web.post("/topics/t", {"text": "old", "headers": {"a": 1}, "delay": "1h"})
    assert await web.patch(f"/topics/t/messages/{stored['id']}", body) == {
        "id": stored["id"],
        "offset": stored["offset"],
    }
    found = await web.get(f"/topics/t/messages/{stored['id']}")
    assert value_of(found) == value
    typed = {"content-type": "application/json"} if "json" in body else {}
    assert (found["headers"], found["deliver_at"]) == ({"a": 1, **typed}, found["due_at"])


async def test_headers_by_a_unique_key(web: Web) -> None:
    await topic(web)
    await web.post("/topics/t", {"text": "old", "headers": {"a": 1}, "unique_key": "k"})
    await web.patch("/topics/t/messages/k?by=unique_key", {"headers": {"b": {"base64": "AA=="}}})
    assert (await web.get("/topics/t/messages/k", by="unique_key"))["headers"] == {"b": {"base64": "AA=="}}
    await web.patch("/topics/t/messages/k?by=unique_key", {"headers": {}})
    (message,) = await taken(web)
    assert message["text"] == "old" and not message.get("headers")
    await web.patch("/topics/t/messages/k?by=unique_key", {"text": "late"}, 409)


async def test_value_time_and_priority_are_updated_in_one_request(web: Web) -> None:
    await topic(web, kind="priority")
    stored = await web.post("/topics/t", {"text": "old", "delay": "1h", "priority": 7})
    body = {"text": "new", "headers": {"n": 2}, "delay_ms": 0, "priority": 1}
    moved = await web.patch(f"/topics/t/messages/{stored['id']}", body)
    assert (moved["id"], moved["offset"] != stored["offset"]) == (stored["id"], True)
    (message,) = await taken(web)
    assert (message["text"], message["headers"], message["priority"]) == ("new", {"n": 2}, 1)


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text": "a", "json": 1},
        {"value": None},
        {"value": "no base64"},
        {"headers": {"a": []}},
        {"text": "a", "delay": "1h", "deliver_at": "2030-01-01T00:00:00Z"},
        {"text": "a", "key": "k"},
    ],
)
async def test_invalid_updates_are_rejected(web: Web, body: dict[str, Any]) -> None:
    await topic(web)
    stored = await web.post("/topics/t", {"text": "old", "delay": "1h"})
    problem = await web.patch(f"/topics/t/messages/{stored['id']}", body, 400)
    assert problem["code"].startswith("INVALID")
    assert (await web.get(f"/topics/t/messages/{stored['id']}"))["text"] == "old"


async def test_debounce_outcomes_are_reported(web: Web) -> None:
    await topic(web)
    debounced = {"unique_key": "k", "on_conflict": "debounce", "max_wait": "1m"}
    first = await web.post("/topics/t", {"text": "1", **debounced, "delay": "30s"})
    second = await web.post("/topics/t", {"text": "2", **debounced})
    assert (first["outcome"], second["outcome"], second["other"]) == ("stored", "replaced", first["id"])
    leased = await web.post("/topics/t/groups/g/lease", {"max": 2})
    assert [message["text"] for message in leased["messages"]] == ["2"]
    many = await web.post("/topics/t", {"messages": [{"text": "3", **debounced}, {"text": "4", **debounced}]})
    told = [(one["outcome"], one.get("state")) for one in many["results"]]
    assert told == [("stored", "leased"), ("replaced", None)]


async def test_throttle_outcomes_are_reported(web: Web) -> None:
    await topic(web)
    throttled = {"unique_key": "k", "on_conflict": "throttle", "window": "1h"}
    first = await web.post("/topics/t", {"text": "1", **throttled})
    second = await web.post("/topics/t", {"text": "2", **throttled})
    assert (first["outcome"], second["outcome"], second["id"]) == ("stored", "ignored", first["id"])
    both = throttled | {"edge": "both"}
    many = await web.post("/topics/t", {"messages": [{"text": "3", **both}, {"text": "4", **both}]})
    told = [(one["outcome"], one.get("state")) for one in many["results"]]
    assert told == [("stored", "ready"), ("replaced", None)]
    leased = await web.post("/topics/t/groups/g/lease", {"max": 9})
    assert [message["text"] for message in leased["messages"]] == ["1"]


async def test_conflict_outcomes_are_reported(web: Web) -> None:
    # otherwise the state of an acked message becomes `delivered` once it is trimmed
    await topic(web, settings={"retention": "1h"})
    first = await web.post("/topics/t", {"text": "1", "unique_key": "k"})
    assert "outcome" not in first
    second = await web.post("/topics/t", {"text": "2", "unique_key": "k", "on_conflict": "replace"})
    assert (second["outcome"], second["other"]) == ("replaced", first["id"])
    third = await web.post("/topics/t", {"text": "3", "unique_key": "k", "on_conflict": "ignore"})
    assert (third["id"], third["outcome"], third["other"], third["state"]) == (
        second["id"],
        "ignored",
        second["id"],
        "ready",
    )
    await taken(web)
    problem = await web.post("/topics/t", {"text": "4", "unique_key": "k", "on_conflict": "replace_pending"}, 409)
    assert (problem["code"], problem["id"], problem["state"]) == ("DUPLICATE_KEY", second["id"], "acked")
    body = {
        "messages": [
            {"text": "5", "unique_key": "k", "on_conflict": "replace"},
            {"text": "6"},
            {"text": "7", "unique_key": "l", "on_conflict": "replace"},
        ]
    }
    many = await web.post("/topics/t", body)
    told = [(one.get("outcome"), one.get("state")) for one in many["results"]]
    assert told == [("stored", "acked"), (None, None), ("stored", None)]
