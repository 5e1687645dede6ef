"""The node's process: started for a measurement, its CPU time and memory."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from demo.node import Node

PROFILED = ("-m", "benchmarks.profiled")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Where:
    """Where nodes have their data, and where profiles of them go, if wanted."""

    directory: Path | None = None
    profiles: Path | None = None


@contextlib.contextmanager
def running(where: Where, name: str) -> Iterator[Node]:
    """A new node that serves; its data is removed at the end."""
    directory = Path(tempfile.mkdtemp(prefix="sandq-bench-", dir=where.directory))
    try:
        if where.profiles is not None:
            os.environ["BENCHMARKS_PROFILE"] = str(where.profiles.resolve() / name)
            node = Node(directory, program=PROFILED)
        else:
            node = Node(directory)
        try:
            node.start()
            node.wait_until_it_serves()
            yield node
        finally:
            node.stop()
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def cpu_s(pid: int) -> float:
    """User and system time of a process so far, all threads, in seconds (10 ms fine)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_bytes(pid: int) -> dict[str, int]:
    """`rss`, and of it `anonymous` (not backed by files: LevelDB maps its tables, which the kernel may drop)."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return {
        "rss": int(status["VmRSS"].split()[0]) * 1024,
        "anonymous": int(status["RssAnon"].split()[0]) * 1024,
    }


def sync_ms(directory: Path | None, writes: int = 50) -> float:
    """The median time of writing and syncing 4 KB there."""
    taken = []
    with tempfile.NamedTemporaryFile(dir=directory) as file:
        os.posix_fallocate(file.fileno(), 0, writes * 4096)
        os.fsync(file.fileno())
        for at in range(writes):
            began = time.perf_counter()
            os.pwrite(file.fileno(), b"\1" * 4096, at * 4096)
            os.fdatasync(file.fileno())
            taken.append(time.perf_counter() - began)
    return sorted(taken)[writes // 2] * 1000
