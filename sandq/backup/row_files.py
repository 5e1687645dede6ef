"""The files with the rows of a partition, and copying them from the partition's leader."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any, BinaryIO, Final

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from sandq.backup.errors import NoBackup
from sandq.backup.file_format import Writer
from sandq.backup.keys import BackupKey
from sandq.backup.locations import Location, failing
from sandq.backup.manifest import FilePart, PartitionPart
from sandq.backup.work import QUEUED, OnProgress, Pace, Progress, in_thread
from sandq.client.backups import BackupTransfer, Piece
from sandq.model.errors import SandqError

FILE_BYTES: Final = 256 << 20
"""Approximate size of a file of rows."""


class RowFiles:
    """The files of a partition, written one after the other. Blocking; for one thread at a time."""

    def __init__(self, location: Location, backup_id: str, folder: str, key: BackupKey | None) -> None:
        self.parts: list[FilePart] = []
        self.shown = location.shown
        self._location = location
        self._backup_id = backup_id
        self._folder = folder
        self._key = key
        self._context: AbstractContextManager[BinaryIO] | None = None
        self._writer: Writer | None = None
        self._name = ""

    def write(self, data: bytes) -> None:
        """Add a block; begin a new file if the current one is full."""
        if self._writer is not None and self._writer.bytes >= FILE_BYTES:
            self._end_file()
        if self._writer is None:
            self._name = f"{self._folder}/{len(self.parts):05}.sandq"
            self._context = self._location.create(f"{self._backup_id}/{self._name}")
            stream = self._context.__enter__()
            self._writer = Writer(stream, self._backup_id, self._name, self._key)
        with failing(f"{self.shown}/{self._backup_id}/{self._name}"):
            self._writer.write(data)

    def end(self) -> None:
        """Finish the last file."""
        if self._writer is not None:
            self._end_file()

    def _end_file(self) -> None:
        writer, context = self._writer, self._context
        assert writer is not None and context is not None
        with failing(f"{self.shown}/{self._backup_id}/{self._name}"):
            writer.end()
        self._writer = self._context = None
        context.__exit__(None, None, None)
        self.parts.append(FilePart(self._name, writer.bytes, writer.blocks, writer.plain_bytes))

    def give_up(self) -> None:
        """Drop the incomplete file after a failure."""
        context, self._context, self._writer = self._context, None, None
        if context is not None:
            error = NoBackup("the backup was given up")
            with suppress(NoBackup):
                context.__exit__(NoBackup, error, None)


async def copy_rows(
    transfer: BackupTransfer,
    topic: str,
    number: int,
    files: RowFiles,
    pace: Pace,
    progress: Progress,
    on_progress: OnProgress,
) -> PartitionPart:
    """Copy the rows of a partition at one moment into these files.

    Raises errors of nodes, also if the rows are no longer kept because the leader changed.
    """
    begun = await transfer.begin(topic, number)
    progress.bytes += begun["bytes"]
    on_progress(progress)
    try:
        await _copy(transfer, topic, number, begun["export"], files, pace, progress, on_progress)
    finally:
        progress.bytes -= begun["bytes"]
        with anyio.move_on_after(5, shield=True), suppress(SandqError):
            await transfer.end(topic, number, begun["export"])
    part = PartitionPart(number, begun["index"], begun["time_ms"], begun["level"], tuple(files.parts))
    progress.bytes += part.plain_bytes
    return part


async def _copy(
    transfer: BackupTransfer,
    topic: str,
    number: int,
    export: int,
    files: RowFiles,
    pace: Pace,
    progress: Progress,
    on_progress: OnProgress,
) -> None:
    """Read and write the rows piece by piece, both at the same time."""
    send, receive = anyio.create_memory_object_stream[Piece](QUEUED)
    errors: list[SandqError] = []

    async def read(send: MemoryObjectSendStream[Piece]) -> None:
        async with send:
            position, is_last = None, False
            while not is_last:
                piece = await transfer.read(topic, number, export, position)
                position, is_last = piece.position, piece.is_last
                await pace.take(len(piece.data))
                await send.send(piece)

    async def write(receive: MemoryObjectReceiveStream[Piece]) -> None:
        async with receive:
            async for piece in receive:
                await in_thread(partial(files.write, piece.data), files.shown)
                progress.bytes_done += len(piece.data)
                on_progress(progress)

    async def kept(work: Callable[[Any], Any], stream: Any) -> None:
        try:
            await work(stream)
        except SandqError as error:
            errors.append(error)
            tasks.cancel_scope.cancel()

    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(kept, read, send)
            tasks.start_soon(kept, write, receive)
        if errors:
            raise errors[0]
        await in_thread(files.end, files.shown)
    except BaseException:
        with anyio.CancelScope(shield=True):
            await in_thread(files.give_up, files.shown)
        raise
