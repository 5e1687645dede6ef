"""Checks that a restored partition is complete: rows that other rows refer to must exist.

`apply` relies on this: a leased message has a row, a ready queue with messages has rows for them, and no row refers to
a group that does not exist yet. A missing row would crash each replica at its first use. The check is part of `apply`,
so it is done in bounded steps and has the same result on every replica.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise
from typing import Final

from sandq.model import offsets
from sandq.model.errors import Conflict
from sandq.model.limits import FIXED
from sandq.model.names import FAIR
from sandq.model.partitioning import ordering_hash
from sandq.partition.base import rows
from sandq.partition.base.rows import Range
from sandq.partition.base.view import Row, View
from sandq.partition.groups import dead_letters, spilled
from sandq.partition.groups.group import Group
from sandq.partition.outbox import Letter
from sandq.partition.partition_state import PartitionState
from sandq.partition.reader.reader import row_holding
from sandq.partition.ready import queue_keys

STEP_ROWS: Final = 256
"""Number of rows to check before yielding."""
STEP_BYTES: Final = 1 << 20
KEPT_BY_KEY: Final = "history_ms"
"""Setting that only compacted topics have. Compacted topics use the tag of overlays for deletions."""
GROUP_TAGS: Final = (
    rows.GROUP,
    rows.WAITING,
    rows.SPILLED,
    rows.SPILLED_AT,
    rows.DEAD,
    rows.DEATH,
    rows.KEPT,
    rows.BLOCKED,
    rows.GAPS,
    rows.QUEUE,
    rows.READY,
    rows.TURNS,
    rows.PACE,
    rows.PAUSE,
)
"""Tags of rows whose keys begin with the id of a group."""


def check_whole(restored: PartitionState, view: View, yield_now: Callable[[], None]) -> None:
    """Check the rows of a partition that was loaded from a backup. Raise Conflict, with the row, if one is wrong."""
    _check_numbers(restored, view)
    _check_log(view, yield_now)
    _check_held(restored, view, yield_now)
    if restored.shared.rank is not None:
        _check_ready(restored, view, yield_now)
    if KEPT_BY_KEY not in restored.shared.settings:
        _check_overlays(view, yield_now)
    _check_outbox(view, yield_now)
    _check_deaths(restored, view, yield_now)


def _check_numbers(restored: PartitionState, view: View) -> None:
    """Check that no row refers to a future group or lease, whose numbers are yet to be assigned."""
    next_id = restored.groups.next_id
    for tag in GROUP_TAGS:
        found = view.scan(rows.of_group(tag, next_id), rows.tag_bounds(tag)[1], limit=1, max_bytes=1)
        if found:
            group = int.from_bytes(found[0][0][1:5], "big")
            raise Conflict(f"{_shown(found[0][0])} names group {group}, and the next one gets number {next_id}")
    names = Counter([group.name for group in restored.groups.by_id.values()])
    for name, count in names.items():
        if count > 1:
            raise Conflict(f"{count} groups are called {name!r}: what names a group must find one")
    named = [(f"group {group.name!r}", group.cursor) for group in restored.groups.by_id.values()]
    for what, offset in [*named, ("what was trimmed", restored.log.state.trimmed)]:
        if offsets.deliver_ms(offset) > restored.floor_ms:
            raise Conflict(f"{what} ends above the time of the partition, which is {restored.floor_ms}")
    token = (restored.applied_index + restored.index_base + 1) << 16
    for tag in (rows.LEASE, rows.PROGRESS):
        found = view.scan(rows.token_key(tag, token), rows.tag_bounds(tag)[1], limit=1, max_bytes=1)
        if found:
            raise Conflict(f"{_shown(found[0][0])} names a lease that is yet to come")


def _check_log(view: View, yield_now: Callable[[], None]) -> None:
    """Check that payload rows exist, that moved messages are found by their ids, and that no two log rows contain the
    same offset."""
    start, stop = rows.tag_bounds(rows.LOG)
    last = b""
    for key, value in _all(view, start, stop, yield_now):
        offset = key[1:]
        if offset <= last:
            raise Conflict(f"{_shown(key)} holds messages of the row before it")
        kind, _, count, _ = rows.LOG_HEADER.unpack_from(value)
        last = offsets.shift(offset, count - 1) if count > 1 else offset
        if kind != rows.KIND_MESSAGE or rows.is_plain(value):
            continue
        message_id, fields, *apart = rows.unpack(value[rows.LOG_HEADER.size :])
        if fields is None:
            payload = view.get(rows.PAYLOAD + (message_id or offset))
            if payload is None or len(payload) != apart[0]:
                raise Conflict(f"{_shown(key)} says a payload of {apart[0]} bytes, and it is not there")
        if message_id is not None:
            moved = view.get(rows.MOVED + message_id)
            if moved is None or rows.load_moved(moved).offset != offset:
                raise Conflict(f"{_shown(key)} is of a message that was moved, and cannot be found by its id")


def _check_held(restored: PartitionState, view: View, yield_now: Callable[[], None]) -> None:
    """Check that leased, waiting and blocked messages are in the log, or in rows of their group."""
    for group in restored.groups.by_id.values():
        _check_waiting(restored, group, view)
        _check_spilled(restored, group, view, yield_now)
        _check_pauses(restored, group, view, yield_now)
        leased = [(lease.select(lease.live), lease.kept) for lease in group.leases.values()]
        waiting = [(entry.ranges, entry.kept) for entry in group.waiting.values()]
        order = group.order
        blocked = [([Range(offset, 1)], offset in order.kept) for offset in order.blocked]
        held: list[tuple[bytes, int]] = []
        for at, (one, kept) in enumerate(_ranges(chain(leased, waiting, blocked))):
            if at % STEP_ROWS == 0:
                yield_now()
            held.append(one)
            if not _has_rows(view, group.group_id, one, kept):
                raise Conflict(
                    f"message {offsets.to_text(one.base)} is leased or waits in group {group.name!r}, and has no row"
                )
        held.sort()
        for (base, length), (other, _) in pairwise(held):
            if offsets.shift(base, length - 1) >= other:
                raise Conflict(f"message {offsets.to_text(other)} is held twice in group {group.name!r}")


def _check_waiting(restored: PartitionState, group: Group, view: View) -> None:
    """Check that each waiting entry has a unique number, below the next number, and a ready queue if messages are
    ranked."""
    start, stop = rows.group_bounds(rows.WAITING, group.group_id)
    most = len(group.waiting) + 1
    # `group.waiting` is a dict by number: two rows with one number became one entry.
    if len(view.scan(start, stop, limit=most, max_bytes=most * STEP_BYTES)) != len(group.waiting):
        raise Conflict(f"two rows of waiting messages in group {group.name!r} have the same number")
    numbers = [*group.waiting, *[lease.ended for lease in group.leases.values()]]
    if max(numbers, default=0) >= restored.shared.next_seq and numbers:
        highest = max(numbers)
        raise Conflict(f"group {group.name!r} has number {highest}, and the next one is {restored.shared.next_seq}")
    if restored.shared.rank is not None and any([entry.queue is None for entry in group.waiting.values()]):
        raise Conflict(f"a waiting entry of group {group.name!r} has no ready queue")


def _check_spilled(restored: PartitionState, group: Group, view: View, yield_now: Callable[[], None]) -> None:
    """Check that each spilled message has both of its rows and a kept row, that nothing else holds it, and that their
    number is right."""
    count = 0
    for key, row in _of_group(view, rows.SPILLED_AT, group.group_id, yield_now):
        count += 1
        offset = key[-offsets.OFFSET_BYTES :]
        entry = spilled.load_state(row, [Range(offset, 1)])
        at_ms = int.from_bytes(key[5 : -offsets.OFFSET_BYTES], "big")
        if view.get(rows.of_group(rows.SPILLED, group.group_id, offset)) != rows.pack(at_ms):
            raise Conflict(f"{_shown(key)} is of a waiting message that cannot be found by its offset")
        if not _has_rows(view, group.group_id, Range(offset, 1), True):
            raise Conflict(f"{_shown(key)} is of a waiting message that has no row")
        if group.held_in_memory(offset) is not None or offset in group.order.blocked:
            raise Conflict(f"message {offsets.to_text(offset)} is held twice in group {group.name!r}")
        if restored.shared.is_ordered or (restored.shared.rank is None) != (entry.queue is None):
            raise Conflict(f"{_shown(key)} does not fit the order of messages in the topic")
    found = sum([1 for _ in _of_group(view, rows.SPILLED, group.group_id, yield_now)])
    if count != group.spilled.messages or found != count + (count > 0):
        raise Conflict(f"group {group.name!r} says {group.spilled.messages} spilled messages, and has {count}")


def _check_pauses(restored: PartitionState, group: Group, view: View, yield_now: Callable[[], None]) -> None:
    """Check that the topic has such parts as are paused, that there are not too many, and that each stored key belongs
    to its row."""
    if len(group.pauses.ends) > FIXED.paused_parts:
        raise Conflict(f"group {group.name!r} has more than {FIXED.paused_parts:,} paused tenants and keys")
    for key, row in _of_group(view, rows.PAUSE, group.group_id, yield_now):
        is_tenant = key[5:6] == rows.PAUSED_TENANT
        if not (restored.shared.rank == FAIR if is_tenant else restored.shared.is_ordered):
            raise Conflict(f"{_shown(key)} pauses a {'tenant' if is_tenant else 'key'}, and the topic has none")
        (named,) = rows.with_defaults(rows.unpack(row)[1:], None)
        if named is not None and (is_tenant or ordering_hash(named).to_bytes(8, "big") != key[6:]):
            raise Conflict(f"{_shown(key)} has the key of another pause")


def _ranges(held: Iterable[tuple[Iterable[Range], bool]]) -> Iterator[tuple[Range, bool]]:
    """Yield ranges one by one. Split ranges of messages that a group keeps into single messages."""
    for ranges, kept in held:
        for base, length in ranges:
            if not kept:
                yield Range(base, length), False
                continue
            for offset in offsets.run(base, length):
                yield Range(offset, 1), True


def _has_rows(view: View, group_id: int, one: Range, kept: bool) -> bool:
    """Return whether all messages of a range have rows: in the log, or in the rows of their group (`kept`)."""
    if kept:
        return view.get(rows.of_group(rows.KEPT, group_id, one.base)) is not None
    found = row_holding(view, one.base)
    if found is None:
        return False
    key, value = found
    first, length, *_ = rows.log_entry(key, value)
    behind = offsets.distance(first, one.base)
    return behind is not None and behind + one.length <= length


def _check_ready(restored: PartitionState, view: View, yield_now: Callable[[], None]) -> None:
    """Check that each ready queue has rows for at least as many messages as it counts, from its first message on. After
    a seek, there may be more rows."""
    for group_id in restored.groups.by_id:
        for key, value in _of_group(view, rows.QUEUE, group_id, yield_now):
            messages, first = rows.unpack(value)
            start = rows.of_group(rows.READY, group_id, key[5:])
            found = _all(view, start + first, start + offsets.LAST + b"\xff", yield_now)
            if sum([int(rows.unpack(row)[0]) for _, row in found]) < messages:
                raise Conflict(f"ready queue {queue_keys.unpack(key[5:])} says {messages} messages, and has fewer")


def _check_overlays(view: View, yield_now: Callable[[], None]) -> None:
    """Check that overlays have their fields, with the size that they state."""
    for key, value in _all(view, *rows.tag_bounds(rows.OVERLAY), yield_now):
        fields = rows.unpack(value)
        if len(fields) > 1:
            packed = view.get(rows.UPDATED + key[1:])
            if packed is None or len(packed) != fields[1]:
                raise Conflict(f"{_shown(key)} says {fields[1]} bytes of fields, and they are not there")


def _check_outbox(view: View, yield_now: Callable[[], None]) -> None:
    """Check that each outbox batch has as many letters as it states, all of them complete."""
    for key, value in _all(view, *rows.tag_bounds(rows.OUTBOX_BATCH), yield_now):
        _, last_seq, size, *_ = rows.unpack(value)
        start = rows.OUTBOX + key[1:]
        found = [
            Letter(*rows.unpack(row))
            for _, row in _all(view, start, rows.after(start + last_seq.to_bytes(8, "big")), yield_now)
        ]
        if len(found) != size or not all([letter.fields for letter in found]):
            raise Conflict(f"{_shown(key)} says {size} messages, and these are not there as a whole")


def _check_deaths(restored: PartitionState, view: View, yield_now: Callable[[], None]) -> None:
    """Check that the index by time of death has the dead messages of each group that may be removed, and no others."""
    for group_id, group in restored.groups.by_id.items():
        count = 0
        for key, value in _of_group(view, rows.DEAD, group_id, yield_now):
            message = dead_letters.load(key, value)
            if message.is_waiting_to_be_sent:
                continue
            count += 1
            if view.get(rows.death_key(group_id, message.dead_ms, message.offset)) is None:
                raise Conflict(f"{_shown(key)} is of a dead message that is missing in the index by time of death")
        found = sum([1 for _ in _of_group(view, rows.DEATH, group_id, yield_now)])
        if found != count:
            raise Conflict(f"group {group.name!r} has {count} dead messages to keep, and {found} rows of their times")


def _of_group(view: View, tag: bytes, group_id: int, yield_now: Callable[[], None]) -> Iterator[Row]:
    """Yield the rows of a group with this tag."""
    yield from _all(view, *rows.group_bounds(tag, group_id), yield_now)


def _all(view: View, start: bytes, stop: bytes, yield_now: Callable[[], None]) -> Iterator[Row]:
    """Yield the rows between two keys, reading some at a time."""
    while True:
        yield_now()
        found = view.scan(start, stop, limit=STEP_ROWS, max_bytes=STEP_BYTES)
        yield from found
        if not found:
            return
        start = rows.after(found[-1][0])


def _shown(key: bytes) -> str:
    """Return a row's key for a message to people."""
    return f"row {key[:40].hex()}"
