"""Keys of ready queues. A ready queue holds the messages of one tenant and one priority, first in, first out.

PERSISTED: a key is the tenant, a zero byte, and the priority as an unsigned number of four bytes, so that the queues of
a tenant sort by priority.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Final, NamedTuple

from sandq.model import offsets
from sandq.model.batch import Batch, Column
from sandq.partition.base import rows
from sandq.partition.base.rows import Fields, LogEntry
from sandq.partition.base.view import View
from sandq.partition.reader import overlays
from sandq.partition.reader.reader import row_holding

DEFAULT_TENANT: Final = "default"
_BIAS = 1 << 31
_PRIORITY_BYTES = 4
_SCAN_BYTES = 8 << 20

FAIR: Final = "fair"
"""Value of `rank` in the record of a topic that shares deliveries among tenants. With any other value, tenants have no
effect."""


class QueueName(NamedTuple):
    """The name of a queue: the tenant and the priority of its messages."""

    tenant: str
    """Empty in a topic without tenants."""
    priority: int
    """Lower numbers come first."""


def pack(tenant: str, priority: int) -> bytes:
    """Return the key of a queue."""
    return tenant.encode() + b"\0" + (priority + _BIAS).to_bytes(_PRIORITY_BYTES, "big")


def unpack(key: bytes) -> QueueName:
    """Return the name that a key stands for."""
    return QueueName(key[: -1 - _PRIORITY_BYTES].decode(), int.from_bytes(key[-_PRIORITY_BYTES:], "big") - _BIAS)


def tenant_of(key: bytes) -> str:
    """Return the tenant in a key."""
    return key[: -1 - _PRIORITY_BYTES].decode()


def of_fields(rank: str, fields: Fields) -> bytes:
    """Return the key of the queue that a message with these fields belongs to."""
    return _key(rank, fields.get(Column.PRIORITY), fields.get(Column.TENANT))


def _key(rank: str, priority: int | None, tenant: bytes | None) -> bytes:
    """Return the key of a queue. `rank`: how the topic orders messages. None stands for the default priority or
    tenant."""
    name = (tenant or DEFAULT_TENANT.encode()) if rank == FAIR else b""
    return name + b"\0" + ((priority or 0) + _BIAS).to_bytes(_PRIORITY_BYTES, "big")


def is_one(rank: str, raw: bytes) -> bool:
    """Return whether all messages of a batch belong to one queue."""
    batch = Batch.parse(raw)
    columns = [batch.int_column(Column.PRIORITY), batch.bytes_column(Column.TENANT) if rank == FAIR else None]
    return all([cells is None or len(set(cells)) == 1 for cells in columns])


def of_message(rank: str, view: View, offset: bytes) -> bytes | None:
    """Return the key of the queue that a message of the log belongs to. None if the log does not contain the
    message."""
    made = view.made_last
    if made is None or (fields := _cells(made[0], made[1], offset)) is None:
        key = rows.log_key(offset)
        value = view.get(key)  # usual case: the message has a row of its own, so no scan is needed
        if value is None:
            row = row_holding(view, offset)
            if row is None:
                return None
            key, value = row
        if value[0] == rows.KIND_MESSAGE:
            return _of_row(rank, value)
        batch = Batch.parse(value[rows.LOG_HEADER.size :])
        view.note_made(key, batch)
        fields = _cells(key, batch, offset)
    assert fields is not None
    other = overlays.of(view, offset)
    if other is None or other.priority is None:
        return of_fields(rank, fields)
    return of_fields(rank, fields | {Column.PRIORITY: other.priority})


def _cells(key: bytes, batch: Batch, offset: bytes) -> Fields | None:
    """Return the fields of a message that rank it, from its batch row. None if the row does not contain the message."""
    behind = offsets.distance(key[1:], offset)
    return batch.cells_at(behind) if behind is not None and 0 <= behind < batch.count else None


def split(rank: str, entries: Sequence[LogEntry], view: View) -> Iterator[tuple[bytes, LogEntry]]:
    """Yield (queue key, log entry). Yield an entry with messages of several queues in parts. The entries must be
    consecutive in the log."""
    if not entries:
        return
    start, stop = rows.log_key(entries[0].first), rows.after(rows.log_key(entries[-1].first))
    found = dict(view.scan(start, stop, limit=len(entries), max_bytes=_SCAN_BYTES))
    values = list(found.values())
    if [*found] == [rows.log_key(entry.first) for entry in entries] and rows.are_plain(values):
        # Usual case: all rows are plain, with no other rows in between, so they can be decoded together.
        for entry, fields in zip(entries, rows.plain_fields(values), strict=True):
            yield of_fields(rank, fields), entry
        return
    batch_row: tuple[bytes, list[bytes]] = b"", []
    for entry in entries:
        value = found.get(rows.log_key(entry.first))
        if value is not None and value[0] == rows.KIND_MESSAGE:
            yield _of_row(rank, value), entry
            continue
        key = rows.log_key(entry.first)
        behind = offsets.distance(batch_row[0][1:], entry.first) if batch_row[0] else None
        if behind is None or not 0 <= behind < len(batch_row[1]):
            if value is None:
                row = row_holding(view, entry.first)
                assert row is not None, "an entry of the log has a row"
                key, value = row
                if value[0] == rows.KIND_MESSAGE:
                    yield _of_row(rank, value), entry
                    continue
            batch_row = key, _of_batch(rank, key, value, view)
            behind = offsets.distance(key[1:], entry.first)
        assert behind is not None
        if entry.length == 1:
            yield batch_row[1][behind], entry
            continue
        at = 0
        for queue, same in groupby(batch_row[1][behind : behind + entry.length]):
            length = len(list(same))
            yield queue, entry if length == entry.length else entry.part(at, at + length)
            at += length


def of_row(rank: str, key: bytes, value: bytes, view: View) -> list[bytes]:
    """Return the keys of the queues that the messages of a log row belong to."""
    return [_of_row(rank, value)] if value[0] == rows.KIND_MESSAGE else _of_batch(rank, key, value, view)


def _of_row(rank: str, value: bytes) -> bytes:
    """Return the queue of the message in a single-message row."""
    fields: list[Any] = rows.unpack(value[rows.LOG_HEADER.size :])
    # If the payload has a row of its own, the last field has the columns that the log needs, including priority and
    # tenant.
    return of_fields(rank, fields[-1])


def _of_batch(rank: str, key: bytes, value: bytes, view: View) -> list[bytes]:
    """Return the queues of the messages in a batch row."""
    batch = Batch.parse(value[rows.LOG_HEADER.size :])
    cells = list(batch.int_column(Column.PRIORITY) or [None] * batch.count)
    for offset, other in overlays.between(view, key[1:], batch.count).items():
        behind = offsets.distance(key[1:], offset)
        assert behind is not None
        cells[behind] = cells[behind] if other.priority is None else other.priority
    tenants = batch.bytes_column(Column.TENANT) if rank == FAIR else None
    if tenants is None:
        known = {priority: _key(rank, priority, None) for priority in set(cells)}
        return [known[priority] for priority in cells]
    return [_key(rank, priority, tenant) for priority, tenant in zip(cells, tenants, strict=True)]
