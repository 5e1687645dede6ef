"""The id of a consumer, and the epoch by which the nodes distinguish its processes."""

from __future__ import annotations

import secrets
from typing import Final

from sandq.client.transport.connection import Connection
from sandq.model.errors import ConsumerFenced
from sandq.model.names import check_name

_EPOCH_BITS: Final = 20
"""Number of random low bits of an epoch, so that two processes that start in the same millisecond get different
epochs."""


class ConsumerIdentity:
    """The consumer id and epoch of one subscription, the same on all nodes."""

    def __init__(self, client_name: str, consumer_id: str | None) -> None:
        """`consumer_id`: a permanent id; None: a new id, only for this subscription. Raises InvalidName."""
        self._lasts = consumer_id is not None
        self._epoch = 0
        self.is_accepted = False
        """True once a node has accepted the subscription. From then on, a process with a later epoch replaces this
        process."""
        if consumer_id is None:
            self.id = f"{client_name[:200]}-{secrets.token_hex(8)}"
        else:
            self.id = check_name("consumer", consumer_id)

    def epoch_on(self, connection: Connection) -> int | None:
        """Return the epoch that distinguishes this process from earlier ones with the same id; None if the id is
        unique."""
        if self._lasts and not self._epoch:
            self._epoch = (connection.node_ms() << _EPOCH_BITS) + secrets.randbits(_EPOCH_BITS)
        return self._epoch or None

    def is_replaced_by(self, error: ConsumerFenced) -> bool:
        """Return whether a later process has replaced this one.

        The process that starts last is the later one. Until a node has accepted this process, a node's higher epoch
        belongs to an earlier process."""
        return self.is_accepted or type(error.details.get("epoch")) is not int

    def outrank(self, error: ConsumerFenced) -> bool:
        """Raise the epoch above the epoch that a node knows. Return whether it changed."""
        newest = error.details["epoch"]
        if not isinstance(newest, int) or newest < self._epoch:
            return False
        self._epoch = newest + 1 + secrets.randbits(_EPOCH_BITS)
        return True
