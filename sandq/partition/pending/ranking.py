"""Changes the priority of pending messages in topics that rank messages. The messages keep their offsets, which order
the messages of one priority.

A message with a log row of its own gets a new row, a message of a batch row gets an overlay (`overlays.py`). In groups
that have promoted the message, it moves to another ready queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sandq.model.batch import Batch, Column
from sandq.partition.base import rows
from sandq.partition.base.rows import Fields, LogEntry
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.groups.renewal import Change
from sandq.partition.log.message_log import Found, Kept, MessageLog
from sandq.partition.reader import overlays
from sandq.partition.ready import queue_keys
from sandq.partition.shared_state import SharedState

_READ_BYTES: Final = 8 << 20
_MOST_BYTES: Final = rows.INLINE_BYTES - 8
"""Up to this size, a plain row can get any priority without exceeding `INLINE_BYTES`."""


class _Single(NamedTuple):
    """A message in a log row of its own, which can be changed without checks of groups or overlays."""

    offset: bytes
    value: bytes
    """Its row: a plain row, or a batch row with one message."""
    fields: Fields
    """Its fields. For a batch row, only the fields that rank the message."""
    queue: bytes
    """Key of its present ready queue."""
    to: bytes
    """Key of its new ready queue."""


class Ranked(NamedTuple):
    """The result for several messages."""

    done: int
    """Number of messages that have the new priority now."""
    too_late: list[bytes]
    """Messages for which some group has made an attempt."""
    left: list[bytes]
    """Messages that must be handled one by one."""


class Ranking:
    def __init__(self, shared: SharedState, groups: GroupTable, log: MessageLog) -> None:
        self._shared = shared
        self._groups = groups
        self._log = log

    @property
    def keeps_offsets(self) -> bool:
        """Whether a message keeps its offset when its priority changes."""
        return self._shared.rank is not None

    def rank(self, step: Step, found: Found | Kept, priority: int) -> bool:
        """Change the priority of a pending message. Return whether the priority was changed.

        Nothing is changed if only groups keep the message, or if a group that has promoted it cannot have another ready
        queue.
        """
        view = step.view
        if not self.keeps_offsets or isinstance(found, Kept):
            return False
        assert self._shared.rank is not None
        offset = found.offset
        queue = queue_keys.of_message(self._shared.rank, view, offset)
        assert queue is not None, "a message that was just found is gone"
        to = queue_keys.pack(queue_keys.tenant_of(queue), priority)
        if to == queue:
            return True
        waits = [group.ready for group in self._groups.by_id.values() if group.is_promoted(offset, view)]
        if not all([ready is not None and ready.takes([to]) for ready in waits]):
            return False
        entry = self._put(step, found, priority)
        for ready in waits:
            assert ready is not None
            ready.remove(step, queue, offset)
            ready.insert(step, to, [entry])
        for group in self._groups.by_id.values():
            if offset > group.cursor:
                if found.alone:
                    group.reader.replace([entry])
                group.note_log_change(offset)
            else:
                group.note_change()
        self._shared.totals.moved += 1
        return True

    def note(self, step: Step, found: Found | Kept, priority: int) -> None:
        """Store the priority of a message in the log, after every group has passed it. Groups that hold the message
        have stored the priority already."""
        if self.keeps_offsets and isinstance(found, Found):
            self._put(step, found, priority)

    def _put(self, step: Step, found: Found, priority: int) -> LogEntry:
        """Store the priority of a message in its row, or in an overlay, and return its entry."""
        offset, log = found.offset, self._log
        if not found.alone:
            size = overlays.put_priority(step, offset, priority).size or log.entry_of(found).size
            return LogEntry(offset, 1, size, None, size)
        if log.is_ranked_apart(found):
            row = rows.ranked_row(found.value, priority)
            step.view.put(found.key, row)
            return rows.log_entry(found.key, row)
        return log.rewrite(step, found, Change(priority))

    # -- bulk operations ------------------------------------------------------------------------------------------

    def rank_each(self, step: Step, offsets: Sequence[bytes], priority: int, *, dry_run: bool) -> Ranked:
        """Change the priority of many messages of the log together, as far as possible: if they have rows of their own
        and need no checks. The offsets must be in log order. `dry_run`: only count them."""
        view = step.view
        singles, left = self._singles(offsets, priority, view)
        late: set[bytes] = set()
        waiting: list[tuple[Group, list[_Single]]] = []
        for group in self._groups.by_id.values():
            passed = [one for one in singles if group.has_passed(one.offset, view)]
            if passed:
                # If a passed message is no longer in a ready queue, the group has made an attempt: it is too late.
                held = self._held(group, passed, view)
                late.update([one.offset for one in passed if one.offset not in held])
                waiting.append((group, [one for one in passed if one.offset in held]))
        pending = [one for one in singles if one.offset not in late]
        if dry_run:
            return Ranked(len(pending), sorted(late), left)
        full: set[bytes] = set()
        for group, found in waiting:
            assert group.ready is not None
            wanted = {one.to for one in found}
            full |= wanted - group.ready.takes(wanted)
        # A group's limits do not allow these new queues, so the caller handles their messages one by one.
        left += [one.offset for one in pending if one.to in full]
        pending = [one for one in pending if one.to not in full]
        changed = [one for one in pending if one.to != one.queue]
        if changed:
            entries = self._put_each(step, changed, priority)
            for group, found in waiting:
                self._requeue(step, group, [one for one in found if one.offset in entries], entries)
            for group in self._groups.by_id.values():
                if changed[-1].offset > group.cursor:
                    group.reader.replace(list(entries.values()))
                    group.note_log_change(changed[0].offset)
            self._shared.totals.moved += len(changed)
        return Ranked(len(pending), sorted(late), left)

    def _singles(self, offsets: Sequence[bytes], priority: int, view: View) -> tuple[list[_Single], list[bytes]]:
        """Return (messages that can be changed together, all other messages)."""
        rank = self._shared.rank
        assert rank is not None
        start, stop = rows.log_key(offsets[0]), rows.after(rows.log_key(offsets[-1]))
        stored = {key[1:]: value for key, value in view.scan(start, stop, limit=len(offsets), max_bytes=_READ_BYTES)}
        fields_of: dict[bytes, Fields] = {}
        plain = [one for one in offsets if rows.is_plain(value := stored.get(one, b"")) and len(value) <= _MOST_BYTES]
        if plain:
            decoded = rows.plain_fields([stored[offset] for offset in plain])
            fields_of.update(zip(plain, decoded, strict=True))
        others = [one for one in offsets if one not in fields_of and rows.is_batch_of_one(stored.get(one, b""))]
        if others:
            # There may be other messages with overlays between these messages.
            others_of = overlays.among(view, others[0], others[-1])
            for offset in others:
                cells = Batch.parse(stored[offset][rows.LOG_HEADER.size :]).cells_at(0)
                fields_of[offset] = overlays.laid_over(view, others_of, offset, cells)
        to_of: dict[bytes, bytes] = {}
        singles = []
        for offset in offsets:
            fields = fields_of.get(offset)
            if fields is None:
                continue
            queue = queue_keys.of_fields(rank, fields)
            to = to_of.get(queue)
            if to is None:
                to = to_of[queue] = queue_keys.pack(queue_keys.tenant_of(queue), priority)
            singles.append(_Single(offset, stored[offset], fields, queue, to))
        return singles, [offset for offset in offsets if offset not in fields_of]

    def _held(self, group: Group, passed: Sequence[_Single], view: View) -> set[bytes]:
        """Return which of these messages are in the ready queues of a group. The group has passed all of them."""
        assert group.ready is not None
        by_queue: dict[bytes, list[bytes]] = {}
        for one in passed:
            by_queue.setdefault(one.queue, []).append(one.offset)
        held: set[bytes] = set()
        for queue, offsets in by_queue.items():
            held |= group.ready.singles_between(queue, offsets[0], offsets[-1], view).intersection(offsets)
        return held

    def _put_each(self, step: Step, changed: Sequence[_Single], priority: int) -> dict[bytes, LogEntry]:
        """Store the priority of messages in their rows. Return their entries by offset, in log order."""
        entries: dict[bytes, LogEntry] = {}
        put, grown = [], 0
        for offset, value, fields, _, _ in changed:
            if value[0] == rows.KIND_BATCH:
                size = overlays.put_priority(step, offset, priority).size or len(value)
                entries[offset] = LogEntry(offset, 1, size, None, size)
                continue
            fields[Column.PRIORITY] = priority
            row = value[: rows.LOG_HEADER.size] + rows.pack(None, fields)
            put.append((rows.LOG + offset, row))
            entries[offset] = LogEntry(offset, 1, len(row))
            grown += len(row) - len(value)
        if put:
            step.view.put_all(put)
        self._log.state.bytes += grown
        return entries

    def _requeue(self, step: Step, group: Group, found: Sequence[_Single], entries: dict[bytes, LogEntry]) -> None:
        """Move messages of a group to other ready queues."""
        if not found:
            return
        assert group.ready is not None
        out: dict[bytes, list[bytes]] = {}
        into: dict[bytes, list[LogEntry]] = {}
        for one in found:
            out.setdefault(one.queue, []).append(one.offset)
            into.setdefault(one.to, []).append(entries[one.offset])
        for queue, offsets in out.items():
            group.ready.remove_singles(step, queue, offsets)
        for queue, added in into.items():
            group.ready.insert(step, queue, added)
        group.note_change()
