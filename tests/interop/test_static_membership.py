"""The backend `static` keeps the promises of `Membership` that need no failure detection."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import pytest
import trio

from sandq.membership.static_backend import StaticMembership
from sandq.model.config_types import Address
from sandq.model.membership import Member, Membership, State
from tests.support.gossip.membership_contract import MembershipContract


class StaticBed:
    """Starts members whose configuration also names a peer that never runs."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._members: dict[str, StaticMembership] = {}

    async def start(self, name: str, tags: Mapping[str, str]) -> Membership:
        now_ms = iter(range(1000, 2000)).__next__
        peers = {"absent": Address("127.0.0.1", 1)}
        self._members[name] = StaticMembership(name, self.address(name), peers, tags, now_ms)
        await self._nursery.start(self._members[name].run)
        return self._members[name]

    def address(self, name: str) -> Address:
        return Address("127.0.0.1", 9900)

    async def stop(self, name: str) -> None:
        await self._members[name].leave()

    async def kill(self, name: str) -> None:
        raise NotImplementedError("static membership does not detect failures")

    def has_left(self, member: Member) -> bool:
        return member.state is State.LEFT


@pytest.fixture
async def bed() -> AsyncIterator[StaticBed]:
    async with trio.open_nursery() as nursery:
        yield StaticBed(nursery)
        nursery.cancel_scope.cancel()


class TestStatic(MembershipContract):
    async def test_leaving_member_sees_its_own_leave(self, bed: StaticBed) -> None:
        a = await bed.start("a", {})
        await bed.stop("a")
        assert bed.has_left(a.members()["a"]) and a.members()["absent"].state is State.ALIVE
