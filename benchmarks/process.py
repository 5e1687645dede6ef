"""The node's process: started for a measurement; its CPU time, memory and syncs."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from demo.node import PROGRAM, Node, free_port

PROFILED = ("-m", "benchmarks.profiled")
FSYNCS = "sandq_wal_fsync_duration_seconds_count"
_TICKS = os.sysconf("SC_CLK_TCK")
_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class Where:
    """Directory for nodes' data, and for profiles if wanted."""

    directory: Path | None = None
    profiles: Path | None = None


class MeteredNode(Node):
    """A node that exposes its metrics."""

    def __init__(self, directory: Path, program: tuple[str, ...] = PROGRAM) -> None:
        super().__init__(directory, program=program)
        self.metered = [(self, serve_metrics(self))]


Metered = Sequence[tuple[Node, int]]
"""Nodes, with the ports of their metrics."""


def serve_metrics(node: Node) -> int:
    """Expose a node's metrics from its next start on; return the port."""
    port = free_port()
    node.configure(LISTEN__HTTP=f"127.0.0.1:{port}")
    return port


@contextlib.contextmanager
def running(where: Where, name: str, **settings: str) -> Iterator[MeteredNode]:
    """A new serving node with these settings; its data is removed at the end."""
    with data_directory(where) as directory:
        node = MeteredNode(directory, program_of(where, name))
        node.configure(**settings)
        try:
            node.start()
            node.wait_until_it_serves()
            yield node
        finally:
            node.stop()


@contextlib.contextmanager
def data_directory(where: Where) -> Iterator[Path]:
    """A new directory, removed at the end."""
    directory = Path(tempfile.mkdtemp(prefix="sandq-bench-", dir=where.directory))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def program_of(where: Where, name: str) -> tuple[str, ...]:
    """Return the command line that runs a node: with a profiler, if profiles are wanted."""
    if where.profiles is None:
        return PROGRAM
    os.environ["BENCHMARKS_PROFILE"] = str(where.profiles.resolve() / name)
    return PROFILED


@dataclass(frozen=True, slots=True)
class Used:
    """Resource use of nodes together."""

    cpu_s: float
    fsyncs: int
    """Syncs of their write-ahead logs, each an fdatasync."""


class Meter:
    """Measures the resource use of nodes from now on until `stop`."""

    def __init__(self, nodes: Metered) -> None:
        self._nodes = nodes
        self._fsyncs = self._count()
        self._cpu_s = self._cpu()

    def stop(self) -> Used:
        cpu_s = self._cpu() - self._cpu_s  # read the CPU time first, because asking for metrics costs the node CPU time
        return Used(cpu_s, self._count() - self._fsyncs)

    def cpu_s(self) -> float:
        """Return the CPU time only, without asking the nodes."""
        return self._cpu() - self._cpu_s

    def _cpu(self) -> float:
        return sum(cpu_s(node.pid) for node, _ in self._nodes if node.pid is not None)

    def _count(self) -> int:
        return sum(fsyncs(port) for _, port in self._nodes)


def fsyncs(http_port: int) -> int:
    """Return how often a node has synced its write-ahead log since it started."""
    connection = http.client.HTTPConnection("127.0.0.1", http_port, timeout=_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
    finally:
        connection.close()
    return sum(int(float(line.split()[1])) for line in text.splitlines() if line.startswith(FSYNCS + " "))


def cpu_s(pid: int) -> float:
    """Return user and system time of a process so far, of all threads and living child processes, in seconds
    (resolution 10 ms)."""
    return own_cpu_s(pid) + sum(map(_living_cpu_s, started_by(pid)))


def own_cpu_s(pid: int) -> float:
    """Return user and system time of the process alone, without its children, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _living_cpu_s(pid: int) -> float:
    """Return zero for a process that has ended meanwhile."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return cpu_s(pid)
    return 0.0


def started_by(pid: int) -> list[int]:
    """Return the living children of a process."""
    found: list[int] = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the thread has ended
            found += [int(child) for child in (thread / "children").read_text().split()]
    return found


def confine(pid: int) -> None:
    """Restrict a process with all its threads to one core, as `taskset` does for a new process."""
    core = max(os.sched_getaffinity(0))
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), {core})


def memory_bytes(pid: int) -> dict[str, int]:
    """Return `rss`, and its part `anonymous` (without files: LevelDB maps tables, which the kernel may drop)."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return {
        "rss": int(status["VmRSS"].split()[0]) * 1024,
        "anonymous": int(status["RssAnon"].split()[0]) * 1024,
    }


def sync_ms(directory: Path | None, writes: int = 50) -> float:
    """Return the median time of writing and syncing 4 KB in `directory`, in ms."""
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
