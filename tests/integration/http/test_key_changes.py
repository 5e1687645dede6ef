"""Changes of keys over HTTP, and topics that have keys."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from sandq.model.partitioning import partition_for
from sandq.node.running import Serving
from tests.integration.test_key_watch import make_watches_wait_long, until_waiting
from tests.support.nodes.http_requests import KEYS, Web, put
from tests.support.waiting import until_answer


async def test_changes(keys: Web) -> None:
    await put(keys, "before", "x")
    now = await keys.get("/topics/t/changes")
    assert now["changes"] == []
    version = await put(keys, "a", "1", headers={"by": "ada"})
    await put(keys, "other", "x")
    gone = (await keys.delete(f"{KEYS}/a", 200))["version"]
    position, found = now["position"], []
    while len(found) < 2:
        told = await keys.get("/topics/t/changes", after=position, prefix="a", wait="5s")
        found += told["changes"]
        position = told["position"]
    partition = partition_for(b"a", 3)
    assert found == [
        {"key": "a", "text": "1", "headers": {"by": "ada"}, "deleted": False, "version": version,
         "created_at": found[0]["created_at"], "partition": partition},
        {"key": "a", "value": None, "deleted": True, "version": gone, "created_at": found[1]["created_at"],
         "partition": partition},
    ]  # fmt: skip
    began = trio.current_time()
    quiet = await keys.get("/topics/t/changes", after=position, prefix="a", wait="200ms")
    assert quiet["changes"] == [] and trio.current_time() - began > 0.1, "it waited"
    again = await keys.get("/topics/t/changes", after=now["position"], wait="5s", limit=1)
    assert len(again["changes"]) == 1, "the rest must follow from that position"
    rest: list[str] = []
    while len(rest) < 2:
        again = await keys.get("/topics/t/changes", after=again["position"], wait="5s")
        rest += [change["key"] for change in again["changes"]]
    assert len(rest) == 2


async def test_position_advances_past_changes_outside_the_prefix(keys: Web) -> None:
    """The position advances, whatever is requested, so that it never becomes older than the compacted changes."""
    before = position = (await keys.get("/topics/t/changes"))["position"]
    for number in range(20):
        await put(keys, f"b{number}", "x")

    async def passed() -> str:
        told = await keys.get("/topics/t/changes", after=position, prefix="a", wait="50ms")
        assert told["changes"] == []
        return str(told["position"])

    async def seen(after: str) -> list[str]:
        """All keys up to the last one of each partition."""
        found: list[str] = []
        while not set(last) <= set(found):
            told = await keys.get("/topics/t/changes", after=after, wait="5s")
            found += [change["key"] for change in told["changes"]]
            after = told["position"]
        return found

    last = [next(f"z{n}" for n in range(99) if partition_for(b"z%d" % n, 3) == partition) for partition in range(3)]
    found = ["b"]
    while any(key.startswith("b") for key in found):
        position = await passed()
        for key in last:
            await put(keys, key, "x")
        found = await seen(position)
    assert len(set(await seen(before))) == 23


async def test_changes_after_compacted_position_return_history_gone(web: Web) -> None:
    await web.post("/topics", {"name": "t", "kind": "compacted", "settings": {"history": 0}}, 201)
    first, *_ = [await put(web, "a", text) for text in "123"]
    asked = {"after": first, "wait": 0}
    await until_answer(
        lambda: web.raw("GET", "/topics/t/changes", params=asked), lambda answer: answer.status_code == 410
    )
    gone = await web.get("/topics/t/changes", 410, after=first, wait=0)
    assert gone["code"] == "HISTORY_GONE" and gone["retriable"] is False
    for params in ({"after": first, "latest": True}, {"after": "earliest"}):
        told = await web.get("/topics/t/changes", wait="5s", **params)
        assert [change["text"] for change in told["changes"]] == ["3"]


async def test_a_change_ends_the_wait(keys: Web, web_node: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    make_watches_wait_long(monkeypatch)
    version = await put(keys, "a", "early")  # do not read `position`: the request for it would still count as waiting

    async def put_later() -> None:
        await until_waiting(web_node, partitions=3)
        await put(keys, "a", "late")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(put_later)
        told = await keys.get("/topics/t/changes", after=version, wait="1m")
        assert [change["text"] for change in told["changes"]] == ["late"]


async def test_changes_from_the_beginning_and_from_a_version(keys: Web) -> None:
    versions = [await put(keys, "a", text) for text in "123"]
    await put(keys, "b", "1")

    async def texts(after: str, **params: Any) -> list[str]:
        told = await keys.get("/topics/t/changes", after=after, wait="5s", prefix="a", **params)
        return [change["text"] for change in told["changes"]]

    assert await texts("earliest") == ["1", "2", "3"]
    assert await texts("earliest", latest=True) == ["3"]
    assert await texts(versions[0]) == ["2", "3"]


async def test_key_routes_of_topics_without_keys_are_refused(keys: Web) -> None:
    await keys.post("/topics", {"name": "timed"})
    for method, at, body in (
        ("GET", "/topics/timed/keys/a", None),
        ("PUT", "/topics/timed/keys/a", {"text": "x"}),
        ("DELETE", "/topics/timed/keys/a", None),
        ("GET", "/topics/timed/keys", None),
        ("GET", "/topics/timed/changes", None),
        ("POST", "/topics/timed", {"key": "a", "value": None}),
    ):
        found = await keys.ask(method, at, body, 400)
        assert "timed" in found["detail"], found
        there = at.replace("timed", "nowhere")
        assert (await keys.ask(method, there, body, 404))["code"] == "UNKNOWN_TOPIC"
    refused = await keys.ask("POST", "/topics/t/purge", None, 400)
    assert refused["code"] == "INVALID"


async def test_a_compacted_topic(web: Web) -> None:
    settings = {"history": "10m", "tombstone_retention": "7d", "ttl": "30d", "lease": "1m"}
    made = await web.post("/topics", {"name": "t", "kind": 1, "partitions": 2, "settings": settings}, 201)
    assert made["kind"] == "compacted" and {name: made["settings"][name] for name in settings} == settings
    rest = {"max_attempts", "max_snoozes", "backoff", "group_ttl", "max_message_bytes", "max_lease"}
    rest |= {"max_request_rate", "max_request_burst", "partition_delimiter", "dead_retention", "max_dead_letters"}
    assert made["settings"].keys() == {*settings, *rest}
    again = await web.post("/topics", {"name": "u", "kind": "compacted", "settings": made["settings"]}, 201)
    assert again["settings"] == made["settings"], "the returned change can be produced again"
    changed = await web.patch("/topics/t", {"settings": {"ttl": None, "history": 0}})
    assert (changed["settings"]["ttl"], changed["settings"]["history"]) == (None, "0s")
    assert "2 partitions for ever" in (await web.patch("/topics/t", {"partitions": 3}, 400))["detail"]
    for wrong in ({"retention": "1h"}, {"ordering": "key"}, {"history": "-1s"}):
        assert (await web.patch("/topics/t", {"settings": wrong}, 400))["code"] == "INVALID_SETTING"
    assert (await web.post("/topics", {"name": "v", "settings": {"history": "1m"}}, 400))["code"] == "INVALID_SETTING"


async def test_leased_messages_can_be_stored_in_another_topic(keys: Web) -> None:
    await put(keys, "a", "1", headers={"by": "ada"})
    await put(keys, "b", "2")
    await keys.delete(f"{KEYS}/a", 200)
    messages: list[dict[str, Any]] = []
    while len(messages) < 3:
        messages += (await keys.post("/topics/t/groups/g/lease", {"max": 10, "wait": "2s", "ack": True}))["messages"]
    deletion = next(message for message in messages if "text" not in message)
    assert (deletion["key"], deletion["value"]) == ("a", None)
    await keys.post("/topics", {"name": "copy", "kind": "compacted"})
    stored = await keys.post("/topics/copy", {"messages": messages}, 201)
    assert (stored["stored"], stored["failed"]) == (3, 0)
    assert [row["key"] for row in (await keys.get("/topics/copy/keys"))["keys"]] == ["b"]
    await keys.post("/topics/copy", deletion, 201)
    await keys.post("/topics/copy", {"key": "b", "value": None}, 201)
    assert (await keys.get("/topics/copy/keys"))["keys"] == []
    log = (await keys.get("/topics/copy/0"))["messages"]
    assert [row["value"] for row in log if "value" in row] == [None] * len([row for row in log if "text" not in row])
    for wrong in ({"text": "x"}, {"key": "b", "text": "x", "delay": "1h"}, {"value": None}):
        assert (await keys.post("/topics/copy", wrong, 400))["code"] == "INVALID"
