"""Select messages by the prefixes of their keys."""

from __future__ import annotations

from typing import NamedTuple

from sandq.model.batch import Column
from sandq.partition.base.rows import Fields


class Prefixes(NamedTuple):
    """Prefixes that select messages. A prefix of None selects all messages, also messages without such a key."""

    key: bytes | None = None
    unique_key: bytes | None = None

    @property
    def say_nothing(self) -> bool:
        """Return True if there is no prefix, so that every message is selected."""
        return self.key is None and self.unique_key is None

    def take(self, fields: Fields) -> bool:
        """Return whether a message with these fields is selected."""
        return _begins(fields.get(Column.KEY), self.key) and _begins(fields.get(Column.UNIQUE_KEY), self.unique_key)


def _begins(found: object, prefix: bytes | None) -> bool:
    """Return whether a field begins with a prefix. A prefix of None fits any field."""
    return prefix is None or (isinstance(found, bytes) and found.startswith(prefix))
