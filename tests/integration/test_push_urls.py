"""Groups whose messages have their own URLs: a node, and receivers on loopback addresses."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

import sandq
from sandq.errors import InvalidRequest, InvalidSetting
from sandq.model.message_targets import PUSH_HEADER
from sandq.node.running import Serving
from tests.support.http_client import NO_TLS
from tests.support.nodes.http_requests import Web
from tests.support.nodes.small_node import small_config
from tests.support.nodes.with_http import run_node
from tests.support.nodes.working import connected, take
from tests.support.push_receiver import Receiver, receiving
from tests.support.waiting import PATIENCE_S, until_answer

LOOPBACK = {"LISTEN__HTTP": "127.0.0.1:0", "PUSH__ALLOW": "127.0.0.0/8", "PUSH__ALLOW_HTTP": "true", "PUSH__PORTS": ""}
SECRET = sandq.new_push_secret()
REFUSED = sandq.PushTarget("https://10.0.0.1/")


@pytest.fixture
async def node(tmp_path: Path) -> AsyncIterator[Serving]:
    async with run_node(small_config(tmp_path, **LOOPBACK)) as serving:
        yield serving


@pytest.fixture
async def client(node: Serving) -> AsyncIterator[sandq.Client]:
    async with connected(node) as found:
        await found.admin.create_topic("calls", push_targets=True, max_attempts=3)
        yield found


@pytest.fixture
async def web(node: Serving) -> AsyncIterator[Web]:
    assert node.http is not None
    host, port = node.http
    async with httpx.AsyncClient(verify=NO_TLS, base_url=f"http://{host}:{port}", timeout=PATIENCE_S) as found:
        yield Web(found)


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    async with receiving() as found:
        yield found


async def push(client: sandq.Client, **more: Any) -> None:
    await client.admin.set_push("calls", "http", targets="message", secrets=SECRET, **more)


async def group(client: sandq.Client) -> dict[str, Any]:
    return next((row for row in await client.admin.groups("calls") if row["group"] == "http"), {})


async def test_message_is_sent_to_its_own_url(client: sandq.Client, receiver: Receiver) -> None:
    await push(client)
    target = sandq.PushTarget(f"{receiver.url}/7?a=b", "PUT", {"Authorization": "Bearer x"}, "5s")
    await client.produce("calls", b"tea", headers={"trace": "x"}, push=target)
    (got,) = await receiver.until(1)
    assert (got.method, got.target, got.body) == ("PUT", "/hook/7?a=b", b"tea")
    assert (got.headers["authorization"], got.headers["sandq-header-trace"]) == ("Bearer x", "x")
    assert not [name for name in got.headers if PUSH_HEADER in name]
    sandq.verify_push(got.headers, got.body, SECRET)
    await until_answer(lambda: group(client), lambda row: row["leased"] == 0)
    (row,) = await client.admin.pushes("calls")
    assert (row["url"], row["targets"], row["state"]) == (None, "message", "pushing")
    assert (row["nodes"][0]["acked"], row["nodes"][0]["open_hosts"]) == (1, [])


async def test_message_sent_over_http_is_sent_to_its_url(client: sandq.Client, web: Web, receiver: Receiver) -> None:
    set_ = await web.ask("PUT", "/topics/calls/groups/http/push", {"targets": "message", "secrets": [SECRET]})
    assert (set_["url"], set_["targets"]) == (None, "message")
    target = {"url": receiver.url, "method": "PATCH", "timeout": 5}
    await web.post("/topics/calls", {"json": {"a": 1}, "push": target}, 201)
    (got,) = await receiver.until(1)
    assert (got.method, json.loads(got.body)) == ("PATCH", {"a": 1})
    assert got.headers["content-type"] == "application/json"
    wrong = await web.post("/topics/calls", {"text": "x", "push": {"url": "https://10.0.0.1/"}}, 400)
    assert "10.0.0.1 is not among push.allow" in wrong["detail"]
    wrong = await web.post("/topics/calls", {"text": "x", "push": {**target, "method": "TRACE"}}, 400)
    assert "push.method" in str(wrong)
    wrong = await web.post("/topics/calls", {"text": "x", "push": {**target, "headers": {"Host": "x"}}}, 400)
    assert "host is set by the sender only" in str(wrong)


async def test_message_without_a_url_is_dead_with_the_reason(client: sandq.Client) -> None:
    await push(client)
    await client.produce("calls", b"x")
    await until_answer(lambda: group(client), lambda row: row.get("dead") == 1)
    (letter,) = [letter async for letter in client.dead("calls", "http").list()]
    assert letter.reason == "rejected" and PUSH_HEADER in (letter.error or "")


async def test_url_is_checked_for_all_requests_with_headers(client: sandq.Client) -> None:
    header = {PUSH_HEADER: REFUSED.text()}
    with pytest.raises(InvalidRequest, match=r"10\.0\.0\.1 is not among push\.allow"):
        await client.produce("calls", b"x", push=REFUSED)
    async with client.producer("calls") as producer:
        fine, wrong = await producer.send(b"x", delay="1h"), await producer.send(b"x", delay="1h", push=REFUSED)
        await fine
        with pytest.raises(InvalidRequest, match=r"not among push\.allow"):
            await wrong
    with pytest.raises(InvalidRequest, match="JSON object"):
        await client.produce("calls", b"x", headers={PUSH_HEADER: "https://shop.example/"})
    with pytest.raises(InvalidRequest, match=r"not among push\.allow"):
        await client.schedules("calls").create("daily", b"x", cron="0 9 * * *", headers=header)
    id_ = await client.produce("calls", b"x", delay="1h")
    with pytest.raises(InvalidRequest, match=r"not among push\.allow"):
        await client.messages("calls").update(id_, headers=header)
    await client.produce_many("calls", [b"x", b"y"])
    async with client.subscribe("calls", group="g") as subscription:
        nacked, acked = await anext(subscription), await anext(subscription)
        with pytest.raises(InvalidRequest, match=r"not among push\.allow"):
            await nacked.nack(headers=header)
        with pytest.raises(InvalidRequest, match=r"not among push\.allow"):
            await acked.ack(then=[sandq.Outgoing(b"x", push=REFUSED)])


async def test_topic_must_allow_urls(client: sandq.Client, receiver: Receiver) -> None:
    await client.admin.create_topic("plain")
    with pytest.raises(InvalidRequest, match="push_targets"):
        await client.produce("plain", b"x", push={"url": receiver.url})
    with pytest.raises(InvalidSetting, match="set its push_targets first"):
        await client.admin.set_push("plain", "http", targets="message", secrets=SECRET)
    await client.admin.create_topic("keys", kind="compacted")
    with pytest.raises(InvalidSetting, match="compacted topics cannot"):
        await client.admin.set_push("keys", "http", targets="message", secrets=SECRET)
    with pytest.raises(InvalidSetting, match="a compacted topic does not have it"):
        await client.admin.update_topic("keys", push_targets=True)
    with pytest.raises(InvalidRequest, match="push_targets"):
        await client.kv("keys").put("a", b"x", headers={PUSH_HEADER: "{}"})
    await client.admin.update_topic("plain", push_targets=True)
    await client.produce("plain", b"x", push={"url": receiver.url})
    await client.admin.set_push("plain", "http", targets="message", secrets=SECRET)
    await receiver.until(1)


async def test_headers_of_a_push_are_sent_and_never_shown(client: sandq.Client, web: Web, receiver: Receiver) -> None:
    set_ = await client.admin.set_push(
        "calls", "g", receiver.url, secrets=SECRET, headers={"Authorization": "Bearer hidden"}
    )
    assert set_["headers"] == {"authorization": "…"}
    await client.produce("calls", b"x", push=sandq.PushTarget("http://127.0.0.9:1/", headers={"x-own": "secret"}))
    (got,) = await receiver.until(1)
    assert got.headers["authorization"] == "Bearer hidden"
    assert not [name for name in got.headers if "push" in name] and "x-own" not in got.headers
    assert "hidden" not in str(await client.admin.pushes("calls"))
    assert "hidden" not in str(await web.get("/topics/calls/pushes"))


async def test_hosts_that_hang_or_answer_429_do_not_delay_the_others(client: sandq.Client) -> None:
    async with AsyncExitStack() as stack:
        receivers = [await stack.enter_async_context(receiving(host=f"127.0.1.{n}")) for n in range(1, 51)]
        hanging, busy, good = receivers[:5], receivers[5:10], receivers[10:]
        for receiver in hanging:
            receiver.hold = trio.Event()
        for receiver in busy:
            receiver.otherwise = 429
        await client.admin.update_topic("calls", max_attempts="none")
        await push(client, concurrency=40, request_timeout="1s")
        messages = [{"value": b"%d" % n, "push": {"url": one.url}} for n in range(20) for one in receivers]
        await client.produce_many("calls", messages)
        for receiver in good:
            await receiver.until(20)
        sent = Counter(got.headers["sandq-message-id"] for receiver in good for got in receiver.got)
        assert len(sent) == 800 and set(sent.values()) == {1}
        assert max(receiver.most_at_once for receiver in receivers) <= 10
        for receiver in hanging:
            assert receiver.hold is not None
            receiver.hold.set()
            receiver.hold = None
        for receiver in busy:
            receiver.otherwise = 204
        row = await until_answer(lambda: group(client), lambda row: row["lag"] == 0)
        assert row["dead"] == 0
        for receiver in receivers:
            assert len({got.body for got in receiver.got}) == 20, "no message was lost"


# -- callbacks -------------------------------------------------------------------------------------------------------


async def callbacks_of(client: sandq.Client, topic: str, count: int) -> list[dict[str, Any]]:
    async with client.subscribe(topic, group="reader") as subscription:
        return [json.loads(message.value) for message in await take(subscription, count)]


async def test_callbacks_report_acceptance_and_death(client: sandq.Client, receiver: Receiver) -> None:
    for topic in ("done", "failed"):
        await client.admin.create_topic(topic, partitions=2)
    await client.admin.update_topic("calls", max_attempts=2, backoff={"kind": "fixed", "first": "1ms", "cap": "1ms"})
    await push(client, concurrency=1)
    target = sandq.PushTarget(receiver.url, callback="done", failure_callback="failed")
    receiver.answers = [(201, {}, "größe".encode()), (410, {}, b"\xff"), (500, {}, b"no"), (500, {}, b"no")]
    fine = await client.produce("calls", b"a", push=target)
    await receiver.until(1)
    gone = await client.produce("calls", b"b", push=target)
    await receiver.until(2)
    tried = await client.produce("calls", b"c", push=target)
    (done,) = await callbacks_of(client, "done", 1)
    assert (done["id"], done["status"], done["response"], done["attempts"]) == (fine, 201, "größe", 1)
    assert (done["topic"], done["group"], done["url"], done["error"]) == ("calls", "http", receiver.url, None)
    failed = {one["id"]: one for one in await callbacks_of(client, "failed", 2)}
    assert (failed[gone]["status"], failed[gone]["response"], failed[gone]["response_base64"]) == (410, None, "/w==")
    assert (failed[tried]["status"], failed[tried]["attempts"], failed[tried]["error"]) == (500, 2, "HTTP 500: no")
    letters = {letter.id: letter.reason async for letter in client.dead("calls", "http").list()}
    assert letters == {gone: "rejected", tried: "nacked"} and len(receiver.got) == 4


async def test_message_is_acked_without_a_callback_whose_topic_was_deleted(
    client: sandq.Client, receiver: Receiver
) -> None:
    await client.admin.create_topic("done")
    id_ = await client.produce("calls", b"a", push=sandq.PushTarget(receiver.url, callback="done"))
    assert (await client.messages("calls").get(id_)).headers
    await client.admin.delete_topic("done")
    await push(client)
    await receiver.until(1)
    (row,) = await until_answer(lambda: client.admin.pushes("calls"), lambda rows: rows[0]["nodes"][0]["error"])
    assert row["nodes"][0]["error"].startswith("no callback was sent to topic done: there is no topic 'done'")
    await until_answer(lambda: group(client), lambda found: found["leased"] == 0)
    assert len(receiver.got) == 1 and (await group(client))["dead"] == 0


async def test_callback_to_a_topic_that_does_not_take_it_is_refused(client: sandq.Client) -> None:
    await client.admin.create_topic("keys", kind="compacted")
    for topic, why in (("nowhere", "there is no topic 'nowhere'"), ("keys", "is a compacted topic")):
        target = sandq.PushTarget("http://127.0.0.1:9/", failure_callback=topic)
        with pytest.raises(InvalidRequest, match=why):
            await client.produce("calls", b"x", push=target)
        with pytest.raises(InvalidRequest, match=why):
            await client.schedules("calls").create("daily", b"", cron="0 9 * * *", headers={PUSH_HEADER: target.text()})
    with pytest.raises(InvalidRequest, match="are reserved"):
        await client.produce("calls", b"x", push={"url": "http://127.0.0.1:9/", "callback": "sandq.audit"})
