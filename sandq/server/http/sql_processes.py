"""The processes that run SQL statements for HTTP: one per running statement, started when needed.

A process has its own memory limit, and runs one statement at a time. So a statement that needs too much memory ends
only its own process. To end a statement that exceeds its time, its process is ended.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Hashable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

import anyio
import anyio.abc

from sandq.model.config_sql import SqlSection
from sandq.model.errors import InvalidRequest, SandqError, TimedOut, Unavailable, from_wire
from sandq.model.logger import get_logger

log = get_logger("sandq.http")

ROWS: Final = 200_000
"""Maximum number of rows that a statement reads from the cluster, and of rows in its result."""
BYTES: Final = 64 << 20
"""Maximum bytes of these rows in memory. Sorting, joining and grouping may use as much again."""
QUERIES: Final = 2
"""Maximum number of statements at a time. Further statements wait, and the wait counts as part of their time."""
GRACE_S: Final = 2.0
"""Time for a process to report a timeout itself, before it is killed, in seconds."""
_RECEIVE: Final = 256 << 10


def begin_of(section: SqlSection, servers: Sequence[str], tls: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the first message to a process. `tls`: see `HttpSettings.sql_tls`."""
    budget = {
        "scan_rows": min(section.rows, ROWS),
        "scan_bytes": min(section.bytes, BYTES),
        "result_rows": min(section.rows, ROWS),
        "result_bytes": min(section.bytes, BYTES),
        "memory_bytes": min(section.memory_bytes, BYTES),
        "seconds": section.timeout_ms / 1000,
        "queries": 1,
    }
    return {"budget": budget, "servers": list(servers), "tls": None if tls is None else dict(tls)}


class SqlProcesses:
    """The SQL processes of one HTTP server."""

    def __init__(self, section: SqlSection, servers: Sequence[str], tls: Mapping[str, Any] | None) -> None:
        from sandq.sql.slots import StatementSlots

        self._seconds = section.timeout_ms / 1000
        self._begin = json.dumps({"begin": begin_of(section, servers, tls)}).encode() + b"\n"
        self._slots = StatementSlots(min(section.queries, QUERIES))
        self._idle: list[_SqlProcess] = []

    async def answer(self, owner: Hashable, statement: Mapping[str, Any]) -> bytes:
        """Run a statement, and return its result as JSON.

        `owner`: the caller; one caller cannot use all slots. Raise SandqError. If cancelled, end the process."""
        until_s = anyio.current_time() + self._seconds
        is_running = False
        try:
            with anyio.fail_after(self._seconds + GRACE_S) as scope:
                scope.deadline = until_s
                async with self._slots.one(owner):
                    is_running = True
                    scope.deadline = until_s + GRACE_S
                    return await self._run_statement(statement, until_s)
        except TimeoutError:
            if is_running:
                raise TimedOut(f"the statement has not ended within {self._seconds:g} s (sql.timeout)") from None
            raise TimedOut(
                f"other statements used all slots for {self._seconds:g} s (sql.timeout); ask again"
            ) from None

    async def _run_statement(self, statement: Mapping[str, Any], until_s: float) -> bytes:
        """Run a statement in an idle process, or in a new one. Return its result as JSON.

        An idle process may have ended: then try the next. If a new process ends, the statement is the cause."""
        while True:
            process = self._idle.pop() if self._idle else await self._started()
            is_new, is_done = not process.runs, False
            try:
                seconds = max(until_s - anyio.current_time(), 0.1)
                answer = await process.run({**statement, "seconds": seconds})
                is_done = True
            except _Ended as error:
                if not is_new:
                    continue  # the process was idle for too long, and has ended
                log.warning("a process of SQL has ended with its statement", why=str(error))
                raise InvalidRequest(
                    "the statement has ended its process, probably because it ran out of memory: let it read fewer rows"
                ) from None
            finally:
                if is_done:
                    self._idle.append(process)
                else:
                    await process.end()
            if "error" in answer[0]:
                raise _error_of(answer[0]["error"])
            return answer[1]

    async def _started(self) -> _SqlProcess:
        """Start a process and send it its settings. Raise Unavailable if it cannot be started."""
        # The process must find modules where this one finds them, whatever the current directory contains.
        path = os.pathsep.join([entry or os.getcwd() for entry in sys.path])
        # Arrow's own allocator reserves a GiB of address space, which would count against the memory limit.
        own = {"PYTHONPATH": path, "ARROW_DEFAULT_MEMORY_POOL": "system", "MALLOC_ARENA_MAX": "2"}
        try:
            process = await anyio.open_process(
                [sys.executable, "-P", "-m", "sandq.server.http.sql_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=None,
                env=os.environ | own,
            )
        except OSError as error:
            raise Unavailable(f"a process of SQL cannot be started: {error.strerror or error}") from None
        started = _SqlProcess(process)
        try:
            await started.send(self._begin)
        except BaseException:
            await started.end()
            raise
        return started

    async def close(self) -> None:
        """End the idle processes. Busy processes end after their statements."""
        while self._idle:
            await self._idle.pop().end()


class _Ended(Exception):
    """A process has ended before it answered."""


class _SqlProcess:
    """One process, with the part of its output that is not parsed yet."""

    def __init__(self, process: anyio.abc.Process) -> None:
        self._process = process
        self._received = bytearray()
        self.runs = 0
        """Number of statements that the process has answered."""

    async def send(self, line: bytes) -> None:
        """Write a line. If the process has ended, reading its answer reports that."""
        assert self._process.stdin is not None
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            await self._process.stdin.send(line)

    async def run(self, statement: Mapping[str, Any]) -> tuple[Mapping[str, Any], bytes]:
        """Return the answer to a statement: head and body. Raise _Ended."""
        await self.send(json.dumps(statement).encode() + b"\n")
        while (at := self._received.find(b"\n")) < 0:
            await self._receive()
        head: Mapping[str, Any] = json.loads(self._received[:at])
        del self._received[: at + 1]
        size = head.get("body", 0)
        while len(self._received) < size:
            await self._receive()
        body = bytes(self._received[:size])
        del self._received[:size]
        self.runs += 1
        return head, body

    async def _receive(self) -> None:
        """Receive further output. Raise _Ended if the output has ended."""
        assert self._process.stdout is not None
        try:
            self._received += await self._process.stdout.receive(_RECEIVE)
        except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
            raise _Ended("its output has ended") from None

    async def end(self) -> None:
        """Kill the process."""
        with anyio.CancelScope(shield=True):
            with suppress(ProcessLookupError):
                self._process.kill()
            await self._process.aclose()


def _error_of(statement: Any) -> SandqError:
    """Return the error that the process reports."""
    code, message, retriable, details = statement
    return from_wire(code, message, retriable, details)
