"""Groups whose messages are posted to a URL: a node, and receivers on loopback."""

from __future__ import annotations

import json
import logging
from base64 import b64decode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import trio

import sandq
from sandq.broker.replication.replica import PartitionReplica
from sandq.errors import InvalidRequest, InvalidSetting, UnknownTopic
from sandq.node import run_node
from sandq.node.running import Serving
from sandq.push.circuit import THRESHOLD
from sandq.server.http.overview_rows import findings
from tests.support.hostile_rows import HEADERS, NO_HEADERS, accept_any_headers
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.raw_client import RawClient
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected
from tests.support.push_receiver import Receiver, receiving
from tests.support.waiting import until_answer

LOOPBACK = {"PUSH__ALLOW": "127.0.0.1", "PUSH__ALLOW_HTTP": "true", "PUSH__PORTS": ""}
SECRET = sandq.new_push_secret()


@pytest.fixture
async def timed(tmp_path: Path, hand: HandClock) -> AsyncIterator[Serving]:
    """A node that may push to this machine, and whose clock `hand` moves."""
    async with run_node(small_config(tmp_path, **LOOPBACK), clock=hand.guarded()) as serving:
        yield serving


@pytest.fixture
async def client(timed: Serving) -> AsyncIterator[sandq.Client]:
    async with connected(timed) as found:
        await found.admin.create_topic("t", backoff={"kind": "fixed", "first": "1m", "jitter_percent": 0})
        yield found


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as found:
        yield found


async def push(client: sandq.Client, receiver: Receiver, **more: Any) -> None:
    await client.admin.set_push("t", "g", receiver.url, secrets=SECRET, **more)


async def the_push(client: sandq.Client) -> dict[str, Any]:
    (found,) = await client.admin.pushes("t")
    return found


async def the_node(client: sandq.Client) -> dict[str, Any]:
    (found,) = (await the_push(client))["nodes"]
    return found


async def until_settled(client: sandq.Client, **wanted: int) -> dict[str, Any]:
    """Return the sums of the group's counts once they have these values."""
    return await until_answer(
        lambda: _group(client), lambda row: row and all(row[name] == count for name, count in wanted.items())
    )


async def _group(client: sandq.Client) -> dict[str, Any]:
    return next((row for row in await client.admin.groups("t") if row["group"] == "g"), {})


async def test_a_message_is_posted_at_its_time_and_acked(
    client: sandq.Client, receiver: Receiver, hand: HandClock
) -> None:
    await push(client, receiver)
    await client.produce("t", b"later", delay="1h", key=b"k", headers={"trace": "x"})
    await client.produce("t", b'{"now": 1}', headers={"content-type": "application/json"})
    (first,) = await receiver.until(1)
    assert (first.target, first.body) == ("/hook", b'{"now": 1}')
    assert first.headers["content-type"] == "application/json" and first.headers["sandq-attempt"] == "1"
    sandq.verify_push(first.headers, first.body, [sandq.new_push_secret(), SECRET])
    await until_settled(client, leased=0, waiting=0)
    assert len(receiver.got) == 1, "the other message must not be due"
    hand.forward(3600)
    _, second = await receiver.until(2)
    assert (second.body, second.headers["sandq-key"], second.headers["sandq-header-trace"]) == (b"later", "k", "x")
    assert second.headers["sandq-topic"] == "t" and second.headers["sandq-group"] == "g"
    await until_settled(client, leased=0, ready=0, waiting=0, dead=0)
    assert (await the_node(client))["acked"] == 2


async def test_failed_push_is_retried_as_the_same_message(
    client: sandq.Client, receiver: Receiver, hand: HandClock
) -> None:
    receiver.answers = [(500, {}, b"no stock")]
    await push(client, receiver)
    await client.produce("t", b"m")
    await until_settled(client, waiting=1)
    assert (await the_push(client))["error"] == "HTTP 500: no stock"
    hand.forward(60)
    first, second = await receiver.until(2)
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert [got.headers["sandq-attempt"] for got in (first, second)] == ["1", "2"]
    await until_settled(client, waiting=0, leased=0, dead=0)


async def test_pushed_messages_that_fail_together_wait_differently(
    client: sandq.Client, receiver: Receiver, timed: Serving
) -> None:
    await client.admin.update_topic("t", backoff={"kind": "fixed", "first": "1m", "jitter_percent": 50})
    receiver.answers = [(500, {}, b"no stock")] * 4
    await push(client, receiver)
    await client.produce_many("t", [b"m"] * 4)
    await until_settled(client, waiting=4)

    def due_times() -> set[int]:
        replica = timed.broker.catalog.topic("t").partitions[0].raft_group.replica
        assert isinstance(replica, PartitionReplica)
        group = replica.queries._machine.groups.named("g")
        return {entry.due_ms for entry in group.waiting.values()}

    # There are 256 different waits, so two of the messages may have the same one.
    assert len(await timed.broker.ask(due_times)) > 1


async def test_a_deletion_of_a_compacted_topic_is_pushed_as_one(client: sandq.Client, receiver: Receiver) -> None:
    await client.admin.create_topic("k", kind="compacted")
    await client.admin.set_push("k", "g", receiver.url, secrets=SECRET)
    async with client.producer("k") as producer:
        await producer.send(b"", key=b"a")
        await producer.send(None, key=b"a")
    got = await receiver.until(2)
    assert {(one.headers["sandq-key"], one.headers.get("sandq-deleted"), one.body) for one in got} == {
        ("a", None, b""),
        ("a", "true", b""),
    }


async def test_410_is_dead_at_once(client: sandq.Client, receiver: Receiver) -> None:
    receiver.answers = [(410, {}, b"no such customer")]
    await push(client, receiver)
    await client.produce("t", b"m")
    await until_settled(client, dead=1)
    (letter,) = [letter async for letter in client.dead("t", "g").list()]
    assert (letter.reason, letter.error, letter.attempts) == ("rejected", "HTTP 410: no such customer", 1)


async def test_a_receiver_that_says_410_to_everything_is_left_alone_and_few_messages_are_dead(
    client: sandq.Client, receiver: Receiver, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandq.push.circuit.FIRST_PAUSE_S", 0.05)
    receiver.otherwise = 410
    await push(client, receiver, concurrency=5)
    async with client.producer("t") as producer:
        for number in range(20):
            await producer.send(b"%d" % number)
    await receiver.until(7)  # the receiver also refused the probes
    found = await the_push(client)
    assert found["state"] in ("waiting", "probing") and found["error"] == "HTTP 410"
    receiver.otherwise = 204
    row = await until_settled(client, ready=0, leased=0)
    assert row["dead"] == THRESHOLD - 1, "later refusals must not count for single messages"
    hand.forward(3600)
    await until_settled(client, waiting=0, ready=0, leased=0, dead=THRESHOLD - 1)
    assert (await the_node(client))["acked"] == 20 - (THRESHOLD - 1)


async def test_url_is_shown_without_the_values_of_its_query(
    client: sandq.Client, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        await client.admin.set_push("t", "g", f"{receiver.url}?token=s3cret&v=1", secrets=SECRET)
        found = await the_push(client)
        await client.produce("t", b"m")
        (got,) = await receiver.until(1)
    assert found["url"] == f"{receiver.url}?token=…&v=…" and "s3cret" not in caplog.text
    assert got.target == "/hook?token=s3cret&v=1"
    # Settings that are not given stay, including the complete URL.
    await client.admin.set_push("t", "g", concurrency=2)
    await client.produce("t", b"m")
    assert (await receiver.until(2))[1].target == "/hook?token=s3cret&v=1"


async def test_retry_after_is_kept_and_429_costs_no_attempt(
    client: sandq.Client, receiver: Receiver, hand: HandClock
) -> None:
    receiver.answers = [(429, {"retry-after": "600"}, b""), (503, {"retry-after": "30"}, b"")]
    await push(client, receiver)
    await client.produce("t", b"m")
    await until_settled(client, waiting=1)
    hand.forward(599)
    await client.produce("t", b"another")  # delivered meanwhile, because the first message is not due yet
    await receiver.until(2)
    assert [got.body for got in receiver.got] == [b"m", b"another"]
    await until_settled(client, waiting=2)
    hand.forward(1)
    await receiver.until(3)
    assert receiver.got[2].body == b"m" and receiver.got[2].headers["sandq-attempt"] == "1"
    hand.forward(29)
    await receiver.until(4)
    assert receiver.got[3].body == b"another" and receiver.got[3].headers["sandq-attempt"] == "2"


async def test_429_pauses_the_tenant_or_the_group(client: sandq.Client, receiver: Receiver, hand: HandClock) -> None:
    receiver.answers = [(429, {"retry-after": "600"}, b"")]
    with pytest.raises(InvalidSetting, match="only a fair topic has tenants to pause"):
        await push(client, receiver, on_429="pause_tenant")
    await push(client, receiver, on_429="pause_group")
    assert (await the_push(client))["on_429"] == "pause_group"
    await client.produce("t", b"m")
    shown = await until_answer(lambda: _group(client), lambda row: row and row.get("paused_until_ms"))
    assert shown["reason"].startswith("it is paused until ")
    await client.produce("t", b"another")
    await until_settled(client, waiting=1, ready=1)
    hand.forward(601)
    await receiver.until(3)
    assert {got.body for got in receiver.got[1:]} == {b"m", b"another"}
    await client.admin.set_push("t", "g", on_429="snooze")
    assert "on_429" not in await the_push(client)


async def test_429_pauses_a_tenant_of_a_fair_topic(client: sandq.Client, receiver: Receiver, hand: HandClock) -> None:
    receiver.answers = [(429, {"retry-after": "7200"}, b"")]
    await client.admin.delete_topic("t")
    await client.admin.create_topic("t", kind="fair")
    await push(client, receiver, on_429="pause_tenant", concurrency=1)
    await client.produce("t", b"m", tenant="acme")
    await until_answer(lambda: _group(client), lambda row: row and row.get("paused_tenants"))
    await client.produce("t", b"more", tenant="acme")
    await client.produce("t", b"other", tenant="beta")
    await receiver.until(2)
    assert [got.body for got in receiver.got] == [b"m", b"other"]
    hand.forward(3601)  # a pause by a consumer lasts an hour at most
    await receiver.until(3)
    assert receiver.got[2].body == b"more"


async def test_429_pauses_the_named_limit_of_the_group(
    client: sandq.Client, receiver: Receiver, hand: HandClock
) -> None:
    receiver.answers = [(429, {"retry-after": "7200"}, b"")]
    await client.admin.set_limit("llm", max_in_flight=5)
    await client.admin.create_topic("other")
    for topic in ("t", "other"):
        await client.admin.limit_group(topic, "g", limit="llm")
    await push(client, receiver, on_429="pause_limit")
    await client.produce("t", b"m")
    limit = await until_answer(lambda: client.admin.limit("llm"), lambda limit: limit["paused"])
    assert limit["paused_by"] == "group g of topic t"
    await client.produce("other", b"waits")
    assert await client.leases("other", "g").take(1) == []
    hand.forward(3601)  # a pause by a consumer lasts an hour at most
    assert len(await client.leases("other", "g").take(1, wait="1m")) == 1


async def test_concurrent_push_requests_are_limited(client: sandq.Client, receiver: Receiver) -> None:
    receiver.hold = trio.Event()
    await push(client, receiver, concurrency=3)
    async with client.producer("t") as producer:
        for number in range(12):
            await producer.send(b"%d" % number)
    await receiver.until(3)
    await until_settled(client, leased=3, ready=9)
    receiver.hold.set()
    await receiver.until(12)
    await until_settled(client, leased=0, ready=0)
    assert receiver.most_at_once == 3 and receiver.connections == 3


async def test_push_requests_of_a_node_are_limited_over_all_groups(
    tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandq.push.pusher._most_requests", lambda: 2)
    receiver.hold = trio.Event()
    async with run_node(small_config(tmp_path, **LOOPBACK)) as node, connected(node) as client:
        await client.admin.create_topic("t")
        for group in ("a", "b", "c"):
            await client.admin.set_push("t", group, receiver.url, secrets=SECRET)
        await client.produce("t", b"m")
        await until_answer(lambda: client.admin.groups("t"), lambda rows: [row["leased"] for row in rows] == [1, 1, 1])
        await receiver.until(2)
        receiver.hold.set()
        await receiver.until(3)
        assert receiver.most_at_once == 2
        assert {got.headers["sandq-group"] for got in receiver.got} == {"a", "b", "c"}


async def test_a_push_that_this_version_does_not_understand_stops_nothing_else(
    client: sandq.Client, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    strange = {"url": "https://./", "secrets": [SECRET], "concurrency": 1, "timeout_ms": 1000}
    with monkeypatch.context() as patched:
        patched.setattr("sandq.broker.controller.topic_administration.changed_push", lambda old, given: strange)
        await client.admin.set_push("t", "a", secrets=SECRET)
    await push(client, receiver)
    await client.produce("t", b"m")
    (got,) = await receiver.until(1)
    assert got.headers["sandq-group"] == "g"
    assert [row["state"] for row in await client.admin.pushes("t")] == ["starting", "pushing"]


async def test_group_limits_apply_to_push(client: sandq.Client, receiver: Receiver) -> None:
    receiver.hold = trio.Event()
    await client.admin.limit_group("t", "g", max_in_flight=1)
    await push(client, receiver)
    for body in (b"1", b"2"):
        await client.produce("t", body)
    await receiver.until(1)
    await until_settled(client, leased=1, ready=1)
    receiver.hold.set()
    await receiver.until(2)
    assert receiver.most_at_once == 1


async def test_a_receiver_that_is_down_is_left_alone_and_messages_keep_their_attempts(
    client: sandq.Client, receiver: Receiver, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandq.push.circuit.FIRST_PAUSE_S", 0.05)
    receiver.otherwise = 500
    await push(client, receiver, concurrency=1)
    async with client.producer("t") as producer:
        for number in range(20):
            await producer.send(b"%d" % number)
    found = await until_answer(lambda: the_push(client), lambda row: row["state"] in ("waiting", "probing"))
    assert found["error"] == "HTTP 500"
    # Five consecutive requests, then one after each pause. The other messages were not sent.
    await receiver.until(7)
    assert receiver.most_at_once == 1 and len({got.body for got in receiver.got}) == len(receiver.got) < 20
    receiver.otherwise = 204
    failed = (await until_settled(client, ready=0))["waiting"]
    assert 5 <= failed < 20
    hand.forward(60)
    await receiver.until(20 + failed)
    await until_settled(client, waiting=0, ready=0, leased=0, dead=0)
    assert (await the_push(client))["state"] == "pushing"


async def test_overview_names_the_receiver_that_is_down_and_no_missing_consumers(
    client: sandq.Client, receiver: Receiver, hand: HandClock
) -> None:
    receiver.otherwise = 500
    await push(client, receiver, concurrency=1)
    async with client.producer("t") as producer:
        sent = [await (await producer.send(b"%d" % number)) for number in range(20)]
    await until_answer(lambda: the_push(client), lambda row: row["state"] == "waiting")
    hand.forward(3600)  # messages of the group are an hour old
    info = await client.admin.cluster()

    async def found() -> dict[str, str]:
        seen = await client.admin.overview()
        told = findings(info, seen, seen.topics.values())
        return {one["situation"]: f"{one['found']} -> {one['todo']}" for one in told}

    named = await until_answer(found, lambda named: "receiver-down" in named)
    assert "500" in named["receiver-down"], "the error of the receiver must be reported"
    assert "no-consumers" not in named and not any("group delete" in text for text in named.values())
    reasons = [(await client.messages("t").why(str(id)))["groups"][0]["reason"] for id in sent[-3:]]
    assert not any("no consumer" in reason for reason in reasons)


async def test_a_push_that_ends_lets_requests_end(client: sandq.Client, receiver: Receiver) -> None:
    receiver.hold = trio.Event()
    await push(client, receiver)
    await client.produce("t", b"m")
    await receiver.until(1)
    await client.admin.remove_push("t", "g")
    assert await client.admin.pushes("t") == []
    receiver.hold.set()
    await until_settled(client, leased=0, ready=0, waiting=0, consumers=0)
    await client.produce("t", b"nobody")
    await until_settled(client, ready=1)
    await client.admin.delete_group("t", "g")


async def test_a_request_that_outlives_its_push_is_given_back(client: sandq.Client, receiver: Receiver) -> None:
    """A stopping push may use its timeout, but at most ten seconds. Then other nodes can lease the message."""
    receiver.hold = trio.Event()
    await push(client, receiver, request_timeout="1s")
    await client.produce("t", b"m")
    await receiver.until(1)
    await client.admin.remove_push("t", "g")
    await until_settled(client, leased=0, consumers=0)
    row = await _group(client)
    assert row["ready"] + row["waiting"] == 1


async def test_requests_have_no_longer_than_the_node_may_take_to_stop(
    tmp_path: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    receiver.hold = trio.Event()
    async with run_node(small_config(tmp_path, **LOOPBACK, SHUTDOWN_GRACE="0s")) as node, connected(node) as client:
        await client.admin.create_topic("t")
        await push(client, receiver, timeout="10m")
        await client.produce("t", b"m")
        await receiver.until(1)
    assert "did not end in 0 s and was cancelled: given back" in caplog.text
    receiver.hold.set()
    async with run_node(small_config(tmp_path, **LOOPBACK)):
        got = await receiver.until(2)
        assert [one.headers["sandq-attempt"] for one in got] == ["1", "1"]


async def test_changed_url_receives_later_messages(client: sandq.Client, receiver: Receiver) -> None:
    await push(client, receiver)
    await client.produce("t", b"1")
    await receiver.until(1)
    async with receiving() as other:
        new = sandq.new_push_secret()
        # Requests to the new URL are not signed with the secret of the old receiver.
        own: list[dict[str, Any]] = [{}, {"secrets": [new], "keep_secrets": True}]
        for more in own:
            with pytest.raises(InvalidSetting, match="secrets: another url needs secrets of its own"):
                await client.admin.set_push("t", "g", other.url, **more)
        shown = await client.admin.set_push("t", "g", other.url, secrets=[new])
        assert shown == {"url": other.url, "secrets": [_hint(new)], "concurrency": 10, "request_timeout": "30s"}
        await client.produce("t", b"2")
        (got,) = await other.until(1)
        sandq.verify_push(got.headers, got.body, new)
        with pytest.raises(InvalidRequest):
            sandq.verify_push(got.headers, got.body, SECRET)


def _hint(secret: str) -> str:
    return f"whsec_…{secret[-4:]}"


async def test_secrets_are_not_shown_again(
    timed: Serving, client: sandq.Client, receiver: Receiver, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    with caplog.at_level(logging.DEBUG):
        receiver.otherwise = 500
        await push(client, receiver)
        await client.produce("t", b"m")
        await until_settled(client, waiting=1)
        told = [await client.admin.pushes("t"), await client.admin.groups("t"), await client.admin.cluster()]
        told += [(await client.admin.topic("t")).settings, (await timed.metrics.render())[0].decode()]
        with pytest.raises(InvalidSetting) as refusal:
            await client.admin.set_push("t", "g", secrets=[SECRET + "x"])
    told += [str(refusal.value), refusal.value.details, repr(timed.broker.metadata), caplog.text]
    assert SECRET.removeprefix("whsec_") not in json.dumps(told, default=str)


async def test_url_that_configuration_does_not_allow_is_refused(client: sandq.Client) -> None:
    for url, why in (("http://10.0.0.1/", "no public|not among"), ("https://example.com:70000/", "ort")):
        with pytest.raises(InvalidSetting, match=why):
            await client.admin.set_push("t", "g", url, secrets=SECRET)
    with pytest.raises(UnknownTopic):
        await client.admin.set_push("nowhere", "g", "http://127.0.0.1/", secrets=SECRET)
    with pytest.raises(UnknownTopic):
        await client.admin.pushes("nowhere")
    assert await client.admin.pushes("t") == []


async def test_a_target_that_is_not_allowed_any_more_is_not_connected_to(tmp_path: Path, receiver: Receiver) -> None:
    """The push setting survives a restart with a configuration that forbids it. Nothing is leased for it, and no
    attempt is used."""
    async with run_node(small_config(tmp_path, **LOOPBACK)) as node, connected(node) as client:
        await client.admin.create_topic("t")
        await push(client, receiver)
    async with run_node(small_config(tmp_path)) as node, connected(node) as client:
        await client.produce("t", b"m")
        found = await until_answer(lambda: the_push(client), lambda row: row["state"] == "waiting")
        assert "http:// needs push.allow_http" in found["error"]
        assert await client.admin.groups("t") == []
    assert receiver.got == []
    async with run_node(small_config(tmp_path, **LOOPBACK)):
        (got,) = await receiver.until(1)
        assert got.headers["sandq-attempt"] == "1"


async def test_a_topic_that_is_deleted_takes_its_pushes_along(client: sandq.Client, receiver: Receiver) -> None:
    await push(client, receiver)
    await client.produce("t", b"1")
    await receiver.until(1)
    await client.admin.delete_topic("t")
    await client.admin.create_topic("t")
    assert await client.admin.pushes("t") == []
    await client.produce("t", b"2")
    # The next push delivers the message, which the previous one did not.
    await push(client, receiver)
    await receiver.until(2)
    assert [got.body for got in receiver.got] == [b"1", b"2"]


async def test_messages_with_headers_of_any_bytes_are_pushed(
    client: sandq.Client,
    receiver: Receiver,
    timed: Serving,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cells = [*NO_HEADERS.values(), *HEADERS.values()]
    accept_any_headers(monkeypatch)
    raw = await RawClient.connect(timed.client_port)
    values = [b"%d" % number for number in range(len(cells))]
    stored = await raw.produce(*values, headers=cells, key=values)
    await trio.aclose_forcefully(raw.stream)
    monkeypatch.undo()
    assert stored[0] == 0
    with caplog.at_level(logging.WARNING):
        await push(client, receiver)
        found = {got.body: got.headers for got in await receiver.until(len(cells))}
        await until_settled(client, leased=0, ready=0, waiting=0, dead=0)
    assert caplog.text == ""
    for value, cell in zip(values, cells, strict=True):
        encoded = found[value].get("sandq-headers-base64")
        if cell in NO_HEADERS.values() and 0 < len(cell) < 6000:
            assert encoded is not None and b64decode(encoded) == cell
        else:
            assert encoded is None
