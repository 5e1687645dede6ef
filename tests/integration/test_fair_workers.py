"""Quick workers hold more messages than they handle at a time. Slow workers keep no message from others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest
import trio

import sandq
from sandq.node.running import Serving
from tests.support.nodes.three import NAMES, three_nodes
from tests.support.nodes.working import connected
from tests.support.waiting import until_answer, until_holds

MESSAGES = 3000
QUICK = 500
WORKERS = 4

Connect = Callable[[], AbstractAsyncContextManager[sandq.Client]]


async def fill(api: sandq.Client) -> None:
    async with api.producer("t") as producer:
        await producer.send_many([b"%d" % number for number in range(MESSAGES)])


async def check_that_unbegun_messages_go_to_others(connect: Connect) -> None:
    """The first consumer settles 500 messages quickly. Then it settles nothing until a second consumer has taken the
    rest."""
    begun: list[tuple[str, bytes, int]] = []
    stuck, may_settle = 0, trio.Event()

    async def slow(message: sandq.Message) -> None:
        nonlocal stuck
        begun.append(("slow", message.value or b"", message.attempt))
        if len(begun) > QUICK:
            stuck += 1
            await may_settle.wait()

    async def quick(message: sandq.Message) -> None:
        begun.append(("quick", message.value or b"", message.attempt))

    async with connect() as one, connect() as two, trio.open_nursery() as nursery:
        nursery.start_soon(partial(one.run, "t", "g", slow, concurrency=WORKERS))
        await until_holds(lambda: stuck == WORKERS)
        nursery.start_soon(partial(two.run, "t", "g", quick, concurrency=WORKERS))
        await until_holds(lambda: len(begun) == MESSAGES)
        assert stuck == WORKERS, "the slow consumer must not begin further messages"
        may_settle.set()
        nursery.cancel_scope.cancel()
    assert sorted(int(value) for _, value, _ in begun) == [*range(MESSAGES)], "each once"
    assert {attempt for _, _, attempt in begun} == {1}


@pytest.mark.parametrize("partitions", [1, 4])
async def test_messages_that_a_slow_consumer_has_not_begun_go_to_others(
    node: Serving, api: sandq.Client, partitions: int
) -> None:
    await api.admin.create_topic("t", partitions=partitions, lease="1h")
    await fill(api)
    await check_that_unbegun_messages_go_to_others(partial(connected, node))


async def test_messages_not_begun_go_to_others_across_several_nodes(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes:
        async with nodes.connect() as api:
            await until_answer(api.admin.cluster, lambda info: len(info["nodes"]) == 3)
            await api.admin.create_topic("t", partitions=6, replicas=1, lease="1h")
            record = await until_answer(
                lambda: api.admin.topic("t"), lambda record: all(row.leader for row in record.partitions)
            )
            assert {row.leader for row in record.partitions} == {*NAMES}
            await fill(api)
        await check_that_unbegun_messages_go_to_others(nodes.connect)
