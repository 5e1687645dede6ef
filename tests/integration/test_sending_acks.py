"""Acks that send messages, through real nodes."""

from __future__ import annotations

from typing import Any

import pytest

import sandq
from sandq.broker.delivery import sending_acks
from sandq.broker.delivery.outbox_sender import OutboxSender
from sandq.errors import Conflict, InvalidRequest, LeaseLost, TooLarge, Unavailable, UnknownTopic
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.hostile_rows import NO_HEADERS
from tests.support.nodes.working import take
from tests.support.waiting import until_answer


async def topics(api: sandq.Client, partitions: int = 1) -> None:
    await api.admin.create_topic("steps", partitions=partitions, backoff={"kind": "none"})
    await api.admin.create_topic("next", partitions=3)


async def values_of(api: sandq.Client, topic: str, count: int, group: str = "all") -> list[str]:
    async with api.subscribe(topic, group=group, credit=1000) as subscription:
        return sorted([one.value.decode() for one in await take(subscription, count)])


async def test_ack_and_its_messages_are_atomic(api: sandq.Client) -> None:
    await topics(api, partitions=2)
    for at in range(6):
        await api.produce("steps", f"m{at}", key=f"k{at}")
    async with api.subscribe("steps", group="g", credit=100) as subscription:
        for message in await take(subscription, 6, ack=False):
            name = message.value.decode()
            await message.ack(
                then=[
                    sandq.Outgoing(f"{name}-next", "next", key=message.key, headers={"from": name}),
                    sandq.Outgoing(f"{name}-own", headers={"from": name}),
                    sandq.Outgoing(f"{name}-other", "steps", key=f"{name}-else"),
                ]
            )
        own = sorted([one.value.decode() for one in await take(subscription, 12)])
    assert own == sorted([f"m{at}-{what}" for at in range(6) for what in ("own", "other")])
    assert await values_of(api, "next", 6) == [f"m{at}-next" for at in range(6)]


async def test_sent_messages_have_their_times_and_fields(api: sandq.Client) -> None:
    await topics(api)
    await api.admin.create_topic("fair", kind="fair", partitions=2)
    await api.produce("steps", b"m")
    async with api.subscribe("steps", group="g") as subscription:
        (message,) = await take(subscription, 1, ack=False)
        await message.ack(
            then=[
                sandq.Outgoing(b"later", delay="1h"),
                sandq.Outgoing(b"far", "next", key="k", delay="1h", ttl="5m"),
                sandq.Outgoing(b"ranked", "fair", tenant="acme", priority=7),
            ]
        )
    (own,) = await until_answer(lambda: _pending(api, "steps"), lambda found: len(found) == 1)
    (far,) = await until_answer(lambda: _pending(api, "next"), lambda found: len(found) == 1)
    assert own.deliver_at_ms == far.deliver_at_ms, "both delays must count from the ack"
    assert (far.key, far.ttl_ms) == (b"k", 300_000)
    async with api.subscribe("fair", group="g") as subscription:
        (ranked,) = await take(subscription, 1)
    assert (ranked.tenant, ranked.priority) == ("acme", 7)


async def _pending(api: sandq.Client, topic: str) -> list[sandq.StoredMessage]:
    return [one async for one in api.messages(topic).list(state="delayed")]


async def test_refused_ack_settles_nothing(api: sandq.Client) -> None:
    await topics(api)
    await api.produce("steps", b"m")
    leases = api.leases("steps", "g")
    (message,) = await leases.take(1, wait="5s")
    for wrong, kind in (
        ([sandq.Outgoing(b"x", "nowhere")], UnknownTopic),
        ([sandq.Outgoing(b"x"), sandq.Outgoing(b"x", priority=1)], InvalidRequest),
        ([sandq.Outgoing(b"x", tenant="acme")], InvalidRequest),
        ([sandq.Outgoing(b"x" * 700_000)] * 2, TooLarge),
        ([sandq.Outgoing(b"x")] * 101, InvalidRequest),
        ([b"x"], InvalidRequest),
    ):
        with pytest.raises(kind):
            await leases.ack([message], then=wrong)
    with pytest.raises(InvalidRequest, match="these have 2"):
        await leases.ack([message, ("1.0.65536", None)], then=[sandq.Outgoing(b"x")])
    assert await leases.nack([message]) == [], "the message must still be held"
    (again,) = await leases.take(1, wait="5s")
    assert await leases.ack([again], then=[sandq.Outgoing(b"y")]) == []
    assert await leases.ack([again], then=[sandq.Outgoing(b"y")]) == [], (
        "the ack may be repeated, because its reply may be lost"
    )
    (only,) = await leases.take(10, wait="5s")
    assert only.value == b"y"
    await leases.nack([only])
    assert await leases.ack([only], then=[sandq.Outgoing(b"z")]) == [only.held]
    (only,) = await leases.take(10, wait="5s")
    assert await leases.ack([only]) == []
    with pytest.raises(Conflict, match="by an ack that sent nothing, and nothing is sent now"):
        await leases.ack([only], then=[sandq.Outgoing(b"z")])


async def test_a_lease_that_is_lost_sends_nothing(api: sandq.Client) -> None:
    await topics(api)
    await api.produce("steps", b"m")
    async with api.subscribe("steps", group="g") as subscription:
        (message,) = await take(subscription, 1, ack=False)
        await api.admin.seek_group("steps", "g", "earliest")
        with pytest.raises(LeaseLost):
            await message.ack(then=[sandq.Outgoing(b"no")])
        (again,) = await take(subscription, 1, ack=False)
        await again.ack()
        with pytest.raises(InvalidRequest, match="settled before"):
            again.ack(then=[sandq.Outgoing(b"no")])
        await api.produce("steps", b"last")
        assert [one.value for one in await take(subscription, 1)] == [b"last"]


async def test_message_that_cannot_be_sent_becomes_a_dead_letter(
    api: sandq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    await topics(api)
    await api.produce("steps", b"m")

    async def is_cut_off(*args: Any) -> None:
        raise Unavailable("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(OutboxSender, "_deliver", is_cut_off)
        leases = api.leases("steps", "g")
        (message,) = await leases.take(1, wait="5s")
        await leases.ack([message], then=[sandq.Outgoing(b"lost?", "next", key="k")])
        (row,) = await until_answer(lambda: api.admin.stats("steps"), lambda rows: bool(rows[0].get("outbox_stuck")))
        (stuck,) = row["outbox_stuck"]
        assert (row["outbox"], stuck["topic"], stuck["error"]) == (1, "next", "cut off") and stuck["tries"] >= 1
        await api.admin.delete_topic("next")
    dead = api.dead("steps", "g")
    await until_answer(dead.counts, lambda counts: counts == {"undeliverable": 1})
    assert "outbox" not in (await api.admin.stats("steps"))[0]
    (letter,) = [one async for one in dead.list(reason="undeliverable")]
    assert (letter.value, letter.key, letter.error) == (
        b"lost?",
        b"k",
        "its target topic was deleted",
    )
    await api.admin.seek_group("steps", "g", "earliest")
    await dead.redrive()
    await until_answer(dead.counts, lambda counts: counts == {"undeliverable": 1})
    await dead.purge()
    assert await dead.counts() == {}


async def test_batch_ack_and_its_messages_are_atomic(api: sandq.Client) -> None:
    await topics(api)
    leases = api.leases("steps", "h")
    assert await leases.take(1) == []  # creates the group, for which messages are kept from now on
    await api.produce_many("steps", [b"a", b"b", b"c"])
    async with api.subscribe("steps", group="g") as subscription:
        batches = subscription.batches()
        batch = await batches.__anext__()
        assert len(batch) == 3
        with pytest.raises(UnknownTopic):
            await batch.ack(then=[sandq.Outgoing(b"x", "nowhere")])
        await batch.messages[1].nack(delay="1h")
        await batch.ack(then=[sandq.Outgoing(b"both", "next"), sandq.Outgoing(b"own", "steps")])
        own = await batches.__anext__()
        assert own.values == [b"own"]
        await api.produce("steps", b"lost")
        both = await batches.__anext__()
        await api.admin.seek_group("steps", "g", "latest")
        with pytest.raises(LeaseLost):
            await both.ack(then=[sandq.Outgoing(b"never", "next")])
    await api.produce("next", b"last")
    assert await values_of(api, "next", 2) == ["both", "last"]
    taken = await leases.take(10, wait="5s")
    assert len(taken) > 1 and len({one.lease_token for one in taken}) == 1
    assert await leases.nack(taken[:1]) == []
    assert await leases.ack(taken, then=[sandq.Outgoing(b"no", "next")]) == [taken[0].held]
    assert await leases.ack(taken[1:], then=[sandq.Outgoing(b"rest", "next")]) == []
    assert await values_of(api, "next", 3, group="again") == ["both", "last", "rest"]


async def test_an_outbox_of_an_earlier_version_sends_headers_of_any_form(
    node: Serving, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target topic does not check these messages again: a refusal would lose acknowledged messages."""
    raw = await dial(node)
    for topic in ("t", "other"):
        await raw.create(topic)
    await raw.produce(b"x")
    await raw.subscribe()
    pushed = await raw.push()
    monkeypatch.setattr(sending_acks, "_check", lambda *arguments: None)
    cells = [*NO_HEADERS.values()]
    sent = [["other", None, False, {"value": b"%d" % at, "headers": cell}] for at, cell in enumerate(cells)]
    assert (await raw.call(Type.ACK_THEN, *pushed[2:5], None, sent))[:1] == [Type.REPLY]

    async def stored() -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = (await raw.call(Type.LIST, "other", 0, None, 0, 2**48 - 1, None, 100, None, True))[
            2
        ]
        return rows

    rows = await until_answer(stored, lambda rows: len(rows) == len(cells))
    assert {row["value"]: row["headers"] for row in rows} == {b"%d" % at: cell for at, cell in enumerate(cells)}


async def test_nack_sends_messages_once_the_message_is_dead(api: sandq.Client) -> None:
    await topics(api)
    await api.admin.update_topic("steps", max_attempts=2)
    for value in (b"a", b"b"):
        await api.produce("steps", value)
    leases, note = api.leases("steps", "g"), sandq.Outgoing(b"dead", "next")
    async with api.subscribe("steps", group="g") as subscription:
        for message in await take(subscription, 2, ack=False):
            if message.value == b"a":
                with pytest.raises(UnknownTopic):
                    await message.dead("gone", then=[sandq.Outgoing(b"x", "nowhere")])
                assert message.is_held
                await message.dead("gone", then=[note, sandq.Outgoing(b"own", delay="1h")])
            else:
                await message.nack(error="busy", if_dead=[sandq.Outgoing(b"last", "next")])
    letters = [letter async for letter in api.dead("steps", "g").list()]
    assert [(letter.reason, letter.error) for letter in letters] == [("rejected", "gone")]
    assert len(await _pending(api, "steps")) == 1 and await values_of(api, "next", 1) == ["dead"]
    (again,) = await leases.take(5, wait="5s")
    assert (again.value, again.attempt) == (b"b", 2)
    assert await leases.nack([again], error="busy", if_dead=[sandq.Outgoing(b"last", "next")]) == []
    assert await values_of(api, "next", 1) == ["last"]
    assert (await api.dead("steps", "g").counts()) == {"rejected": 1, "nacked": 1}


async def test_repeated_rejection_sends_nothing_again(api: sandq.Client) -> None:
    await topics(api)
    await api.produce("steps", b"m")
    leases = api.leases("steps", "g")
    (message,) = await leases.take(1, wait="5s")
    for _ in range(3):
        assert await leases.dead([message], then=[sandq.Outgoing(b"once", "next")]) == []
    assert await leases.ack([message]) == [message.held]
    await api.produce("next", b"zzz")
    assert await values_of(api, "next", 2) == ["once", "zzz"]
