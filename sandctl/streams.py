"""Standard input and output without holding up the event loop: a slow pipe must not cost a lease.

A descriptor that can be waited for (pipe, terminal, socket) is; a regular file never blocks for long and is read and
written at once, as is anything that is no descriptor (the streams that click's test runner puts in place).
"""

from __future__ import annotations

import os
import select
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, BinaryIO

import anyio

READ_BYTES = 65_536
WRITE_BYTES = 4096  # what a pipe that is ready takes without blocking (PIPE_BUF)


def _descriptor(stream: BinaryIO) -> int | None:
    try:
        return stream.fileno()
    except (OSError, AttributeError):
        return None


async def _ready(wait: Callable[[Any], Awaitable[None]], descriptor: int) -> bool:
    """Wait for a descriptor; False when there is no waiting for its kind."""
    try:
        await wait(descriptor)
    except OSError:
        return False
    return True


async def read_pieces(stream: BinaryIO) -> AsyncIterator[bytes]:
    """What a binary stream holds, as it comes."""
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
    """Lines without their line feed; the last one need not have one. None, and the end, at a line of more bytes."""
    parts: list[bytes] = []  # of a line whose end is still to come
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
    """Writes bytes that are out when `write` returns. It waits only while the other end takes nothing: to go through
    the event loop for each message would cost more than all the rest."""

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
        """BrokenPipeError when nobody reads any more."""
        if self._descriptor is None:
            self._stream.write(data)
            self._stream.flush()
            return
        self._rest = memoryview(data)
        await self.finish()

    async def finish(self) -> None:
        """Write what a `write` that was cancelled left."""
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
