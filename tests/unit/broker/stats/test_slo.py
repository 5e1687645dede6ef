"""If the disk is full, hangs or is missing, only the stored lateness history is lost."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import structlog
import trio

from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.stats import slo
from sandq.broker.stats.node_stats import NodeStats
from sandq.broker.stats.slo import LatenessSlo
from sandq.broker.stats.slo_book import NAME
from sandq.model.config_slo import SloSection
from sandq.model.errors import StorageFailed
from sandq.storage.files import RealFiles

T_S = 1_800_000_000.0


class Disk:
    """A disk whose writes the test controls."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self.replace = lambda name, data: write(data)

    def exists(self, name: str) -> bool:
        return False


def kept_by(files: Any) -> tuple[LatenessSlo, NodeStats]:
    stats = NodeStats()
    clock = GuardedClock(wall=lambda: T_S + trio.current_time(), monotonic=trio.current_time)
    return LatenessSlo(SloSection(), stats, clock, files), stats


async def test_counts_are_saved_later_after_a_full_disk() -> None:
    written: list[bytes] = []

    def write(data: bytes) -> None:
        written.append(data)
        if len(written) == 1:
            raise StorageFailed("cannot replace slo: No space left on device (ENOSPC)")

    kept, stats = kept_by(Disk(write))
    stats.slo.observe(0.001, 3)
    kept.reply()
    with structlog.testing.capture_logs() as lines:
        await kept._write()
    assert kept._book.changed and [line["event"] for line in lines] == ["lateness counts could not be saved"]
    await kept._write()
    assert not kept._book.changed and written == [written[0]] * 2


async def test_a_disk_that_hangs_stops_no_count_and_no_end(autojump_clock: Any) -> None:
    autojump_clock.autojump_threshold = 0.01
    may_write, begun, writes = threading.Event(), trio.Event(), []

    def write(data: bytes) -> None:
        writes.append(data)
        trio.from_thread.run_sync(begun.set)
        may_write.wait()

    kept, stats = kept_by(Disk(write))
    stats.slo.observe(0.001, 1)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kept.run)
            await begun.wait()
            stats.slo.observe(0.001, 2)
            await trio.sleep(slo.TAKE_S * 1.5)
            taken = sum(kept._book.over(kept._clock.now_ms(), kept._book.window_ms).counts)
            await trio.sleep(3 * slo.WRITE_S)
            nursery.cancel_scope.cancel()
    finally:
        may_write.set()
    assert taken == 3 and len(writes) == 1, "never two writes at a time"


@pytest.mark.parametrize("content", [None, b"", b"SANDQSLO", b"of somebody else" * 9])
async def test_unreadable_slo_file_does_not_prevent_the_start(tmp_path: Any, content: bytes | None) -> None:
    if content is None:
        (tmp_path / NAME).mkdir()
    else:
        (tmp_path / NAME).write_bytes(content)
    with structlog.testing.capture_logs() as lines:
        kept, _ = kept_by(RealFiles(tmp_path))
    assert [line["event"] for line in lines] == ["lateness counts start over: their file cannot be read"]
    assert kept.reply()["windows"][0][2:] == [0, 0]
