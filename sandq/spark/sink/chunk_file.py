"""`KeptChunks`: a temporary file of chunks that may have to be sent again."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from tempfile import TemporaryFile
from typing import IO, Final

from sandq.spark.sink.chunks import Chunk

_HEAD: Final = struct.Struct("<QIHB?I")


class KeptChunks:
    """Chunks of one topic partition, in order. The file is deleted with the object, or when the process ends."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None

    def add(self, chunks: list[Chunk]) -> None:
        if self._file is None:
            self._file = TemporaryFile(prefix="sandq-spark-")  # noqa: SIM115  # it is closed by `clear`
        for chunk in chunks:
            head = (chunk.number, chunk.rows, chunk.chain, chunk.on_conflict, chunk.ignorable, len(chunk.data))
            self._file.write(_HEAD.pack(*head) + chunk.data)

    def read(self, topic: str, partition: int) -> Iterator[Chunk]:
        """Return all chunks in their order."""
        if self._file is None:
            return
        self._file.seek(0)
        while head := self._file.read(_HEAD.size):
            *fields, size = _HEAD.unpack(head)
            yield Chunk._make([topic, partition, *fields, self._file.read(size)])

    def clear(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
