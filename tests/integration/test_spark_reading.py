"""Tasks of the Spark source read from a real node: every message once, for any division into tasks."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import trio

import sandq
from sandq.errors import ConnectionLost, Unavailable, UnknownTopic
from sandq.model import offsets
from sandq.model.headers import headers_pack
from sandq.node.running import Serving
from sandq.spark.source.columns import schema
from sandq.spark.source.latest import LatestTask, read_latest
from sandq.spark.source.options import Extra
from sandq.spark.source.planning import Range, Task, plan
from sandq.spark.source.reading import read_task
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, until_answer

PARTITIONS = 3


async def ranges_of(api: sandq.Client, *ids: str) -> list[Range]:
    """Wait until these messages are closed; return the closed range of each partition of "t"."""
    last_ms = max(map(sandq.offset_time_ms, ids))

    async def closed() -> dict[int, int]:
        rows = await api.admin.stats("t")
        for row in rows:
            _ = [message async for message in api.fetch("t", row["partition"], limit=1)]
        return {row["partition"]: row["now_ms"] for row in rows}

    closed_ms = await until_answer(closed, lambda found: min(found.values()) > last_ms)
    number = (await api.admin.topic("t")).number
    ranges = []
    for partition, ms in closed_ms.items():
        first = [message async for message in api.fetch("t", partition, limit=1)]
        start = sandq.offset_bytes(first[0].offset) if first else offsets.FIRST
        ranges.append(Range("t", number, partition, start, offsets.pack(ms, 0, 0, 0)))
    return ranges


async def read(node: Serving, task: Task, **options: Any) -> list[dict[str, Any]]:
    """Return the rows of a task, read in a thread as in a Spark worker."""
    servers = (f"127.0.0.1:{node.client_port}",)

    def rows() -> list[dict[str, Any]]:
        found = []
        for batch in read_task(task, servers, **options):
            assert batch.schema.equals(schema(options.get("extra", Extra())))
            found += batch.to_pylist()
        return found

    return await trio.to_thread.run_sync(rows)


async def fill(api: sandq.Client, count: int) -> dict[str, int]:
    """Produce `count` messages: due now, due soon, alone or in batches. Return the number of each by its id."""
    ids: dict[str, int] = {}
    async with api.producer("t") as producer:
        for number in range(count):
            delay = 0.001 * (number % 50) if number % 3 == 0 else None
            receipt = await producer.send(
                b"%d" % number, key=b"k%d" % (number % 100), headers={"n": number}, delay=delay
            )
            ids[await receipt if number % 500 == 0 else receipt] = number  # type: ignore[index]
        return {await receipt if not isinstance(receipt, str) else receipt: n for receipt, n in ids.items()}


@pytest.mark.parametrize("tasks", [1, 13])
async def test_every_message_is_in_one_task(node: Serving, api: sandq.Client, tasks: int) -> None:
    await api.admin.create_topic("t", partitions=PARTITIONS)
    ids = await fill(api, 3000)
    planned = plan(await ranges_of(api, *ids), tasks)
    assert len(planned) == max(tasks, PARTITIONS)
    rows = []
    for task in planned:
        found = await read(node, task, extra=Extra(headers=True))
        assert [row["offset"] for row in found] == sorted(row["offset"] for row in found)
        assert {row["partition"] for row in found} <= {task.partition}
        rows += found
    assert len(rows) == len(ids)
    assert {row["message_id"]: int(row["value"]) for row in rows} == ids
    for row in rows[::50]:
        number = int(row["value"])
        assert row["key"] == b"k%d" % (number % 100)
        assert row["headers"] == [{"key": "n", "value": b"%d" % number}]
        assert row["topic"] == "t"
        assert row["deliver_at"].timestamp() * 1000 == pytest.approx(sandq.offset_time_ms(row["offset"]))
        assert row["timestamp"] <= row["deliver_at"]


async def test_read_leases_nothing_and_skips_cancelled_and_moved_messages(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    ids = [await api.produce("t", b"%d" % number) for number in range(20)]
    messages = api.messages("t")
    for number in (3, 4, 19):
        await messages.cancel(ids[number])
    moved = await messages.move(ids[7], delay=0)
    (range_,) = await ranges_of(api, *ids, moved)
    (task,) = plan([range_])
    rows = await read(node, task)
    assert [int(row["value"]) for row in rows] == [n for n in range(20) if n not in (3, 4, 7, 19)] + [7]
    assert (rows[-1]["offset"], rows[-1]["message_id"]) == (moved, ids[7])
    async with api.subscribe("t", group="g", credit=1000) as subscription:
        with trio.fail_after(PATIENCE_S):
            assert int((await anext(subscription)).value) == 0
    assert await read(node, task) == rows


async def test_ranks_as_messages_name_them(node: Serving, api: sandq.Client) -> None:
    """Columns are null if a message has no such field. A priority that was changed before the delivery time is returned
    as changed."""
    await api.admin.create_topic("t", kind="fair")
    ids = [await api.produce("t", b"0"), await api.produce("t", b"1", tenant="acme", priority=-3)]
    later = await api.produce("t", b"2", tenant="default", priority=5, delay="1h")
    await api.messages("t").set_priority(later, priority=0)
    moved = await api.messages("t").move(later, delay=0)
    (range_,) = await ranges_of(api, *ids, moved)
    (task,) = plan([range_])
    rows = await read(node, task, extra=Extra(rank=True))
    found = sorted((row["value"], row["priority"], row["tenant"]) for row in rows)
    assert found == [(b"0", None, None), (b"1", -3, "acme"), (b"2", 0, "default")]


async def test_a_task_of_something_else(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    (range_,) = await ranges_of(api, await api.produce("t", b"x"))
    (task,) = plan([range_])
    far = offsets.pack(node.broker.clock.now_ms() + 3_600_000, 0, 0, 0)
    with pytest.raises(Unavailable, match="may still be added"):
        await read(node, Task("t", task.number, 0, task.start, far))
    await api.admin.delete_topic("t")
    with pytest.raises(UnknownTopic):
        await read(node, task)
    await api.admin.create_topic("t")
    with pytest.raises(UnknownTopic, match="a new topic has its name"):
        await read(node, task)
    with pytest.raises(ConnectionLost):
        await trio.to_thread.run_sync(partial(list, read_task(task, (f"127.0.0.1:{free_port()}",))))


async def test_latest_values_of_keys_have_all_columns(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("kv", kind="compacted", partitions=1)
    keys = api.kv("kv")
    await keys.put("a", b"1", headers={"n": 1})
    await keys.put("b", b"2", ttl="1h")
    task = LatestTask("kv", (await api.admin.topic("kv")).number, 0)

    def read() -> list[dict[str, Any]]:
        servers = (f"127.0.0.1:{node.client_port}",)
        return [row for batch in read_latest(task, servers, Extra(True, True, True)) for row in batch.to_pylist()]

    rows = await trio.to_thread.run_sync(read)
    assert [(row["key"], row["raw_headers"], row["ttl_ms"]) for row in rows] == [
        (b"a", headers_pack({"n": 1}), None),
        (b"b", None, 3_600_000),
    ]
    assert all(row["priority"] is None and row["tenant"] is None for row in rows)
