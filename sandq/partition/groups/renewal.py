"""Changes of messages for one group. The group keeps the changed messages in rows of its own."""

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
    """The changes to apply to messages. A field of None changes nothing."""

    priority: int | None = None
    """New priority. None: unchanged."""
    headers: bytes | None = None
    """New headers, packed. None: unchanged. Empty: remove the headers."""
    value: bytes | None = None
    """New value. None: unchanged."""

    @classmethod
    def of(cls, news: dict[int, int | bytes] | None) -> Change | None:
        """Return the change that a command gives as `{column: value}`. None if the command gives none."""
        if not news:
            return None
        priority, headers, value = news.get(Column.PRIORITY), news.get(Column.HEADERS), news.get(Column.VALUE)
        assert not isinstance(priority, bytes) and not isinstance(headers, int) and not isinstance(value, int)
        return cls(priority, headers, value)

    def apply(self, fields: Fields) -> Fields:
        """Return the fields of a message with this change applied."""
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
        """Return the ready queue of the changed messages. `queue`: their queue before the change."""
        if queue is None or self.priority is None:
            return queue
        return queue_keys.pack(queue_keys.tenant_of(queue), self.priority)


def renew(step: Step, group: Group, ranges: Sequence[Range], kept: bool, change: Change, reader: MessageReader) -> int:
    """Put changed messages into rows of the group. Return the bytes of these rows. `kept`: the messages are in rows of
    the group already."""
    return sum(renew_each(step, group, ranges, kept, change, reader))


def renew_each(
    step: Step, group: Group, ranges: Sequence[Range], kept: bool, change: Change, reader: MessageReader
) -> Iterator[int]:
    """Change messages like `renew`, one by one. Yield the bytes of each row once it is put."""
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
