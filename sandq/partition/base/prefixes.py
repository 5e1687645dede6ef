"""Messages by how their keys begin."""

from __future__ import annotations

from typing import NamedTuple

from sandq.model.batch import Column
from sandq.partition.base.rows import Fields


class Prefixes(NamedTuple):
    """How the keys of the messages that are meant begin; None: in any way, or there is none."""

    key: bytes | None = None
    unique_key: bytes | None = None

    @property
    def say_nothing(self) -> bool:
        """Return whether any message is meant."""
        return self.key is None and self.unique_key is None

    def take(self, fields: Fields) -> bool:
        """Return whether a message is among them."""
        return _begins(fields.get(Column.KEY), self.key) and _begins(fields.get(Column.UNIQUE_KEY), self.unique_key)


def _begins(found: object, prefix: bytes | None) -> bool:
    return prefix is None or (isinstance(found, bytes) and found.startswith(prefix))
