"""What the keys of a compacted topic have, as reading gives it, and what becomes of it, as watching does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from sandq.client.messages.log_page import LogPiece
from sandq.model import offsets as offset_model
from sandq.model.batch import headers_unpack
from sandq.model.json_values import json_of
from sandq.protocol.requests_keys import KeyValue


class Entry:
    """A key and its value. Two are equal when key, version and value are."""

    __slots__ = ("_found", "key", "partition", "stale_ms", "value")

    key: bytes
    value: bytes
    partition: int
    stale_ms: int
    """It was certainly so at most that long before the answer (milliseconds); 0 of a linearizable read."""

    def __init__(self, key: bytes, found: KeyValue, partition: int, stale_ms: int) -> None:
        self._found = found
        self.key = key
        self.value = found.value
        self.partition = partition
        self.stale_ms = stale_ms

    @property
    def version(self) -> str:
        """The offset of the write that the value came by: 26 characters. Of one key, later ones are greater."""
        return offset_model.to_text(self._found.version)

    @property
    def version_bytes(self) -> bytes:
        """The version as 16 bytes."""
        return self._found.version

    @property
    def headers(self) -> dict[str, Any]:
        """A new dict each time; {} when there are none."""
        return headers_unpack(self._found.headers)

    @property
    def headers_bytes(self) -> bytes | None:
        """The headers as they are stored: msgpack; None when there are none."""
        return self._found.headers

    def json(self) -> Any:
        """Return the value, read as JSON. Raises InvalidRequest if it is none."""
        return json_of(self.value)

    @property
    def expires_ms(self) -> int | None:
        """When its time to live is over: epoch milliseconds; None: never."""
        return self._found.expires_ms or None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Entry):
            return NotImplemented
        return self.key == other.key and self._found == other._found

    def __hash__(self) -> int:
        return hash((self.key, self._found.version))

    def __repr__(self) -> str:
        return f"<Entry {self.key[:80]!r} version={self.version} partition={self.partition} bytes={len(self.value)}>"


class Entries(Sequence[Entry | None]):
    """What several keys have, in the order in which they were asked for; None for a key without a value."""

    __slots__ = ("_rows", "stale_ms")

    def __init__(self, rows: list[Entry | None], stale_ms: int) -> None:
        self._rows = rows
        self.stale_ms = stale_ms
        """All of it was certainly so at most that long before it was answered (milliseconds); 0 when linearizable."""

    @overload
    def __getitem__(self, place: int) -> Entry | None: ...

    @overload
    def __getitem__(self, place: slice) -> list[Entry | None]: ...

    def __getitem__(self, place: int | slice) -> Entry | list[Entry | None] | None:
        """By place, as a list's."""
        return self._rows[place]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Entry | None]:
        return iter(self._rows)

    def __repr__(self) -> str:
        there = sum(row is not None for row in self._rows)
        return f"<Entries of {len(self)} keys, {there} with a value, stale_ms={self.stale_ms}>"


class Change:
    """One write: a key got a value, or lost it."""

    __slots__ = ("_piece", "_position", "key", "partition", "value")

    key: bytes
    value: bytes | None
    """None: the key was deleted, by somebody or because its time was over."""
    partition: int

    def __init__(self, piece: LogPiece, position: int, key: bytes, value: bytes | None, partition: int) -> None:
        self._piece = piece
        self._position = position
        self.key = key
        self.value = value
        self.partition = partition

    @property
    def deleted(self) -> bool:
        """Whether the key has no value from here on."""
        return self.value is None

    @property
    def version(self) -> str:
        """The offset of the write: 26 characters. Of one key, later ones are greater."""
        return offset_model.to_text(self.offset)

    @property
    def offset(self) -> bytes:
        """The same in 16 bytes."""
        return self._piece.offset(self._position)

    @property
    def headers(self) -> dict[str, Any]:
        """A new dict each time; {} when there are none. Raises InvalidRequest if `headers_bytes` is no map."""
        return headers_unpack(self._piece.headers(self._position))

    @property
    def headers_bytes(self) -> bytes | None:
        """The headers as they are stored: msgpack; None when there are none."""
        return self._piece.headers(self._position)

    def json(self) -> Any:
        """Return the value, read as JSON. Raises InvalidRequest if it is none."""
        return json_of(self.value)

    @property
    def created_ms(self) -> int:
        """When the broker stored it: epoch milliseconds."""
        return self._piece.created_ms(self._position)

    def __repr__(self) -> str:
        what = "deleted" if self.value is None else f"bytes={len(self.value)}"
        return f"<Change {self.key[:80]!r} version={self.version} partition={self.partition} {what}>"
