"""Pauses of named limits, by the holders of leases and by operators, through a real node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import trio

import sandq
import sandq.sync
from sandq.errors import InvalidRequest, InvalidSetting, InvalidTime, LeaseLost, NotFound, SandqError
from sandq.model.times import format_instant
from sandq.node import run_node
from sandq.node.running import Serving
from tests.integration.test_metrics import scrape
from tests.integration.test_named_limits import topics
from tests.support.nodes.planted import Plan, planted
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected, take
from tests.support.waiting import PATIENCE_S, until_answer, until_holds


async def leased(api: sandq.Client) -> sandq.LeasedMessage:
    """Set the limit "llm" for the groups of two topics, and lease a message of the first."""
    await api.admin.set_limit("llm", max_in_flight=5)
    await topics(api)
    await api.leases("mail", "g").take(1, wait="1m")
    (message,) = await api.leases("chat", "g").take(1, wait="1m")
    return message


async def reasons(api: sandq.Client, topic: str) -> list[str]:
    return [row["reason"] or "" for row in await api.admin.groups(topic)]


async def test_lease_pauses_the_limit_for_groups_of_all_topics(api: sandq.Client, node: Serving) -> None:
    message = await leased(api)
    chat = api.leases("chat", "g")
    end_ms = await chat.pause_limit(message, for_="10m")
    assert await chat.pause_limit(message, for_="1m") == end_ms, "a pause is never shortened"
    assert await chat.take(5) == await api.leases("mail", "g").take(5) == []
    limit = await api.admin.limit("llm")
    assert (limit["paused"], limit["paused_until_ms"], limit["unpaused"]) == (True, end_ms, 0)
    assert limit["paused_by"] == "group g of topic chat"
    assert {one["unpaused"] for one in limit["members"]} == {False}
    said = f"the limit llm is paused until {format_instant(end_ms)}, by group g of topic chat"
    assert set(await reasons(api, "mail")) == {said}
    ready = await api.produce("mail", b"ready")
    (group,) = (await api.messages("mail").why(ready))["groups"]
    assert group["reason"].startswith(said)
    found = await scrape(node)
    assert found("limit_paused", limit="llm") == 1 and found("limit_waiting", limit="llm") == 0
    assert await chat.ack([message]) == []


async def test_pause_by_a_lease_ends_by_itself(api: sandq.Client) -> None:
    message = await leased(api)
    await api.leases("chat", "g").pause_limit(message, for_="500ms")
    async with api.subscribe("mail", group="g", credit=1) as subscription:
        await take(subscription, 1)


async def test_operator_pauses_and_resumes_a_limit(api: sandq.Client) -> None:
    await leased(api)
    await api.admin.pause_limit("llm")
    limit = await api.admin.limit("llm")
    assert (limit["paused"], limit["paused_until_ms"], limit["paused_by"]) == (True, None, "an operator")
    assert set(await reasons(api, "chat")) == {"the limit llm is paused until it is resumed, by an operator"}
    await api.admin.set_limit("llm", max_in_flight=6)
    await api.admin.create_topic("late", partitions=1)
    await api.admin.limit_group("late", "g", limit="llm")
    await api.produce("late", b"m")
    assert await api.leases("late", "g").take(1, wait="300ms") == [], "a group that joins later is paused, too"
    await until_answer(lambda: reasons(api, "late"), lambda found: "the limit llm is paused" in found[0])
    await api.admin.resume_limit("llm")
    assert len(await api.leases("late", "g").take(1, wait="1m")) == 1
    assert not (await api.admin.limit("llm"))["paused"]


async def test_operator_replaces_a_longer_pause(api: sandq.Client) -> None:
    message = await leased(api)
    await api.leases("chat", "g").pause_limit(message, for_="1h")
    await api.admin.pause_limit("llm", for_="200ms")
    assert await api.leases("mail", "g").take(1, wait="1m") != []


async def test_threads_and_the_blocking_client_pause_a_limit(api: sandq.Client, node: Serving) -> None:
    await leased(api)

    def blocking() -> None:
        with sandq.sync.connect(f"127.0.0.1:{node.client_port}") as client:
            with client.subscribe("chat", group="g", credit=1) as subscription:
                message = next(iter(subscription))
                end_ms = message.pause_limit(for_="5m")
                assert client.admin.limit("llm")["paused_until_ms"] == end_ms
                message.ack().wait()
            assert client.leases("mail", "g").take(1) == []
            client.admin.resume_limit("llm")
            (held,) = client.leases("mail", "g").take(1, wait="1m")
            client.leases("mail", "g").pause_limit(held, for_="1m")
            client.admin.pause_limit("llm")
            assert client.admin.limit("llm")["paused_by"] == "an operator"

    await trio.to_thread.run_sync(blocking)


async def test_why_says_that_the_home_of_the_limit_is_shut(tmp_path: Path) -> None:
    with planted(Plan("first", marker=b"unapplicable")):
        async with run_node(small_config(tmp_path)) as node, connected(node) as api:
            await api.admin.set_limit("llm", max_in_flight=1)
            await topics(api)
            assert len(await api.leases("chat", "g").take(5, wait="1m")) == 1
            waiting = await api.produce("mail", b"waiting", partition=0)
            await api.leases("mail", "g").take(1)
            home = node.broker.catalog.partition("sandq.limits", 0).raft_group
            with trio.fail_after(PATIENCE_S):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ignored, api.admin.set_limit, "unapplicable")
                    await until_holds(lambda: home.shut is not None)
                    nursery.cancel_scope.cancel()
            (group,) = (await api.messages("mail").why(waiting))["groups"]
            said = "; topic sandq.limits is shut at node1, so limits give no shares: see sandctl doctor"
            assert group["reason"].startswith("it waits for the limit llm: ") and said in group["reason"]
            assert all(said in reason for reason in await reasons(api, "mail"))


async def ignored(change: Callable[..., Awaitable[Any]], name: str) -> None:
    with suppress(SandqError):
        await change(name, max_in_flight=1)


async def test_mistakes_are_named(api: sandq.Client) -> None:
    for attempt in (api.admin.pause_limit("llm"), api.admin.resume_limit("llm")):
        with pytest.raises(NotFound, match="no limit 'llm'"):
            await attempt
    message = await leased(api)
    with pytest.raises(NotFound, match="no limit 'other'"):
        await api.admin.pause_limit("other", for_="1m")
    with pytest.raises(InvalidTime):
        await api.admin.pause_limit("llm", until="2020-01-01T00:00:00Z")
    with pytest.raises(InvalidRequest, match="not both"):
        await api.admin.pause_limit("llm", until="2090-01-01T00:00:00Z", for_="1m")
    with pytest.raises(InvalidRequest, match="as a whole"):
        await api.admin.pause_group("sandq.limits", "llm", tenant="acme")
    chat = api.leases("chat", "g")
    with pytest.raises(InvalidTime):
        await chat.pause_limit(message, for_="2h")
    await chat.ack([message])
    with pytest.raises(LeaseLost):
        await chat.pause_limit(message, for_="1m")
    await api.admin.create_topic("t")
    await api.produce("t", b"m")
    (other,) = await api.leases("t", "g").take(1, wait="1m")
    with pytest.raises(InvalidRequest, match="group 'g' uses no named limit"):
        await api.leases("t", "g").pause_limit(other, for_="1m")
    secret = sandq.new_push_secret()
    with pytest.raises(InvalidSetting, match="uses no named limit to pause"):
        await api.admin.set_push("t", "g", "https://example.com/", secrets=secret, on_429="pause_limit")
    with pytest.raises(InvalidRequest, match="it has no messages"):
        await api.admin.set_push("sandq.limits", "llm", "https://example.com/", secrets=secret)
