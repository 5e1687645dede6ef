"""Tests of the roster: its nodes, and the changes that its readers get."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import trio
import trio.testing

from sandq.membership.roster import Roster
from sandq.model.config_schema import Address
from sandq.model.membership import Change, Member, State


def member(name: str, state: State = State.ALIVE, **tags: str) -> Member:
    return Member(name, Address("127.0.0.1", 7946), tags, state, since_ms=1)


def test_members_are_sorted_and_returned_views_are_immutable() -> None:
    roster = Roster()
    roster.put(member("b"))
    roster.put(member("a"))
    before = roster.members()
    assert list(before) == ["a", "b"]
    assert roster.members() is before, "no copy is made if nothing changed"
    roster.put(member("a", State.FAILED))
    roster.remove("b")
    roster.remove("b")
    assert (list(before), before["a"].state) == (["a", "b"], State.ALIVE)
    assert roster.members() == {"a": member("a", State.FAILED)}
    with pytest.raises(TypeError):
        before["c"] = member("c")  # type: ignore[index]


async def test_first_batch_lists_all_members_and_later_ones_the_changes() -> None:
    roster = Roster()
    for name in "cab":
        roster.put(member(name))
    changes = roster.changes()
    assert await anext(changes) == [Change(member(name)) for name in "abc"]
    roster.put(member("b", State.LEFT))
    assert await anext(changes) == [Change(member("b", State.LEFT))]
    roster.put(member("b", State.LEFT, zone="x"))
    roster.remove("a")
    roster.put(member("d"))
    assert await anext(changes) == [
        Change(member("a"), gone=True),
        Change(member("b", State.LEFT, zone="x")),
        Change(member("d")),
    ]


async def test_first_batch_of_empty_roster_is_empty_and_immediate() -> None:
    with trio.CancelScope() as scope:
        scope.cancel()  # a wait at this point would be cancelled
        assert await anext(Roster().changes()) == []


async def test_waiting_reader_is_woken_only_by_a_change(autojump_clock: trio.testing.MockClock) -> None:
    roster = Roster()
    roster.put(member("a"))
    changes = roster.changes()
    await anext(changes)
    found: list[tuple[float, object]] = []

    async def read() -> None:
        async for batch in changes:
            found.append((trio.current_time() - began, batch))

    async with trio.open_nursery() as nursery:
        began = trio.current_time()
        nursery.start_soon(read)
        await trio.sleep(1)
        roster.put(member("a"))
        roster.remove("nobody")
        await trio.sleep(1)
        roster.put(member("b"))
        await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert found == [(2, [Change(member("b"))])]


async def test_a_slow_reader_finds_many_changes_as_one() -> None:
    roster = Roster()
    roster.put(member("a"))
    changes = roster.changes()
    await anext(changes)
    for round_ in range(1000):
        roster.put(replace(member("a"), since_ms=round_))
        roster.put(member("passer-by"))
        roster.remove("passer-by")
    assert await anext(changes) == [Change(replace(member("a"), since_ms=999))]


async def test_change_that_was_undone_is_not_reported(autojump_clock: trio.testing.MockClock) -> None:
    roster = Roster()
    roster.put(member("a"))
    changes = roster.changes()
    await anext(changes)
    roster.put(member("a", State.SUSPECT))
    roster.put(member("a"))
    with pytest.raises(trio.TooSlowError), trio.fail_after(60):
        await anext(changes)
    roster.put(member("b"))
    assert await anext(changes) == [Change(member("b"))]


async def test_slow_reader_misses_no_removal() -> None:
    roster = Roster()
    crowd = [f"{number:05}" for number in range(5000)]
    for name in crowd:
        roster.put(member(name))
    changes = roster.changes()
    await anext(changes)
    for name in crowd:
        roster.remove(name)
    assert [change.member.name for change in await anext(changes) if change.gone] == crowd


@pytest.mark.parametrize("seed", range(20))
async def test_readers_at_any_pace_know_the_listed_members(seed: int, autojump_clock: trio.testing.MockClock) -> None:
    chance = random.Random(seed)
    roster = Roster()
    readers = [roster.changes() for _ in range(3)]
    views: list[dict[str, Member]] = [{} for _ in readers]
    batches = 0
    for step in range(300):
        name = chance.choice("abcdefgh")
        if chance.random() < 0.3:
            roster.remove(name)
        else:
            roster.put(replace(member(name, chance.choice(list(State))), since_ms=step))
        which = chance.randrange(len(readers) * 4)
        if which < len(readers):
            with trio.move_on_after(1):  # a change is possible but not certain
                for change in await anext(readers[which]):
                    if change.gone:
                        assert views[which].pop(change.member.name) == change.member
                    else:
                        assert views[which].get(change.member.name) != change.member
                        views[which][change.member.name] = change.member
                assert views[which] == roster.members(), f"seed {seed}, step {step}"
                batches += 1
    assert batches > 10
