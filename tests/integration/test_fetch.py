"""Reading a partition's log without a lease: pages, ends, the closed time, trimmed messages."""

from __future__ import annotations

from typing import Any

import pytest

import sandq
from sandq.errors import InvalidRequest, UnknownPartition, UnknownTopic
from sandq.model import offsets
from sandq.model.batch import Batch
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from tests.support.nodes.raw_client import Frame, RawClient
from tests.support.nodes.working import take
from tests.support.waiting import until_answer


async def fetched(api: sandq.Client, *args: Any, **options: Any) -> list[sandq.FetchedMessage]:
    return [message async for message in api.fetch("t", *args, **options)]


async def fill(api: sandq.Client, count: int) -> list[str]:
    async with api.producer("t") as producer:
        receipts = [await producer.send(b"%d" % number, headers={"n": number}) for number in range(count)]
        return [await receipt for receipt in receipts]


async def closed_beyond(api: sandq.Client, *ids: str) -> None:
    """Wait until readers may see all these messages. Reads advance the closed time of a partition."""
    last_ms = max(map(sandq.offset_time_ms, ids))

    async def closed_ms() -> int:
        rows = await api.admin.stats("t")
        for row in rows:
            _ = [message async for message in api.fetch("t", row["partition"], limit=1)]
        return min(int(row["now_ms"]) for row in rows)

    await until_answer(closed_ms, lambda closed: closed > last_ms)


async def raw_fetch(
    client: RawClient, start: bytes = offsets.FIRST, end: bytes | None = None, messages: int = 1000, size: int = 1 << 20
) -> tuple[bytes | None, int, list[tuple[bytes, bytes | None]]]:
    """Return the next offset, the closed time in ms, and (offset, value) of each message."""
    reply: Frame = await client.call(Type.FETCH, "t", 0, start, end, messages, size, False)
    assert reply[0] == Type.REPLY, reply
    found: list[tuple[bytes, bytes | None]] = []
    for at in range(6, len(reply), 5):
        column, _, _, live, raw = reply[at : at + 5]
        batch_values = Batch.parse(raw).values()
        count = len(batch_values)
        places = offsets.run(column, count) if len(column) == 16 else [column[n * 16 :][:16] for n in range(count)]
        chosen = range(count) if live is None else [n for first, length in live for n in range(first, first + length)]
        found += [(places[position], batch_values[position]) for position in chosen]
    return reply[2], reply[3], found


async def test_a_partition_from_its_beginning_to_its_end(api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=2)
    ids = await fill(api, 12_000)
    await closed_beyond(api, *ids)
    got = await fetched(api, 0) + await fetched(api, 1)
    assert {message.id: message.value for message in got} == {id: b"%d" % number for number, id in enumerate(ids)}
    for partition in (0, 1):
        mine = await fetched(api, partition)
        assert [message.offset for message in mine] == sorted(message.offset for message in mine)
        assert {message.partition for message in mine} == {partition}
    message = got[0]
    assert message.headers == {"n": int(message.value)}
    assert message.deliver_at_ms == sandq.offset_time_ms(message.offset)
    assert message.created_ms <= message.deliver_at_ms
    assert [message.id for message in await fetched(api, 0, limit=3)] == [message.id for message in got[:3]]
    # Fetching leases nothing: a group still gets all messages.
    async with api.subscribe("t", group="g", credit=1000) as subscription:
        assert len(await take(subscription, 50)) == 50


async def test_pages_of_any_size_give_the_same(api: sandq.Client, client: RawClient) -> None:
    await api.admin.create_topic("t")
    ids = [sandq.offset_bytes(offset) for offset in await fill(api, 500)]
    late = [sandq.offset_bytes(await api.produce("t", b"x" * 3000, delay=0.001)) for _ in range(20)]
    await closed_beyond(api, *map(sandq.offset_text, ids + late))
    whole = (await raw_fetch(client, messages=10_000, size=1 << 24))[2]
    # A delayed message is returned among the others or after them, in the order of offsets.
    assert [offset for offset, _ in whole] == sorted(ids + late)
    for messages, size in ((1, 1 << 20), (7, 1 << 20), (1000, 1), (1000, 5000)):
        got: list[tuple[bytes, bytes | None]] = []
        following: bytes | None = offsets.FIRST
        while following is not None:
            following, _, page = await raw_fetch(client, following, None, messages, size)
            assert len(page) <= messages
            got += page
        assert got == whole, (messages, size)


async def test_a_start_and_an_end(node: Serving, api: sandq.Client, client: RawClient) -> None:
    await api.admin.create_topic("t")
    ids = []
    for number in range(10):
        ids.append(await api.produce("t", b"%d" % number))
        reached_ms = sandq.offset_time_ms(ids[-1])
        # type: ignore[misc]
        await until_answer(lambda: now_of(node), lambda now_ms, reached_ms=reached_ms: now_ms > reached_ms)
    await closed_beyond(api, *ids)
    times = [sandq.offset_time_ms(offset) for offset in ids]

    async def found(*bounds: Any, **options: Any) -> list[str]:
        return [message.id for message in await fetched(api, 0, *bounds, **options)]

    assert await found(ids[3]) == ids[3:]
    assert await found(ids[3], ids[7]) == ids[3:7], "the end offset is excluded"
    assert await found(None, ids[4]) == ids[:4]
    assert await found(times[2], times[5]) == ids[2:5]
    assert await found(times[2] + 1, ids[5]) == ids[3:5]
    assert await found(ids[9]) == ids[9:]
    assert await found(ids[5], ids[5]) == []
    assert await found(ids[5], ids[2]) == []
    assert await found(times[9] + 1) == []
    assert await found(ids[2], ids[8], limit=3) == ids[2:5]
    following, _, page = await raw_fetch(client, end=sandq.offset_bytes(ids[3]))
    assert (following, len(page)) == (None, 3), "the reader must know that the end is reached"
    for partition in (1, 99):
        with pytest.raises(UnknownPartition):
            await fetched(api, partition)
    with pytest.raises(InvalidRequest):
        await fetched(api, -1)
    with pytest.raises(UnknownTopic):
        [message async for message in api.fetch("nothing", 0)]


async def now_of(node: Serving) -> int:
    return node.broker.clock.now_ms()


async def test_fetch_can_begin_and_end_within_a_batch(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    async with api.producer("t") as producer:
        receipts = await producer.send_many([b"%d" % number for number in range(100)])
    ids = await receipts
    await closed_beyond(api, *ids)
    for first, last in ((0, 100), (1, 99), (50, 51), (99, 100), (0, 1)):
        end = ids[last] if last < 100 else None
        assert [message.id for message in await fetched(api, 0, ids[first], end)] == ids[first:last]


async def test_fetch_ends_at_the_closed_time(node: Serving, api: sandq.Client, client: RawClient) -> None:
    await api.admin.create_topic("t")
    ready = await api.produce("t", b"ready")
    due_ms = node.broker.clock.now_ms() + 300
    pending = await api.produce("t", b"pending", deliver_at=due_ms)
    following, closed_ms, page = await raw_fetch(client)
    while True:
        assert closed_ms <= node.broker.clock.now_ms() + 1
        closed = [offset for offset in (ready, pending) if sandq.offset_time_ms(offset) < closed_ms]
        assert [sandq.offset_text(offset) for offset, _ in page] == closed
        if len(page) == 2:
            break
        before_ms = closed_ms
        following, closed_ms, page = await raw_fetch(client)
        assert closed_ms >= before_ms, "the closed time never decreases"
    assert closed_ms > due_ms
    assert following is None or following > sandq.offset_bytes(pending)


async def test_closed_time_of_idle_partition_advances(node: Serving, api: sandq.Client, client: RawClient) -> None:
    """Without writes, a reader still learns that no message will appear before its clock. It needs few log entries."""
    await api.admin.create_topic("t")
    begun_ms = node.broker.clock.now_ms()
    first_index = (await api.admin.stats("t"))[0]["applied_index"]
    reads = 0
    closed: list[int] = []
    while not closed or closed[-1] < begun_ms + 500:
        closed.append((await raw_fetch(client))[1])
        reads += 1
    assert closed == sorted(closed)
    assert closed[-1] <= node.broker.clock.now_ms()
    entries = (await api.admin.stats("t"))[0]["applied_index"] - first_index
    passed_ms = node.broker.clock.now_ms() - begun_ms
    assert entries <= passed_ms / 100 + 2, "at most one entry per 100 ms"
    # Nothing is inserted at a closed time.
    late = await api.produce("t", b"late", deliver_at=begun_ms - 10_000)
    assert sandq.offset_time_ms(late) >= closed[-1]


async def test_cancelled_and_moved_messages_are_not_fetched(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    messages = api.messages("t")
    ids = await fill(api, 50)
    single = [await api.produce("t", b"single", unique_key=f"u{number}") for number in range(6)]
    for message_id in (*ids[:3], *ids[10:20:3], ids[49], single[0], single[5]):
        await messages.cancel(message_id)
    moved = {ids[30]: await messages.move(ids[30], delay=0), single[2]: await messages.move(single[2], delay=0)}
    await messages.move(ids[31], delay="1h")
    gone = {*ids[:3], *ids[10:20:3], ids[49], single[0], single[5], ids[31]}
    last = await api.produce("t", b"last")
    await closed_beyond(api, last)
    got = await fetched(api, 0)
    left = [message_id for message_id in ids + single if message_id not in gone and message_id not in moved]
    assert [message.id for message in got] == [*left, *moved, last]
    assert {message.id: message.offset for message in got if message.id in moved} == moved
    # Start and end offsets may name messages that no longer exist.
    assert [message.id for message in await fetched(api, 0, ids[1], ids[4])] == [ids[3]]
    assert [message.id for message in await fetched(api, 0, ids[10], ids[13])] == [ids[11], ids[12]]


async def test_pending_messages_are_fetched_on_request(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    ids = await fill(api, 100)
    later = [await api.produce("t", b"later", delay="1h") for _ in range(3)]
    await closed_beyond(api, *ids)
    assert [message.id for message in await fetched(api, 0)] == ids
    assert [message.id for message in await fetched(api, 0, pending=True)] == [*ids, *later]
    await api.messages("t").cancel(later[1])
    assert [message.id for message in await fetched(api, 0, later[0], pending=True)] == [later[0], later[2]]
    page = await api.page("t", 0, later[0], pending=True)
    assert page.number == (await api.admin.topic("t")).number and page.trimmed == offsets.FIRST


async def test_a_stretch_is_measured(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    ids = await fill(api, 3000)
    await api.produce("t", b"later", delay="1h")
    await closed_beyond(api, *ids)
    whole = await api.measure("t", 0)
    assert (whole.first, whole.next, whole.messages) == (sandq.offset_bytes(min(ids)), None, 3000)
    assert (await api.measure("t", 0, pending=True)).messages == 3001
    part = await api.measure("t", 0, limit=1000)
    assert part.next is not None and part.messages == 1000
    assert len(await fetched(api, 0, None, sandq.offset_text(part.next))) == 1000
    rest = await api.measure("t", 0, sandq.offset_text(part.next), limit=2000)
    assert rest.next is None or len(await fetched(api, 0, sandq.offset_text(rest.next))) < 2000
    with pytest.raises(UnknownPartition):
        await api.measure("t", 1)
    with pytest.raises(UnknownTopic):
        await api.page("none", 0)
    with pytest.raises(InvalidRequest):
        await api.measure("t", 0, limit=-1)
