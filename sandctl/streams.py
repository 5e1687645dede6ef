"""Standard input and output that do not block the event loop: a slow pipe must not cost a lease.

A pipe, terminal or socket is read or written only once its descriptor is ready. A regular file never blocks for long,
so it is read and written directly. The same applies to the streams without a descriptor of click's test runner.
"""

from __future__ import annotations

import os
import select
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, BinaryIO

import anyio

READ_BYTES = 65_536
WRITE_BYTES = 4096  # bytes that can be written to a ready pipe without blocking (PIPE_BUF)


def _descriptor(stream: BinaryIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, AttributeError):
        return None


async def _ready(wait: Callable[[Any], Awaitable[None]], descriptor: int) -> bool:
    """Wait until a descriptor is ready. Returns False if this is not possible for its kind."""
    try:
        await wait(descriptor)
    except OSError:
        return False
    return True


async def read_pieces(stream: BinaryIO) -> AsyncIterator[bytes]:
    """Yield the bytes of a binary stream as they arrive."""
    descriptor = _descriptor(stream)
    waits = descriptor is not None
    while True:
        if descriptor is None:
            piece = stream.read(READ_BYTES)
        else:
            waits = waits and await _ready(anyio.wait_readable, descriptor)
            piece = os.read(descriptor, READ_BYTES)
        if not piece:
            return
        yield piece
        await anyio.lowlevel.checkpoint()


async def read_lines(stream: BinaryIO, max_bytes: int) -> AsyncIterator[bytes | None]:
    """Yield lines without their line feed. The last line may lack a line feed. At a line over the limit, yield None and
    end."""
    parts: list[bytes] = []  # parts of a line whose end has not arrived yet
    size = 0
    async for piece in read_pieces(stream):
        first, *more = piece.split(b"\n")
        parts.append(first)
        size += len(first)
        if size > max_bytes:
            yield None
            return
        if more:
            yield b"".join(parts)
            for line in more[:-1]:
                yield line
            parts, size = [more[-1]], len(more[-1])
    if size:
        yield b"".join(parts)


class Writer:
    """Writes bytes, which have left the process when `write` returns.

    It waits on the event loop only if the reader is slow: to wait for each message would cost more than everything
    else."""

    def __init__(self, stream: BinaryIO) -> None:
        self.is_broken = False
        self._stream = stream
        self._descriptor = _descriptor(stream)
        self._waits = self._descriptor is not None
        self._poll = select.poll()
        if self._descriptor is not None:
            self._poll.register(self._descriptor, select.POLLOUT)
        self._rest = memoryview(b"")

    async def write(self, data: bytes) -> None:
        """Write bytes. Raises BrokenPipeError if the reader has closed the pipe."""
        if self._descriptor is None:
            self._stream.write(data)
            self._stream.flush()
            return
        self._rest = memoryview(data)
        await self.finish()

    async def finish(self) -> None:
        """Write what a cancelled `write` has left."""
        descriptor = self._descriptor
        while self._rest and descriptor is not None and not self.is_broken:
            if self._waits and not self._poll.poll(0):
                self._waits = await _ready(anyio.wait_writable, descriptor)
            try:
                written = os.write(descriptor, self._rest[:WRITE_BYTES] if self._waits else self._rest)
            except OSError:
                self.is_broken = True
                raise
            self._rest = self._rest[written:]
