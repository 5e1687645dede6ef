"""The leader of three node processes is killed at the second at which its schedules fire.

Each occurrence must become one message."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import trio

from tests.support.processes.cluster import ClusterProcess
from tests.support.waiting import PATIENCE_S, until_led

SCHEDULES = 60
OCCURRENCES = 9
KINDS: tuple[dict[str, str], ...] = ({}, {"misfire": "all"}, {"misfire": "skip"}, {"overlap_group": "nobody"})
"""Settings with which no occurrence is skipped while leaders change."""
KILLS_AT = (2, 5)
"""Times of the kills, in seconds after the first occurrence."""


async def until_ms(cluster: ClusterProcess, at_ms: int) -> None:
    """Wait for a time of the cluster's clock."""
    async with cluster.connect() as client:
        now_ms = int((await client.admin.clock())["guarded_ms"])
    await trio.sleep(max(at_ms - now_ms, 0) / 1000)


def test_leader_kill_when_schedules_fire_doubles_nothing(tmp_path: Path) -> None:
    cluster = ClusterProcess(tmp_path)
    came: defaultdict[tuple[str, int], set[str]] = defaultdict(set)
    """Ids of the messages of each occurrence."""

    async def consume(done: trio.Event) -> None:
        async with cluster.connect() as client, client.subscribe("t", group="g", credit=1000) as subscription:
            async for message in subscription:
                headers = message.headers
                came[headers["sandq-schedule"], headers["sandq-occurrence"]].add(message.id)
                await message.ack()
                if len(came) == SCHEDULES * OCCURRENCES:
                    done.set()
                    return

    async def scenario() -> None:
        async with cluster.connect() as client:
            await cluster.create(client, partitions=1)
            now_ms = int((await client.admin.clock())["guarded_ms"])
            first_ms = (now_ms // 1000 + 3) * 1000
            schedules = client.schedules("t")
            await schedules.create_many(
                {
                    "name": f"s{number}",
                    "value": b"",
                    "cron": "* * * * * *",
                    "start": first_ms,
                    "count": OCCURRENCES,
                    **KINDS[number % len(KINDS)],
                }
                for number in range(SCHEDULES)
            )
            async with trio.open_nursery() as nursery:
                done = trio.Event()
                nursery.start_soon(consume, done)
                for second in KILLS_AT:
                    await until_ms(cluster, first_ms + 1000 * second)
                    leader = await until_led(client)
                    await trio.to_thread.run_sync(cluster.kill, leader)
                    await trio.to_thread.run_sync(cluster.start, leader)
                with trio.fail_after(PATIENCE_S):
                    await done.wait()
                nursery.cancel_scope.cancel()
            wanted = {(f"s{number}", first_ms + 1000 * at) for number in range(SCHEDULES) for at in range(OCCURRENCES)}
            assert came.keys() == wanted and {len(ids) for ids in came.values()} == {1}
            assert [message.id async for message in client.messages("t").list(state="ready")] == []
            async for schedule in schedules.list():
                assert schedule.fired <= OCCURRENCES and schedule.missed == 0

    try:
        cluster.start()
        trio.run(scenario)
    finally:
        cluster.close()
