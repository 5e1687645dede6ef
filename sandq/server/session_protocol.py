"""What a connection asks of who knows what its frames mean."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Protocol

from sandq.protocol.frames import Frame, LargeFrame
from sandq.server.client_stats import Mark


class Session(Protocol):
    """What the frames of a connection mean."""

    greeted: bool

    @property
    def is_gateway(self) -> bool:
        """Whether the client has proved to be a gateway."""
        ...

    def handle(self, frame: Frame) -> Awaitable[None] | None:
        """Start what a frame asks for. What takes long is returned, and awaited before the next frame is looked at.
        Raises SandqError: the request failed (ProtocolError: the connection)."""
        ...

    def gather(
        self, frames: Sequence[Frame | LargeFrame], first: int, most: int, requests: dict[int, Mark], mark: Mark
    ) -> int:
        """Take in so many from the `first` on, as long as they go together with the PRODUCE before them, and note them
        among the requests that are not answered yet: how many."""
        ...

    def handled(self) -> None:
        """Everything that came in one turn was handled."""
        ...

    def drained(self) -> None:
        """The connection takes frames again after it was congested."""
        ...

    async def closed(self) -> None:
        """The connection has gone."""
        ...
