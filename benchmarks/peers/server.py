"""Servers of peers: started as child processes, measured and ended by process id."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from benchmarks.peers.peer import PeerError
from demo.node import free_port

START_S: Final = 60.0
STOP_S: Final = 20.0
_POLL_S = 0.02
_LOG_BYTES = 2000
_CPU_CLOCK = 2  # the kernel's CPUCLOCK_SCHED, in the number that names a process's clock
_TICKS = os.sysconf("SC_CLK_TCK")


class NotServing(PeerError):
    """A server did not start, or ended; the end of its log is added to the text."""


class Process(NamedTuple):
    """A line of /proc/PID/stat: times in seconds, with `children_s` of children that ended and were waited for."""

    pid: int
    parent: int
    started: int
    """Start time in clock ticks since the machine's start. Distinguishes this process from a later one with the same
    id."""
    own_s: float
    children_s: float


def parse_stat(text: str) -> Process:
    """Parse the line of one process; its name may contain any characters, brackets too."""
    head, _, tail = text.rpartition(")")
    fields = tail.split()
    user, system, child_user, child_system = (int(field) / _TICKS for field in fields[11:15])
    return Process(
        int(head.split(" ", 1)[0]), int(fields[1]), int(fields[19]), user + system, child_user + child_system
    )


def descend(processes: Sequence[Process], root: int) -> list[Process]:
    """Return the process `root` and all its descendants."""
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.parent, []).append(process)
    found = [process for process in processes if process.pid == root]
    for process in found:
        found += children.get(process.pid, [])
    return found


def tree(pid: int) -> list[Process]:
    """Return the current processes of a server."""
    found = []
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            # a process may end meanwhile
            with contextlib.suppress(OSError):
                found.append(parse_stat((path / "stat").read_text()))
    return descend(found, pid)


def cpu_s(pid: int) -> float:
    """Return user and system time of a server so far, including threads and processes that ended."""
    return sum(own_s(process) + process.children_s for process in tree(pid))


def own_s(process: Process) -> float:
    """Return the time by the process's own clock: /proc counts in 10 ms, too coarse for many processes."""
    try:
        return time.clock_gettime(~process.pid << 3 | _CPU_CLOCK)
    except OSError:  # it has ended
        return process.own_s


@contextlib.contextmanager
def running(
    command: Sequence[str],
    directory: Path,
    *,
    user: tuple[int, int] | None = None,
    environ: Mapping[str, str] | None = None,
    stop: signal.Signals = signal.SIGTERM,
) -> Iterator[int]:
    """Start a program as a process with a known id; it and all its descendants have ended at the end.

    The kernel ends it if this process is killed: setpriv requests that, and changes the user if one is given.
    """
    ids = () if user is None else (f"--reuid={user[0]}", f"--regid={user[1]}", "--clear-groups")
    log_file = directory / "server.log"
    with log_file.open("ab") as log:
        process = subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *ids, "--", *command],
            cwd=directory,
            env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8", **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process.pid
        if process.poll() is not None:
            raise NotServing(f"{command[0]} ended with exit code {process.returncode}")
    except PeerError as error:
        if not isinstance(error, NotServing) and process.poll() is None:
            raise
        raise NotServing(f"{error}\n{log_file.read_bytes()[-_LOG_BYTES:].decode(errors='replace')}") from error
    finally:
        _end(process, stop)


def _end(process: subprocess.Popen[bytes], stop: signal.Signals) -> None:
    below = tree(process.pid)
    process.send_signal(stop)
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for one in below[1:]:
        _kill(one)


def _kill(process: Process) -> None:
    """End a process that is not our child, and wait for its end; its parent reaps it."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        descriptor = os.pidfd_open(process.pid)
        stack.callback(os.close, descriptor)
        if parse_stat(Path(f"/proc/{process.pid}/stat").read_text()).started == process.started:
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
            ended = select.poll()  # `select` refuses large descriptors
            ended.register(descriptor, select.POLLIN)
            ended.poll(STOP_S * 1000)


def wait_until_ready(ping: Callable[[], None], pid: int) -> None:
    """Wait until `ping` passes. Raises NotServing if the process ends or takes too long."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            return ping()
        except (OSError, PeerError) as error:
            if time.monotonic() > deadline:
                raise NotServing(f"it does not serve after {START_S:g} s: {error}") from error
            if _is_zombie(pid):
                raise NotServing("it ended while it started") from error
        time.sleep(_POLL_S)


def _is_zombie(pid: int) -> bool:
    """ended, but not waited for yet"""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"


__all__ = ["cpu_s", "descend", "free_port", "parse_stat", "running", "tree", "wait_until_ready"]
