"""Reset a partition's clock in a cluster: with mixed versions, and while nodes stop, restart and change leaders."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

import sandq
from sandq.broker.leader.partition_leader import PartitionLeader
from sandq.broker.replication import node_log
from sandq.model.features import KNOWN
from sandq.partition import clock_reset
from sandq.partition import commands as c
from tests.support.nodes.found import found_nodes
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.three import NAMES, ThreeNodes, compared
from tests.support.simulation.oracle import messages_of
from tests.support.waiting import until_holds

HOUR_S = 3600


@contextmanager
def wrong_clocks(nodes: ThreeNodes, ahead_s: int) -> Iterator[None]:
    """Make the leader stamp entries by a clock that is wrong by this much."""
    logs = [(node.broker.node_log, node.broker.node_log._now_ms) for node in nodes.running.values()]
    for log, now_ms in logs:
        log._now_ms = lambda now_ms=now_ms: now_ms() + ahead_s * 1000  # type: ignore[misc]
    yield
    for log, now_ms in logs:
        log._now_ms = now_ms


async def until_level(nodes: ThreeNodes, level: int) -> None:
    """All replicas of the partition follow the rules of this feature level."""
    names = list(nodes.running)
    await until_holds(lambda: nodes.leader() is not None and {nodes.host(n).status.level for n in names} == {level})


async def taken(client: sandq.Client, group: str, count: int) -> list[bytes]:
    """Receive and ack exactly this number of due messages."""
    leases, got = client.leases("t", group), []
    while len(got) < count:
        messages = await leases.take(count, wait="30s")
        assert await leases.ack(messages) == []
        got += [message.value for message in messages]
    assert await leases.take(1) == []
    return sorted(got)


class Steps:
    """Number of reset steps that all nodes together may still propose. At 0, the leader stops between two steps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left: int | None = 0
        """None means no limit."""
        self.stopped = trio.Event()
        self._waiting: list[PartitionLeader] = []
        upkeep = PartitionLeader._upkeep

        def limited(leader: PartitionLeader) -> None:
            if leader.raft_group.status.reset is None or self.left is None:
                upkeep(leader)
            elif self.left:
                self.left -= 1
                upkeep(leader)
            else:
                self._waiting.append(leader)
                self.stopped.set()

        monkeypatch.setattr(PartitionLeader, "_upkeep", limited)

    def allow(self, steps: int | None) -> None:
        self.left, self.stopped = steps, trio.Event()
        waiting, self._waiting = self._waiting, []
        for leader in waiting:
            if not leader.closed and leader.raft_group.works:
                leader._upkeep()


async def test_reset_goes_on_under_other_leaders_from_a_snapshot_and_after_a_restart(
    tmp_path: Path, hand: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_log, "KEPT_BYTES", 0)
    monkeypatch.setattr(node_log, "LAG_BYTES", 0)
    for limit in ("STEP_ROWS", "STEP_MESSAGES"):
        monkeypatch.setattr(clock_reset, limit, 2)
    steps = Steps(monkeypatch)
    async with found_nodes(tmp_path, *NAMES, hand=hand) as nodes, nodes.connect() as client:
        await client.admin.create_topic("t", replicas=3, backoff={"first": "1m"})
        await until_level(nodes, KNOWN.highest)
        await produce_and_settle(nodes, client, hand)
        behind = next(name for name in NAMES if name != nodes.leader())
        await nodes.stop(behind)

        steps.allow(4)
        assert (await client.admin.reset_clock("t", 0))["outcome"] == "begun"
        await steps.stopped.wait()
        first = await nodes.until_led()
        for node in nodes.running.values():
            await node.broker._runner.checkpoint()
        await nodes.start(behind)
        await until_holds(lambda: is_resetting(nodes, behind))
        pointer = nodes.running[behind].broker.node_log.pointers.get(nodes.host(behind).number)
        assert pointer is not None and pointer.snapshot_index > 0, (
            "the log had been trimmed, so the state arrived as a snapshot"
        )

        await nodes.stop(first)
        assert await nodes.until_led() != first
        steps.allow(4)
        await steps.stopped.wait()
        await nodes.start(first)
        await until_holds(lambda: is_resetting(nodes, first))
        for name in (behind, first):
            await nodes.hand_over(name)
            steps.allow(4)
            await steps.stopped.wait()
        steps.allow(None)
        await until_holds(lambda: {nodes.host(name).status.reset for name in NAMES} == {None})

        assert {nodes.host(name).status.clock_epoch for name in NAMES} == {1}
        assert await compared(nodes, same=True) == ()
        await check_delivered(client, hand)
        assert await compared(nodes, same=True) == ()


def is_resetting(nodes: ThreeNodes, name: str) -> bool:
    """Return whether the reset is in progress, as a node that may have just joined knows it."""
    known = nodes.running[name].broker.catalog.topics
    return "t" in known and known["t"].partitions[0].raft_group.status.reset is not None


NOW, SOON, LATER = (range(first, first + 10) for first in (0, 100, 200))
AHEAD = range(300, 310)


def named(numbers: Iterable[int]) -> list[bytes]:
    return sorted(b"%d" % number for number in numbers)


async def produce_and_settle(nodes: ThreeNodes, client: sandq.Client, hand: HandClock) -> None:
    """Produce messages before and while the clock is two hours ahead, some due now and some later. Group "done" acks
    all delivered messages, including those that came too early. Group "half" acks every other one, group "new" none."""
    for number in NOW:
        await client.produce("t", b"%d" % number)
    for number in SOON:
        await client.produce("t", b"%d" % number, delay="1h")
    for number in LATER:
        await client.produce("t", b"%d" % number, delay="3h")
    with wrong_clocks(nodes, 2 * HOUR_S):
        for number in AHEAD:
            await client.produce("t", b"%d" % number)
        host = nodes.host(await nodes.until_led())
        # Lease directly, because the leader's timers use the right clock.
        for group in ("done", "half"):
            await host.call(c.OpenGroup(group, "earliest"))
            room = [c.Grant("consumer", 100, HOUR_S * 1000)]
            deliveries = await host.call(c.Lease(group, hand.now_ms() + 2 * HOUR_S * 1000, room))
            found = [(delivery, *message) for delivery in deliveries for message in messages_of(delivery)]
            assert sorted(value for _, _, value in found) == named([*NOW, *SOON, *AHEAD])
            for delivery, offset, value in found:
                if group == "done" or int(value) % 2:
                    assert await host.call(c.Ack([(delivery.token, [[offset, 1]])])) == [None]


async def check_delivered(client: sandq.Client, hand: HandClock) -> None:
    """Every message is delivered once, at its time, to groups that have not acked it."""
    for due, seen, hours in (([*NOW, *AHEAD], True, 1), (SOON, True, 2), (LATER, False, 0)):
        for group in ("done", "half", "new"):
            expected = [n for n in due if not seen or group == "new" or (group == "half" and n % 2 == 0)]
            assert await taken(client, group, len(expected)) == named(expected), group
        hand.forward(hours * HOUR_S + 1)
