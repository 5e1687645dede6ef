"""Tests of the log on a real disk: killed processes and a full disk."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sandq.model.errors import StorageFailed
from sandq.storage.files import RealFiles
from sandq.storage.wal import Kind, Wal
from tests.support.paths import ROOT

SEGMENT = 1 << 16

WRITER = f"""
import sys
from sandq.storage.files import RealFiles
from sandq.storage.wal import Kind, Wal
wal, groups = Wal.open(RealFiles(sys.argv[1]), segment_bytes={SEGMENT}, known_groups=lambda group: True)
last = groups[1].entries[-1][1] if groups else 0
print("opened", last, flush=True)
while True:
    wal.commit([(Kind.ENTRY, 1, last + i, 1, b"%d" % (last + i) * 50) for i in range(1, 8)])
    last += 7
    print("committed", last, flush=True)
    if last % 500 < 7:
        base = last - 100
        wal.commit([(Kind.BASE, 1, base, 1, bytes.fromhex("929090"))])
        wal.release({{1: base}})
        wal.prepare()
"""


def test_killed_in_mid_run(tmp_path: Path) -> None:
    rng = random.Random(5)
    committed = 0
    for _ in range(4):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as process:
            assert process.stdout is not None
            assert int(process.stdout.readline().split()[1]) >= committed
            for _ in range(rng.randint(1, 400)):
                committed = int(process.stdout.readline().split()[1])
            process.send_signal(signal.SIGKILL)
            committed = max([committed, *(int(line.split()[1]) for line in process.stdout if line.endswith("\n"))])
        wal, groups = Wal.open(RealFiles(tmp_path), segment_bytes=SEGMENT, known_groups=lambda group: True)
        wal.close()
        entries = groups[1].entries
        assert entries[-1][1] >= committed
        assert entries == [(b"%d" % i * 50, i, 1) for i in range(groups[1].base_index, entries[-1][1] + 1)]
    assert len(list((tmp_path / "wal").iterdir())) < 6, "old segments went"


def test_a_segment_that_cannot_be_created(tmp_path: Path) -> None:
    """A file size limit simulates the full disk."""
    wal, _ = Wal.open(RealFiles(tmp_path), segment_bytes=SEGMENT, known_groups=lambda group: True)
    wal.commit([(Kind.ENTRY, 1, 1, 1, b"x")])
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * SEGMENT, limits[1]))
    try:
        with pytest.raises(StorageFailed, match=r"0000000002\.wal: File too large \(EFBIG\)"):
            wal.commit([(Kind.ENTRY, 1, 2, 1, b"x" * 3 * SEGMENT)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    with pytest.raises(StorageFailed, match="EFBIG"):
        wal.commit([(Kind.ENTRY, 1, 2, 1, b"x")])
    wal.close()
    assert [path.name for path in (tmp_path / "wal").iterdir()] == ["0000000001.wal"]
    wal, groups = Wal.open(RealFiles(tmp_path), segment_bytes=SEGMENT, known_groups=lambda group: True)
    assert groups[1].entries == [(b"x", 1, 1)]
    wal.seal()
