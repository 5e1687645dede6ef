"""Define SKIP, a log entry that replaces an earlier entry that cannot be applied (ADR 46)."""

from __future__ import annotations

from dataclasses import astuple, dataclass
from typing import Final

import msgpack

from sandq.model.errors import Corruption

SKIP_ID_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Skip:
    """The decision to apply `replacement` instead of the entry at `index`. PERSISTED: the order of the fields."""

    index: int
    """Index of the entry that is replaced."""
    term: int
    """Term of the replaced entry."""
    skip_id: bytes
    """Random id of this decision. The replacement contains the id, so that the stored rows show that the decision was
    applied."""
    replacement: bytes
    """The command to apply instead, as the state machine encodes its entries."""

    def encode(self) -> bytes:
        """Return the encoded fields, without the byte for the kind of entry."""
        body: bytes = msgpack.packb(astuple(self))
        return body

    @classmethod
    def decode(cls, data: bytes) -> Skip:
        """Decode a SKIP. Raise Corruption if `data` is not one."""
        try:
            index, term, skip_id, replacement = msgpack.unpackb(data)
        except (ValueError, TypeError, msgpack.UnpackException) as error:
            raise Corruption(f"a SKIP entry cannot be read: {error!r}") from error
        skip = cls(index, term, skip_id, replacement)
        types = [type(field) for field in astuple(skip)]
        is_whole = types == [int, int, bytes, bytes] and index > 0 and term >= 0
        if not is_whole or len(skip_id) != SKIP_ID_BYTES or not replacement:
            raise Corruption(f"a SKIP entry has invalid fields: {skip!r:.200}")
        return skip
