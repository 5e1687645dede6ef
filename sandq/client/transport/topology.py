"""What is known of one topic and of one node; `cluster` keeps it true."""

from __future__ import annotations

from typing import NamedTuple

import anyio

from sandq.client.transport.connection import Connection
from sandq.model.errors import SandqError
from sandq.protocol.replies import TopicRecord

Address = tuple[str, int]


class Known(NamedTuple):
    """The last answer about a topic: its record, or why there is none; `serial` and `asked` are the numbers of
    the answer and of its question, which are counted together."""

    record: TopicRecord | None
    error: SandqError | None
    serial: int
    asked: int


class Link:
    """One node: where it is, and the connection to it while there is one."""

    def __init__(self, node_id: str) -> None:
        self.node_id = node_id
        self.addresses: list[Address] = []
        self.connection: Connection | None = None
        self.error: SandqError | None = None
        self.scope = anyio.CancelScope()

    def add(self, address: Address) -> None:
        """Know one more way to reach it; the newest comes last."""
        if address not in self.addresses:
            self.addresses.append(address)

    @property
    def open_connection(self) -> Connection | None:
        connection = self.connection
        return connection if connection is not None and connection.is_open else None
