"""Tests of a pause by a consumer in all partitions of a topic: rounds, requests to other nodes, incomplete pauses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from sandq.broker.delivery import pause_spreader
from sandq.broker.delivery.pause_spreader import PauseSpreader
from sandq.broker.replication.replica import PartitionReplica
from sandq.model.errors import InvalidRequest, Overloaded, SandqError, TimedOut, Unavailable
from sandq.model.offsets import U48_MAX
from sandq.partition import commands as c
from sandq.protocol.peer import PeerFrame
from tests.support.nodes.fake_links import FakeLinks

GROUP = c.PauseLonger("g", None, 5000)
TENANT = c.PauseLonger("g", "acme", 5000)
LEADERS = {10: "n1", 11: "n1", 12: "n2", 13: "n2", 14: "n3"}


class Replica(PartitionReplica):
    """A partition whose pauses are in a map."""

    def __init__(self) -> None:
        self.ends: dict[tuple[str, str | None], int] = {}
        self.is_mid_entry = False

    def is_paused_until(self, group: str, tenant: str | None, until_ms: int) -> bool:
        return self.ends.get((group, tenant), 0) >= until_ms


class Partition:
    """A partition that this node leads."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.replica = Replica()
        self.ready = True
        self.entries: list[c.PauseLonger] = []
        self.error: SandqError | None = None
        self.gate: trio.Event | None = None
        """If set, entries wait for this event."""

    async def call(self, command: c.PauseLonger, line: Any) -> None:
        self.entries.append(command)
        await trio.lowlevel.checkpoint()
        if self.gate is not None:
            await self.gate.wait()
        if self.error is not None:
            raise self.error
        self.replica.ends[command.group, command.tenant] = command.until_ms


class Bed:
    """Node n1 leads two partitions of a topic, n2 two, and n3 one. The others answer that the pause holds."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self.partitions = {number: Partition(number) for number, node in LEADERS.items() if node == "n1"}
        self.leaders: dict[int, str | None] = dict(LEADERS)
        self.refused: dict[int, str] = {}
        self.silent: set[str] = set()
        self.is_reached = True
        self.links = FakeLinks("n2", "n3", on_send=self.answer)
        catalog: Any = SimpleNamespace(
            by_group={number: SimpleNamespace(raft_group=one) for number, one in self.partitions.items()}
        )
        routes: Any = SimpleNamespace(leader=self.leaders.get)
        runner: Any = SimpleNamespace(ask=self.ask)
        self.asks_fail = False
        self.spreader = PauseSpreader("n1", catalog, routes=routes, runner=runner, links=self.links, nursery=nursery)
        self.topic: Any = SimpleNamespace(
            name="t", number=1, partitions=[SimpleNamespace(group=group) for group in LEADERS]
        )

    async def ask(self, query: Callable[[], Any], *, group: int, patient: bool) -> Any:
        await trio.lowlevel.checkpoint()
        if self.asks_fail:
            raise Unavailable("the thread is stalled")
        return query()

    def answer(self, node: str, kind: int, body: Any) -> bool:
        if kind == PeerFrame.PAUSE_ASKED and node not in self.silent and self.is_reached:
            number, groups, *_ = body
            held = tuple(group for group in groups if group not in self.refused)
            refused = tuple(group for group in groups if group in self.refused)
            reason = self.refused[refused[0]] if refused else ""
            self.spreader.on_frame(node, PeerFrame.PAUSE_TOLD, (number, held, refused, reason))
        return self.is_reached

    async def spread(self, command: c.PauseLonger = GROUP) -> None:
        await self.spreader.spread(self.topic, command)

    @property
    def entries(self) -> list[list[c.PauseLonger]]:
        return [partition.entries for partition in self.partitions.values()]


@asynccontextmanager
async def opened() -> AsyncIterator[Bed]:
    async with trio.open_nursery() as nursery:
        yield Bed(nursery)
        nursery.cancel_scope.cancel()


async def test_pause_reaches_all_partitions_with_one_request_per_node() -> None:
    async with opened() as bed:
        await bed.spread(TENANT)
        assert bed.entries == [[TENANT], [TENANT]]
        assert [(node, body[1:]) for node, _, body in bed.links.sent] == [
            ("n2", ((12, 13), "g", "acme", 5000)), ("n3", ((14,), "g", "acme", 5000))
        ]  # fmt: skip


async def test_partition_that_is_paused_for_longer_gets_no_entry() -> None:
    async with opened() as bed:
        bed.partitions[10].replica.ends["g", None] = 6000
        await bed.spread()
        assert bed.entries == [[], [GROUP]]
        await bed.spread()
        assert bed.entries == [[], [GROUP]]
        bed.partitions[11].replica.is_mid_entry = True
        await bed.spread()
        assert bed.entries == [[], [GROUP, GROUP]], "its pauses may be of half an entry"
        bed.asks_fail = True
        await bed.spread()
        assert bed.entries == [[GROUP], [GROUP] * 3]


async def test_many_callers_share_two_rounds() -> None:
    async with opened() as bed:
        bed.partitions[10].gate = gate = trio.Event()
        async with trio.open_nursery() as callers:
            callers.start_soon(bed.spread)
            await trio.testing.wait_all_tasks_blocked()
            for number in range(1000):
                callers.start_soon(bed.spread, later(number))
            await trio.testing.wait_all_tasks_blocked()
            assert bed.entries == [[GROUP], [GROUP]]
            gate.set()
        assert bed.entries == [[GROUP, later(999)], [GROUP, later(999)]]
        assert len(bed.links.sent) == 4
        assert not bed.spreader._next and not bed.spreader._running and not bed.spreader._asked


def later(number: int) -> c.PauseLonger:
    return c.PauseLonger("g", None, 6000 + number)


async def test_another_tenant_waits_for_no_round() -> None:
    async with opened() as bed:
        bed.partitions[10].gate = trio.Event()
        async with trio.open_nursery() as callers:
            callers.start_soon(bed.spread)
            callers.start_soon(bed.spread, TENANT)
            await trio.testing.wait_all_tasks_blocked()
            assert bed.partitions[11].replica.ends == {("g", None): 5000, ("g", "acme"): 5000}
            bed.partitions[10].gate.set()


async def test_partition_without_leader_is_reported_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as bed:
        bed.leaders[13] = None
        with pytest.raises(TimedOut, match="holds in 4 of 5 partitions: the leaders of partition 3 did not") as caught:
            await bed.spread()
        assert caught.value.retriable
        assert caught.value.details == {"held": 4, "partitions": 5, "silent": [3]}
        assert trio.current_time() == 0
        bed.leaders[13] = "n2"
        await bed.spread()


async def test_unreachable_node_is_reported_at_once(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as bed:
        bed.is_reached = False
        with pytest.raises(TimedOut, match="holds in 2 of 5 partitions: the leaders of partitions 2, 3, 4 did not"):
            await bed.spread()
        assert trio.current_time() == 0


async def test_leader_that_does_not_answer_is_reported_after_the_time_limit(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened() as bed:
        bed.silent = {"n2"}
        with pytest.raises(TimedOut, match="holds in 3 of 5 partitions: the leaders of partitions 2, 3 did not"):
            await bed.spread()
        assert trio.current_time() == pause_spreader.ANSWER_S
        number = bed.links.sent[0][2][0]
        assert bed.spreader.on_frame("n2", PeerFrame.PAUSE_TOLD, (number, (12, 13), (), "")), "it came too late"


async def test_leader_here_without_majority_is_reported_after_the_time_limit(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened() as bed:
        bed.partitions[11].gate = trio.Event()
        with pytest.raises(TimedOut, match="holds in 4 of 5 partitions: the leaders of partition 1 did not"):
            await bed.spread()
        assert trio.current_time() == pause_spreader.ENTRY_S
        bed.partitions[11].gate = None
        bed.partitions[10].error, bed.partitions[11].ready = Unavailable("it moves"), False
        with pytest.raises(TimedOut, match="the leaders of partition 1 did not"):
            await bed.spread()
        with pytest.raises(TimedOut, match="the leaders of partitions 0, 1 did not"):
            await bed.spread(later(0))


async def test_refusing_partitions_are_named() -> None:
    async with opened() as bed:
        bed.partitions[11].error = InvalidRequest("it has too many")
        bed.refused[14] = "it has too many"
        with pytest.raises(InvalidRequest, match="3 of 5 partitions: partitions 1, 4 refused it, because it has too"):
            await bed.spread()
        bed.leaders[12] = None
        with pytest.raises(
            InvalidRequest, match="leaders of partition 2 did not answer; partitions 1, 4 ref"
        ) as caught:
            await bed.spread()
        details = {"held": 2, "partitions": 5, "silent": [2], "refused": [1, 4]}
        assert {name: caught.value.details[name] for name in details} == details


async def test_too_many_pending_pauses_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pause_spreader, "PENDING_MAX", 1)
    async with opened() as bed:
        bed.partitions[10].gate = gate = trio.Event()
        async with trio.open_nursery() as callers:
            for _ in range(2):
                callers.start_soon(bed.spread)
                await trio.testing.wait_all_tasks_blocked()
            with pytest.raises(Overloaded, match="pauses of 1 groups and tenants are pending"):
                await bed.spread(TENANT)
            gate.set()


async def test_cancelled_caller_leaves_the_round_to_the_others() -> None:
    async with opened() as bed:
        bed.partitions[10].gate = gate = trio.Event()
        async with trio.open_nursery() as callers:
            with trio.CancelScope() as scope:
                callers.start_soon(bed.spread)
                await trio.testing.wait_all_tasks_blocked()
                callers.start_soon(bed.spread, later(0))
                scope.cancel()
                await bed.spread(later(0))
            gate.set()
        assert bed.entries == [[GROUP, later(0)]] * 2


async def test_node_answers_for_the_partitions_that_it_leads(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as bed:
        bed.partitions[11].error = InvalidRequest("it has too many")
        assert bed.spreader.on_frame("n2", PeerFrame.PAUSE_ASKED, (7, (10, 11, 12), "g", "acme", 5000))
        await trio.testing.wait_all_tasks_blocked()
        assert bed.links.sent == [("n2", PeerFrame.PAUSE_TOLD, (7, (10,), (11,), "it has too many"))]
        bed.partitions[10].gate = bed.partitions[11].gate = trio.Event()
        bed.spreader.on_frame("n2", PeerFrame.PAUSE_ASKED, (8, (10, 11), "g", None, 5000))
        await trio.sleep(pause_spreader.ENTRY_S + 0.001)
        assert bed.links.sent[1:] == [("n2", PeerFrame.PAUSE_TOLD, (8, (), (), ""))]


async def test_requests_beyond_the_limit_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pause_spreader, "ANSWERS_AT_ONCE", 1)
    async with opened() as bed:
        for number in range(3):
            assert bed.spreader.on_frame("n2", PeerFrame.PAUSE_ASKED, (number, (10,), "g", None, 5000))
        await trio.testing.wait_all_tasks_blocked()
        bed.spreader.on_frame("n2", PeerFrame.PAUSE_ASKED, (3, (10,), "g", None, 5000))
        await trio.testing.wait_all_tasks_blocked()
        assert [body[0] for _, _, body in bed.links.sent] == [0, 3]


async def test_answer_counts_only_for_the_asked_partitions_of_the_asked_node(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with opened() as bed:
        bed.silent = {"n2", "n3"}

        async def answer() -> None:
            await trio.testing.wait_all_tasks_blocked()
            number = bed.links.sent[0][2][0]
            bed.spreader.on_frame("n3", PeerFrame.PAUSE_TOLD, (number, (12, 13), (), ""))
            bed.spreader.on_frame("n2", PeerFrame.PAUSE_TOLD, (number, (12, 14), (), ""))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(answer)
            with pytest.raises(TimedOut, match="holds in 3 of 5 partitions: the leaders of partitions 3, 4 did not"):
                await bed.spread()


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (PeerFrame.PAUSE_ASKED, None),
        (PeerFrame.PAUSE_ASKED, (7, (10,), "g", None)),
        (PeerFrame.PAUSE_ASKED, (7, ("10",), "g", None, 5)),
        (PeerFrame.PAUSE_ASKED, (7, (10,), "g", b"acme", 5)),
        (PeerFrame.PAUSE_ASKED, (7, (10,), "no name", None, 5)),
        (PeerFrame.PAUSE_ASKED, (7, (10,), "g", "no tenant!", 5)),
        (PeerFrame.PAUSE_ASKED, (7, (10,), "g", None, -1)),
        (PeerFrame.PAUSE_ASKED, (7, (10,), "g", None, U48_MAX)),
        (PeerFrame.PAUSE_TOLD, (7, (10,), ())),
        (PeerFrame.PAUSE_TOLD, (7, ("10",), (), "")),
        (PeerFrame.PAUSE_TOLD, (7, (), (True,), "")),
        (PeerFrame.PAUSE_TOLD, (7, (), (), None)),
    ],
)
async def test_malformed_frame_is_refused(kind: int, body: Any) -> None:
    async with opened() as bed:
        assert not bed.spreader.on_frame("n2", kind, body)
        assert bed.entries == [[], []]
