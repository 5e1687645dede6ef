"""Transfer the state of a partition to another node: `Exporter` cuts rows into chunks, `Importer` stores them.

docs/protocol/between-nodes.md specifies `Meta` and the chunks. Both use the envelope of the small files, so that
damage on the way is detected. Keys are sent without their store number, because the receiver has a different number.
Every chunk contains the key after which it continues. So a chunk fits at only one position, even if earlier chunks were
lost, repeated or sent again from the start.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from operator import lt
from typing import Any

import msgpack

from sandq.model.errors import Corruption
from sandq.storage import small_file
from sandq.storage.keys import STORE_PREFIX_BYTES, store_prefix, store_range
from sandq.storage.stores import Row, Stores, StoresSnapshot

META_MAGIC, META_VERSION = b"SANDQSNP", 1
CHUNK_MAGIC, CHUNK_VERSION = b"SANDQCHK", 1
SNAPSHOT_ID_BYTES = 16
META_BYTES = 64 << 10
"""Maximum size of an encoded `Meta`."""
CHUNK_BYTES = 256 << 10
"""Maximum size of the rows of a chunk. A single larger row is a chunk of its own."""
CHUNK_ROWS = 2048
"""Maximum number of rows in a chunk. Python code handles them, so more rows would block other threads."""
CHUNK_BYTES_AT_MOST = 32 << 20
"""Maximum size of an encoded chunk. A row has at most a message batch of 16 MiB."""
ROW_BYTES = 10
"""Maximum overhead of a row in a chunk, in addition to its key and value."""

_MEMBER = re.compile(r"[^#]+#[0-9]+")
_U32, _U64 = 2**32, 2**64


@dataclass(frozen=True, slots=True)
class Meta:
    """Describes the state that is sent: the state of `group` as of `index`."""

    group: int
    snapshot_id: bytes
    """16 random bytes, different for each read view."""
    index: int
    term: int
    """Term of the entry at `index`."""
    voters: tuple[str, ...]
    learners: tuple[str, ...]
    total_bytes: int
    """Approximate size of the rows on the sender's disk, to show progress."""

    def encode(self) -> bytes:
        return small_file.encode(META_MAGIC, META_VERSION, [getattr(self, field.name) for field in fields(self)])

    @classmethod
    def decode(cls, data: bytes) -> Meta:
        """Decode a `Meta`. Raise Corruption if `data` is not a valid one."""
        found = _decode(data, META_MAGIC, META_VERSION, META_BYTES, "a snapshot's description")
        if not isinstance(found, list) or len(found) != len(fields(cls)):
            raise _wrong(f"a snapshot's description is not a list of {len(fields(cls))}")
        group, snapshot_id, index, term, voters, learners, total_bytes = found
        for name, number, above in (
            ("group", group, _U32),
            ("index", index, _U64),
            ("term", term, _U64),
            ("size", total_bytes, _U64),
        ):
            if type(number) is not int or not 0 <= number < above:
                raise _wrong(f"a snapshot's {name} is {number!r:.40}")
        if not isinstance(snapshot_id, bytes) or len(snapshot_id) != SNAPSHOT_ID_BYTES:
            raise _wrong(f"a snapshot's id is {snapshot_id!r:.80}")
        if index < 1:
            raise _wrong("a snapshot of index 0")
        members = _members(voters), _members(learners)
        return cls(group, snapshot_id, index, term, *members, total_bytes)


@dataclass(frozen=True, slots=True)
class Chunk:
    """Consecutive rows of a store, encoded."""

    data: bytes
    """The bytes to send: msgpack `[after, last, [key, value, key, value, ...]]` in the envelope."""
    position: bytes | None
    """Key of the last row so far, after which the next chunk continues. None if there was no row yet."""
    last: bool


class Exporter:
    """Cuts the rows of a store in a snapshot into chunks. Blocks on the disk. For one thread at a time."""

    def __init__(self, snapshot: StoresSnapshot, store: int) -> None:
        self._snapshot = snapshot
        self._start, self._stop = store_range(store)

    @property
    def total_bytes(self) -> int:
        """Approximate size of the rows on the disk, for `Meta`."""
        return self._snapshot.approximate_bytes(self._start, self._stop)

    def chunk(self, after: bytes | None) -> Chunk:
        """Return the chunk of rows after the key `after`. None: the first chunk.

        The same `after` always gives the same rows. Raise ClosedError if the snapshot is closed, Corruption if the
        store is damaged."""
        flat, last = self.rows(after, CHUNK_ROWS, CHUNK_BYTES)
        data = small_file.encode(CHUNK_MAGIC, CHUNK_VERSION, [after, last, flat])
        return Chunk(data, flat[-2] if flat else after, last)

    def rows(self, after: bytes | None, most: int, most_bytes: int) -> tuple[list[bytes], bool]:
        """Return (alternating keys and values of the rows after the key `after`, whether these are the last rows).
        Returns up to `most` rows of up to `most_bytes` in total, or a single larger row. Raise the errors of
        `chunk`."""
        start = self._start if after is None else self._start + after + b"\0"
        found = self._snapshot.scan(start, self._stop, limit=most, max_bytes=most_bytes)
        taken = _fitting(found, most_bytes)
        flat: list[bytes] = []
        for key, value in found[:taken]:
            flat += key[STORE_PREFIX_BYTES:], value
        behind = found[taken - 1][0] + b"\0" if taken else start
        return flat, not self._snapshot.scan(behind, self._stop, limit=1, max_bytes=1)


class Importer:
    """Fills a store with the chunks of an `Exporter`. For the thread that writes to the stores."""

    def __init__(self, stores: Stores, store: int) -> None:
        """`store`: number of the new, empty store to fill."""
        self.store = store
        self.position: bytes | None = None
        """Key of the last stored row, after which the next chunk must continue. None before the first row."""
        self._stores = stores
        self._prefix = store_prefix(store)

    def add(self, data: bytes) -> bool:
        """Store the rows of a chunk in one write. Return whether it was the last chunk.

        The rows are durable only after a flush. Raise Corruption, and write nothing, if the chunk is damaged or does
        not continue at `position`; StorageFailed if the write fails."""
        after, last, flat = self._decode(data)
        keys = flat[::2]
        if after != self.position:
            raise _wrong(f"a chunk of rows behind {_hex(after)}, where those behind {_hex(self.position)} are next")
        rising = keys if after is None else [after, *keys]
        if not all(map(lt, rising, rising[1:])):
            raise _wrong(f"the keys of the chunk behind {_hex(after)} do not rise")
        if keys:
            prefix = self._prefix
            self._stores.write([(prefix + key, value) for key, value in zip(keys, flat[1::2], strict=True)])
            self.position = keys[-1]
        return last

    def _decode(self, data: bytes) -> tuple[bytes | None, bool, list[bytes]]:
        what = f"the chunk behind {_hex(self.position)}"
        found = _decode(data, CHUNK_MAGIC, CHUNK_VERSION, CHUNK_BYTES_AT_MOST, what)
        match found:
            case [bytes() | None as after, bool() as last, list() as flat] if len(flat) % 2 == 0:
                if set(map(type, flat)) <= {bytes}:
                    return after, last, flat
        raise _wrong(f"{what} holds no rows")


def _fitting(rows: Sequence[Row], most_bytes: int) -> int:
    """Return the number of rows that fit into a chunk: at least one, if there are rows."""
    size = 0
    for count, (key, value) in enumerate(rows):
        size += len(key) + len(value) + ROW_BYTES
        if size > most_bytes and count:
            return count
    return len(rows)


def _decode(data: bytes, magic: bytes, version: int, limit: int, what: str) -> Any:
    if len(data) > limit:
        raise _wrong(f"{what} has {len(data)} bytes, more than {limit}")
    try:
        return small_file.decode(data, magic, version, what)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise _wrong(f"{what} cannot be read: {error!r}") from error


def _members(names: object) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) and _MEMBER.fullmatch(name) for name in names):
        raise _wrong(f"a snapshot's members are {names!r:.80}")
    return tuple(names)


def _wrong(what: str) -> Corruption:
    return Corruption(f"{what}: it is not what a node of this version sends")


def _hex(key: bytes | None) -> str:
    return "the beginning" if key is None else key.hex()
