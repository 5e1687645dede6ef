"""Messages with their own number of attempts and their own back-off, through a real node."""

from __future__ import annotations

from typing import Any

import pytest

import sandq
from sandq.errors import InvalidRequest
from tests.support.nodes.working import take
from tests.support.waiting import until_answer

AT_ONCE: Any = {"kind": "none"}
HOURLY: Any = {"kind": "fixed", "first": "1h", "cap": "1h", "jitter_percent": 0}
SHOWN = {"kind": "fixed", "first": "1h", "factor": 2, "cap": "1h", "jitter_percent": 0}


async def deaths(api: sandq.Client, topic: str, count: int) -> dict[bytes, int]:
    """Nack all messages until `count` of them are dead. Return the number of attempts of each."""
    attempts: dict[bytes, int] = {}
    async with api.subscribe(topic, group="g", credit=100) as subscription:
        while sum((await api.dead(topic, "g").counts()).values()) < count:
            for message in await take(subscription, 1, ack=False):
                attempts[message.value] = message.attempt
                await message.nack()
    return attempts


@pytest.mark.parametrize("kind", ["timer", "priority", "fair"])
async def test_each_message_dies_after_its_own_attempts(api: sandq.Client, kind: Any) -> None:
    await api.admin.create_topic("t", kind=kind, max_attempts=3, backoff={"kind": "none"})
    await api.produce("t", b"four", max_attempts=4)
    async with api.producer("t") as producer:
        await producer.send(b"topic")
        await producer.send(b"two", max_attempts=2, ttl="1d", unique_key="u")
        await producer.send_many([b"one", {"value": b"five", "max_attempts": 5}], max_attempts=1)
    wanted = {b"four": 4, b"topic": 3, b"two": 2, b"one": 1, b"five": 5}
    assert await deaths(api, "t", 5) == wanted
    letters = [letter async for letter in api.dead("t", "g").list(values=True)]
    assert {letter.value: letter.max_attempts or 3 for letter in letters} == wanted


async def test_message_shows_its_own_rules(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    mine = await api.produce("t", b"m", max_attempts="none", backoff=HOURLY)
    other = await api.produce("t", b"n")
    messages = api.messages("t")
    found = await messages.get(mine)
    assert (found.max_attempts, found.backoff) == ("none", SHOWN)
    assert ((await messages.get(other)).max_attempts, (await messages.get(other)).backoff) == (None, None)
    why = await messages.why(mine)
    assert (why["max_attempts"], why["backoff"]) == ("none", SHOWN)
    assert "max_attempts" not in await messages.why(other)
    listed = [(one.max_attempts, one.backoff) async for one in messages.list()]
    assert listed == [("none", SHOWN), (None, None)]
    async with api.subscribe("t", group="g", credit=10) as subscription:
        for message in await take(subscription, 2, ack=False):
            await message.nack()
    (group,) = await until_answer(lambda: waiting(api, mine), bool)
    assert group["due_ms"] - group["history"][-1][3] == 3_600_000


async def waiting(api: sandq.Client, message_id: str) -> list[Any]:
    groups = (await api.messages("t").why(message_id))["groups"]
    return [group for group in groups if group["state"] == "waiting"]


async def test_message_that_an_ack_sends_has_its_own_rules(api: sandq.Client) -> None:
    await api.admin.create_topic("t", max_attempts=3, backoff={"kind": "none"})
    await api.admin.create_topic("next", max_attempts=3, backoff={"kind": "none"})
    await api.produce("t", b"m")
    async with api.subscribe("t", group="all") as subscription:
        (message,) = await take(subscription, 1, ack=False)
        sent = [sandq.Outgoing(b"own", max_attempts=1), sandq.Outgoing(b"far", "next", max_attempts=2, backoff=AT_ONCE)]
        await message.ack(then=sent)
    assert await deaths(api, "next", 1) == {b"far": 2}
    own = [one async for one in api.messages("t").list(values=True) if one.value == b"own"]
    assert [(one.max_attempts, one.backoff) for one in own] == [(1, None)]


async def test_messages_of_a_schedule_have_their_own_rules(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    schedules = api.schedules("t")
    made = await schedules.create("s", b"m", every="1h", max_attempts=7, backoff=HOURLY)
    assert (made.max_attempts, made.backoff) == (7, SHOWN)
    assert (await schedules.create("s", b"m", every="1h", max_attempts=7, backoff=HOURLY)).version == made.version
    sent = await schedules.trigger("s")
    found = await api.messages("t").get(str(sent))
    assert (found.max_attempts, found.backoff) == (7, SHOWN)
    changed = await schedules.update("s", value=b"n", backoff=None)
    assert (changed.max_attempts, changed.backoff) == (7, None)
    with pytest.raises(InvalidRequest, match="max_attempts: 0 is not within 1 to 1000"):
        await schedules.update("s", max_attempts=0)


async def test_wrong_rules_are_refused(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    await api.admin.create_topic("k", kind="compacted")
    with pytest.raises(InvalidRequest, match=r"^max_attempts: 1001 is not within 1 to 1000$"):
        await api.produce("t", b"m", max_attempts=1001)
    with pytest.raises(InvalidRequest, match=r"^backoff\.first: 1h is longer than backoff\.cap \(10m\)"):
        await api.produce("t", b"m", backoff={"kind": "fixed", "first": "1h"})
    with pytest.raises(InvalidRequest, match=r"message 1 of send_many: max_attempts: 'many' is not a whole number"):
        async with api.producer("t") as producer:
            await producer.send_many([b"m", {"value": b"n", "max_attempts": "many"}])
    with pytest.raises(InvalidRequest, match=r"max_attempts: this is a compacted topic, .* set it for the topic"):
        await api.produce("k", b"m", key="k", max_attempts=2)


async def test_redriven_message_has_its_own_attempts_again(api: sandq.Client) -> None:
    await api.admin.create_topic("t", max_attempts=1, backoff={"kind": "none"})
    await api.produce("t", b"m", max_attempts=2)
    assert await deaths(api, "t", 1) == {b"m": 2}
    await api.dead("t", "g").redrive()
    assert await deaths(api, "t", 1) == {b"m": 2}
