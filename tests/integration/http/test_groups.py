"""Consumer groups over HTTP: the walkthrough of doq (an earlier broker), lag, leases, seek, dead letters."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import trio

import sandq
from sandq.node.running import Serving
from tests.support.http_client import NO_TLS
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.http_requests import Web
from tests.support.nodes.small_node import small_config
from tests.support.nodes.with_http import run_node
from tests.support.nodes.working import connected
from tests.support.waiting import PATIENCE_S, until_answer, until_holds

LEASE = "/topics/t/groups/g/lease"


async def topic(web: Web, *texts: str, **settings: Any) -> None:
    await web.post("/topics", {"name": "t", "settings": settings})
    if texts:
        await web.post("/topics/t", {"messages": [{"text": text} for text in texts]})


async def lease(web: Web, count: int = 1, **body: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await web.post(LEASE, {"max": count, **body}))["messages"]
    return found


def held(message: dict[str, Any]) -> dict[str, str]:
    return {"lease_token": message["lease_token"], "offset": message["offset"]}


async def test_a_group_is_paused_as_a_whole_and_by_a_consumer(web: Web) -> None:
    await topic(web, "a", "b")
    (message,) = await lease(web)
    group = "/topics/t/groups/g"
    for name in ("tenant", "key", "key_base64"):
        refused = await web.post(f"{group}/pause", {name: None, "for": "10m"}, 400)
        assert "null names no part of the group" in str(refused)
    assert (await web.get(group))["paused_until"] is None
    await web.post(f"{group}/pause", {"for": "10m"}, 204)
    shown = await web.get(group)
    assert shown["paused_until"] is not None and shown["reason"] == f"it is paused until {shown['paused_until']}"
    await web.post(f"{group}/resume", None, 204)
    assert (await web.get(group))["paused_until"] is None
    wrong_group = "/topics/t/groups/other/pause-by-lease"
    refused = await web.post(wrong_group, {**held(message), "part": "group", "for": "5m"}, 400)
    assert refused["code"] == "INVALID" and "does not belong to group 'other'" in str(refused)
    by_lease = await web.post(f"{group}/pause-by-lease", {**held(message), "part": "group", "for": "5m"}, 200)
    assert (await web.get(group))["paused_until"] == by_lease["paused_until"]
    await web.post(f"{group}/pause", {}, 204)
    by_lease = await web.post(f"{group}/pause-by-lease", {**held(message), "part": "group", "for": "5m"}, 200)
    assert by_lease == {"paused_until": None}, "a pause without an end stays until it is resumed"
    await web.post(f"{group}/ack", held(message), 200)
    lost = await web.post(f"{group}/pause-by-lease", {**held(message), "part": "group", "for": "5m"}, 409)
    assert lost["code"] == "LEASE_LOST"
    for wrong, code in (({"until": "2020-01-01T00:00:00Z"}, "INVALID_TIME"), ({"key": "k"}, "INVALID")):
        refused = await web.post(f"{group}/pause", wrong, 400)
        assert refused["code"] == code
    await web.post("/topics", {"name": "f", "kind": "fair"})
    await web.post("/topics/f", {"text": "x", "tenant": "acme.eu"})
    await web.post("/topics/f/groups/g/lease", {"max": 1})
    await web.post("/topics/f/groups/g/pause", {"tenant": "acme", "for": "1h"}, 204)
    assert (await web.get("/topics/f/groups/g"))["partitions"][0]["paused_tenants"] == 1
    found = await web.get("/topics/f/groups/g/pauses")
    (paused,) = found["pauses"]
    assert paused["paused_until"] is not None and found["left_out"] == 0
    assert {name: value for name, value in paused.items() if name != "paused_until" and value is not None} == {
        "part": "tenant", "tenant": "acme", "partitions": 1
    }  # fmt: skip
    await web.post("/topics/f/groups/g/resume", {"tenant": "acme"}, 204)
    assert (await web.get("/topics/f/groups/g/pauses"))["pauses"] == []
    await web.get("/topics/f/groups/missing/pauses", 404)
    await web.post("/topics", {"name": "k", "settings": {"ordering": "key"}}, 201)
    await web.post("/topics/k/groups/g/lease", {"max": 1})
    await web.post("/topics/k/groups/g/pause", {"key_base64": "/w=="}, 204)
    (paused,) = (await web.get("/topics/k/groups/g/pauses"))["pauses"]
    assert (paused["part"], paused["key_base64"], paused["paused_until"]) == ("key", "/w==", None)


async def test_doq_walkthrough(web: Web) -> None:
    """Enqueue, dequeue with ack, dequeue, nack, extend, ack."""
    await topic(web, "a", "b", backoff={"kind": "none"})
    assert [message["text"] for message in await lease(web, ack=True)] == ["a"]
    (b,) = await lease(web, lease="30s")
    assert await web.post("/topics/t/groups/g/nack", {**held(b), "error": "not now"}) == {"settled": 1}
    (b,) = await lease(web, wait="1m")
    assert (b["text"], b["attempt"]) == ("b", 2)
    extended = await web.post("/topics/t/groups/g/extend", {**held(b), "lease": "2h"})
    assert extended["lease_until"] > b["lease_until"]
    assert await web.post("/topics/t/groups/g/ack", held(b)) == {"settled": 1}
    assert (await web.get("/topics/t/groups/g"))["lag"] == 0


async def test_giving_up_and_snoozing(web: Web) -> None:
    await topic(web, "a", "b", max_attempts=1, max_snoozes=1, backoff={"kind": "none"})
    assert (await web.get("/topics/t"))["settings"]["max_snoozes"] == 1
    a, b = await lease(web, 2)
    assert await web.post("/topics/t/groups/g/dead", {**held(a), "error": "410 gone"}) == {"settled": 1}
    assert (await web.post("/topics/t/groups/g/dead", held(a), 409))["code"] == "LEASE_LOST"
    snooze = {**held(b), "delay_ms": 0, "error": "429", "count": False}
    assert await web.post("/topics/t/groups/g/nack", snooze) == {"settled": 1}
    (again,) = await lease(web, wait="1m")
    assert (again["text"], again["attempt"]) == ("b", 1)
    (told,) = (await web.get(f"/topics/t/messages/{b['id']}/why"))["groups"]
    assert (told["snoozes"], [attempt["outcome"] for attempt in told["history"]]) == (1, ["snoozed"])
    await web.post("/topics/t/groups/g/nack", {**snooze, **held(again)})
    (letter,) = (await web.get("/topics/t/groups/g/dead", reason="rejected"))["messages"]
    assert (letter["text"], letter["reason"], letter["error"], letter["attempts"]) == ("a", "rejected", "410 gone", 1)
    (letter,) = (await web.get("/topics/t/groups/g/dead", reason="nacked"))["messages"]
    outcomes = [(attempt["attempt"], attempt["outcome"]) for attempt in letter["history"]]
    assert outcomes == [(1, "snoozed"), (1, "nacked")], "above max_snoozes, the attempt must count"
    assert (await web.post("/topics/t/groups/g/dead/redrive", {"reason": "rejected"}))["done"] == 1
    for wrong in ({"delay": 5}, {"headers": {}}, {"error": 5}):
        await web.post("/topics/t/groups/g/dead", {**held(a), **wrong}, 400)


async def test_expired_messages_are_dropped(web: Web) -> None:
    await topic(web, ttl="1ms", on_expiry="drop")
    assert (await web.get("/topics/t"))["settings"]["on_expiry"] == "drop"
    assert await lease(web) == []
    await web.post("/topics/t", {"text": "late", "delay_ms": 50})
    group = await until_answer(lambda: web.get("/topics/t/groups/g"), lambda group: group["dropped"] == 1)
    assert (group["dead"], group["ready"], group["partitions"][0]["dropped"]) == (0, 0, 1)
    await web.patch("/topics/t/groups/g", {"settings": {"on_expiry": "dead"}}, 204)
    await web.post("/topics/t", {"text": "late", "delay_ms": 50})
    group = await until_answer(lambda: web.get("/topics/t/groups/g"), lambda group: group["dead"] == 1)
    assert (group["dropped"], group["settings"]) == (1, {"on_expiry": "dead"})
    wrong = {"name": "k", "kind": "compacted", "settings": {"on_expiry": "drop"}}
    assert "its ttl deletes keys" in (await web.post("/topics", wrong, 400))["detail"]


async def test_old_dead_letters_are_removed(web: Web) -> None:
    await topic(web, "a", "b", max_attempts=1, max_dead_letters=1, dead_retention="30d")
    settings = (await web.get("/topics/t"))["settings"]
    assert (settings["dead_retention"], settings["max_dead_letters"]) == ("30d", 1)
    for message in await lease(web, 2):
        await web.post("/topics/t/groups/g/dead", {**held(message), "error": message["text"]})
    group = await until_answer(lambda: web.get("/topics/t/groups/g"), lambda group: group["dead_removed"] == 1)
    assert (group["dead"], group["partitions"][0]["dead_removed"]) == (1, 1)
    (letter,) = (await web.get("/topics/t/groups/g/dead"))["messages"]
    assert letter["text"] == "b"
    assert "dead_retention" in (await web.patch("/topics/t", {"settings": {"dead_retention": "1s"}}, 400))["detail"]


async def test_groups_and_their_lag(web: Web) -> None:
    await topic(web, *"abcde")
    assert (await web.get("/topics/t/groups"))["groups"] == []
    assert (await web.get("/topics/t/groups/g", 404))["code"] == "UNKNOWN_GROUP"
    await lease(web, 2)
    (group,) = (await web.get("/topics/t/groups"))["groups"]
    assert (group["group"], group["lag"], group["ready"], group["leased"], group["dead"]) == ("g", 5, 3, 2, 0)
    await web.patch("/topics/t/groups/g", {"settings": {"max_attempts": 3}}, 204)
    assert (await web.get("/topics/t/groups/g"))["settings"]["max_attempts"] == 3
    await web.patch("/topics/t/groups/g", {"settings": {"lease": "1m"}}, 400)
    await web.patch("/topics/t/groups/g", {}, 400)
    assert (group["unfinished"], group["expired"]) == (2, False)
    refused = await web.delete("/topics/t/groups/g", 409)
    assert refused["code"] == "CONFLICT" and "has yet to finish 2 messages" in refused["detail"]
    await web.delete("/topics/t/groups/g", 204, force=True)
    await web.delete("/topics/t/groups/g", 404)


async def test_consumers_of_a_group(web: Web) -> None:
    await topic(web, "a", "b")
    await lease(web, 2, wait="1m")
    found = await web.get("/topics/t/groups/g/consumers")
    (row,) = found["consumers"]
    assert (row["messages"], row["address"], row["since"], row["credit"], row["partitions"]) == (2, None, None, None, 0)
    assert row["leased_at"] is not None and found["left_out"] == 0
    await web.get("/topics/t/groups/nobody/consumers", 404)
    await web.get("/topics/u/groups/g/consumers", 404)


async def test_a_group_lowers_the_limit_of_keys(web: Web) -> None:
    await topic(web, max_in_flight_per_key=2)
    assert (await web.get("/topics/t"))["settings"]["max_in_flight_per_key"] == 2
    await lease(web)
    await web.patch("/topics/t/groups/g", {"settings": {"max_in_flight_per_key": 1}}, 204)
    assert (await web.get("/topics/t/groups/g"))["settings"] == {"max_in_flight_per_key": 1}
    refused = await web.patch("/topics/t/groups/g", {"settings": {"max_in_flight_per_key": 3}}, 400)
    assert "3 is more than the topic's, which is 2" in refused["detail"]


async def test_messages_blocked_by_key_are_counted(web: Web) -> None:
    await topic(web, "without")
    await lease(web)
    assert (await web.get("/topics/t/groups/g"))["blocked_by_key"] is None
    await web.post("/topics", {"name": "calls", "partitions": 2, "settings": {"max_in_flight_per_key": 1}}, 201)
    keyed = [{"text": str(number), "key": f"k{number % 2}"} for number in range(6)]
    await web.post("/topics/calls", {"messages": keyed}, 201)
    taken = (await web.post("/topics/calls/groups/g/lease", {"max": 10, "wait": "1m"}))["messages"]
    group = await web.get("/topics/calls/groups/g")
    assert (len(taken), group["ready"], group["blocked_by_key"]) == (2, 4, 4)
    assert sum(row["blocked_by_key"] for row in group["partitions"]) == 4


async def test_many_are_acked_at_once(web: Web) -> None:
    await topic(web, *map(str, range(100)))
    messages = await lease(web, 100)
    body = {"messages": [held(message) for message in messages]}
    assert await web.post("/topics/t/groups/g/ack", body) == {"settled": 100}
    assert await web.post("/topics/t/groups/g/ack", {"lease_token": messages[0]["lease_token"]}) == {"settled": 1}


SETTLING: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ack", {}),
    ("ack", {"then": [{"text": "x"}]}),
    ("nack", {}),
    ("dead", {}),
    ("extend", {"lease": "1h"}),
)


async def test_a_lease_of_another_topic_is_refused(web: Web) -> None:
    for topic in ("t", "u"):
        await web.post("/topics", {"name": topic, "partitions": 2})
        await web.post(f"/topics/{topic}/1", {"text": topic})
    (mine,) = (await web.post("/topics/t/groups/g/lease", {"lease": "1h"}))["messages"]
    (other,) = (await web.post("/topics/u/groups/g/lease", {"lease": "1h"}))["messages"]
    for path, more in SETTLING:
        lost = await web.post(f"/topics/t/groups/g/{path}", {**held(other), **more}, 409)
        assert (lost["code"], lost["settled"], lost["lost"]) == ("LEASE_LOST", 0, [held(other)])
        assert "or belong to a topic other than the current 't'" in lost["detail"]
    lost = await web.post("/topics/t/groups/g/nack", {"messages": [held(other), held(mine)], "delay": 0}, 409)
    assert (lost["settled"], lost["lost"]) == (1, [held(other)])
    (mine,) = (await web.post("/topics/t/groups/g/lease", {"lease": "1h"}))["messages"]
    for topic, message in (("t", mine), ("u", other)):
        assert (await web.post(f"/topics/{topic}/groups/g/ack", held(message)))["settled"] == 1


async def test_lease_of_recreated_topic_is_lost(web: Web) -> None:
    await web.post("/topics", {"name": "t"})
    await web.post("/topics/t", {"text": "before"})
    (message,) = (await web.post("/topics/t/groups/g/lease", {"lease": "1h"}))["messages"]
    await web.raw("DELETE", "/topics/t")
    await web.post("/topics", {"name": "t"})
    for path, more in SETTLING:
        lost = await web.post(f"/topics/t/groups/g/{path}", {**held(message), **more}, 409)
        assert (lost["code"], lost["settled"], lost["lost"]) == ("LEASE_LOST", 0, [held(message)])


async def test_leases_that_were_lost(web: Web, hand: HandClock) -> None:
    await topic(web, "a", "b", backoff={"kind": "none"})
    (a,) = await lease(web, lease="10m")
    (b,) = await lease(web, lease="1h")
    hand.forward(601)
    assert [message["text"] for message in await lease(web, wait="1m")] == ["a"]
    lost = await web.post("/topics/t/groups/g/ack", {"messages": [held(a), held(b)]}, 409)
    assert (lost["code"], lost["settled"], lost["lost"]) == ("LEASE_LOST", 1, [held(a)])
    for path, more in (("nack", {}), ("extend", {"lease": "1m"})):
        lost = await web.post(f"/topics/t/groups/g/{path}", {**held(a), **more}, 409)
        assert lost["lost"] == [held(a)]


async def test_a_lease_waits(web: Web, web_node: Serving) -> None:
    await topic(web)
    async with trio.open_nursery() as nursery:
        found: list[dict[str, Any]] = []

        async def wait() -> None:
            found.extend(await lease(web, 5, wait="1m"))

        nursery.start_soon(wait)
        await until_answer(lambda: web.get("/topics/t/groups"), lambda told: bool(told["groups"]))
        await web.post("/topics/t", {"text": "now"})
    assert [message["text"] for message in found] == ["now"]


async def test_closed_connection_gives_leases_back(web: Web, web_node: Serving) -> None:
    await topic(web)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: lease(web, wait="1m"))
        await until_answer(lambda: web.get("/topics/t/groups"), lambda told: bool(told["groups"]))
        nursery.cancel_scope.cancel()
    watchers = web_node.broker.node_log.memory.watchers
    await until_holds(lambda: not watchers.bytes)
    async with connected(web_node) as api:
        await api.produce("t", b"m")
        (message,) = await api.leases("t", "g").take(wait="1m")
        assert message.attempt == 1


async def test_a_waiting_client_does_not_hold_up_the_end(tmp_path: Path) -> None:
    """The limit loses no message: the client gets a retriable error."""
    answers: list[httpx.Response] = []
    config = small_config(tmp_path, LISTEN__HTTP="127.0.0.1:0")
    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery, run_node(config) as node:
            assert node.http is not None
            client = httpx.AsyncClient(verify=NO_TLS, base_url=f"http://127.0.0.1:{node.http[1]}", timeout=PATIENCE_S)
            web = Web(client)
            await topic(web)

            async def wait() -> None:
                answers.append(await client.post(LEASE, json={"wait": "1m"}))

            nursery.start_soon(wait)
            await until_answer(lambda: web.get("/topics/t/groups"), lambda told: bool(told["groups"]))
        await client.aclose()
    assert answers[0].status_code == 503 and answers[0].json()["retriable"]
    assert answers[0].headers["retry-after"] == "1"


BAD_BODIES: list[tuple[str, object, str]] = [
    ("lease", {"max": 0}, "max"),
    ("lease", {"max": 1001}, "max"),
    ("lease", {"max": "5"}, "max"),
    ("lease", {"wait": "2m"}, "60 s at most"),
    ("lease", {"wait": "soon"}, "duration"),
    ("lease", {"lease": 0}, "lease"),
    ("lease", {"lease": "1ms"}, "a lease of 1 ms"),
    ("lease", {"start": "someday"}, "start"),
    ("lease", {"ack": "yes"}, "ack"),
    ("lease", {"count": 1}, "count"),
    ("lease", [], "body"),
    ("ack", {}, "lease_token"),
    ("ack", {"offset": "x"}, "lease_token"),
    ("ack", {"lease_token": "x"}, "is not a lease"),
    ("ack", {"lease_token": "1.0.5", "offset": "x"}, "offset"),
    ("ack", {"lease_token": "1.0.5", "messages": [{"lease_token": "1.0.5"}]}, "give either"),
    ("ack", {"messages": [{"offset": "x"}]}, "messages.0.lease_token"),
    ("nack", {"lease_token": "1.0.5", "delay": "x"}, "duration"),
    ("nack", {"lease_token": "1.0.5", "delay_ms": 1.5}, "body.delay_ms: a whole number of milliseconds"),
    ("nack", {"lease_token": "1.0.5", "delay_ms": "5s"}, "body.delay_ms: a whole number of milliseconds"),
    ("nack", {"lease_token": "1.0.5", "delay": "1s", "delay_ms": 5}, "delay and delay_ms: one of them"),
    ("nack", {"lease_token": "1.0.5", "error": 5}, "error"),
    ("extend", {"lease_token": "1.0.5"}, "lease"),
    ("extend", {"lease_token": "1.0.5", "lease": 0}, "extend"),
    ("seek", {}, "to"),
    ("seek", {"to": "x"}, "instant"),
    ("seek", {"to": 5}, "looks like seconds"),
    ("dead/redrive", {"rate": 0}, "rate"),
    ("dead/redrive", {"reason": "bored"}, "reason"),
    ("dead/purge", {"rate": 1}, "rate"),
]


async def test_bad_bodies(web: Web) -> None:
    await topic(web, "a")
    await lease(web)
    for path, body, words in BAD_BODIES:
        found = await web.post(f"/topics/t/groups/g/{path}", body, 400)
        assert words in found["detail"], (path, body, found["detail"])


async def test_unknown_group_or_topic_is_404(web: Web) -> None:
    await topic(web)
    for path, body in (("seek", {"to": "latest"}), ("dead/redrive", {"all": True}), ("dead/purge", {"all": True})):
        assert (await web.post(f"/topics/t/groups/nobody/{path}", body, 404))["code"] == "UNKNOWN_GROUP"
        assert (await web.post(f"/topics/nope/groups/g/{path}", body, 404))["code"] == "UNKNOWN_TOPIC"
    assert (await web.get("/topics/t/groups/nobody/dead", 404))["code"] == "UNKNOWN_GROUP"
    assert (await web.post("/topics/nope/groups/g/lease", None, 404))["code"] == "UNKNOWN_TOPIC"
    assert (await web.post("/topics/t/groups/a%2Fb/lease", None, 404))["code"] == "NO_ROUTE"
    assert (await web.post("/topics/t/groups/-/lease", None, 400))["code"] == "INVALID_NAME"


async def test_an_empty_lease_sent_back_settles_nothing(web: Web) -> None:
    await topic(web)
    leased = await web.post("/topics/t/groups/g/lease", {"max": 5})
    assert leased["messages"] == []
    for act in ("ack", "nack", "dead"):
        assert await web.post(f"/topics/t/groups/g/{act}", leased, 200) == {"settled": 0}
    assert await web.post("/topics/t/groups/g/extend", {**leased, "lease": "2m"}, 200) == {"lease_until": None}
    then = await web.post("/topics/t/groups/g/ack", {**leased, "then": [{"text": "x"}]}, 400)
    assert "then: it requires that all messages have the same lease" in then["detail"]
    for body in ({}, {"messages": None}, {"messages": [], "lease_token": "1.0.1"}):
        assert (await web.post("/topics/t/groups/g/ack", body, 400))["code"] == "INVALID"


async def test_seek(web: Web) -> None:
    await topic(web, *"abc", retention="1h")
    await lease(web, 3, ack=True)
    cursors = (await web.post("/topics/t/groups/g/seek", {"to": "earliest"}))["cursors"]
    assert list(cursors) == ["0"]
    assert [message["text"] for message in await lease(web, 3, ack=True)] == ["a", "b", "c"]
    await web.post("/topics/t/groups/g/seek", {"to": "2020-01-01T00:00:00Z"})
    assert len(await lease(web, 3)) == 3


async def test_dead_messages_send_others(web: Web) -> None:
    await topic(web, *"abcd", max_attempts=2, backoff={"kind": "none"})
    await web.post("/topics", {"name": "notes"}, 201)
    group, note = "/topics/t/groups/g", {"topic": "notes", "text": "dead"}
    a, b, c, d = await lease(web, 4)
    for _ in range(2):
        await web.post(f"{group}/dead", {**held(a), "error": "gone", "then": [note]}, 200)
    await web.post(f"{group}/nack", {**held(b), "error": "busy", "delay": "1h", "if_dead": [note]}, 200)
    await web.post(f"{group}/nack", held(b), 409)
    for wrong in ({"messages": [held(c), held(d)]}, {"lease_token": c["lease_token"]}):
        refused = await web.post(f"{group}/dead", {**wrong, "then": [note]}, 400)
        assert "takes one message, with its offset" in refused["detail"]
    changed = await web.post(f"{group}/nack", {**held(c), "headers": {"a": 1}, "if_dead": [note]}, 400)
    assert "cannot change" in changed["detail"]
    keyed = await web.post(f"{group}/dead", {**held(c), "then": [{**note, "unique_key": "x"}]}, 400)
    assert "no unique key" in keyed["detail"]
    await web.post(f"{group}/nack", {**held(c), "if_dead": [note]}, 200)
    (again,) = await lease(web, 1, wait="5s")
    assert (again["text"], again["attempt"]) == ("c", 2)
    await web.post(f"{group}/nack", {**held(again), "if_dead": [{**note, "text": "last"}]}, 200)
    assert {one["text"]: one["reason"] for one in (await web.get(f"{group}/dead"))["messages"]} == {
        "a": "rejected",
        "c": "nacked",
    }
    notes: list[str] = []
    while len(notes) < 2:
        leased = await web.post("/topics/notes/groups/g/lease", {"max": 5, "wait": "5s", "ack": True})
        notes += [one["text"] for one in leased["messages"]]
    assert notes == ["dead", "last"]


async def test_dead_letters(web: Web) -> None:
    await topic(web, *"abcdef", max_attempts=1)
    for message in await lease(web, 6):
        await web.post("/topics/t/groups/g/nack", {**held(message), "error": f"no {message['text']}"})
    page = await web.get("/topics/t/groups/g/dead", limit=4)
    assert [(letter["text"], letter["error"]) for letter in page["messages"]] == [(c, f"no {c}") for c in "abcd"]
    rest = await web.get("/topics/t/groups/g/dead", after=page["next"], values=False)
    assert rest["next"] is None and len(rest["messages"]) == 2 and "text" not in rest["messages"][0]
    newest = await web.get("/topics/t/groups/g/dead", order="newest", limit=4)
    assert [letter["text"] for letter in newest["messages"]] == list("fedc")
    rest = await web.get("/topics/t/groups/g/dead", order="newest", after=newest["next"])
    assert [letter["text"] for letter in rest["messages"]] == list("ba") and rest["next"] is None
    lines = await web.raw("GET", "/topics/t/groups/g/dead", headers={"accept": "application/x-ndjson"})
    assert [json.loads(line)["text"] for line in lines.text.splitlines()] == list("abcdef")
    assert (await web.post("/topics/t/groups/g/dead/redrive", {"dry_run": True}))["matched"] == 6
    assert (await web.post("/topics/t/groups/g/dead/redrive", {"reason": "expired"}))["done"] == 0
    assert (await web.post("/topics/t/groups/g/dead/redrive", {"all": True}))["done"] == 6
    for message in await lease(web, 6, wait="1m"):
        await web.post("/topics/t/groups/g/nack", held(message))
    assert (await web.post("/topics/t/groups/g/dead/purge", {"all": True}))["done"] == 6
    assert (await web.get("/topics/t/groups/g"))["dead"] == 0


async def test_dead_letters_that_are_named_or_chosen(web: Web) -> None:
    await topic(web, max_attempts=1)
    keyed = [{"text": c, "key": f"eu/{c}", "unique_key": f"eu/{c}"} for c in "abcd"]
    ids = [one["id"] for one in (await web.post("/topics/t", {"messages": keyed}, 201))["results"]]
    for message in await lease(web, 4):
        await web.post("/topics/t/groups/g/nack", {**held(message), "error": f"no {message['text']}"})
    at = "/topics/t/groups/g/dead"
    (letter,) = (await web.get(at, error="no b", key_prefix="eu/", since="2020-01-01T00:00:00Z"))["messages"]
    assert (letter["id"], letter["unique_key"], letter["life"], letter["lives"]) == (ids[1], "eu/b", 1, [])
    assert [(one["life"], one["attempt"], one["error"]) for one in letter["history"]] == [(1, 1, "no b")]
    for which in ({"error": "yes"}, {"key_prefix": "us/"}, {"until": "2020-01-01T00:00:00Z"}):
        assert (await web.get(at, **which))["messages"] == []
        assert (await web.post(f"{at}/redrive", which))["matched"] == 0
        assert (await web.post(f"{at}/purge", which))["matched"] == 0
    assert await web.post(f"{at}/redrive", {"ids": ids[:2]}) == {
        "done": 2,
        "results": [{"id": one, "outcome": "redriven"} for one in ids[:2]],
    }
    found = await web.post(f"{at}/purge", {"ids": [ids[2], ids[0]]})
    assert found["done"] == 1 and found["results"][0] == {"id": ids[2], "outcome": "purged"}
    assert found["results"][1]["outcome"] == "not_dead" and found["results"][1]["state"] == "ready"
    for message in await lease(web, 2):
        await web.post("/topics/t/groups/g/nack", held(message))
    first, *_ = (await web.get(at))["messages"]
    assert (first["life"], [life["error"] for life in first["lives"]]) == (2, ["no a"])
    assert [(one["life"], one["attempt"]) for one in first["history"]] == [(1, 1), (2, 1)]
    (group,) = (await web.get(f"/topics/t/messages/{ids[0]}/why"))["groups"]
    assert (group["life"], group["lives"]) == (2, first["lives"])
    for body, words in (
        ({"ids": []}, "ids"),
        ({"ids": ids * 251}, "ids"),
        ({"ids": ["x"]}, "26 characters"),
        ({"ids": ids, "reason": "nacked"}, "ids: they exclude reason"),
        ({"error": ""}, "1..1024"),
    ):
        assert words in (await web.post(f"{at}/purge", body, 400))["detail"], body
    assert (await web.post(f"{at}/purge", {"error": "no d"}))["done"] == 1


async def test_lease_of_a_client_can_be_acked_over_http(web: Web, web_node: Serving) -> None:
    """A lease token is valid, whichever client leased."""
    await topic(web, "a")
    async with connected(web_node) as api, api.subscribe("t", group="g") as subscription:
        message: sandq.Message = await anext(subscription)
        body = {"lease_token": message.lease_token, "offset": message.offset}
        assert await web.post("/topics/t/groups/g/ack", body) == {"settled": 1}


async def test_limits_of_a_group(web: Web) -> None:
    await topic(web, *"abcde")
    limits = "/topics/t/groups/g/limits"
    await web.ask("PUT", limits, {"max_in_flight": 2, "rate": "3/m"}, 204)
    assert len(await lease(web, 5)) == 1, "the default burst is the rate of a tenth of a second, and at least 1"
    found = await web.get("/topics/t/groups/g")
    stands = {"max_in_flight": 2, "rate": "3/m", "burst": 1, "in_flight": 1, "given": None}
    assert found["limits"] == stands and found["reason"].startswith("it waits for the rate of the group, 3/m: free in")
    assert (await web.get("/topics/t"))["group_limits"] == {"g": {"max_in_flight": 2, "rate": "3/m", "burst": 1}}
    await web.ask("PUT", limits, {"max_in_flight": 2}, 204)
    assert len(await lease(web, 5)) == 1
    found = await web.get("/topics/t/groups/g")
    assert found["reason"] == "it waits for the limit of the group: 2 of 2 in flight"
    await web.ask("PUT", limits, {}, 204)
    assert len(await lease(web, 5)) == 3
    assert (await web.get("/topics/t/groups/g"))["limits"] is None


async def test_invalid_group_limits_are_rejected(web: Web) -> None:
    await topic(web)
    limits = "/topics/t/groups/g/limits"
    wrong: list[tuple[str, str, str]] = [
        ('{"max_in_flight": 0}', "INVALID_SETTING", "max_in_flight"),
        ('{"max_in_flight": 1180591620717411303424}', "INVALID_SETTING", "max_in_flight"),
        ('{"rate": 1180591620717411303424}', "INVALID_SETTING", "rate"),
        ('{"rate": 1e400}', "INVALID", "1e400"),
        ('{"rate": -1}', "INVALID_SETTING", "rate"),
        ('{"rate": "\\ud800"}', "INVALID_SETTING", "rate"),
        ('{"burst": 5}', "INVALID_SETTING", "burst"),
        ('{"rate": NaN}', "INVALID", ""),
        ('{"max_in_flight": "5"}', "INVALID", "max_in_flight"),
        ('{"max_in_flight": true}', "INVALID", "max_in_flight"),
        ('{"most": 5}', "INVALID", "most"),
        ("[]", "INVALID", ""),
    ]
    for body, code, named in wrong:
        answer = await web.raw("PUT", limits, content=body, headers={"content-type": "application/json"})
        told = answer.json()
        assert (answer.status_code < 500, told["code"]) == (True, code), (body, told)
        assert named in told["detail"], (body, told)
    for path in ("/topics/nope/groups/g/limits", "/topics/t/groups/no%20body/limits"):
        assert (await web.raw("PUT", path, json={"rate": 5})).status_code in (404, 422, 400)
    assert "group_limits" not in await web.get("/topics/t") or not (await web.get("/topics/t"))["group_limits"]


async def test_leasing_from_some_partitions(web: Web) -> None:
    await web.post("/topics", {"name": "four", "partitions": 4}, 201)
    for partition in range(4):
        await web.post(f"/topics/four/{partition}", {"text": f"p{partition}"}, 201)
    leased = await web.post("/topics/four/groups/g/lease", {"max": 10, "partitions": [1, 3]})
    assert sorted(message["text"] for message in leased["messages"]) == ["p1", "p3"]
    assert (await web.post("/topics/four/groups/g/lease", {"partitions": [4]}, 404))["code"] == "UNKNOWN_PARTITION"
    for bad in ([], [-1], [4096], ["1"]):
        assert (await web.post("/topics/four/groups/g/lease", {"partitions": bad}, 400))["code"] == "INVALID"


async def test_a_push_is_set_shown_and_removed(web: Web) -> None:
    await topic(web)
    path, url = "/topics/t/groups/g/push", "https://shop.example/hooks"
    assert (await web.raw("GET", path)).json()["code"] == "NOT_FOUND"
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    told = {"group": "g", "url": url, "secrets": ["whsec_…LaSw"], "concurrency": 10, "request_timeout": "30s"}
    assert await web.ask("PUT", path, {"url": url, "secrets": [secret]}, 200) == told
    assert await web.ask("PUT", path, {"request_timeout": "5s"}, 200) == told | {"request_timeout": "5s"}
    found = await web.get(path)
    assert found["url"] == url and found["state"] in ("starting", "looking", "waiting", "probing")
    assert (await web.get("/topics/t/pushes"))["pushes"][0]["group"] == "g"
    await web.ask("DELETE", path, None, 204)
    await web.ask("DELETE", path, None, 204)
    assert await web.get("/topics/t/pushes") == {"pushes": []}


async def test_invalid_push_settings_are_rejected(web: Web) -> None:
    await topic(web)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, "INVALID_SETTING"),
        ({"url": "https://shop.example/"}, "INVALID_SETTING"),
        ({"url": "https://127.0.0.1/", "secrets": ["whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"]}, "INVALID_SETTING"),
        ({"url": "\ud800", "secrets": ["\ud800"]}, "INVALID_SETTING"),
        ({"concurrency": 2**70}, "INVALID_SETTING"),
        ({"request_timeout": "soon"}, "INVALID_TIME"),
        ({"secrets": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}, "INVALID"),
        ({"uri": "https://shop.example/"}, "INVALID"),
    ]
    for body, code in wrong:
        content = json.dumps(body)
        answer = await web.raw(
            "PUT", "/topics/t/groups/g/push", content=content, headers={"content-type": "application/json"}
        )
        assert (answer.status_code < 500, answer.json()["code"]) == (True, code), (body, answer.json())
        assert "MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" not in answer.text
