"""A digest of what a partition has stored (pure): the same on every replica that has applied the same entries.

All rows are in it but counts by the second, which are cut into rows, and those dropped in steps, as it happens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import xxhash

from sandq.partition.base import rows
from sandq.partition.base.view import Row

DIGEST_BYTES: Final = 16
_COUNTS_FIELD: Final = 6
"""Of the state's row: now, what is later, and what is known of the rows of counts."""


def comparable(found: Iterable[Row]) -> Mapping[bytes, Any]:
    """Of these rows, keys relative to the store, what is the same on every replica."""
    return {key: _of_state(value) if key == rows.STATE_KEY else value for key, value in found if key[:1] != rows.COUNTS}


def _of_state(row: bytes) -> list[Any]:
    fields = rows.unpack(row)
    fields[_COUNTS_FIELD] = fields[_COUNTS_FIELD][:2]
    return fields


class StateDigest:
    """Add all rows of a partition in the order of their keys, in as many pieces as is convenient; then ask for
    `value`."""

    def __init__(self) -> None:
        self._hash = xxhash.xxh3_128()

    def add(self, found: Iterable[Row]) -> None:
        """Add the next rows, keys relative to the store."""
        update = self._hash.update
        for key, value in comparable(found).items():
            row = value if isinstance(value, bytes) else rows.pack(*value)
            update(len(key).to_bytes(4, "big") + key + len(row).to_bytes(4, "big"))
            update(row)

    def value(self) -> bytes:
        """The digest of all that was added, `DIGEST_BYTES`."""
        return self._hash.digest()
