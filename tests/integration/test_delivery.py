"""Credit, several partitions and several consumers over a real connection: which consumer gets which messages."""

from __future__ import annotations

import trio

from sandq.node.running import Serving
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.raw_client import RawClient, values_of
from tests.support.waiting import PATIENCE_S


async def take(client: RawClient, count: int, *, ack: bool = True, credit: bool = True) -> list[bytes | None]:
    """Return the values of the next `count` pushed messages, and ack and renew the credit if asked to."""
    got: list[bytes | None] = []
    with trio.fail_after(PATIENCE_S):
        while len(got) < count:
            pushed = await client.push()
            values = values_of(pushed)
            got += values
            if ack:
                await client.ack(pushed)
            if credit:
                await client.send(Type.CREDIT, 0, 1, len(values))
    return got


async def test_messages_in_flight_are_limited_by_credit(client: RawClient) -> None:
    await client.create()
    await client.produce(*[b"%d" % n for n in range(10)])
    await client.subscribe(credit=4)
    assert await take(client, 4, credit=False) == [b"0", b"1", b"2", b"3"]
    # Another consumer with credit gets the next message. Without a limit, it would have been pushed already.
    await client.subscribe(number=2, consumer="d", credit=1)
    pushed = await client.push()
    assert (pushed[1], values_of(pushed)) == (2, [b"4"])
    await client.send(Type.CREDIT, 0, 1, 3)
    assert await take(client, 3, credit=False) == [b"5", b"6", b"7"]


async def test_credit_is_shared_by_all_partitions(client: RawClient) -> None:
    await client.call(Type.TOPIC_CREATE, "t", "timer", 8, 1, {})
    for partition in range(8):
        await client.produce(*[b"%d-%d" % (partition, n) for n in range(20)], partition=partition)
    await client.subscribe(credit=3)
    got = await take(client, 160)
    assert len(set(got)) == 160, "every partition must be served"


async def test_two_consumers_share_the_work(node: Serving, dial: Dial) -> None:
    one, two = await dial(node), await dial(node)
    await one.create()
    await one.subscribe(consumer="one", credit=1000)
    await two.subscribe(consumer="two", credit=1000)
    for start in range(0, 1000, 250):
        await one.produce(*[b"%d" % n for n in range(start, start + 250)])
    got: dict[str, set[bytes | None]] = {"one": set(), "two": set()}

    async def work(name: str, client: RawClient) -> None:
        while True:
            pushed = await client.push()
            got[name].update(values_of(pushed))
            await client.ack(pushed)
            if len(got["one"]) + len(got["two"]) == 1000:
                nursery.cancel_scope.cancel()

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work, "one", one)
            nursery.start_soon(work, "two", two)
    assert not got["one"] & got["two"]
    assert min(len(got["one"]), len(got["two"])) > 200


async def test_leaving_cleanly_gives_the_rest_to_the_others_at_once(node: Serving, dial: Dial) -> None:
    one, two = await dial(node), await dial(node)
    await one.create()
    await one.produce(b"a", b"b")
    await one.subscribe(consumer="one")
    await one.push()
    await two.subscribe(consumer="two")
    await one.call(Type.UNSUBSCRIBE, 1)
    with trio.fail_after(PATIENCE_S):
        pushed = await two.push()
    assert (values_of(pushed), pushed[5]) == ([b"a", b"b"], 1), "the attempt must not count"


async def test_a_consumer_that_vanishes_gives_its_messages_back_when_the_lease_ends(
    timed: Serving, hand: HandClock, dial: Dial
) -> None:
    one, two = await dial(timed), await dial(timed)
    await one.create(lease="10m", backoff={"kind": "none"})
    await one.produce(b"m")
    await one.subscribe(consumer="one")
    first = await one.push()
    await one.stream.aclose()
    await two.subscribe(consumer="two")
    hand.forward(601)
    with trio.fail_after(PATIENCE_S):
        again = await two.push()
    assert (values_of(again), again[5]) == ([b"m"], 2)
    assert again[4] > first[4], "tokens rise"
    assert (await two.call(Type.ACK, first[2], first[3], [[first[4], None]]))[2] == [[]], (
        "the old token must be refused"
    )


async def test_back_off_and_death_at_the_last_attempt(client: RawClient) -> None:
    await client.create(max_attempts=2, backoff={"kind": "fixed", "first": "50ms", "jitter_percent": 0})
    await client.produce(b"poison")
    await client.subscribe()
    for attempt in (1, 2):
        with trio.fail_after(PATIENCE_S):
            pushed = await client.push()
        assert pushed[5] == attempt
        answer = await client.call(Type.NACK, pushed[2], pushed[3], [[pushed[4], None, None, "no"]])
        assert answer[2] == [None]
        await client.send(Type.CREDIT, 0, 1, 1)
    groups = (await client.call(Type.GROUP_LIST, "t"))[2]
    assert (groups[0]["dead"], groups[0]["leased"], groups[0]["waiting"]) == (1, 0, 0)


async def test_message_acked_by_every_group_is_trimmed(client: RawClient) -> None:
    await client.create()
    await client.subscribe(number=1, group="g")
    await client.subscribe(number=2, group="h")
    await client.produce(b"m")
    for _ in range(2):
        await client.ack(await client.push())
    with trio.fail_after(PATIENCE_S):
        while (await client.call(Type.TOPIC_STATS, "t"))[2][0]["messages"]:
            await trio.lowlevel.checkpoint()
