"""Test the promises of every backend of `Membership`, with the members that a bed starts.

A test module defines a fixture `bed` and a class that inherits from `MembershipContract`, or from `ClusterContract` if
its members can meet."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import pytest
import trio

from sandq.model.config_types import Address
from sandq.model.errors import TooLarge, Unavailable
from sandq.model.membership import Change, Changes, Member, Membership, State
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S

TAGS = {"id": "id of a", "zone": "x"}


class Bed(Protocol):
    """Starts and stops members of one cluster, by name. All of them end with the test."""

    async def start(self, name: str, tags: Mapping[str, str]) -> Membership:
        """Start a member that knows no other member, with its `run` active."""
        ...

    def address(self, name: str) -> Address:
        """Return the address at which others join the member."""
        ...

    async def stop(self, name: str) -> None:
        """Let the member leave the cluster, so that its `run` ends."""
        ...

    async def kill(self, name: str) -> None:
        """Kill the member and its helper processes, so that it ends without leaving the cluster."""
        ...

    def has_left(self, member: Member) -> bool:
        """Return whether the other members list this member as stopped."""
        ...


class Follower:
    """Computes the list of members from the changes only."""

    def __init__(self, changes: Changes) -> None:
        self.changes = changes
        self.listed: dict[str, Member] = {}

    async def read(self) -> list[Change]:
        """Apply the next batch of changes to the list, and return the batch."""
        batch = list(await anext(self.changes))
        for change in batch:
            if change.gone:
                del self.listed[change.member.name]
            else:
                self.listed[change.member.name] = change.member
        return batch

    async def until(self, name: str, condition: Callable[[Member], bool]) -> Member:
        """Wait until the member is listed and meets the condition, and return it."""
        with trio.move_on_after(PATIENCE_S):
            while name not in self.listed or not condition(self.listed[name]):
                await self.read()
            return self.listed[name]
        raise AssertionError(f"{name} did not reach the expected state in {PATIENCE_S:g} s; listed are {self.listed}")


async def alone(bed: Bed) -> tuple[Membership, Follower]:
    a = await bed.start("a", TAGS)
    return a, Follower(a.changes())


async def two(bed: Bed) -> tuple[Membership, Follower, Membership, Follower]:
    """Start two members that list each other."""
    a, follows_a = await alone(bed)
    b = await bed.start("b", {"id": "id of b"})
    follows_b = Follower(b.changes())
    assert await b.join([bed.address("a")]) == 1
    await follows_a.until("b", lambda member: member.tags.get("id") == "id of b")
    await follows_b.until("a", lambda member: member.tags.get("id") == "id of a")
    return a, follows_a, b, follows_b


def ours(member: Member) -> dict[str, str]:
    return {name: value for name, value in member.tags.items() if name in ("id", "zone")}


class MembershipContract:
    async def test_member_lists_itself(self, bed: Bed) -> None:
        a, _ = await alone(bed)
        own = a.members()["a"]
        assert (a.name, own.name, own.state, ours(own)) == ("a", "a", State.ALIVE, TAGS)
        assert own.address == bed.address("a")
        assert list(a.members()) == sorted(a.members())

    async def test_changes_list_all_members_and_then_updates(self, bed: Bed) -> None:
        a, follower = await alone(bed)
        assert await follower.read() == [Change(member) for member in a.members().values()]
        before = a.members()
        await a.set_tags({"zone": "y"})
        assert ours(a.members()["a"]) == {"zone": "y"} and ours(before["a"]) == TAGS
        with trio.fail_after(PATIENCE_S):
            assert await follower.read() == [Change(a.members()["a"])]

    async def test_a_slow_reader_finds_one_change(self, bed: Bed) -> None:
        a, slow = await alone(bed)
        await slow.read()
        for number in range(5):
            await a.set_tags({"zone": str(number)})
        with trio.fail_after(PATIENCE_S):
            assert [ours(change.member) for change in await slow.read()] == [{"zone": "4"}]

    async def test_tags_have_a_limit(self, bed: Bed) -> None:
        a, _ = await alone(bed)
        with pytest.raises(TooLarge, match="512"):
            await a.set_tags({"zone": "x" * 600})
        assert ours(a.members()["a"]) == TAGS


class ClusterContract(MembershipContract):
    async def test_members_meet_and_hear_of_new_tags(self, bed: Bed) -> None:
        a, follows_a, b, follows_b = await two(bed)
        assert set(a.members()) == set(b.members()) == {"a", "b"}
        for name in ("a", "b"):
            for follows in (follows_a, follows_b):
                seen = await follows.until(name, lambda member: member.state is State.ALIVE)
                assert seen.address == bed.address(name)
        assert ours(b.members()["a"]) == TAGS
        await a.set_tags({"zone": "y"})
        seen = await follows_b.until("a", lambda member: ours(member) != TAGS)
        assert ours(seen) == {"zone": "y"}

    async def test_a_third_is_found_through_the_second(self, bed: Bed) -> None:
        _, follows_a, b, _ = await two(bed)
        c = await bed.start("c", {"id": "id of c"})
        assert await c.join([Address("127.0.0.1", free_port()), bed.address("b")]) == 1, "only one of two seeds answers"
        await follows_a.until("c", lambda member: ours(member) == {"id": "id of c"})
        await Follower(c.changes()).until("a", lambda member: ours(member) == TAGS)
        assert set(b.members()) >= {"a", "b"}

    async def test_a_leave_is_seen(self, bed: Bed) -> None:
        _, follows_a, _, _ = await two(bed)
        assert not bed.has_left(follows_a.listed["b"])
        await bed.stop("b")
        await follows_a.until("b", bed.has_left)

    async def test_a_failure_is_seen(self, bed: Bed) -> None:
        a, follows_a, _, _ = await two(bed)
        alive = await follows_a.until("b", lambda member: member.state is State.ALIVE)
        await bed.kill("b")
        failed = await follows_a.until("b", lambda member: member.state is State.FAILED)
        assert failed.since_ms > alive.since_ms and failed.tags == alive.tags
        assert a.members()["a"].state is State.ALIVE

    async def test_join_of_silent_seeds_raises_unavailable(self, bed: Bed) -> None:
        a, _ = await alone(bed)
        seeds = [Address("127.0.0.1", free_port()) for _ in range(2)]
        with pytest.raises(Unavailable) as caught:
            await a.join(seeds)
        assert all(str(seed) in caught.value.message for seed in seeds)
        assert list(a.members()) == ["a"]
