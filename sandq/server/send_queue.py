"""What is queued for one client: frames, and parts of large ones, in the order in which they are sent."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

Buffer = bytes | memoryview
JOINED_BUFFERS: Final = 16
"""More than so many that are sent together are copied into one: each costs a call more than its bytes are worth."""


class SendQueue:
    """Nothing that is large is copied on its way to the socket, and each buffer is let go when it has left."""

    def __init__(self) -> None:
        self._buffers: deque[Buffer] = deque()
        self._first_bytes = 0
        """Of the first buffer, whatever of it was sent."""
        self.bytes = 0
        """What is held: of a buffer that was sent in part, all."""

    def __bool__(self) -> bool:
        return bool(self._buffers)

    def add(self, part: bytes) -> None:
        if part:
            if not self._buffers:
                self._first_bytes = len(part)
            self._buffers.append(part)
            self.bytes += len(part)

    def head(self, most: int) -> Sequence[Buffer]:
        """What is sent next, at most so many bytes: buffers for one gather write."""
        buffers = self._buffers
        if self.bytes <= most:
            gathered: list[Buffer] = [*buffers]
        else:
            gathered = []
            for buffer in buffers:
                if len(buffer) >= most:
                    gathered.append(memoryview(buffer)[:most])
                    break
                gathered.append(buffer)
                most -= len(buffer)
        return gathered if len(gathered) <= JOINED_BUFFERS else [b"".join(gathered)]

    def drop(self, sent: int) -> int:
        """So many bytes have left; how many are held no more."""
        buffers, held = self._buffers, self.bytes
        while sent:
            first = buffers[0]
            if len(first) > sent:
                buffers[0] = memoryview(first)[sent:]
                break
            sent -= len(first)
            buffers.popleft()
            self.bytes -= self._first_bytes
            self._first_bytes = len(buffers[0]) if buffers else 0
        return held - self.bytes

    def clear(self) -> int:
        """Nothing more is sent; how many bytes are held no more."""
        held = self.bytes
        self._buffers.clear()
        self.bytes = self._first_bytes = 0
        return held
