"""The queue of bytes to send to one client: frames, and parts of large frames, in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Final

Buffer = bytes | memoryview
JOINED_BUFFERS: Final = 16
"""Maximum number of buffers in one gather write.

More buffers are first joined into one, because a copy costs less than many small buffers.
"""


class SendQueue:
    """A queue that never copies large buffers, and releases each buffer when all its bytes were sent."""

    def __init__(self) -> None:
        self._buffers: deque[Buffer] = deque()
        self._first_bytes = 0
        """Full size of the first buffer, even if a part of it was sent."""
        self.bytes = 0
        """Bytes held in memory. A buffer that was sent in part counts in full."""

    def __bool__(self) -> bool:
        return bool(self._buffers)

    def add(self, part: bytes) -> None:
        """Append bytes to the queue."""
        if part:
            if not self._buffers:
                self._first_bytes = len(part)
            self._buffers.append(part)
            self.bytes += len(part)

    def head(self, most: int) -> Sequence[Buffer]:
        """Return the buffers to send next, at most `most` bytes, for one gather write."""
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
        """Remove bytes that were sent. Return how many bytes of memory that releases."""
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
        """Remove everything. Return how many bytes of memory that releases."""
        held = self.bytes
        self._buffers.clear()
        self.bytes = self._first_bytes = 0
        return held
