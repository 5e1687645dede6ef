"""Tests of a node that stalls: which nodes it notifies, which requests it ends, and how it recovers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import trio
import trio.testing

from sandq.broker.health.node_health import NodeHealth
from sandq.broker.health.sick_peers import REASON_CHARS, SICK_S, SickPeers
from sandq.broker.health.stalls import CHECK_S
from sandq.model.errors import StorageFailed
from sandq.protocol.peer import PeerFrame
from tests.support.nodes.fake_links import FakeLinks

RESERVE_BYTES = 100 << 20


class Host:
    """A group with a voter on each node. This node leads the group until it is handed over."""

    number = 1

    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        member, voters = "a#1", ("a#1", "b#1", "c#1")
        self.is_leaving = False
        self.behind: set[str] = set()
        self.group = SimpleNamespace(
            is_leader=True,
            member=member,
            members=SimpleNamespace(voters=voters),
            has_caught_up=lambda member: member not in self.behind,
        )

    def hand_over(self, nodes: set[str]) -> None:
        self._bed.handed_to.append(sorted(nodes))
        self.group.is_leader = False

    def stop_leaving(self) -> None: ...


class Bed:
    """Node "a" of three nodes. A thread makes progress while its number changes."""

    def __init__(self) -> None:
        self.progress: dict[str, int | None] = {}
        self.reported: list[tuple[str, Any]] = []
        self.stalled: list[str] = []
        self.gave_up: list[str] = []
        self.resumed = 0
        self.free_bytes = 1 << 40
        self.expired: list[float] = []
        self.handed_to: list[list[str]] = []
        self.clock_may_lead = {"b", "c"}
        self.sick_peers = SickPeers()
        self.node_log: Any = SimpleNamespace(
            node_id="a",
            failed=None,
            hosts={1: Host(self)},
            stall=self.stalled.append,
            resume=self.resume,
            expire=self.expired.append,
            backlog=SimpleNamespace(disk_full=None),
        )
        self.runner: Any = SimpleNamespace(
            progress_of=self.progress.get, give_up_queries=self.gave_up.append, log_full=None
        )
        clocks: Any = SimpleNamespace(may_lead=self.clock_may_lead.__contains__)
        self.health = NodeHealth(
            node_log=self.node_log,
            runner=self.runner,
            links=FakeLinks("b", "c", own="a", on_send=self.send),
            sick_peers=self.sick_peers,
            clocks=clocks,
            free_bytes=self._free_bytes,
            reserve_bytes=RESERVE_BYTES,
            stall_after_s=5.0,
            request_timeout_s=30.0,
        )

    def send(self, node: str, kind: int, body: Any) -> bool:
        assert kind == PeerFrame.SICK
        self.reported.append((node, body))
        return True

    def resume(self) -> None:
        self.resumed += 1

    async def _free_bytes(self) -> int:
        return self.free_bytes

    def fill_disk(self) -> None:
        self.free_bytes = RESERVE_BYTES - 1
        self.health.note_space(self.free_bytes)  # at once

    async def advance(self, seconds: float) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.health.run)
            await trio.sleep(seconds)
            nursery.cancel_scope.cancel()


async def test_a_node_that_gets_on_says_nothing(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed()
    await bed.advance(45)
    assert (bed.health.reason, bed.reported, bed.stalled, bed.handed_to) == (None, [], [], [])
    assert bed.expired == [30.0], "requests expire after half a minute"


async def test_a_log_that_hangs(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed()
    bed.progress["log"] = 1
    await bed.advance(5 + 4 * CHECK_S)
    assert bed.health.stalled and "write-ahead log" in bed.health.stalled
    assert set(bed.stalled) == {bed.health.stalled} and bed.gave_up == []
    body = (bed.health.stalled, False)
    assert set(bed.reported) == {("b", body), ("c", body)}
    assert bed.handed_to == [], "no message of this node arrives, so the other nodes elect a leader"
    assert bed.health.sick() == {"a": bed.health.stalled}
    bed.progress["log"], reported, resumed = 3, len(bed.reported), bed.resumed
    await bed.advance(1)
    assert bed.health.reason is None and bed.resumed > resumed and len(bed.reported) == reported


async def test_a_state_that_hangs_hands_over_to_those_that_are_well(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed()
    bed.progress["state"] = 1
    bed.sick_peers.heard("b", "it hangs as well", False)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bed.health.run)
        for _ in range(7):
            bed.sick_peers.heard("b", "it hangs as well", False)
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert bed.handed_to[0] == ["c"] and bed.gave_up
    assert bed.health.sick().keys() == {"a", "b"}
    assert not bed.health.may_lead("a") and not bed.health.may_lead("b") and bed.health.may_lead("c")


async def test_a_store_that_hangs_ends_requests_and_no_questions(autojump_clock: trio.testing.MockClock) -> None:
    """Reads are answered from memory. Writes fail, because the store accepts none."""
    bed = Bed()
    bed.progress["rows"] = 1
    await bed.advance(5 + 4 * CHECK_S)
    assert bed.health.stalled and "the store" in bed.health.stalled
    assert set(bed.stalled) == {bed.health.stalled} and bed.gave_up == []
    assert bed.handed_to == [["b", "c"]] and bed.reported
    bed.progress["rows"] = None
    await bed.advance(1)
    assert bed.health.reason is None


async def test_group_that_no_node_can_take_over_is_kept(autojump_clock: trio.testing.MockClock) -> None:
    """A group accepts no requests during a hand-over. So no hand-over is tried while the other members are behind."""
    bed = Bed()
    bed.progress["state"] = 1
    bed.node_log.hosts[1].behind = {"b#1", "c#1"}
    await bed.advance(20)
    assert bed.health.stalled and bed.handed_to == []
    bed.node_log.hosts[1].behind = {"b#1"}
    bed.node_log.hosts[1].is_leaving = True
    await bed.advance(20)
    assert bed.handed_to == [], "another part of the node hands the group over"
    bed.node_log.hosts[1].is_leaving = False
    await bed.advance(1)
    assert bed.handed_to == [["b", "c"]]


async def test_leader_keeps_leading_if_no_peer_is_well(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed()
    bed.progress["state"] = 1
    bed.clock_may_lead.clear()
    await bed.advance(20)
    assert bed.health.stalled and bed.handed_to == []


async def test_maintenance_may_take_longer_and_ends_no_request(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed()
    bed.progress["maintenance"] = 1
    await bed.advance(59)
    assert bed.health.reason is None
    await bed.advance(5)
    assert bed.health.reason and "maintenance" in bed.health.reason and bed.stalled == []
    assert bed.handed_to == [["b", "c"]] and bed.reported


async def test_failed_disk_is_reported(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed()
    bed.node_log.failed = StorageFailed("the disk is full")
    await bed.advance(3)
    assert (
        set(bed.reported) == {(node, ("the disk is full", False)) for node in "bc"} and 8 <= len(bed.reported) <= 14
    ), "again and again"
    assert bed.stalled == [] and bed.handed_to == []


async def test_silent_node_is_no_longer_sick(autojump_clock: trio.testing.MockClock) -> None:
    peers = SickPeers()
    peers.heard("b", "x" * 10_000, False)
    peers.heard("c", "EIO", False)
    peers.heard("d", "no room", True)
    assert {node: (len(reported.reason), reported.works) for node, reported in peers.now().items()} == {
        "b": (REASON_CHARS, False),
        "c": (3, False),
        "d": (7, True),
    }
    peers.forget("c")
    await trio.sleep(SICK_S)
    assert peers.now() == {}


async def test_full_log_stalls_the_node_immediately(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed()
    bed.runner.log_full = "the disk is full: no room for the next segment"
    await bed.advance(CHECK_S)
    assert bed.health.stalled == bed.runner.log_full and bed.stalled and bed.reported and bed.handed_to == []
    bed.runner.log_full = None
    await bed.advance(CHECK_S)
    assert bed.health.stalled is None and bed.resumed


async def test_node_without_space_transfers_leadership_and_is_not_sick(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed()
    bed.fill_disk()
    bed.sick_peers.heard("b", "no room either", works=True)
    await bed.advance(2)
    assert bed.handed_to == [["c"]] and bed.health.sick() == {} and not bed.health.may_lead("a")
    assert set(bed.reported) == {(node, (bed.health.disk_full, True)) for node in "bc"}


def test_below_the_reserve_nothing_new_is_taken() -> None:
    bed = Bed()
    bed.health.note_space(RESERVE_BYTES)
    assert bed.health.disk_full is None
    bed.health.note_space(RESERVE_BYTES - 1)
    assert bed.health.disk_full and "99 MiB are free" in bed.health.disk_full
    bed.health.note_space(RESERVE_BYTES)
    assert bed.health.disk_full, "the state must not flap at the limit"
    bed.health.note_space(RESERVE_BYTES * 2)
    assert bed.health.disk_full is None


def test_stores_that_met_a_full_disk_are_reopened_once_there_is_space() -> None:
    bed = Bed()
    bed.health.note_space(0)
    bed.node_log.failed = StorageFailed("no room", errno="ENOSPC")
    bed.health.note_space(RESERVE_BYTES)
    assert not bed.health.restart.is_set(), "the disk would be full again at once"
    bed.health.note_space(RESERVE_BYTES * 2)
    assert bed.health.restart.is_set()


def test_a_disk_that_failed_is_not_tried_again() -> None:
    bed = Bed()
    bed.node_log.failed = StorageFailed("a failed sync", errno="EIO")
    bed.health.note_space(RESERVE_BYTES * 2)
    assert not bed.health.restart.is_set()
