"""Tests of pauses of named limits: requests to the node that leads their home, shared results, silent members."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from sandq.broker.delivery import limit_pauses
from sandq.broker.delivery.limit_pauses import LimitPauses
from sandq.model.errors import InvalidRequest, NotFound, SandqError, TimedOut, Unavailable
from sandq.model.names import LIMITS_TOPIC
from sandq.model.offsets import U48_MAX
from sandq.partition import commands as c
from sandq.partition.limits.allowance import LimitPause
from sandq.protocol.peer import PeerFrame
from tests.support.nodes.fake_links import FakeLinks

HOME_GROUP = 7
BY = "group g of topic t"


class Home:
    """The home of the limit "llm", which this node leads."""

    def __init__(self) -> None:
        self.entries: list[c.PauseLimit] = []
        self.error: SandqError | None = None
        self.earlier: LimitPause | None = None
        """The pause that stays as it is."""
        self.gate = trio.Event()
        self.gate.set()
        self.ledger = SimpleNamespace(members={1: "first", 2: "second"})
        self.status = SimpleNamespace(limits=SimpleNamespace(ledgers={"llm": self.ledger}))

    async def call(self, command: c.PauseLimit, line: Any) -> LimitPause:
        self.entries.append(command)
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return self.earlier or LimitPause(len(self.entries), command.until_ms, command.by)


class Shares:
    """Which members have not confirmed the pause."""

    def __init__(self) -> None:
        self.silent: list[str] = []

    def unpaused(self, leader: Any, limit: str) -> list[str]:
        return self.silent

    async def until_paused(self, leader: Any, limit: str) -> None:
        if self.silent:
            await trio.sleep_forever()


class Bed:
    """Node n1. The home of the limits is at `home`: n1, another node that answers, or unknown."""

    def __init__(self, home: str | None, nursery: trio.Nursery) -> None:
        self.home, self.shares = Home(), Shares()
        self.node, self.shut = home, set[str]()
        self.reply: tuple[Any, ...] | None = (5000, 2, 2, "")
        self.links = FakeLinks("n2", "n3", on_send=self.answer)
        record = SimpleNamespace(partitions=[SimpleNamespace(group=HOME_GROUP)])
        leader = SimpleNamespace(raft_group=self.home)
        catalog: Any = SimpleNamespace(
            topics={LIMITS_TOPIC: SimpleNamespace(record=record)},
            leader=lambda topic, partition: self.node,
            by_group={HOME_GROUP: leader} if home == "n1" else {},
        )
        self.catalog, self.leader = catalog, leader
        shares: Any = self.shares
        self.pauses = LimitPauses(
            "n1",
            catalog,
            shares=shares,
            links=self.links,
            is_shut=lambda group, node: group == HOME_GROUP and node in self.shut,
            nursery=nursery,
        )

    def answer(self, node: str, kind: int, body: Any) -> bool:
        if kind == PeerFrame.LIMIT_PAUSE_ASKED and self.reply is not None:
            self.pauses.on_frame(node, PeerFrame.LIMIT_PAUSE_TOLD, (body[0], *self.reply))
        return True

    async def pause(self, until_ms: int = 5000) -> int:
        return await self.pauses.pause("llm", until_ms, BY)


@asynccontextmanager
async def opened(home: str | None = "n1") -> AsyncIterator[Bed]:
    async with trio.open_nursery() as nursery:
        yield Bed(home, nursery)
        nursery.cancel_scope.cancel()


async def test_home_at_this_node_stores_the_pause() -> None:
    async with opened() as bed:
        assert await bed.pause() == 5000
        assert bed.home.entries == [c.PauseLimit("llm", 5000, BY, is_longer=True)]
        assert bed.links.sent == [] and not bed.pauses._running


async def test_pause_whose_end_has_passed_at_the_home_returns_this_end() -> None:
    async with opened() as bed:
        bed.home.earlier = LimitPause(0, 0, "")
        assert await bed.pause() == 5000
        bed.home.earlier = LimitPause(1, 9000, BY)
        assert await bed.pause() == 9000


async def test_home_at_another_node_is_asked() -> None:
    async with opened("n2") as bed:
        assert await bed.pause() == 5000
        ((node, kind, body),) = bed.links.sent
        assert (node, kind, body[1:]) == ("n2", PeerFrame.LIMIT_PAUSE_ASKED, (HOME_GROUP, "llm", 5000, BY))
        bed.reply = (0, 0, 0, "there is no limit 'llm'")
        with pytest.raises(InvalidRequest, match="no limit"):
            await bed.pause()
        assert not bed.pauses._asked


async def test_callers_share_the_result_of_a_pause_that_ends_no_earlier() -> None:
    async with opened() as bed:
        bed.home.gate = gate = trio.Event()
        ends: list[int] = []

        async def pause(until_ms: int) -> None:
            ends.append(await bed.pause(until_ms))

        async with trio.open_nursery() as callers:
            callers.start_soon(pause, 5000)
            await trio.testing.wait_all_tasks_blocked()
            for number in range(1000):
                callers.start_soon(pause, 4999 + number % 3)
            await trio.testing.wait_all_tasks_blocked()
            gate.set()
        assert sorted(set(ends)) == [5000, 5001] and len(ends) == 1001
        assert [entry.until_ms for entry in bed.home.entries] == [5000, 5001]


async def test_cancelled_caller_leaves_the_pause_to_the_next(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as bed:
        bed.home.gate = gate = trio.Event()
        async with trio.open_nursery() as callers:
            with trio.move_on_after(0.5):
                callers.start_soon(bed.pause)
                await bed.pause(4000)
            gate.set()
        assert not bed.pauses._running


async def test_members_that_do_not_confirm_the_pause_are_counted(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as bed:
        bed.shares.silent = ["second"]
        with pytest.raises(TimedOut, match="only 1 of 2 partitions of its groups") as raised:
            await bed.pause()
        assert raised.value.details == {"limit": "llm", "held": 1, "members": 2}
        assert trio.current_time() == limit_pauses.HOLD_S
        leader: Any = bed.leader
        with pytest.raises(TimedOut, match="is resumed, but only 1 of 2"):
            await bed.pauses.change(leader, c.PauseLimit("llm", 0, "an operator", is_longer=False))


async def test_home_that_does_not_answer_in_time(autojump_clock: trio.testing.MockClock) -> None:
    async with opened() as bed:
        bed.home.gate = trio.Event()
        with pytest.raises(TimedOut, match="unknown whether the pause"):
            await bed.pause()
        leader: Any = bed.leader
        with pytest.raises(TimedOut, match="unknown whether the pause"):
            await bed.pauses.change(leader, c.PauseLimit("llm", 0, "an operator", is_longer=False))
    async with opened("n2") as bed:
        bed.reply = None
        with pytest.raises(TimedOut, match="unknown whether the pause"):
            await bed.pause()
        number = bed.links.sent[0][2][0]
        assert bed.pauses.on_frame("n2", PeerFrame.LIMIT_PAUSE_TOLD, (number, 5000, 2, 2, "")), "it came too late"


async def test_limit_that_is_deleted_during_a_pause_is_not_found() -> None:
    async with opened() as bed:
        bed.home.status.limits.ledgers.clear()
        leader: Any = bed.leader
        with pytest.raises(NotFound, match="was deleted meanwhile"):
            await bed.pauses.change(leader, c.PauseLimit("llm", 5000, "an operator", is_longer=False))
        assert bed.pauses.on_frame("n2", PeerFrame.LIMIT_PAUSE_ASKED, (9, HOME_GROUP, "llm", 5000, BY))
        await trio.testing.wait_all_tasks_blocked()
        ((_, kind, body),) = bed.links.sent
        assert (kind, body[:4]) == (PeerFrame.LIMIT_PAUSE_TOLD, (9, 0, 0, 0)) and "deleted meanwhile" in body[4]


async def test_only_the_node_that_was_asked_may_reply() -> None:
    async with opened("n2") as bed:
        bed.reply = None
        async with trio.open_nursery() as callers:
            callers.start_soon(bed.pause)
            await trio.testing.wait_all_tasks_blocked()
            number = bed.links.sent[0][2][0]
            bed.pauses.on_frame("n3", PeerFrame.LIMIT_PAUSE_TOLD, (number, 1, 1, 1, "wrong"))
            bed.pauses.on_frame("n2", PeerFrame.LIMIT_PAUSE_TOLD, (number, 5000, 2, 2, ""))


async def test_home_without_a_leader_or_with_a_shut_replica_is_named() -> None:
    async with opened(None) as bed:
        with pytest.raises(Unavailable, match=r"sandq\.limits has no leader"):
            await bed.pause()
        assert bed.pauses.home_problem() == (
            "topic sandq.limits has no leader, so limits give no shares: see sandctl doctor"
        )
        bed.node = "n2"
        assert bed.pauses.home_problem() is None
        bed.shut.add("n2")
        assert (
            bed.pauses.home_problem()
            == "topic sandq.limits is shut at n2, so limits give no shares: see sandctl doctor"
        )
        bed.catalog.topics.clear()
        assert bed.pauses.home_problem() is None


async def test_requests_of_other_nodes_are_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = (9, HOME_GROUP, "llm", 5000, BY)
    async with opened() as bed:
        assert bed.pauses.on_frame("n2", PeerFrame.LIMIT_PAUSE_ASKED, asked)
        await trio.testing.wait_all_tasks_blocked()
        assert bed.links.sent == [("n2", PeerFrame.LIMIT_PAUSE_TOLD, (9, 5000, 2, 2, ""))]
        bed.home.error = NotFound("there is no limit 'llm'")
        bed.pauses.on_frame("n2", PeerFrame.LIMIT_PAUSE_ASKED, asked)
        await trio.testing.wait_all_tasks_blocked()
        assert bed.links.sent[1:] == [("n2", PeerFrame.LIMIT_PAUSE_TOLD, (9, 0, 0, 0, "there is no limit 'llm'"))]
        bed.home.error = Unavailable("the leader has changed")
        bed.pauses.on_frame("n2", PeerFrame.LIMIT_PAUSE_ASKED, asked)
        await trio.testing.wait_all_tasks_blocked()
        assert len(bed.links.sent) == 2 and bed.pauses._answering == 0
        monkeypatch.setattr(limit_pauses, "ANSWERS_AT_ONCE", 0)
        assert bed.pauses.on_frame("n2", PeerFrame.LIMIT_PAUSE_ASKED, asked)
        assert bed.pauses.on_frame("n2", PeerFrame.LIMIT_PAUSE_ASKED, (9, 8, "llm", 5000, BY)), "led elsewhere"
        await trio.testing.wait_all_tasks_blocked()
        assert len(bed.home.entries) == 3


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (PeerFrame.LIMIT_PAUSE_ASKED, None),
        (PeerFrame.LIMIT_PAUSE_ASKED, (9, HOME_GROUP, "llm", 5000)),
        (PeerFrame.LIMIT_PAUSE_ASKED, (9, HOME_GROUP, "no name", 5000, BY)),
        (PeerFrame.LIMIT_PAUSE_ASKED, (9, HOME_GROUP, "llm", 0, BY)),
        (PeerFrame.LIMIT_PAUSE_ASKED, (9, HOME_GROUP, "llm", U48_MAX, BY)),
        (PeerFrame.LIMIT_PAUSE_ASKED, (9, HOME_GROUP, "llm", 5000, "b" * 601)),
        (PeerFrame.LIMIT_PAUSE_ASKED, (9, HOME_GROUP, "llm", True, BY)),
        (PeerFrame.LIMIT_PAUSE_TOLD, (9, 5000, 2, 2)),
        (PeerFrame.LIMIT_PAUSE_TOLD, (9, 5000, 2, 2, None)),
        (PeerFrame.LIMIT_PAUSE_TOLD, (9, -1, 2, 2, "")),
        (PeerFrame.LIMIT_PAUSE_TOLD, (9, U48_MAX + 1, 1, 2, "")),
        (PeerFrame.LIMIT_PAUSE_TOLD, (9, 5000, -1, 2, "")),
        (PeerFrame.LIMIT_PAUSE_TOLD, (9, 5000, 2, 2, "e" * 5000)),
        (PeerFrame.PAUSE_TOLD, (9, 5000, 2, 2, "")),
    ],
)
async def test_malformed_frames_are_refused(kind: int, body: Any) -> None:
    async with opened() as bed:
        assert not bed.pauses.on_frame("n2", kind, body)
        assert bed.home.entries == []
