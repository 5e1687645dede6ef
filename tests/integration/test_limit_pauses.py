"""Pauses of named limits, by the holders of leases and by operators, through a real node."""

from __future__ import annotations

import pytest

import sandq
from sandq.errors import InvalidRequest, InvalidSetting, InvalidTime, LeaseLost, NotFound
from sandq.model.times import format_instant
from sandq.node.running import Serving
from tests.integration.test_metrics import scrape
from tests.integration.test_named_limits import topics
from tests.support.nodes.working import take
from tests.support.waiting import until_answer


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
