"""A digest of the stored rows of a partition (pure). Replicas that have applied the same entries have the same digest.

The digest leaves out the rows of per-second counts (`rows.COUNTS`). How counts are split into rows, and when old rows
are deleted, differs between replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import xxhash

from sandq.partition.base import rows
from sandq.partition.base.view import Row

DIGEST_BYTES: Final = 16
_COUNTS_FIELD: Final = 6
"""Index of the counts in the state row. The digest includes only the first two of them: the second up to which messages
are due, and the number of later messages. The other counts describe the rows of counts, which differ."""


def comparable(found: Iterable[Row]) -> Mapping[bytes, Any]:
    """Return, by key relative to the store, the part of each row that is the same on every replica. Leave out rows
    without such a part."""
    return {key: _of_state(value) if key == rows.STATE_KEY else value for key, value in found if key[:1] != rows.COUNTS}


def _of_state(row: bytes) -> list[Any]:
    """Return the fields of the state row that are the same on every replica."""
    fields = rows.unpack(row)
    fields[_COUNTS_FIELD] = fields[_COUNTS_FIELD][:2]
    return fields


class StateDigest:
    """Computes the digest of a partition. Add all rows in the order of their keys, in any number of calls, then call
    `value`."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()

    def add(self, found: Iterable[Row]) -> None:
        """Add the next rows. Their keys are relative to the store."""
        update = self._hash.update
        for key, value in comparable(found).items():
            row = value if isinstance(value, bytes) else rows.pack(*value)
            update(len(key).to_bytes(4, "big") + key + len(row).to_bytes(4, "big"))
            update(row)

    def value(self) -> bytes:
        """Return the digest of all rows added so far, `DIGEST_BYTES` long."""
        return self._hash.digest()
