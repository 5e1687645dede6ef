"""Dead letters that go to another topic, through real nodes."""

from __future__ import annotations

from typing import Any

import pytest

import sandq
from sandq.broker.delivery.outbox_sender import OutboxSender
from sandq.errors import Conflict, InvalidSetting, ProducerFenced, TimedOut, Unavailable
from sandq.model.batch import Column, encode
from sandq.model.outbox import reserved_producer
from sandq.protocol.frames import Type
from tests.support.nodes.raw_client import RawClient
from tests.support.nodes.working import take
from tests.support.waiting import until_answer


async def bury(api: sandq.Client, *values: str, topic: str = "orders", **columns: Any) -> list[str]:
    """Let messages of a group die by their last nack (max_attempts=1). Return their ids."""
    ids = []
    async with api.subscribe(topic, group="g", credit=1000) as subscription:
        for value in values:
            ids.append(await api.produce(topic, value.encode(), key=value, **columns))
        for message in await take(subscription, len(values), ack=False):
            message.nack(error="boom")
    return ids


async def forwarded(api: sandq.Client, count: int, topic: str = "failed") -> list[sandq.Message]:
    async with api.subscribe(topic, group="all", credit=1000) as subscription:
        return await take(subscription, count)


async def counts_are(api: sandq.Client, expected: dict[str, int], topic: str = "orders") -> None:
    await until_answer(lambda: api.dead(topic, "g").counts(), lambda counts: counts == expected)


async def topics(api: sandq.Client, partitions: int = 1, **settings: Any) -> None:
    await api.admin.create_topic("failed", partitions=3)
    await api.admin.create_topic(
        "orders", partitions=partitions, max_attempts=1, dead_letter_topic="failed", **settings
    )


async def test_dead_letters_go_there_once(api: sandq.Client) -> None:
    await topics(api, partitions=2)
    values = [f"m{at}" for at in range(40)]
    ids = await bury(api, *values, headers={"own": 1})
    found = await forwarded(api, len(values))
    assert sorted(one.value.decode() for one in found) == sorted(values)
    assert {one.headers["sandq-dead-id"] for one in found} == set(ids)
    one = found[0]
    assert one.key == one.value
    told = {name: one.headers[name] for name in ("own", "sandq-dead-topic", "sandq-dead-group", "sandq-dead-error")}
    assert told == {"own": 1, "sandq-dead-topic": "orders", "sandq-dead-group": "g", "sandq-dead-error": "boom"}
    await counts_are(api, {})


async def test_dead_letters_keep_tenant_and_priority(api: sandq.Client) -> None:
    await api.admin.create_topic("fair", kind="fair", partitions=2)
    await api.admin.create_topic("plain")
    await api.admin.create_topic("a", kind="fair", max_attempts=1, dead_letter_topic="fair")
    await api.admin.create_topic("b", kind="fair", max_attempts=1, dead_letter_topic="plain")
    for topic in ("a", "b"):
        await bury(api, "m", topic=topic, tenant="acme", priority=5)
    (kept,) = await forwarded(api, 1, "fair")
    assert (kept.tenant, kept.priority) == ("acme", 5) and "sandq-dead-tenant" not in kept.headers
    (told,) = await forwarded(api, 1, "plain")
    assert (told.headers["sandq-dead-tenant"], told.headers["sandq-dead-priority"]) == ("acme", 5)


async def test_settings_that_make_no_sense(api: sandq.Client) -> None:
    await api.admin.create_topic("keys", kind="compacted")
    await api.admin.create_topic("c")
    await api.admin.create_topic("b", dead_letter_topic="c")
    await api.admin.create_topic("a", dead_letter_topic="b")
    for topic, wanted, why in (
        ("c", "c", "must go to a different topic"),
        ("c", "nowhere", "there is no topic 'nowhere'; create it first"),
        ("c", "keys", "is compacted"),
        ("c", "a", "dead letters would return: those of a go to b go to c"),
        ("b", "a", "would return"),
    ):
        with pytest.raises(InvalidSetting, match=why):
            await api.admin.update_topic(topic, dead_letter_topic=wanted)
    with pytest.raises(InvalidSetting, match="no topic"):
        await api.admin.create_topic("d", dead_letter_topic="nowhere")
    assert "dead_letter_topic" not in (await api.admin.topic("c")).settings
    assert (await api.admin.topic("a")).settings["dead_letter_topic"] == "b"
    with pytest.raises(Conflict, match="'c' is the dead letter topic of b: give these a different one, or none, first"):
        await api.admin.delete_topic("c")
    await api.admin.update_topic("b", lease="1m")
    assert (await api.admin.topic("b")).settings["dead_letter_topic"] == "c"
    await api.admin.update_topic("b", dead_letter_topic=None)
    await api.admin.delete_topic("c")


async def test_refused_dead_letters_stay_with_the_reason(api: sandq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """The target topic of dead letters is deleted while they are in flight, and a new topic gets its name."""
    await topics(api)

    async def is_cut_off(*args: Any) -> None:
        raise Unavailable("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(OutboxSender, "_deliver", is_cut_off)
        await bury(api, "a", "b")
        await counts_are(api, {"nacked": 2})
        await api.admin.update_topic("orders", dead_letter_topic=None)
        await api.admin.delete_topic("failed")
        await api.admin.create_topic("failed")
    letters = await until_answer(
        lambda: _letters(api), lambda found: len(found) == 2 and all(one.not_forwarded for one in found)
    )
    assert {one.not_forwarded for one in letters} == {"its target topic was deleted"}
    await api.dead("orders", "g").redrive()
    async with api.subscribe("orders", group="g") as subscription:
        assert {one.value for one in await take(subscription, 2)} == {b"a", b"b"}


async def test_failed_sends_are_retried_without_duplicates(api: sandq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await topics(api)
    tries = []
    deliver = OutboxSender._deliver

    async def fails_at_first(self: OutboxSender, *args: Any) -> None:
        tries.append(args)
        if len(tries) % 3 == 1:
            raise Unavailable("cut off")
        await deliver(self, *args)
        if len(tries) % 3 == 2:
            raise TimedOut("the answer was lost")

    monkeypatch.setattr(OutboxSender, "_deliver", fails_at_first)
    await bury(api, *[f"m{at}" for at in range(10)])
    await counts_are(api, {})
    found = await forwarded(api, 10)
    assert len({one.value for one in found}) == 10
    await api.produce("failed", b"last")
    assert [one.value for one in await forwarded(api, 1)] == [b"last"], "nothing came twice"


async def test_fenced_send_is_retried_in_a_newer_epoch(api: sandq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """This happens after a forced reset of a partition to an older state."""
    await topics(api)
    epochs: list[int] = []
    deliver = OutboxSender._deliver

    async def is_fenced_once(self: OutboxSender, *args: Any) -> None:
        epochs.append(args[3])
        if len(epochs) == 1:
            raise ProducerFenced("epoch 9 has begun")
        await deliver(self, *args)

    monkeypatch.setattr(OutboxSender, "_deliver", is_fenced_once)
    await bury(api, "a")
    (found,) = await forwarded(api, 1)
    assert found.value == b"a" and epochs[1] > epochs[0]
    await counts_are(api, {})


async def _letters(api: sandq.Client) -> list[sandq.DeadLetter]:
    return [letter async for letter in api.dead("orders", "g").list()]


async def test_clients_do_not_send_as_partitions(api: sandq.Client, client: RawClient) -> None:
    await api.admin.create_topic("t")
    batch = encode({Column.VALUE: [b"m"]})
    answer = await client.call(Type.PRODUCE, "t", 0, reserved_producer(7), 1, 1, 0, batch)
    assert (answer[0], answer[2]) == (Type.ERROR, "INVALID") and "is reserved for a partition" in answer[3]
