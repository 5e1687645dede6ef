"""Three nodes, each with a wall clock that the test sets: a node with a wrong clock does not lead."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

import sandq
from sandq.broker.clock import clock_keeper
from sandq.broker.clock.clock_keeper import ClockKeeper
from sandq.broker.clock.guarded_clock import DISPUTED, OFF, WALL, GuardedClock
from sandq.broker.controller import rebalancer
from sandq.broker.replication.raft_group import RaftGroup
from sandq.model.members import node_of
from tests.support.nodes.three import NAMES, ThreeNodes
from tests.support.nodes.working import take, values
from tests.support.stopped_time import time_of_this_test
from tests.support.waiting import PATIENCE_S, until_answer, until_holds

HOUR_S = 3600.0
PARTITIONS = 3
FOUND = b"found"


class ClockedNodes(ThreeNodes):
    """`ahead_s`: how far each node's wall clock is ahead of the true time; the test sets it."""

    def __init__(self, directory: Path, nursery: trio.Nursery) -> None:
        super().__init__(directory, nursery)
        self.ahead_s = dict.fromkeys(NAMES, 0.0)
        self.true = time_of_this_test()

    def _wall(self, name: str) -> float:
        return self.true.wall() + self.ahead_s[name]

    async def start(self, *names: str, **options: Any) -> None:
        with trio.fail_after(PATIENCE_S):
            async with trio.open_nursery() as starting:
                for name in names or NAMES:
                    clock = GuardedClock(wall=partial(self._wall, name), monotonic=self.true.now)
                    starting.start_soon(self._start, name, {"clock": clock, **options})

    def clock(self, name: str) -> GuardedClock:
        return self.running[name].broker.clock

    def reasons(self) -> dict[str, str | None]:
        return {name: self.clock(name).reason for name in self.running}

    def leads(self, name: str) -> int:
        """Return how many groups the node leads, including the metadata group."""
        return sum(host.group.is_leader for host in self.running[name].broker.node_log.hosts.values())

    async def until_reasons(self, **reasons: str | None) -> None:
        await until_holds(lambda: self.reasons() == {**dict.fromkeys(self.running), **reasons})

    async def until_led_by(self, *names: str) -> None:
        """Wait until exactly these nodes lead all groups."""
        await until_holds(
            lambda: (
                sum(self.leads(name) for name in names) == PARTITIONS + 1
                and all(self.leads(name) == 0 for name in self.running if name not in names)
                and all(self.leader("t", partition) is not None for partition in range(PARTITIONS))
            )
        )


@asynccontextmanager
async def clocked(directory: Path, **ahead_s: float) -> AsyncIterator[ClockedNodes]:
    """Run nodes whose clocks are ahead by these numbers of seconds."""
    async with trio.open_nursery() as nursery:
        nodes = ClockedNodes(directory, nursery)
        nodes.ahead_s.update(ahead_s)
        await nodes.start()
        yield nodes
        await nodes.stop(*nodes.running)
        nursery.cancel_scope.cancel()


async def create(nodes: ClockedNodes, client: sandq.Client) -> None:
    await until_answer(client.admin.cluster, lambda info: len(info["nodes"]) == 3)
    await client.admin.create_topic("t", partitions=PARTITIONS, replicas=3)
    for partition in range(PARTITIONS):
        await nodes.until_led("t", partition)


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[ClockedNodes]:
    async with clocked(tmp_path) as nodes:
        yield nodes


def is_measured(state: dict[str, Any], peers: set[str], *, median_s: float, drift_s: float) -> bool:
    """Return whether the state has recent offsets of exactly these peers, with this median and drift. Slow replies do
    not count. A node that stalls between reading its two clocks sees a false difference until it reads them again."""
    return (
        state["peers"].keys() == peers
        and state["median_ms"] is not None
        and max(abs(ahead_ms - median_s * 1000) for ahead_ms in (*state["peers"].values(), state["median_ms"])) < 250
        and abs(state["drift_ms"] - drift_s * 1000) < 250
    )


@pytest.mark.parametrize("jump_s", [HOUR_S, -HOUR_S])
async def test_a_step_of_one_wall_clock(nodes: ClockedNodes, jump_s: float) -> None:
    """The node hands over its partitions; messages continue, and none is early."""
    async with nodes.connect() as client:
        await create(nodes, client)
        await until_holds(lambda: nodes.leads("node1") > 0)
        due_s = nodes.true.wall() + 1.5
        for number in range(20):
            await client.produce("t", b"due%d" % number, deliver_at=int(due_s * 1000))
            await client.produce("t", b"far", deliver_at=int((due_s + 1800) * 1000))
        nodes.ahead_s["node1"] += jump_s
        await nodes.until_led_by("node2", "node3")
        await nodes.until_reasons(node1=WALL)
        for number in range(20):
            await client.produce("t", b"now%d" % number)
        async with client.subscribe("t", group="g") as subscription:
            found = await take(subscription, 40)
            assert nodes.true.wall() >= due_s
        assert sorted(values(found)) == sorted(b"%s%d" % (w, n) for w in (b"due", b"now") for n in range(20))
        await nodes.until_even()

        async with nodes.connect("node1") as asked:
            state = await until_answer(
                asked.admin.clock, partial(is_measured, peers={"node2", "node3"}, median_s=0.0, drift_s=jump_s)
            )
            told = await asked.admin.cluster()
            assert told["clock_alarm"] is True
            # With static membership, a node only knows whether other nodes are linked.
            assert [(row["member"], row["since_ms"], row["up"]) for row in told["nodes"]] == [("named", None, True)] * 3
        assert (state["alarm"], state["reason"]) == (True, WALL)


async def test_leaders_are_balanced_again_only_once_the_clock_is_right(
    nodes: ClockedNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """node1 is the preferred leader of one partition."""
    monkeypatch.setattr(rebalancer, "LED_S", 0.1)
    async with nodes.connect() as client:
        await create(nodes, client)
        nodes.ahead_s["node1"] = HOUR_S
        await nodes.until_led_by("node2", "node3")
        given: list[str] = []
        looks = [0]
        balance, hand_over = rebalancer.Rebalancer._balance, rebalancer.Rebalancer._hand_over

        async def counted(rebalancer: rebalancer.Rebalancer, now_s: float, nursery: trio.Nursery) -> None:
            """A node that has not yet heard of node1's clock may believe that node1 would stay leader."""
            await balance(rebalancer, now_s, nursery)
            looks[0] += not rebalancer._health.may_lead("node1")

        def noted(rebalancer: rebalancer.Rebalancer, led: rebalancer._Led, member: str, nursery: trio.Nursery) -> None:
            was_leaving = led.transferring
            hand_over(rebalancer, led, member, nursery)
            if led.transferring and not was_leaving and not rebalancer._health.may_lead(node_of(member)):
                given.append(node_of(member))

        monkeypatch.setattr(rebalancer.Rebalancer, "_balance", counted)
        monkeypatch.setattr(rebalancer.Rebalancer, "_hand_over", noted)
        await until_holds(lambda: looks[0] > 20)  # both other nodes check several times, after LED_S
        assert given == [], "node1 would only hand leadership back"
        nodes.ahead_s["node1"] = 0.0
        await nodes.until_reasons()
        await until_holds(lambda: nodes.leads("node1") > 0)
        await client.produce("t", FOUND)


async def test_node_that_starts_an_hour_ahead_leads_nothing(tmp_path: Path) -> None:
    """node1 is the preferred first leader. It stamps nothing, so no partition's floor is ahead."""
    async with clocked(tmp_path, node1=HOUR_S) as nodes, nodes.connect() as client:
        await create(nodes, client)
        await nodes.until_led_by("node2", "node3")
        await nodes.until_reasons(node1=OFF)
        for partition in range(PARTITIONS):
            await client.produce("t", b"now", partition=partition)
        async with client.subscribe("t", group="g") as subscription:
            assert values(await take(subscription, PARTITIONS)) == [b"now"] * PARTITIONS
        async with nodes.connect("node1") as asked:
            # The guarded clock of node1 follows its wall clock, which is wrong.
            await until_answer(
                asked.admin.clock, partial(is_measured, peers={"node2", "node3"}, median_s=-HOUR_S, drift_s=0.0)
            )
        text = (await nodes.running["node1"].metrics.render())[0].decode()
        assert "sandq_clock_alarm 1\n" in text and 'sandq_clock_peer_offset_seconds{peer="node2"} -3' in text

        # Correct its wall clock: the other nodes confirm the step, so no operator has to act.
        nodes.ahead_s["node1"] = 0.0
        await nodes.until_reasons()
        await until_holds(lambda: abs(nodes.clock("node1").status().median_ms or 0) < 250)


async def test_leader_with_wrong_clock_hands_leadership_over_before_any_command(nodes: ClockedNodes) -> None:
    """node1 becomes leader because the leader hands over to it. It accepts no command before the next leader takes
    over."""
    async with nodes.connect() as client:
        await create(nodes, client)
        await nodes.stop("node1")
        nodes.ahead_s["node1"] = HOUR_S
        await nodes.start("node1")
        await nodes.until_reasons(node1=OFF)
        await nodes.until_led_by("node2", "node3")
        far_ms = int((nodes.true.wall() + HOUR_S / 2) * 1000)
        for partition in range(PARTITIONS):
            await client.produce("t", b"far", partition=partition, deliver_at=far_ms)
        began: list[int] = []
        _watch(nodes, "node1", began)
        async with client.subscribe("t", group="g") as subscription:
            for partition in range(PARTITIONS):
                host = nodes.host(await nodes.until_led("t", partition), "t", partition)

                def has_handed_over(host: RaftGroup = host) -> bool:
                    host.hand_over({"node1"})  # repeatedly: a member that lacks log entries refuses leadership
                    return not host.group.is_leader

                await until_holds(has_handed_over)
                host.stop_leaving()
            await until_holds(lambda: len(began) >= PARTITIONS)
            await nodes.until_led_by("node2", "node3")
            await client.produce("t", FOUND)
            assert values(await take(subscription, 1)) == [FOUND], (
                "the message that is due in half an hour must not be delivered"
            )
        await nodes.until_even()
        for partition in range(PARTITIONS):
            assert nodes.host("node2", "t", partition).status.now_ms < far_ms, "stamped by a clock an hour ahead"


def _watch(nodes: ClockedNodes, name: str, began: list[int]) -> None:
    """Add the number of each Raft group that a node begins to lead to `began`."""
    node_log = nodes.running[name].broker.node_log
    before = node_log._hooks.on_leads

    def leads(host: RaftGroup) -> None:
        began.append(host.number)
        before(host)

    node_log._hooks.on_leads = leads


async def test_two_of_three_step(nodes: ClockedNodes) -> None:
    """No guarded clock moves, so no node confirms. After acceptance on two nodes, the third one is off, until its wall
    clock steps too: then it follows by itself."""
    async with nodes.connect() as client:
        await create(nodes, client)
        nodes.ahead_s.update(node1=HOUR_S, node2=HOUR_S)
        await nodes.until_led_by("node3")
        await nodes.until_reasons(node1=WALL, node2=WALL)
        nodes.clock("node1").accept()
        await nodes.until_reasons(node1=OFF, node2=WALL)
        await nodes.until_led_by("node3")
        nodes.clock("node2").accept()
        await nodes.until_reasons(node3=OFF)
        await nodes.until_led_by("node1", "node2")
        nodes.ahead_s["node3"] = HOUR_S
        await nodes.until_reasons()
        await until_holds(lambda: abs(nodes.clock("node3").now_s() - nodes.true.wall() - HOUR_S) < 1)
        await client.produce("t", FOUND)


async def test_common_clock_step_is_accepted_by_a_majority(
    nodes: ClockedNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No node can take over: all continue with the alarm. After acceptance on two, the third follows."""
    async with nodes.connect() as client:
        await create(nodes, client)
        nodes.ahead_s = dict.fromkeys(NAMES, HOUR_S)
        await nodes.until_reasons(**dict.fromkeys(NAMES, WALL))
        rounds: Counter[ClockKeeper] = Counter()
        compare = ClockKeeper._compare

        def counted(keeper: ClockKeeper) -> None:
            compare(keeper)
            rounds[keeper] += 1

        monkeypatch.setattr(ClockKeeper, "_compare", counted)
        await until_holds(lambda: len(rounds) == 3 and min(rounds.values()) > 3)
        await client.produce("t", FOUND)
        await until_holds(lambda: sum(nodes.leads(name) for name in NAMES) == PARTITIONS + 1)
        nodes.clock("node1").accept()
        nodes.clock("node2").accept()
        await nodes.until_reasons()


async def test_two_that_differ(tmp_path: Path) -> None:
    """Without the third node, it is unknown which of the two is right: the one that had agreed before continues."""
    async with clocked(tmp_path) as nodes, nodes.connect() as client:
        await create(nodes, client)
        await nodes.stop("node1")
        nodes.ahead_s["node1"] = HOUR_S
        await nodes.stop("node3")
        await nodes.start("node1")
        await nodes.until_reasons(node1=OFF, node2=DISPUTED)
        await nodes.until_led_by("node2")
        await client.produce("t", FOUND)
        await nodes.start("node3")
        await nodes.until_reasons(node1=OFF)


async def test_failed_leadership_transfer_is_retried_later(
    nodes: ClockedNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes.connect() as client:
        await create(nodes, client)
        for name in NAMES:
            for host in nodes.running[name].broker.node_log.hosts.values():
                monkeypatch.setattr(host.group, "transfer", lambda target: False)
        leader = await nodes.until_led()
        keeper, hosts = _keeper(nodes, leader), nodes.running[leader].broker.node_log.hosts
        monkeypatch.setattr(clock_keeper, "GIVE_UP_PAUSE_S", 1000.0)
        nodes.ahead_s[leader] = HOUR_S

        def led() -> set[int]:
            """Wait, because an election may change the leaders at any time."""
            return {number for number, host in hosts.items() if host.group.is_leader}

        await until_holds(lambda: led() and led() <= keeper._not_before_s.keys())
        assert led(), "the leader must not change"
        with trio.fail_after(PATIENCE_S):
            await client.produce("t", FOUND)
        monkeypatch.undo()
        keeper._not_before_s.clear()
        await until_holds(lambda: nodes.leads(leader) == 0)


def _keeper(nodes: ClockedNodes, name: str) -> ClockKeeper:
    found: Callable[[RaftGroup], None] = nodes.running[name].broker.node_log._hooks.on_leads
    keeper = getattr(found, "__self__", None)
    assert isinstance(keeper, ClockKeeper)
    return keeper
