"""A piece of a partition's log as a frame transports it: a batch with the broker's metadata of its messages.

Messages are identified by their position in the batch. Columns are decoded when they are first used.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Generic, TypeVar

from sandq.model import offsets as offset_model
from sandq.model.batch import Batch, Column, headers_unpack
from sandq.model.errors import ProtocolError
from sandq.model.json_values import json_of

BYTES: Final = offset_model.OFFSET_BYTES

Span = tuple[int, int]
"""Consecutive positions of a batch: (first position, position after the last)."""


def positions_of(spans: Iterable[Span]) -> list[int]:
    """Return the positions that spans cover."""
    return [position for first, stop in spans for position in range(first, stop)]


class LogPiece:
    """A batch with offsets, ids and creation times. Raises ProtocolError if the columns do not fit the batch."""

    __slots__ = ("_batch", "_headers", "_keys", "_priorities", "_tenants", "count", "created", "ids", "offsets")

    def __init__(self, offsets: bytes, ids: bytes | None, created_ms: int | bytes, raw: bytes) -> None:
        batch = Batch.parse(raw)
        count = batch.count
        for name, column, size in (
            ("offsets", offsets if len(offsets) > BYTES else None, BYTES),
            ("ids", ids, BYTES),
            ("created_ms", created_ms if type(created_ms) is bytes else None, 8),
        ):
            if column is not None and len(column) != count * size:
                raise ProtocolError(f"{name} has {len(column) // size} entries for {count} messages")
        self.count = count
        self.offsets = offsets
        self.ids = ids
        self.created = created_ms
        self._batch = batch
        self._keys: Sequence[bytes | None] | None = None
        self._headers: Sequence[bytes | None] | None = None
        self._priorities: Sequence[int | None] | None = None
        self._tenants: Sequence[bytes | None] | None = None

    @property
    def is_run(self) -> bool:
        """True if the offsets are consecutive: the offset at position i is the first offset plus i."""
        return len(self.offsets) == BYTES

    def values(self) -> Sequence[bytes | None]:
        return self._batch.values()

    def is_deletion(self, position: int) -> bool:
        """Return whether the message deletes its key, because it has no value."""
        validity, _, _ = self._batch.buffers(Column.VALUE)
        return validity is not None and not validity[position >> 3] >> (position & 7) & 1

    def keys(self) -> Sequence[bytes | None]:
        """Return the key of every message; empty if no message has a key."""
        if self._keys is None:
            self._keys = self._batch.bytes_column(Column.KEY) or ()
        return self._keys

    def key(self, position: int) -> bytes | None:
        keys = self.keys()
        return keys[position] if keys else None

    def headers(self, position: int) -> bytes | None:
        if self._headers is None:
            self._headers = self._batch.bytes_column(Column.HEADERS) or ()
        return self._headers[position] if self._headers else None

    def priorities(self) -> Sequence[int | None]:
        """Return the priority of every message; empty if no message has a priority."""
        if self._priorities is None:
            self._priorities = self._batch.int_column(Column.PRIORITY) or ()
        return self._priorities

    def priority(self, position: int) -> int:
        priorities = self.priorities()
        return priorities[position] or 0 if priorities else 0

    def tenants(self) -> Sequence[bytes | None]:
        """Return the tenant of every message; empty if no message has a tenant."""
        if self._tenants is None:
            self._tenants = self._batch.bytes_column(Column.TENANT) or ()
        return self._tenants

    def tenant(self, position: int) -> str | None:
        tenants = self.tenants()
        return text_of_tenant(tenants[position]) if tenants else None

    def offset(self, position: int) -> bytes:
        if self.is_run:
            return offset_model.shift(self.offsets, position)
        return self.offsets[position * BYTES : (position + 1) * BYTES]

    def id(self, position: int) -> bytes:
        if self.ids is None:
            return self.offset(position)
        return self.ids[position * BYTES : (position + 1) * BYTES]

    def created_ms(self, position: int) -> int:
        if isinstance(self.created, int):
            return self.created
        return int.from_bytes(self.created[position * 8 : position * 8 + 8], "little", signed=True)


def text_of_tenant(name: bytes | None) -> str | None:
    """Return a tenant's name as text."""
    return None if name is None else name.decode("ascii", "backslashreplace")


P = TypeVar("P", bound=LogPiece)


class LogMessage(Generic[P]):
    """One message of a piece."""

    __slots__ = ("_piece", "_position", "value")

    value: bytes

    def __init__(self, piece: P, position: int, value: bytes) -> None:
        self._piece = piece
        self._position = position
        self.value = value

    @property
    def id(self) -> str:
        """The message's first offset, in 26 characters. Unique in the topic; stays the same when the message is
        moved."""
        return offset_model.to_text(self._piece.id(self._position))

    @property
    def offset(self) -> str:
        """The message's position in delivery order: 26 characters that sort in the same order."""
        return offset_model.to_text(self._piece.offset(self._position))

    @property
    def deleted(self) -> bool:
        """True if the message deletes its key, in a compacted topic. Its `value` is then b""."""
        return self._piece.is_deletion(self._position)

    @property
    def key(self) -> bytes | None:
        """The key. Messages with the same key are in the same partition. None if the message has no key."""
        return self._piece.key(self._position)

    @property
    def headers(self) -> dict[str, Any]:
        """The headers, as a new dict for each access; {} if there are none. Raises InvalidRequest if they are not a
        map."""
        return headers_unpack(self._piece.headers(self._position))

    @property
    def headers_bytes(self) -> bytes | None:
        """The headers as they are stored (msgpack); None if there are none."""
        return self._piece.headers(self._position)

    def json(self) -> Any:
        """Return the value, decoded as JSON. Raises InvalidRequest if it is not JSON."""
        return json_of(self.value)

    @property
    def priority(self) -> int:
        """The priority in a priority or fair topic, the lowest first; 0 if none is set."""
        return self._piece.priority(self._position)

    @property
    def tenant(self) -> str | None:
        """The tenant in a fair topic; None if none is set, which means "default"."""
        return self._piece.tenant(self._position)

    @property
    def deliver_at_ms(self) -> int:
        """The delivery time that the broker assigned, in epoch milliseconds."""
        return offset_model.deliver_ms(self._piece.offset(self._position))

    @property
    def created_ms(self) -> int:
        """Time at which the broker stored the message, in epoch milliseconds."""
        return self._piece.created_ms(self._position)


def each_offset(offsets: bytes, count: int) -> list[bytes]:
    """Return the offsets of a piece, by position."""
    if len(offsets) == BYTES:
        return offset_model.run(offsets, count)
    return [offsets[start : start + BYTES] for start in range(0, len(offsets), BYTES)]
