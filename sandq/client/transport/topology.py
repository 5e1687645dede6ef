"""The last known state of one topic and of one node; `cluster` keeps both up to date."""

from __future__ import annotations

from typing import NamedTuple

import anyio

from sandq.client.transport.connection import Connection
from sandq.model.errors import SandqError
from sandq.protocol.replies import TopicRecord

Address = tuple[str, int]


class Known(NamedTuple):
    """The last reply about a topic: its record, or the error that was returned instead.

    `serial` and `asked` are the numbers of the reply and of its request, from one common counter.
    """

    record: TopicRecord | None
    error: SandqError | None
    serial: int
    asked: int


class Link:
    """A node's addresses, and the connection to it if there is one."""

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.addresses: list[Address] = []
        self.connection: Connection | None = None
        self.error: SandqError | None = None
        self.scope = anyio.CancelScope()

    def add(self, address: Address) -> None:
        """Add an address of the node. The newest address comes last."""
        if address not in self.addresses:
            self.addresses.append(address)

    @property
    def open_connection(self) -> Connection | None:
        connection = self.connection
        return connection if connection is not None and connection.is_open else None
