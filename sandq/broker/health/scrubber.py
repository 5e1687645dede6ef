"""Check the files of the log and of the stores in the background, at a bounded rate, and report damage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import trio

from sandq.model.errors import Corruption, StorageFailed
from sandq.model.logger import get_logger
from sandq.storage.files import Files
from sandq.storage.scrub import scrub_tables, scrub_wal

log = get_logger("sandq.health")

PAUSE_S: Final = 3600.0
"""Pause in s between two rounds over all files."""


class Scrubber:
    """Reads all files of a node, and compares them with their checksums."""

    def __init__(self, files: Files, stores: Path, bytes_per_s: int) -> None:
        """`stores`: directory of the tables; it may be missing. `bytes_per_s`: rate of reading; 0: read nothing."""
        self._files = files
        self._stores = stores
        self._bytes_per_s = bytes_per_s
        self.read_bytes = 0
        self.rounds = 0
        """Number of completed rounds."""
        self.damage: str | None = None
        """The damage that the last round found; None if it found no damage."""

    async def run(self) -> None:
        """Run rounds until cancelled."""
        while self._bytes_per_s:
            await self.scrub()
            await trio.sleep(PAUSE_S)

    async def scrub(self) -> None:
        """Run one round."""
        parts = [scrub_wal(self._files)]
        if self._stores.is_dir():
            parts.append(scrub_tables(self._stores))
        found: list[str] = []
        for part in parts:
            try:
                await self._read(part)
            except Corruption as error:
                log.error("stored data is damaged: replace this node's data", error=error.message)
                found.append(error.message)
            except (StorageFailed, OSError) as error:
                log.warning("the disk could not be read to be checked", error=str(error))
        self.damage = "; ".join(found) or None
        self.rounds += 1

    async def _read(self, steps: Iterator[int]) -> None:
        """Run the steps of a check on threads, at the bounded rate. Each step yields the number of bytes that it has
        read."""
        while True:
            size = await trio.to_thread.run_sync(next, steps, None, abandon_on_cancel=True)
            if size is None:
                return
            self.read_bytes += size
            await trio.sleep(size / self._bytes_per_s)
