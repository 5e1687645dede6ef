"""Writes lines to standard error or output in a thread of its own, so that neither can hold up or end a node."""

from __future__ import annotations

import os
import select
import threading
from collections import deque

QUEUED_BYTES = 4 << 20
"""Most bytes of lines that wait for a reader, or for a disk; what is over it is dropped."""
FINISH_S = 2.0
"""How long a process that ends waits for what it has yet to write, in seconds."""


class LineWriter:
    """A file, as far as loggers need one: `write` never waits and never raises."""

    def __init__(self, descriptor: int | None, limit: int = QUEUED_BYTES) -> None:
        """`descriptor`: None when whoever started the process closed it; everything is dropped then."""
        self.dropped = 0
        """Lines that were not written, or not wholly: they failed, or too many waited already."""
        self._descriptor = descriptor
        self._limit = limit
        self._changed = threading.Condition()
        self._lines: deque[bytes] = deque()
        self._queued = 0
        """Bytes of `_lines`, and of the line that is being written."""
        self._torn = False
        """What was written last ends within a line."""
        if descriptor is not None:
            # A daemon: a write that never ends must not keep the process from ending.
            threading.Thread(target=self._run, args=(descriptor,), name=f"lines-{descriptor}", daemon=True).start()

    def write(self, text: str) -> int:
        """Queue whole lines, or drop and count them; returns the characters of `text`."""
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
        """Do nothing: loggers call it after every line."""

    def finish(self, seconds: float) -> bool:
        """Wait until everything is written or dropped, at most so long; returns whether it is."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._queued, seconds)

    def _run(self, descriptor: int) -> None:
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
        rest = memoryview(b"\n" + data if self._torn else data)
        try:
            while rest:
                try:
                    rest = rest[os.write(descriptor, rest) :]
                    self._torn = True
                except BlockingIOError:
                    # Whoever shares it with this process made it non-blocking.
                    room = select.poll()
                    room.register(descriptor, select.POLLOUT)
                    room.poll()
        except OSError:
            return False
        self._torn = False
        return True
