"""Debounced and throttled messages keep their times on three nodes under all faults.

At most one throttled message of a key is stored for each window. The newest debounced message of a key is always
delivered, and so is the newest message if both edges of a window deliver. None is later than its rule allows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from sandq.model import offsets
from sandq.partition import commands as c
from sandq.partition.groups import unique_keys
from sandq.partition.groups.unique_keys import IGNORED, REPLACES, STORED, Throttled, UniqueKeys, Window
from sandq.partition.log import appends
from sandq.partition.log.message_log import MessageLog
from sandq.partition.reader.pieces import FROM_STAMP
from tests.support.simulation.seeds import few_of, run_each
from tests.support.simulation.spacing_world import WINDOW_MS, SpacingWorld

Fault = Callable[[pytest.MonkeyPatch], None]
STEPS = 800
"""Number of steps before healing: 11 seconds of virtual time."""
EVENTFUL = (8, 10, 12)
"""Seeds of worlds that together have enough events of each kind."""


def run_world(seed: int) -> SpacingWorld:
    world = SpacingWorld(seed)
    try:
        world.live(STEPS)
        world.heal()
    finally:
        world.close()
    return world


@pytest.mark.parametrize("seeds", few_of([EVENTFUL, range(24)], 1), ids=str)
def test_messages_keep_the_times_of_their_rules_under_faults(seeds: Sequence[int]) -> None:
    worlds = run_each(run_world, seeds)
    found: dict[int, Counter[str]] = {}
    for world in worlds:
        for caller in world.clients.callers:
            found[caller.rule] = found.get(caller.rule, Counter()) + caller.outcomes
    for rule, outcomes in (
        (c.DEBOUNCE, ("stored", "replaced")),
        (c.THROTTLE, ("stored", "ignored")),
        (c.THROTTLE_BOTH, ("stored", "replaced")),
    ):
        assert all(found[rule][outcome] > 10 for outcome in outcomes), found
    assert sum(world.crashes for world in worlds) > 5
    assert sum(world.resets for world in worlds) > 0, "too few events: clock resets"


@pytest.mark.long
@pytest.mark.parametrize("block", range(20))
def test_messages_keep_the_times_of_their_rules_in_many_worlds(block: int) -> None:
    run_each(run_world, range(100_000 + 25 * block, 100_025 + 25 * block))


# -- planted faults --------------------------------------------------------------------------------------------------


def change_throttled(patch: pytest.MonkeyPatch, change: Callable[[Throttled, c.Append, int], Throttled]) -> None:
    """Change the decisions about throttled messages."""
    resolve: Any = unique_keys.resolve_throttled

    def changed(window: Window, command: c.Append, now_ms: int, *, is_free: bool) -> Throttled:
        return change(resolve(window, command, now_ms, is_free=is_free), command, now_ms)

    patch.setattr(appends, "resolve_throttled", changed)


def all_messages_are_stored(patch: pytest.MonkeyPatch) -> None:
    change_throttled(patch, lambda found, command, now_ms: Throttled(STORED, now_ms))


def windows_never_end(patch: pytest.MonkeyPatch) -> None:
    change_throttled(
        patch,
        lambda found, command, now_ms: (
            found._replace(resolution=IGNORED) if command.on_conflict == c.THROTTLE else found
        ),
    )


def windows_are_short(patch: pytest.MonkeyPatch) -> None:
    """End windows 100 ms early."""
    patch.setattr(c.Append, "window_ms", property(lambda append: append.span_ms and append.span_ms - 100))


def newest_message_is_ignored(patch: pytest.MonkeyPatch) -> None:
    change_throttled(
        patch,
        lambda found, command, now_ms: found._replace(resolution=IGNORED) if found.resolution == REPLACES else found,
    )


def newest_message_postpones_the_delivery(patch: pytest.MonkeyPatch) -> None:
    change_throttled(
        patch,
        lambda found, command, now_ms: (
            found._replace(start_ms=now_ms + WINDOW_MS) if found.resolution == REPLACES else found
        ),
    )


def end_of_a_window_is_one_window_late(patch: pytest.MonkeyPatch) -> None:
    change_throttled(
        patch,
        lambda found, command, now_ms: (
            found._replace(start_ms=found.start_ms + WINDOW_MS)
            if command.on_conflict == c.THROTTLE_BOTH and found.resolution == STORED
            else found
        ),
    )


def window_ends_with_the_delivery(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Window, "end_ms", lambda window, now_ms: now_ms)


def message_of_the_end_comes_at_once(patch: pytest.MonkeyPatch) -> None:
    change_time(patch, c.THROTTLE_BOTH, lambda step, offset: offset)


def max_wait_is_ignored(patch: pytest.MonkeyPatch) -> None:
    change_time(patch, c.DEBOUNCE, lambda step, offset: offset)


def debounced_message_comes_at_once(patch: pytest.MonkeyPatch) -> None:
    change_time(patch, c.DEBOUNCE, lambda step, offset: offsets.at_time(offset, step.floor_ms))


def end_of_a_window_is_a_request(patch: pytest.MonkeyPatch) -> None:
    """Take the end of a window for the requested time, although the floor may be ahead by a wrong clock."""
    timed: Any = appends._timed

    def changed(step: Any, command: c.Append, offset: bytes, own: Any, marks: Any) -> Any:
        found, wanted = timed(step, command, offset, own, marks)
        return found, wanted if found == offset else FROM_STAMP

    patch.setattr(appends, "_timed", changed)


def change_time(patch: pytest.MonkeyPatch, rule: int, change: Callable[[Any, bytes], bytes]) -> None:
    timed: Any = appends._timed

    def changed(step: Any, command: c.Append, offset: bytes, own: Any, marks: Any) -> Any:
        return (change(step, offset), own) if command.on_conflict == rule else timed(step, command, offset, own, marks)

    patch.setattr(appends, "_timed", changed)


def each_message_begins_a_series(patch: pytest.MonkeyPatch) -> None:
    marks_of: Any = appends._marks_of

    def changed(step: Any, command: c.Append, start_ms: int | None) -> Any:
        return marks_of(step, command, None if command.on_conflict == c.DEBOUNCE else start_ms)

    patch.setattr(appends, "_marks_of", changed)


def replaced_messages_stay(patch: pytest.MonkeyPatch) -> None:
    cancel: Any = MessageLog.cancel

    def cancel_some(log: Any, step: Any, found: Any, *, remember: bool = True, frees_key: bool = True) -> None:
        if frees_key:
            cancel(log, step, found, remember=remember)

    patch.setattr(MessageLog, "cancel", cancel_some)


def key_names_no_new_message(patch: pytest.MonkeyPatch) -> None:
    """Do not record the message that a key names from now on, if there was one."""
    hold: Any = UniqueKeys.hold

    def hold_first(keys: Any, step: Any, unique_key: bytes, tenant: Any, *args: Any, **options: Any) -> None:
        if keys.find(unique_key, tenant, step.now_ms, step.view) is None:
            hold(keys, step, unique_key, tenant, *args, **options)

    patch.setattr(UniqueKeys, "hold", hold_first)


@pytest.mark.parametrize(
    ("fault", "seed", "error"),
    [
        (all_messages_are_stored, 0, "ms after the earlier message"),
        (windows_never_end, 0, "ms after the window"),
        (windows_are_short, 0, "ms after the earlier message"),
        (newest_message_is_ignored, 0, "although it is the newest"),
        (newest_message_postpones_the_delivery, 0, "not in the place"),
        (end_of_a_window_is_one_window_late, 0, "ms late"),
        (window_ends_with_the_delivery, 0, "ms after the earlier message"),
        (message_of_the_end_comes_at_once, 0, "ms after the earlier message|not in the place"),
        (max_wait_is_ignored, 0, "ms late"),
        (each_message_begins_a_series, 0, "ms late"),
        (debounced_message_comes_at_once, 0, "ms early"),
        (end_of_a_window_is_a_request, 30, "not done after healing"),
        (replaced_messages_stay, 0, "was cancelled, but is delivered"),
        (key_names_no_new_message, 0, "replaced another message|without a message|ms after the earlier message"),
    ],
)
def test_spacing_fault_is_found(fault: Fault, seed: int, error: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fault(monkeypatch)
    with pytest.raises(AssertionError, match=error):
        run_each(run_world, range(seed, seed + 10))
