"""A partition that is being restored: rows of a backup arrive in chunks, and then become its state.

The settings of a topic that is being restored contain `RESTORING`. Meanwhile, its partitions accept only commands of
the restore. `RestoreBegin` binds an empty partition to a restore, `RestoreRows` stores chunks of rows, each once, and
`RestoreEnd` makes the rows the state. A partition opens when the settings no longer contain `RESTORING`. But once any
row has arrived, the partition stays closed until all rows have arrived, even if the settings no longer contain
`RESTORING`.

Rows are stored under their final keys from the start, except for the state row of the backup. It is stored at
`STATE_OF_BACKUP`, because the partition's own state row is needed for the progress of the restore.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgpack

from sandq.model.errors import ClosedError, Conflict, InvalidRequest, StorageFailed
from sandq.model.offsets import U48_MAX
from sandq.model.outbox import RESERVED_PRODUCERS
from sandq.model.stored_rows import decode_chunk
from sandq.partition.base import rows
from sandq.partition.base.step import Step
from sandq.partition.records.restore_state import RestoreState

STATE_OF_BACKUP: Final = b"X"
"""Key under which the state row of the backup is stored during the restore."""
INDEX_MOST: Final = U48_MAX >> 1
"""Maximum index of the last restored entry: half of all indexes, so that the other half is left for later entries."""
NOT_OF_ROWS: Final = (StorageFailed, ClosedError, OSError, MemoryError, RecursionError)
"""Errors of this machine, which rows of a backup never cause. Other replicas may not have them."""
SLICE_ROWS: Final = 256
"""Number of rows after which applying an entry yields."""
NOWHERE: Final = 0xFFFF_FFFF
"""For a topic that no longer exists: `NOWHERE` minus the old number is a number that no topic ever gets."""
_WITH_FORWARD: Final = 0x9A
"""First byte of a dead message's row with ten fields. The last field may name a target partition."""
_FORWARD_FIELD: Final = 9


def encode_chunk(flat: Sequence[bytes]) -> bytes:
    """Encode rows for `decode_chunk`."""
    packed: bytes = msgpack.packb(flat)
    return packed


def check_chunk(state: RestoreState | None, restore_id: str) -> RestoreState:
    """Return the state of the restore in progress. Raise Conflict if another restore is in progress, or if the restore
    is complete."""
    if state is None or state.restore_id != restore_id:
        there = "none has begun here" if state is None else f"this one is of {state.restore_id}"
        raise Conflict(f"the partition is not being restored by {restore_id}: {there}")
    return state


def put_chunk(step: Step, state: RestoreState, number: int, data: bytes, yield_now: Callable[[], None]) -> RestoreState:
    """Store the rows of a chunk, unless they are stored already, and return the new progress. `yield_now`: called from
    time to time.

    Raise Conflict if another chunk is next, or InvalidRequest if a row cannot be read. If an error is raised, no row is
    stored.
    """
    view = step.view
    if state.is_whole or number < state.next_chunk:
        return state
    if number > state.next_chunk:
        raise Conflict(f"chunk {number} came, and chunk {state.next_chunk} is next")
    count = size = 0
    for at, (key, value) in enumerate(_rows_here(data, dict(state.targets))):
        if at % SLICE_ROWS == 0:
            yield_now()
        view.put(key, value)
        count += 1
        size += len(key) + len(value)
    return state._replace(next_chunk=number + 1, rows=state.rows + count, bytes=state.bytes + size)


def check_numbers(applied_index: int, index_base: int, *others: int) -> None:
    """Raise Conflict if the numbers of a state leave too few numbers for later entries: later messages could have no
    offset."""
    numbers = applied_index, index_base, applied_index + index_base, *others
    if any(type(number) is not int or not 0 <= number <= U48_MAX for number in numbers):
        raise Conflict(f"its indices and times are {numbers}: those of a partition are within 0..{U48_MAX}")
    if applied_index + index_base > INDEX_MOST:
        raise Conflict(f"its log is at entry {applied_index + index_base}, and {INDEX_MOST} is the limit")


def _rows_here(data: bytes, targets: Mapping[int, int]) -> list[tuple[bytes, bytes]]:
    """Return the rows of a chunk, adapted to this cluster. Raise InvalidRequest for any error in the rows: an entry
    that cannot be applied would crash every node repeatedly."""
    flat = decode_chunk(data)
    try:
        found = [_here(key, value, targets) for key, value in zip(flat[::2], flat[1::2], strict=True)]
    except NOT_OF_ROWS:
        raise
    except Exception as error:
        raise InvalidRequest(f"a row of a chunk cannot be read: {error!r:.100}") from None
    return [row for row in found if row is not None]


def _here(key: bytes, value: bytes, targets: Mapping[int, int]) -> tuple[bytes, bytes] | None:
    """Return a row of a backup, adapted to this cluster. None if the row has no meaning in this cluster.

    In messages to other partitions, topic numbers are replaced by the numbers in this cluster. Producer rows of
    partitions are left out, because partitions have other producer ids in this cluster.
    """
    tag = key[:1]
    if tag == b"d":  # rows.DEAD
        return key, _dead(value, targets) if value[:1] == bytes([_WITH_FORWARD]) else value
    if tag in (rows.OUTBOX, rows.OUTBOX_BATCH):
        return tag + _number(int.from_bytes(key[1:5], "big"), targets).to_bytes(4, "big") + key[5:], value
    if key == rows.STATE_KEY:
        return STATE_OF_BACKUP, value
    if tag == STATE_OF_BACKUP:
        return None
    if tag == rows.PRODUCER and len(key) == 9 and int.from_bytes(key[1:], "big") >= RESERVED_PRODUCERS:
        return None
    return key, value


def _number(old: int, targets: Mapping[int, int]) -> int:
    """Return the number in this cluster for the number of a topic in the backup."""
    return targets.get(old, NOWHERE - old)


def _dead(row: bytes, targets: Mapping[int, int]) -> bytes:
    """Return the row of a dead message with the number of its target topic in this cluster."""
    fields = rows.unpack(row)
    forward = fields[_FORWARD_FIELD]
    if not isinstance(forward, list):
        return row
    if type(forward[0]) is not int or not 0 <= forward[0] <= NOWHERE:
        raise ValueError(f"{forward[0]!r:.40} is no number of a topic")
    fields[_FORWARD_FIELD] = [_number(forward[0], targets), *forward[1:]]
    return rows.pack(*fields)
