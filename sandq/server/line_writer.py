"""Write log lines in a separate thread, so that a slow or broken standard output cannot block or end a node."""

from __future__ import annotations

import os
import select
import threading
from collections import deque

QUEUED_BYTES = 4 << 20
"""Maximum bytes of lines that wait to be written. Further lines are dropped."""
FINISH_S = 2.0
"""Maximum time to wait for pending lines when the process ends, in seconds."""


class LineWriter:
    """A file for loggers: `write` never blocks and never raises."""

    def __init__(self, descriptor: int | None, limit: int = QUEUED_BYTES) -> None:
        """`descriptor`: the file to write to; None if the parent process closed it: all lines are dropped then."""
        self.dropped = 0
        """Number of lines that were not written, or only in part, because of an error or a full queue."""
        self._descriptor = descriptor
        self._limit = limit
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._queued = 0
        """Bytes of `_lines`, and of the line that is being written."""
        self._torn = False
        """Whether the last write ended in the middle of a line."""
        if descriptor is not None:
            # A daemon thread: a write that blocks forever must not keep the process from ending.
            threading.Thread(target=self._run, args=(descriptor,), name=f"lines-{descriptor}", daemon=True).start()

    def write(self, text: str) -> int:
        """Queue whole lines, or drop and count them. Return the number of characters of `text`."""
        data = text.encode("utf-8", "backslashreplace")
        with self._changed:
            if self._descriptor is None or self._queued + len(data) > self._limit:
                self.dropped += 1
            else:
                self._lines.append(data)
                self._queued += len(data)
                self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Do nothing. Loggers call this after every line."""

    def finish(self, seconds: float) -> bool:
        """Wait until all lines are written or dropped, for at most `seconds`. Return whether none is left."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queued, seconds)

    def _run(self, descriptor: int) -> None:
        """Write queued lines one after the other. Runs in the thread."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines)
                data = self._lines.popleft()
            is_written = self._put(descriptor, data)
            with self._changed:
                self._queued -= len(data)
                self.dropped += not is_written
                self._changed.notify_all()

    def _put(self, descriptor: int, data: bytes) -> bool:
        """Write a line to the descriptor. Return whether it was written.

        After a line that was written in part, the next line begins with a line feed."""
        rest = memoryview(b"\n" + data if self._torn else data)
        try:
            while rest:
                try:
                    rest = rest[os.write(descriptor, rest) :]
                    self._torn = True
                except BlockingIOError:
                    # Another process that shares the file has made it non-blocking. Wait until it is writable.
                    writable = select.poll()
                    writable.register(descriptor, select.POLLOUT)
                    writable.poll()
        except OSError:
            return False
        self._torn = False
        return True
