"""Messages expire, use up their attempts, and are removed from the dead letters only when their rules say so.

This holds on three nodes under all faults. In the end, each stored message is acked, was dropped after its expiry and
counted, is a dead letter, or was removed from the dead letters and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sandq.partition.base.step import Step
from sandq.partition.groups.dead_letters import DeadLetters
from sandq.partition.groups.group import Group
from sandq.partition.groups.message_ttl import MessageTtl
from sandq.partition.groups.waiting_table import WaitingTable
from sandq.partition.jobs.dead_retention import DeadRetention
from sandq.partition.leasing import retry
from sandq.partition.records.leases import Lease
from tests.support.simulation.ending_world import EndingWorld, PausedEndingWorld
from tests.support.simulation.seeds import few_of, run_each

Fault = Callable[[pytest.MonkeyPatch], None]
STEPS = 800
"""Number of steps before healing: 11 seconds of virtual time."""
EVENTFUL = (3, 61, 32)
"""Seeds of worlds that together have enough events of each kind. Each kind of topic has every third
seed. In every fourth world, the clock of the partition is set back."""


def run_world(seed: int) -> EndingWorld:
    return run(EndingWorld(seed))


def run_paused_world(seed: int) -> EndingWorld:
    return run(PausedEndingWorld(seed))


def run(world: EndingWorld) -> EndingWorld:
    try:
        world.live(STEPS)
        world.heal()
    finally:
        world.close()
    return world


@pytest.mark.parametrize("seeds", few_of([EVENTFUL, range(24)], 1), ids=str)
def test_messages_end_by_their_rules_under_faults(seeds: Sequence[int]) -> None:
    worlds = run_each(run_world, seeds)
    events: Counter[str] = sum((world.clients.endings.events for world in worlds), Counter())
    for what in ("expired", "exhausted", "last attempt", "back-off", "old", "excess"):
        assert events[what] > 4, f"too few events: {what}"
    dropped, removed = (
        sum(getattr(view, name) for world in worlds for view in world.clients.endings.views.values())
        for name in ("dropped", "removed")
    )
    assert dropped > 10 and removed > 20
    assert sum(world.crashes for world in worlds) > 10
    assert sum(world.resets for world in worlds) > 0, "too few events: clock resets"


@pytest.mark.parametrize("seeds", few_of([(8,), range(4), range(12, 16)], 1), ids=str)
def test_paused_messages_end_by_their_rules_under_faults(seeds: Sequence[int]) -> None:
    worlds = run_each(run_paused_world, seeds)
    events: Counter[str] = sum((world.clients.endings.events for world in worlds), Counter())
    assert events["expired"] > 20 and events["exhausted"] > 2
    assert sum(world.clients.pauses.ended for world in worlds) > 5


@pytest.mark.long
@pytest.mark.parametrize("run", [run_world, run_paused_world])
@pytest.mark.parametrize("block", range(20))
def test_messages_end_by_their_rules_in_many_worlds(run: Callable[[int], EndingWorld], block: int) -> None:
    run_each(run, range(100_000 + 25 * block, 100_025 + 25 * block))


# -- planted faults --------------------------------------------------------------------------------------------------


def messages_expire_early(patch: pytest.MonkeyPatch) -> None:
    """End messages 250 ms before their expiry."""
    for name in ("entry_expires_ms", "range_expires_ms"):
        before: Any = getattr(MessageTtl, name)

        def early(*args: Any, before: Any = before) -> int | None:
            expires_ms: int | None = before(*args)
            return None if expires_ms is None else expires_ms - 250

        patch.setattr(MessageTtl, name, early)


def own_ttl_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(MessageTtl, "any_own", property(lambda ttl: False, lambda ttl, value: None), raising=False)


def expired_retries_are_leased(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WaitingTable, "remove_expired", lambda *args: [])


def rule_of_group_is_ignored(patch: pytest.MonkeyPatch) -> None:
    """Drop expired messages by the topic's rule, although the group overrides it."""
    patch.setattr(DeadLetters, "_drops_expired", lambda *args: True)


def rule_of_topic_is_ignored(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeadLetters, "_drops_expired", lambda *args: False)


def failed_messages_are_dropped(patch: pytest.MonkeyPatch) -> None:
    """Drop messages that have used up their attempts in groups that drop expired messages."""
    bury_some: Any = DeadLetters.bury_some

    def drop_some(letters: DeadLetters, step: Step, group: Group, ranges: Any, kept: bool, *args: Any) -> Any:
        if not letters._drops_expired(group):
            return bury_some(letters, step, group, ranges, kept, *args)
        letters._drop(step, group, ranges, kept)
        return ranges

    patch.setattr(DeadLetters, "bury_some", drop_some)


def add_to_dropped(patch: pytest.MonkeyPatch, change: Callable[[int], int]) -> None:
    drop: Any = DeadLetters._drop

    def drop_and_count(letters: DeadLetters, step: Step, group: Group, ranges: Any, kept: bool) -> None:
        before = group.dropped
        drop(letters, step, group, ranges, kept)
        group.dropped = before + change(group.dropped - before)
        letters._groups.store(step, group)

    patch.setattr(DeadLetters, "_drop", drop_and_count)


def dropped_messages_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    add_to_dropped(patch, lambda count: 0)


def dropped_messages_are_counted_twice(patch: pytest.MonkeyPatch) -> None:
    add_to_dropped(patch, lambda count: 2 * count)


def change_limits(patch: pytest.MonkeyPatch, change: Callable[[int], int]) -> None:
    rules: Any = DeadRetention._current_rules

    def changed(retention: DeadRetention) -> tuple[int | None, ...]:
        return tuple(None if limit is None else change(limit) for limit in rules(retention))

    patch.setattr(DeadRetention, "_current_rules", changed)


def old_letters_are_removed_early(patch: pytest.MonkeyPatch) -> None:
    """Remove dead letters 250 ms before their retention ends."""
    change_limits(patch, lambda limit: limit - 250 if limit > 1000 else limit)


def too_many_letters_are_removed(patch: pytest.MonkeyPatch) -> None:
    change_limits(patch, lambda limit: limit - 1 if limit < 1000 else limit)


def no_letters_are_removed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeadRetention, "_current_rules", lambda *args: (None, None))


def removed_letters_are_not_counted(patch: pytest.MonkeyPatch) -> None:
    remove: Any = DeadRetention._remove

    def remove_silently(retention: DeadRetention, step: Step, group: Group, *limits: int) -> Any:
        before = group.removed
        removed = remove(retention, step, group, *limits)
        group.removed = before
        retention._groups.store(step, group)
        return removed

    patch.setattr(DeadRetention, "_remove", remove_silently)


def own_max_attempts_is_ignored(patch: pytest.MonkeyPatch) -> None:
    of: Any = retry.max_attempts_of
    patch.setattr(retry, "max_attempts_of", lambda rules, group, topic: of(None, group, topic))


def messages_die_one_attempt_early(patch: pytest.MonkeyPatch) -> None:
    of: Any = retry.max_attempts_of
    patch.setattr(retry, "max_attempts_of", lambda *args: None if (most := of(*args)) is None else max(most - 1, 1))


def lost_leases_use_no_attempt(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Lease, "charged", property(lambda lease: 0))


def own_backoff_is_ignored(patch: pytest.MonkeyPatch) -> None:
    of: Any = retry.backoff_of
    patch.setattr(retry, "backoff_of", lambda rules, group, topic: of(None, group, topic))


LEFT = "not done after healing"


@pytest.mark.parametrize(
    ("fault", "seed", "error"),
    [
        (messages_expire_early, 0, "may have expired|before its expiry"),
        (own_ttl_is_ignored, 3, "before its expiry|after its expiry"),
        (expired_retries_are_leased, 0, "after its expiry"),
        (rule_of_group_is_ignored, 0, "dropped [0-9]+ messages"),
        (rule_of_topic_is_ignored, 0, "should have been dropped"),
        (failed_messages_are_dropped, 8, "dropped [0-9]+ messages"),
        (dropped_messages_are_not_counted, 3, LEFT),
        (dropped_messages_are_counted_twice, 5, "dropped [0-9]+ messages|were not acked"),
        (old_letters_are_removed_early, 3, "removed too early"),
        (too_many_letters_are_removed, 3, "removed too early"),
        (no_letters_are_removed, 3, LEFT),
        (removed_letters_are_not_counted, 3, "are not counted"),
        (own_max_attempts_is_ignored, 4, "after its [0-9]+ attempts"),
        (messages_die_one_attempt_early, 1, "died in"),
        (lost_leases_use_no_attempt, 8, "after its [0-9]+ attempts|before the end of its back-off"),
        (own_backoff_is_ignored, 4, "before the end of its back-off"),
    ],
)
def test_ending_fault_is_found(fault: Fault, seed: int, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError, match=error):
        run_each(run_world, range(seed, seed + 10))
