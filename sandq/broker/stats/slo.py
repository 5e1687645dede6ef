"""Count deliveries for the lateness objective (SLO) of a node. The counts survive restarts."""

from __future__ import annotations

from typing import Any, Final

import trio

from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.stats.node_stats import NodeStats
from sandq.broker.stats.slo_book import BOUNDS_US, BURN_MS, NAME, SloBook
from sandq.model.config_slo import SloSection
from sandq.model.errors import Corruption, StorageFailed
from sandq.model.logger import get_logger
from sandq.storage.files import Files

log = get_logger("sandq.slo")

TAKE_S: Final = 10.0
"""Interval in s at which new deliveries are added to the book."""
WRITE_S: Final = 300.0
"""Interval in s at which the file is written. If a node is killed, it loses the counts since the last write."""
LAST_WRITE_S: Final = 2.0
"""Maximum time in s to wait for the last write when the node stops."""


class LatenessSlo:
    """Records deliveries in a `SloBook`, and keeps the book in a file."""

    def __init__(self, config: SloSection, stats: NodeStats, clock: GuardedClock, files: Files) -> None:
        self._config = config
        self._clock = clock
        self._files = files
        self._is_writing = False
        now_ms = clock.now_ms()
        try:
            kept = files.read(NAME) if files.exists(NAME) else None
            self._book = SloBook(stats, config.window_ms, now_ms, kept)
        except (Corruption, StorageFailed, OSError) as error:
            log.warning("lateness counts start over: their file cannot be read", error=str(error))
            self._book = SloBook(stats, config.window_ms, now_ms)

    async def run(self) -> None:
        """Until cancelled, record deliveries and write the file at intervals. Then write the file a last time."""
        wrote_s = trio.current_time()
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    await trio.sleep(TAKE_S)
                    self._take()
                    if self._book.changed and not self._is_writing and trio.current_time() - wrote_s >= WRITE_S:
                        wrote_s = trio.current_time()
                        # Write in a separate task: even if the disk hangs, this loop must count deliveries in the
                        # right minute.
                        nursery.start_soon(self._write)
        finally:
            self._take()
            # If an earlier write hangs on the disk, do not start a second write.
            if self._book.changed and not self._is_writing:
                with trio.CancelScope(shield=True, deadline=trio.current_time() + LAST_WRITE_S):
                    await self._write()

    def _take(self) -> None:
        """Add the deliveries since the last call to the book."""
        self._book.take(self._clock.now_ms(), is_trusted=not self._clock.status().alarm)

    async def _write(self) -> None:
        """Write the file on a thread. If the write fails, mark the book as changed, so that it is written again."""
        try:
            await trio.to_thread.run_sync(self._replace, self._book.encode(), abandon_on_cancel=True)
        except (StorageFailed, OSError) as error:
            self._book.changed = True
            log.warning("lateness counts could not be saved", error=str(error))

    def _replace(self, data: bytes) -> None:
        """Replace the content of the file by `data`. Blocks on the disk, so it runs on a thread of trio's pool."""
        self._is_writing = True
        try:
            self._files.replace(NAME, data)
        finally:
            self._is_writing = False

    def reply(self) -> dict[str, Any]:
        """Return this node's reply to a request of the type SLO, without the part about topics."""
        self._take()
        now_ms, status = self._clock.now_ms(), self._clock.status()
        windows = [(over_ms, self._book.over(now_ms, over_ms)) for over_ms in (*BURN_MS, self._book.window_ms)]
        return {
            "lateness_ms": self._config.lateness_ms,
            "target_ppm": self._config.target_ppm,
            "window_ms": self._book.window_ms,
            "since_ms": self._book.since_ms,
            "now_ms": now_ms,
            "bounds_us": BOUNDS_US,
            "windows": [[over_ms, [*found.counts], found.early, found.unproven] for over_ms, found in windows],
            "clock": {
                "trusted": not status.alarm,
                "reason": status.reason,
                "drift_ms": status.drift_ms,
                "median_ms": status.median_ms,
            },
        }
