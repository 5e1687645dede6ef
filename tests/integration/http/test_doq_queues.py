"""The steps of doq users with their queues, over HTTP: priorities, fair shares, limits, changed messages."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.node.running import Serving
from tests.support.nodes.http_requests import Web

GROUP = "/topics/q/groups/workers"


@pytest.fixture
async def doq(web_node: Serving, web: Web) -> Web:
    return web


async def create(web: Web, kind: str, **settings: Any) -> None:
    await web.post("/topics", {"name": "q", "kind": kind, "settings": {"backoff": {"kind": "none"}, **settings}}, 201)


async def enqueue(web: Web, text: str, **more: Any) -> str:
    found: str = (await web.post("/topics/q", {"text": text, **more}, 201))["id"]
    return found


async def dequeue(web: Web, count: int = 1, **more: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await web.post(f"{GROUP}/lease", {"max": count, **more}))["messages"]
    return found


async def texts(web: Web, count: int) -> list[str]:
    """Return the texts of this many messages, dequeued one by one and acked."""
    return [message["text"] for _ in range(count) for message in await dequeue(web, ack=True)]


def held(message: dict[str, Any]) -> dict[str, Any]:
    return {name: message[name] for name in ("lease_token", "offset")}


async def settle(web: Web, what: str, message: dict[str, Any], **more: Any) -> Any:
    return await web.post(f"{GROUP}/{what}", {**held(message), **more}, 200)


async def test_a_queue_with_priorities(doq: Web) -> None:
    """Create, enqueue, dequeue, touch, nack with another priority and metadata, change the priority of waiting
    messages, delete, ack."""
    await create(doq, "priority")
    await enqueue(doq, "low", priority=10, headers={"tries": 0})
    await enqueue(doq, "high", priority=1)
    middle = await enqueue(doq, "middle", priority=5)
    unwanted = await enqueue(doq, "unwanted", priority=6)
    await enqueue(doq, "delayed", priority=0, delay="1h", unique_key="later")

    (high,) = await dequeue(doq)
    assert (high["text"], high["priority"]) == ("high", 1)
    touched = await settle(doq, "extend", high, lease="30m")
    assert touched["lease_until"] > high["lease_until"]
    await settle(doq, "ack", high)

    changed = await doq.patch(f"/topics/q/messages/{middle}", {"priority": 20})
    assert changed["id"] == middle and (await doq.get(f"/topics/q/messages/{middle}"))["priority"] == 20
    await doq.patch("/topics/q/messages/later?by=unique_key", {"priority": 3})
    later = await doq.get("/topics/q/messages/later", by="unique_key")
    assert (later["priority"], later["state"]) == (3, "delayed")
    assert (await doq.delete(f"/topics/q/messages/{unwanted}"))["id"] == unwanted

    (low,) = await dequeue(doq)
    assert (low["text"], low["headers"]) == ("low", {"tries": 0})
    assert (await settle(doq, "nack", low, priority=30, headers={"tries": 1, "by": "ada"}))["settled"] == 1
    assert await texts(doq, 1) == ["middle"]
    (low,) = await dequeue(doq)
    assert (low["text"], low["priority"], low["headers"]) == ("low", 30, {"tries": 1, "by": "ada"})
    await settle(doq, "nack", low)
    (low,) = await dequeue(doq)
    assert (low["priority"], low["headers"]) == (30, {"tries": 1, "by": "ada"}), "it stays so"
    await settle(doq, "ack", low)

    await doq.patch("/topics/q/messages/later?by=unique_key", {"delay": 0, "priority": -1})
    assert await texts(doq, 1) == ["delayed"]
    assert (await doq.get(GROUP))["lag"] == 0


async def test_nacked_message_can_be_changed_and_deleted(doq: Web) -> None:
    """doq allows this; sandq once returned TOO_LATE."""
    await create(doq, "priority")
    first, second = await enqueue(doq, "a", priority=1), await enqueue(doq, "b", priority=2)
    for message in await dequeue(doq, 2):
        await settle(doq, "nack", message, delay="1h")
    await doq.delete(f"/topics/q/messages/{first}")
    await doq.patch(f"/topics/q/messages/{second}", {"delay": 0, "priority": 7})
    (b,) = await dequeue(doq, wait="10s")
    assert (b["text"], b["priority"], b["attempt"]) == ("b", 7, 2)


async def test_a_fair_queue_goes_round_its_groups(doq: Web) -> None:
    """Groups are served in turn, even if their names have dots; within a group, messages go by priority."""
    await create(doq, "fair")
    for tenant, count in (("a", 4), ("b.x", 2), ("b.y", 2), ("c", 2)):
        for number in range(count):
            await enqueue(doq, f"{tenant}{number}", tenant=tenant, priority=-number)
    await enqueue(doq, "d0")
    found = await texts(doq, 11)
    assert found[:3] == ["a3", "b.x1", "c1"] and found[3] == "d0", "the default tenant must be listed too"
    assert [text for text in found if text.startswith("b")] == ["b.x1", "b.y1", "b.x0", "b.y0"]
    assert [text for text in found if text.startswith("a")] == ["a3", "a2", "a1", "a0"]


async def test_fair_queue_serves_tenants_by_weight(doq: Web) -> None:
    await create(doq, "fair", tenants={"big": {"weight": 3}})
    for _ in range(8):
        for tenant in ("big", "small"):
            await enqueue(doq, tenant, tenant=tenant)
    found = await texts(doq, 8)
    assert found.count("big") == 6 and found.count("small") == 2


async def test_fair_queue_limits_messages_in_flight_per_tenant(doq: Web) -> None:
    """A nack, or the end of a lease, frees the slot as an ack does."""
    await create(doq, "fair", tenants={"*": {"max_in_flight": 1}})
    ids = [await enqueue(doq, text, tenant="a") for text in ("a0", "a1")]
    await enqueue(doq, "b0", tenant="b")
    first, other = await dequeue(doq, 10)
    assert [first["text"], other["text"]] == ["a0", "b0"] and await dequeue(doq, 10) == []
    (told,) = (await doq.get(f"/topics/q/messages/{ids[1]}/why"))["groups"]
    assert told["reason"].startswith("tenant a has 1 of 1 messages in flight")
    (partition,) = (await doq.get(GROUP))["partitions"]
    assert [(row["tenant"], row["ready"], row["in_flight"]) for row in partition["tenants"]] == [
        ("a", 1, 1),
        ("b", 0, 1),
    ]
    await settle(doq, "nack", first, priority=9)
    (second,) = await dequeue(doq, 10)
    assert second["text"] == "a1"
    await settle(doq, "ack", second)
    assert await texts(doq, 1) == ["a0"]


async def test_many_are_given_another_priority(doq: Web) -> None:
    await create(doq, "priority")
    for number in range(3):
        await enqueue(doq, f"a{number}", key="a", priority=5)
        await enqueue(doq, f"b{number}", key="b", priority=4)
    assert (await doq.patch("/topics/q/messages", {"key_prefix": "a", "priority": 1}))["done"] == 3
    assert await texts(doq, 6) == ["a0", "a1", "a2", "b0", "b1", "b2"]


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/topics/q/messages/{id}", {"priority": 2**31}, "priority"),
        ("/topics/q/messages/{id}", {"priority": "1"}, "priority"),
        ("/topics/q/messages/{id}", {}, "deliver_at"),
        ("/topics/q/messages/{id}", {"priority": 1}, "topic 'q' is a timer topic"),
        ("/topics/q/messages", {"priority": 1, "all": True}, "topic 'q' is a timer topic"),
        ("/topics/q/messages", {"to": 1_900_000_000_000, "shift": "1h", "all": True}, "not both"),
    ],
)
async def test_wrong_changes(doq: Web, path: str, body: Any, words: str) -> None:
    await create(doq, "timer")
    message_id = await enqueue(doq, "a", delay="1h")
    problem = await doq.patch(path.format(id=message_id), body, 400)
    assert words in str(problem)


async def test_wrong_changes_at_a_nack(doq: Web) -> None:
    await create(doq, "timer")
    await enqueue(doq, "a")
    (message,) = await dequeue(doq)
    for wrong in ({"priority": 1}, {"priority": 2**31}, {"headers": {"a": [1]}}, {"headers": "x"}):
        await doq.post(f"{GROUP}/nack", {**held(message), **wrong}, 400)
    await settle(doq, "nack", message, headers={"raw": {"base64": "AAE="}})
    (message,) = await dequeue(doq)
    assert message["headers"] == {"raw": {"base64": "AAE="}}
