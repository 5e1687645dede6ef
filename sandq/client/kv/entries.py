"""The results of reading keys of a compacted topic, and the changes that a watch returns."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from sandq.client.messages.log_page import LogPiece
from sandq.model import offsets as offset_model
from sandq.model.batch import headers_unpack
from sandq.model.json_values import json_of
from sandq.protocol.requests_keys import KeyValue


class Entry:
    """A key and its value. Two entries are equal if their key, version and value are equal."""

    __slots__ = ("_found", "key", "partition", "stale_ms", "value")

    key: bytes
    value: bytes
    partition: int
    stale_ms: int
    """Maximum age of this information when the node replied, in ms; 0 for a linearizable read."""

    def __init__(self, key: bytes, found: KeyValue, partition: int, stale_ms: int) -> None:
        self._found = found
        self.key = key
        self.value = found.value
        self.partition = partition
        self.stale_ms = stale_ms

    @property
    def version(self) -> str:
        """The offset of the write of this value: 26 characters. Later versions of a key are greater."""
        return offset_model.to_text(self._found.version)

    @property
    def version_bytes(self) -> bytes:
        """The version as 16 bytes."""
        return self._found.version

    @property
    def headers(self) -> dict[str, Any]:
        """The headers, as a new dict for each access; {} if there are none."""
        return headers_unpack(self._found.headers)

    @property
    def headers_bytes(self) -> bytes | None:
        """The headers as they are stored (msgpack); None if there are none."""
        return self._found.headers

    def json(self) -> Any:
        """Return the value, decoded as JSON. Raises InvalidRequest if it is not JSON."""
        return json_of(self.value)

    @property
    def expires_ms(self) -> int | None:
        """Time at which the value expires, in epoch milliseconds. None if it does not expire."""
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
    """The entries of several keys, in the order in which they were requested; None for a key without a value."""

    __slots__ = ("_rows", "stale_ms")

    def __init__(self, rows: list[Entry | None], stale_ms: int) -> None:
        self._rows = rows
        self.stale_ms = stale_ms
        """Maximum age of all entries when the nodes replied, in ms; 0 for a linearizable read."""

    @overload
    def __getitem__(self, index: int) -> Entry | None: ...

    @overload
    def __getitem__(self, index: slice) -> list[Entry | None]: ...

    def __getitem__(self, index: int | slice) -> Entry | list[Entry | None] | None:
        """Return the entry at an index, or a list for a slice."""
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Entry | None]:
        return iter(self._rows)

    def __repr__(self) -> str:
        count = sum(row is not None for row in self._rows)
        return f"<Entries of {len(self)} keys, {count} with a value, stale_ms={self.stale_ms}>"


class Change:
    """One write to a key: it got a value, or was deleted."""

    __slots__ = ("_piece", "_position", "key", "partition", "value")

    key: bytes
    value: bytes | None
    """None if the key was deleted, by a client or because it expired."""
    partition: int

    def __init__(self, piece: LogPiece, position: int, key: bytes, value: bytes | None, partition: int) -> None:
        self._piece = piece
        self._position = position
        self.key = key
        self.value = value
        self.partition = partition

    @property
    def deleted(self) -> bool:
        """True if this write deleted the key."""
        return self.value is None

    @property
    def version(self) -> str:
        """The offset of the write: 26 characters. Later versions of a key are greater."""
        return offset_model.to_text(self.offset)

    @property
    def offset(self) -> bytes:
        """The version as 16 bytes."""
        return self._piece.offset(self._position)

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
    def created_ms(self) -> int:
        """Time at which the broker stored the write, in epoch milliseconds."""
        return self._piece.created_ms(self._position)

    def __repr__(self) -> str:
        size = "deleted" if self.value is None else f"bytes={len(self.value)}"
        return f"<Change {self.key[:80]!r} version={self.version} partition={self.partition} {size}>"
