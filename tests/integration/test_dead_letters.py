"""Messages that failed for the last time or expired: reasons, counts, redrives and purges."""

from __future__ import annotations

from typing import Any

import pytest

import sandq
from sandq.errors import InvalidRequest, UnknownGroup
from sandq.node.running import Serving
from tests.support.nodes.hand_clock import HandClock, Onward
from tests.support.nodes.working import connected, take, take_until, values, waits_until_trimmed, with_topic
from tests.support.waiting import until_answer

both_sizes = pytest.mark.parametrize("partitions", [1, 4])


async def bury(api: sandq.Client, count: int, *, group: str = "g", first: int = 0) -> list[str]:
    """Let messages of a group die by their last nack (max_attempts=1). Return their ids."""
    ids = []
    async with api.subscribe("t", group=group, credit=1000) as subscription:
        for number in range(first, first + count):
            ids.append(await api.produce("t", b"%d" % number, key=f"k{number}", headers={"n": number}))
        for message in await take(subscription, count, ack=False):
            message.nack(error=f"no {message.value.decode()}")
    return ids


async def counts_are(api: sandq.Client, expected: dict[str, int], group: str = "g") -> None:
    await until_answer(lambda: api.dead("t", group).counts(), lambda counts: counts == expected)


async def letters(api: sandq.Client, group: str = "g", **options: Any) -> list[sandq.DeadLetter]:
    return [letter async for letter in api.dead("t", group).list(**options)]


# -- how they die ---------------------------------------------------------------------------------------------------


async def test_dead_letter_has_its_history(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t", max_attempts=3, backoff={"kind": "none"})
    message_id = await api.produce("t", b"value", unique_key="u", headers={"a": 1})
    async with api.subscribe("t", group="g") as subscription:
        for attempt in (1, 2, 3):
            (message,) = await take(subscription, 1, ack=False)
            await message.nack(error=ValueError(f"bad {attempt}"))
    ((letter),) = await letters(api)
    assert (letter.id, letter.offset, letter.topic, letter.group) == (message_id, message_id, "t", "g")
    assert (letter.attempts, letter.reason, letter.error) == (3, "nacked", "ValueError: bad 3")
    assert (letter.value, letter.unique_key, letter.headers, letter.size) == (b"value", b"u", {"a": 1}, 5)
    assert letter.deliver_at_ms == sandq.offset_time_ms(message_id)
    assert [(one.attempt, one.outcome, one.error) for one in letter.history] == [
        (1, "nacked", "ValueError: bad 1"),
        (2, "nacked", "ValueError: bad 2"),
        (3, "nacked", "ValueError: bad 3"),
    ]
    for one in letter.history:
        assert letter.created_ms <= one.leased_ms <= one.ended_ms <= letter.dead_ms <= node.broker.clock.now_ms()
    assert letter.dead_ms == letter.history[-1].ended_ms
    assert [letter.value for letter in await letters(api, values=False)] == [None]
    told = await api.messages("t").why(message_id)
    (group,) = told["groups"]
    assert (told["state"], group["state"], group["attempt"], group["error"]) == ("dead", "dead", 3, "ValueError: bad 3")
    assert "redrive" in group["reason"]
    (row,) = await api.admin.groups("t")
    assert (row["dead"], row["dead_reasons"]) == (1, {"nacked": 1})
    assert (row["ready"], row["leased"], row["waiting"]) == (0, 0, 0)
    assert (await api.admin.stats("t"))[0]["dead"] == 1
    await waits_until_trimmed(api)
    assert await letters(api) == [letter], "the log must not keep the message"


async def test_each_reason(timed: Serving, hand: HandClock) -> None:
    """Messages die by a nack, by an expired lease, and by their ttl while ready or waiting."""
    async with connected(timed) as api, with_topic(api, max_attempts=1, backoff={"kind": "none"}):
        async with api.subscribe("t", group="g", lease="10m", auto_extend=False) as subscription:
            nacked, kept = await api.produce("t", b"nacked"), await api.produce("t", b"kept")
            for message in await take(subscription, 2, ack=False):
                if message.value == b"nacked":
                    await message.nack(error="no")
            hand.forward(601)
            await counts_are(api, {"nacked": 1, "lease_expired": 1})
        await api.admin.update_topic("t", max_attempts=5)
        ready = await api.produce("t", b"ready", ttl="5m", delay="4m")
        hand.forward(601)
        await counts_are(api, {"nacked": 1, "lease_expired": 1, "expired": 1})
        waiting = await api.produce("t", b"waiting", ttl="10m")
        async with api.subscribe("t", group="g") as subscription:
            (message,) = await take(subscription, 1, ack=False)
            assert message.value == b"waiting", "an expired message must not be delivered"
            await message.nack(delay="1h", error="later")
        told = await api.messages("t").why(waiting)
        assert told["state"] == "waiting"
        assert told["groups"][0]["reason"] == "its ttl passes before its next attempt: it dies then"
        hand.forward(601)
        await counts_are(api, {"nacked": 1, "lease_expired": 1, "expired": 2})
        found = {letter.id: letter for letter in await letters(api)}
        assert {id: (letter.reason, letter.attempts, letter.error) for id, letter in found.items()} == {
            nacked: ("nacked", 1, "no"),
            kept: ("lease_expired", 1, None),
            ready: ("expired", 0, None),
            waiting: ("expired", 1, "later"),
        }
        for message_id, ttl_ms in ((ready, 300_000), (waiting, 600_000)):
            letter = found[message_id]
            assert letter.dead_ms >= letter.deliver_at_ms + ttl_ms, "the message must not die early"
        for reason, expected in (("nacked", {nacked}), ("lease_expired", {kept}), ("expired", {ready, waiting})):
            assert {letter.id for letter in await letters(api, reason=reason)} == expected
        (row,) = await api.admin.groups("t")
        assert row["dead"] == 4
        with pytest.raises(InvalidRequest):
            await letters(api, reason="boredom")


async def test_a_held_message_outlives_its_ttl_until_it_comes_back(timed: Serving, hand: HandClock) -> None:
    async with connected(timed) as api, with_topic(api, ttl="10m", lease="1h"):
        message_id = await api.produce("t", b"m")
        async with api.subscribe("t", group="g") as subscription:
            (message,) = await take(subscription, 1, ack=False)
            hand.forward(601)
            await api.produce("t", b"second")
            (second,) = await take(subscription, 1, ack=False)
            assert await api.dead("t", "g").counts() == {}
            assert (await api.messages("t").get(message_id)).state == "leased"
            await message.nack(error="no")
            await counts_are(api, {"expired": 1})
            # A message may be acked after its ttl.
            hand.forward(601)
            await second.ack()
        (letter,) = await letters(api)
        assert (letter.id, letter.reason, letter.attempts) == (message_id, "expired", 1)


async def test_a_message_without_a_group_does_not_die(api: sandq.Client) -> None:
    """A message dies in a group; without a group it does not die."""
    await api.admin.create_topic("t")
    message_id = await api.produce("t", b"m", ttl="1ms")
    assert (await api.messages("t").get(message_id)).ttl_ms == 1
    async with api.subscribe("t", group="g"):
        await counts_are(api, {"expired": 1})
    assert (await api.messages("t").get(message_id)).state == "dead"


async def test_ttl_set_later_expires_stored_messages(api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=2)
    async with api.subscribe("t", group="g"):
        pass
    own = await api.produce("t", b"own", ttl="1h", partition=0)
    plain = await api.produce("t", b"plain", partition=0)
    await counts_are(api, {})
    await api.admin.update_topic("t", ttl="10ms")
    await api.messages("t").cancel(own)
    await counts_are(api, {"expired": 1})
    assert [letter.id for letter in await letters(api)] == [plain]


# -- what becomes of them -------------------------------------------------------------------------------------------


@both_sizes
async def test_letters_are_listed_in_the_order_of_delivery(api: sandq.Client, partitions: int) -> None:
    await api.admin.create_topic("t", partitions=partitions, max_attempts=1)
    ids = await bury(api, 40)
    found = await letters(api)
    assert [letter.id for letter in found] == sorted(ids)
    assert {letter.error for letter in found} == {f"no {number}" for number in range(40)}
    assert len({letter.partition for letter in found}) == partitions
    assert [letter.id for letter in await letters(api, limit=7)] == sorted(ids)[:7]
    assert await letters(api, limit=0) == []
    with pytest.raises(UnknownGroup):
        await letters(api, "nobody")
    with pytest.raises(UnknownGroup):
        await api.dead("t", "nobody").counts()


@both_sizes
async def test_redriving_gives_them_all_attempts_again(api: sandq.Client, partitions: int) -> None:
    await api.admin.create_topic("t", partitions=partitions, max_attempts=1)
    ids = await bury(api, 30)
    dead = api.dead("t", "g")
    assert await dead.redrive(dry_run=True) == (30, 0, 0)
    assert await dead.counts() == {"nacked": 30}
    told: list[sandq.JobResult] = []
    assert await dead.redrive(progress=told.append) == (30, 30, 0)
    assert (told[-1], await dead.counts(), await letters(api)) == ((30, 30, 0), {}, [])
    rows = await api.admin.groups("t")
    assert (sum(row["ready"] for row in rows), sum(row["dead"] for row in rows)) == (30, 0)
    async with api.subscribe("t", group="g", credit=1000) as subscription:
        got = await take(subscription, 30, ack=False)
        assert {message.id for message in got} == set(ids)
        assert {message.attempt for message in got} == {1}
        assert {(message.value, message.key, message.headers["n"]) for message in got} == {
            (b"%d" % number, b"k%d" % number, number) for number in range(30)
        }
        for message in got[:10]:
            message.nack(error="again")
        for message in got[10:]:
            message.ack()
    assert await dead.counts() == {"nacked": 10}
    assert await dead.redrive() == (10, 10, 0)
    async with api.subscribe("t", group="g", credit=1000) as subscription:
        assert {message.id for message in await take(subscription, 10)} == {message.id for message in got[:10]}
        await api.produce("t", b"last")
        assert await take_until(subscription, b"last") == []


async def test_redriving_one_reason_and_one_time(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t", max_attempts=1)
    early = await bury(api, 5)
    (newest,) = {max(letter.dead_ms for letter in await letters(api))}

    async def now() -> int:
        return node.broker.clock.now_ms()

    await until_answer(now, lambda now_ms: now_ms > newest)
    late = await bury(api, 4, first=5)
    await api.produce("t", b"short", ttl="1ms")
    await counts_are(api, {"nacked": 9, "expired": 1})
    dead = api.dead("t", "g")
    assert await dead.redrive(reason="nacked", until=newest + 1, dry_run=True) == (5, 0, 0)
    assert await dead.redrive(reason="nacked", since=newest + 1) == (4, 4, 0)
    assert {letter.id for letter in await letters(api, reason="nacked")} == set(early)
    assert await dead.redrive(reason="expired") == (1, 1, 0)
    async with api.subscribe("t", group="g", credit=100) as subscription:
        got = await take(subscription, 5)
    assert {message.id for message in got if message.value != b"short"} == set(late)
    assert b"short" in values(got), "the expired ttl no longer applies"


async def test_redriving_at_a_rate(timed: Serving, hand: HandClock) -> None:
    hand.hold()
    async with connected(timed) as api, with_topic(api, max_attempts=1):
        ids = await bury(api, 21)
        onward = Onward(hand, 0.25)

        def progress(result: sandq.JobResult) -> None:
            onward.saw(result.done)

        begun_ms = hand.now_ms()
        assert await api.dead("t", "g").redrive(rate=20, progress=progress) == (21, 21, 0)
        assert hand.now_ms() - begun_ms >= 1000, "the rate is twenty per second after the first message"
        assert onward.different > 3, "bit by bit"
        async with api.subscribe("t", group="g", credit=100) as subscription:
            assert {message.id for message in await take(subscription, 21)} == set(ids)


@both_sizes
async def test_purging_forgets_them(api: sandq.Client, partitions: int) -> None:
    await api.admin.create_topic("t", partitions=partitions, max_attempts=1)
    # subscribe before the first group has finished: messages that no group needs are trimmed
    await bury(api, 0, group="other")
    ids = await bury(api, 20)
    dead = api.dead("t", "g")
    assert await dead.purge(reason="expired") == (0, 0, 0)
    assert await dead.purge(dry_run=True) == (20, 0, 0)
    assert await dead.counts() == {"nacked": 20}
    assert await dead.purge() == (20, 20, 0)
    assert (await dead.counts(), await letters(api)) == ({}, [])
    assert sum(row["dead"] for row in await api.admin.stats("t")) == 0
    # A redrive does not bring purged letters back, and the other group still gets all messages.
    assert await dead.redrive() == (0, 0, 0)
    async with api.subscribe("t", group="other", credit=100) as subscription:
        assert {message.id for message in await take(subscription, 20)} == set(ids)


async def test_dead_letter_of_one_group_is_delivered_to_another_group(api: sandq.Client) -> None:
    await api.admin.create_topic("t", max_attempts=1)
    for group in ("g", "h"):
        await bury(api, 0, group=group)
    ids = await bury(api, 3)
    assert (await api.messages("t").get(ids[0])).state == "dead"
    async with api.subscribe("t", group="h") as subscription:
        got = await take(subscription, 3, ack=False)
        assert (await api.messages("t").get(ids[0])).state == "leased"
        for message in got:
            await message.ack()
    await waits_until_trimmed(api)
    assert await api.dead("t", "h").counts() == {}
    assert await api.dead("t", "g").redrive() == (3, 3, 0)
    async with api.subscribe("t", group="g") as subscription:
        assert {message.id for message in await take(subscription, 3)} == set(ids)


@both_sizes
async def test_redriving_and_purging_those_that_are_named(api: sandq.Client, partitions: int) -> None:
    await api.admin.create_topic("t", partitions=partitions, max_attempts=1)
    ids = await bury(api, 30)
    nobody = sandq.offset_text(sandq.offset_bytes(ids[0])[:6] + b"\x00" * 8 + sandq.offset_bytes(ids[0])[14:])
    dead = api.dead("t", "g")
    assert await dead.redrive_ids([*ids[:10], nobody]) == [
        *[(one, "redriven", None) for one in ids[:10]],
        (nobody, "not_found", None),
    ]
    assert await dead.redrive_ids(ids[:1]) == [(ids[0], "not_dead", "ready")], "once more"
    assert await dead.purge_ids(ids[10:20]) == [(one, "purged", None) for one in ids[10:20]]
    assert await dead.purge_ids(ids[10:11]) == [(ids[10], "not_found", None)]
    assert {letter.id for letter in await letters(api)} == set(ids[20:])
    async with api.subscribe("t", group="g", credit=100) as subscription:
        got = await take(subscription, 10, ack=False)
        assert {message.id for message in got} == set(ids[:10])
        assert await dead.purge_ids(ids[:1]) == [(ids[0], "not_dead", "leased")]
        for message in got:
            await message.ack()
    assert await dead.redrive_ids(ids[:1]) == [(ids[0], "not_found", None)]
    with pytest.raises(UnknownGroup):
        await api.dead("t", "nobody").redrive_ids(ids)
    with pytest.raises(InvalidRequest):
        await dead.redrive_ids(["nonsense"])


async def test_large_letters_that_are_named_come_a_part_at_a_time(api: sandq.Client) -> None:
    """One log entry handles 8 MiB of dead letters, so the rest needs another request."""
    await api.admin.create_topic("t", max_attempts=1)
    ids = [await api.produce("t", bytes(3 << 20)) for _ in range(5)]
    async with api.subscribe("t", group="g") as subscription:
        for message in await take(subscription, 5, ack=False):
            await message.nack()
    assert await api.dead("t", "g").purge_ids(ids) == [(one, "purged", None) for one in ids]


@both_sizes
async def test_letters_are_chosen_by_error_and_key(api: sandq.Client, partitions: int) -> None:
    await api.admin.create_topic("t", partitions=partitions, max_attempts=1)
    ids = await bury(api, 20)
    dead = api.dead("t", "g")
    assert {letter.id for letter in await letters(api, error="no 1")} == {ids[1], *ids[10:20]}
    assert {letter.id for letter in await letters(api, error="no 1", key_prefix="k15")} == {ids[15]}
    assert await letters(api, error="NO 1") == [], "case counts"
    newest = max(letter.dead_ms for letter in await letters(api))
    assert await letters(api, since=newest + 1, error="no") == []
    assert len(await letters(api, until=newest + 1, error="no")) == 20
    assert await dead.redrive(error="no 1", key_prefix="k1", reason="expired") == (0, 0, 0)
    assert await dead.redrive(error="no 1", key_prefix="k15") == (1, 1, 0)
    assert await dead.purge(key_prefix="k1", dry_run=True) == (10, 0, 0)
    assert await dead.purge(error="no 1") == (10, 10, 0)
    assert {letter.id for letter in await letters(api)} == {ids[0], *ids[2:10]}
    with pytest.raises(InvalidRequest):
        await letters(api, error="")


async def test_history_before_a_redrive_is_shown(api: sandq.Client) -> None:
    await api.admin.create_topic("t", max_attempts=2, backoff={"kind": "none"})
    message_id = await api.produce("t", b"m", unique_key="u")
    async with api.subscribe("t", group="g") as subscription:

        async def fail(error: str) -> int:
            (message,) = await take(subscription, 1, ack=False)
            await message.nack(error=error)
            return message.attempt

        assert [await fail("e1"), await fail("e2")] == [1, 2]
        ((first),) = await letters(api)
        assert (first.life, first.lives, first.unique_key) == (1, [], b"u")
        assert await api.dead("t", "g").redrive_ids([message_id]) == [(message_id, "redriven", None)]
        assert await fail("e3") == 1, "attempts count anew"
        (group,) = (await api.messages("t").why(message_id))["groups"]
        assert [(row[0], row[5]) for row in group["history"]] == [(1, "e1"), (2, "e2"), (1, "e3")]
        (life,) = group["lives"]
        assert (life.life, life.attempts, life.reason, life.error) == (1, 2, "nacked", "e2")
        assert life.dead_ms == first.dead_ms <= life.redriven_ms
        assert await fail("e4") == 2
    ((second),) = await letters(api)
    assert (second.life, second.attempts, second.error, second.lives) == (2, 2, "e4", [life])
    assert [one.error for one in second.history] == ["e1", "e2", "e3", "e4"]
    assert [one.error for one in second.lives[0].history] == ["e1", "e2"]
    await waits_until_trimmed(api)
    assert await letters(api) == [second]
