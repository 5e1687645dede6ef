"""Tests of the rounds of a scrub: the speed, the report of damage, and the end of the report after a repair."""

from __future__ import annotations

from pathlib import Path

import trio
import trio.testing

from sandq.broker.health.scrubber import Scrubber
from sandq.storage.memory_files import MemoryFiles
from sandq.storage.wal import Kind, Wal
from tests.support.storage.faulty_files import FaultyFiles, Plan


async def test_scrub_keeps_its_rate_and_names_damage(autojump_clock: trio.testing.MockClock, tmp_path: Path) -> None:
    files, plan = MemoryFiles(), Plan()
    wal, _ = Wal.open(files, segment_bytes=4096, known_groups=lambda group: True)
    for index in range(1, 100):
        wal.commit([(Kind.ENTRY, 7, index, 1, bytes(100))])
    scrubber = Scrubber(FaultyFiles(files, plan), tmp_path / "none", 1000)
    began_s = trio.current_time()
    await scrubber.scrub()
    assert (scrubber.damage, scrubber.rounds) == (None, 1) and scrubber.read_bytes > 10_000
    assert round(trio.current_time() - began_s, 6) >= scrubber.read_bytes / 1000
    plan.flips["wal/0000000001.wal"] = {2000 * 8}
    await scrubber.scrub()
    assert scrubber.damage and "wal/0000000001.wal is damaged at byte" in scrubber.damage
    plan.flips.clear()
    await scrubber.scrub()
    assert (scrubber.damage, scrubber.rounds) == (None, 3)


async def test_a_rate_of_0_reads_nothing(tmp_path: Path) -> None:
    scrubber = Scrubber(MemoryFiles(), tmp_path, 0)
    await scrubber.run()
    assert scrubber.rounds == 0
