"""Leaders of a topic whose group has limits are killed with kill -9. The limits hold; all messages are delivered."""

from __future__ import annotations

from pathlib import Path

import trio

import sandq
from tests.support.processes.cluster import ClusterProcess
from tests.support.waiting import until_holds

MOST = 3
PARTITIONS = 4
MESSAGES = 240
KILLS = 3


async def test_group_limits_across_home_leader_kills_hold(tmp_path: Path) -> None:
    cluster = ClusterProcess(tmp_path)
    held: set[str] = set()
    done: set[str] = set()
    most = 0

    async def handle(message: sandq.Message) -> None:
        await trio.sleep(0.005)
        held.discard(message.id)
        await message.ack()
        done.add(message.id)

    async def work(client: sandq.Client) -> None:
        nonlocal most
        async with client.subscribe("t", group="g", credit=50) as subscription, trio.open_nursery() as handlers:
            async for message in subscription:
                held.add(message.id)
                most = max(most, len(held))
                handlers.start_soon(handle, message)

    try:
        cluster.start()
        async with cluster.connect() as client:
            await cluster.create(client, partitions=PARTITIONS, lease="1h")
            await client.admin.limit_group("t", "g", max_in_flight=MOST)
            async with client.producer("t") as producer:
                for number in range(MESSAGES):
                    await producer.send(b"%d" % number, partition=number % PARTITIONS)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(work, client)
                for kill in range(KILLS):
                    until = 40 * (kill + 1)
                    await until_holds(lambda until=until: len(done) >= until)  # type: ignore[misc]
                    home = await cluster.leader(client)
                    await trio.to_thread.run_sync(cluster.kill, home)
                    await trio.to_thread.run_sync(cluster.start, home)
                await until_holds(lambda: len(done) == MESSAGES)
                nursery.cancel_scope.cancel()
    finally:
        cluster.close()
    assert 1 <= most <= MOST
