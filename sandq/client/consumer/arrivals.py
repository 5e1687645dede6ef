"""What has come to a subscription and was not taken yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from sandq.client.consumer.chunk import HELD, Chunk

M = TypeVar("M")


class Arrival:
    """A chunk that waits to be taken by who iterates, and how far it was."""

    __slots__ = ("_values", "chunk", "position")

    def __init__(self, chunk: Chunk) -> None:
        self.chunk = chunk
        self.position = 0
        self._values: Sequence[bytes | None] | None = None  # not cut before one message is taken

    def take(self, make: Callable[[Chunk, int, bytes], M]) -> M | None:
        """The next message that is held, as `make` makes it; None at the end."""
        chunk = self.chunk
        position = chunk.state.find(HELD, self.position)
        if position < 0:
            return None
        if self._values is None:
            self._values = chunk.values()
        self.position = position + 1
        return make(chunk, position, self._values[position] or b"")

    def is_empty(self) -> bool:
        """Whether nothing of it is held any more."""
        return self.chunk.state.find(HELD, self.position) < 0
