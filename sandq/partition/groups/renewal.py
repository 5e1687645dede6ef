"""Messages that are others than they were, for one group: it keeps them as they are now in rows of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from sandq.model.batch import Column
from sandq.partition.base import rows
from sandq.partition.base.rows import Fields, Range
from sandq.partition.base.step import Step
from sandq.partition.groups.group import Group
from sandq.partition.reader.pieces import MessageReader
from sandq.partition.ready import queue_keys


class Change(NamedTuple):
    """What messages that are given back have otherwise from then on."""

    priority: int | None = None
    """None: as before."""
    headers: bytes | None = None
    """Packed; None: as before, empty: none."""
    value: bytes | None = None
    """None: as before."""

    @classmethod
    def of(cls, news: dict[int, int | bytes] | None) -> Change | None:
        """The change that a command has as a map by column; None: there is none."""
        if not news:
            return None
        priority, headers, value = news.get(Column.PRIORITY), news.get(Column.HEADERS), news.get(Column.VALUE)
        assert not isinstance(priority, bytes) and not isinstance(headers, int) and not isinstance(value, int)
        return cls(priority, headers, value)

    def apply(self, fields: Fields) -> Fields:
        """Return the fields of a message as they are with this change."""
        fields = dict(fields)
        if self.priority is not None:
            fields[Column.PRIORITY] = self.priority
        if self.value is not None:
            fields[Column.VALUE] = self.value
        if self.headers is not None:
            fields[Column.HEADERS] = self.headers
            if not self.headers:
                del fields[Column.HEADERS]
        return fields

    def queue(self, queue: bytes | None) -> bytes | None:
        """Return the ready queue of messages that were of this one."""
        if queue is None or self.priority is None:
            return queue
        return queue_keys.pack(queue_keys.tenant_of(queue), self.priority)


def renew(step: Step, group: Group, ranges: Sequence[Range], kept: bool, change: Change, reader: MessageReader) -> int:
    """Put messages into rows of the group's own, as they are from now on. `kept`: they are in such rows already. The
    bytes of these rows."""
    return sum(renew_each(step, group, ranges, kept, change, reader))


def renew_each(
    step: Step, group: Group, ranges: Sequence[Range], kept: bool, change: Change, reader: MessageReader
) -> Iterator[int]:
    """`renew`, one message after the other: yield the bytes of its row once it is put."""
    view = step.view
    for message in reader.messages(view, ranges, group.group_id if kept else None, timed=True):
        key = rows.of_group(rows.KEPT, group.group_id, message.offset)
        before = view.get(key) if kept else None
        wanted_ms, is_delay = message.wanted if message.wanted is not None else (None, None)
        row = rows.kept_row(
            message.id,
            message.created_ms,
            change.apply(message.fields),
            immortal=before is not None and rows.is_immortal(before),
            wanted_ms=wanted_ms,
            is_delay=is_delay,
            lives=message.lives,
        )
        view.put(key, row)
        yield len(row)
