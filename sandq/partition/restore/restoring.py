"""A partition that is being restored: rows of a backup come in chunks, one after the other, and then become its state.

A topic that is being restored says so in its settings (`RESTORING`), and as long as it does, its partitions take
nothing from anybody. `RestoreBegin` binds an empty one to a restore, `RestoreRows` puts chunks of rows there, each
once, `RestoreEnd` makes them the state. The partition is open when its topic's settings say so: never by half, as one
whose rows have begun to come stays shut until all are there, whatever the settings say.

Rows stand where they belong from the first on, but for that of the state, which waits at `STATE_OF_BACKUP`: until the
end the partition's own says how far it is.
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
"""Row: the state row of the backup, until it is the partition's."""
INDEX_MOST: Final = U48_MAX >> 1
"""Of the last entry of what is restored: as many may come after it."""
NOT_OF_ROWS: Final = (StorageFailed, ClosedError, OSError, MemoryError, RecursionError)
"""Errors that the rows of a backup do not cause: other replicas may not meet them."""
TURN_ROWS: Final = 256
"""After so many an entry may give way."""
NOWHERE: Final = 0xFFFF_FFFF
"""Less the number of a topic that is not there (any more): a number that no topic will ever have."""
_WITH_FORWARD: Final = 0x9A
"""First byte of the row of a dead letter that may name a partition it is to go to: ten fields."""
_FORWARD_FIELD: Final = 9


def encode_chunk(flat: Sequence[bytes]) -> bytes:
    """Return what `decode_chunk` reads."""
    packed: bytes = msgpack.packb(flat)
    return packed


def check_chunk(state: RestoreState | None, restore_id: str) -> RestoreState:
    """Return the state of a restore that goes on. Raises Conflict: it is another one, or over."""
    if state is None or state.restore_id != restore_id:
        there = "none has begun here" if state is None else f"this one is of {state.restore_id}"
        raise Conflict(f"the partition is not being restored by {restore_id}: {there}")
    return state


def put_chunk(step: Step, state: RestoreState, number: int, data: bytes, give_way: Callable[[], None]) -> RestoreState:
    """Put the rows of a chunk there, unless they are. How far it is then. `give_way`: called now and then. Raises
    Conflict: another one is next; InvalidRequest: rows of it cannot be read. Then nothing of it is put there."""
    view = step.view
    if state.is_whole or number < state.next_chunk:
        return state
    if number > state.next_chunk:
        raise Conflict(f"chunk {number} came, and chunk {state.next_chunk} is next")
    count = size = 0
    for at, (key, value) in enumerate(_rows_here(data, dict(state.targets))):
        if at % TURN_ROWS == 0:
            give_way()
        view.put(key, value)
        count += 1
        size += len(key) + len(value)
    return state._replace(next_chunk=number + 1, rows=state.rows + count, bytes=state.bytes + size)


def check_numbers(applied_index: int, index_base: int, *others: int) -> None:
    """Raise Conflict for numbers of a state that leave no room for those that come after them: what is stored behind
    them would have no offset."""
    numbers = applied_index, index_base, applied_index + index_base, *others
    if any(type(number) is not int or not 0 <= number <= U48_MAX for number in numbers):
        raise Conflict(f"its indices and times are {numbers}: those of a partition are within 0..{U48_MAX}")
    if applied_index + index_base > INDEX_MOST:
        raise Conflict(f"its log is at entry {applied_index + index_base}, and {INDEX_MOST} is the limit")


def _rows_here(data: bytes, targets: Mapping[int, int]) -> list[tuple[bytes, bytes]]:
    """Return the rows of a chunk as they are in this cluster. Raises InvalidRequest, whatever is wrong with them: an
    entry that cannot be applied would end every node, again and again."""
    flat = decode_chunk(data)
    try:
        found = [_here(key, value, targets) for key, value in zip(flat[::2], flat[1::2], strict=True)]
    except NOT_OF_ROWS:
        raise
    except Exception as error:
        raise InvalidRequest(f"a row of a chunk cannot be read: {error!r:.100}") from None
    return [row for row in found if row is not None]


def _here(key: bytes, value: bytes, targets: Mapping[int, int]) -> tuple[bytes, bytes] | None:
    """Return a row of a backup as it is in this cluster; None: it says nothing here. What partitions are to send goes
    to the topics that are here what those were; what they are known by as producers is another number."""
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
    return targets.get(old, NOWHERE - old)


def _dead(row: bytes, targets: Mapping[int, int]) -> bytes:
    fields = rows.unpack(row)
    forward = fields[_FORWARD_FIELD]
    if not isinstance(forward, list):
        return row
    if type(forward[0]) is not int or not 0 <= forward[0] <= NOWHERE:
        raise ValueError(f"{forward[0]!r:.40} is no number of a topic")
    fields[_FORWARD_FIELD] = [_number(forward[0], targets), *forward[1:]]
    return rows.pack(*fields)
