"""What the broker knows a consumer by, and tells its processes apart by."""

from __future__ import annotations

import secrets
from typing import Final

from sandq.client.transport.connection import Connection
from sandq.model.errors import ConsumerFenced
from sandq.model.names import check_name

_EPOCH_BITS: Final = 20
"""Of an epoch, that are random: two that come in one millisecond have different ones."""


class ConsumerIdentity:
    """One subscription's, on all nodes."""

    def __init__(self, client_name: str, consumer_id: str | None) -> None:
        """`consumer_id`: one that lasts; None: one of this subscription alone. Raises InvalidName."""
        self._lasts = consumer_id is not None
        self._epoch = 0
        self.has_come = False
        """It has been accepted: from here on a process that comes later goes before it."""
        if consumer_id is None:
            self.id = f"{client_name[:200]}-{secrets.token_hex(8)}"
        else:
            self.id = check_name("consumer", consumer_id)

    def epoch_on(self, connection: Connection) -> int | None:
        """By which nodes tell this process from an earlier one with the same id; None: the id is its own."""
        if self._lasts and not self._epoch:
            self._epoch = (connection.node_ms() << _EPOCH_BITS) + secrets.randbits(_EPOCH_BITS)
        return self._epoch or None

    def is_outrun_by(self, error: ConsumerFenced) -> bool:
        """Whether a later process has come. Whoever comes last is the later one: while this one has only just come, and
        a node knows of a higher epoch, that is one of before."""
        return self.has_come or type(error.details.get("epoch")) is not int

    def outrank(self, error: ConsumerFenced) -> bool:
        """Have a higher epoch than the one that a node knows of. Whether it is another than before."""
        newest = error.details["epoch"]
        if not isinstance(newest, int) or newest < self._epoch:
            return False
        self._epoch = newest + 1 + secrets.randbits(_EPOCH_BITS)
        return True
