"""Starts the HTTP process of a node, restarts it when it ends, and ends it with the node.

This is the node's side of `node_link`.

A process that ends by itself is restarted after a back-off. The node's sockets listen meanwhile: clients that connect
wait. After `FAILED_STARTS` starts in a row that served nothing, the sockets are closed between two attempts, so that
clients are refused at once. If the node ends for any reason, the process notices the end of its input, and ends, too.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple, Protocol

import trio

from sandq.model.errors import StartupError
from sandq.model.logger import get_logger
from sandq.server.http.launch import HttpPort, Process, end
from sandq.server.http.node_link import LINE_BYTES, PUSH_S, STARTING, Begin, encode
from sandq.server.metrics.http_requests import HttpProcess, Why
from sandq.server.quota_meters import QuotaMeters

log = get_logger("sandq.http")

STOP_S: Final = 15.0
"""Time for a process to end after `stop`, in seconds. Its requests and their responses have less (`Deadlines`)."""
START_S: Final = 120.0
"""Time for a process to load its modules and to send its first message, in seconds. Long enough for a busy machine."""
SILENT_S: Final = 30.0
"""Time without a message after which a process that has sent a first message counts as hung, in seconds.

A working process answers each push, and the node pushes at shorter intervals than this time."""
BACK_OFF_FIRST_S: Final = 0.1
BACK_OFF_MOST_S: Final = 5.0
"""Longest pause before a start, in seconds. The pause doubles from `BACK_OFF_FIRST_S`."""
STEADY_S: Final = 60.0
"""A process that runs for this time resets the back-off, in seconds."""
FAILED_STARTS: Final = 3
"""Starts in a row that served nothing, after which the sockets are closed between two attempts."""
RECEIVE_BYTES: Final = 65_536
FAULT: Final = "a fault of sandq; the node's log has it"


class Node(Protocol):
    """The state of the node that is reported to the process: first `StartingNode`, then `info.NodeState`."""

    def failure(self) -> str | None: ...

    def stalled(self) -> str | None: ...

    def ready(self) -> str | None: ...

    async def metrics(self, accept: str) -> tuple[bytes, str]: ...


class StartingNode:
    """A node that recovers its storage: alive, not ready, without metrics."""

    def failure(self) -> str | None:
        """Return None: nothing has failed."""
        return None

    def stalled(self) -> str | None:
        """Return None: nothing is stalled."""
        return None

    def ready(self) -> str | None:
        """Return why the node is not ready."""
        return STARTING

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return an empty exposition."""
        return b"", "text/plain; version=0.0.4"


class _End(NamedTuple):
    """How one process ended."""

    why: Why
    text: str


class Supervisor:
    """Keeps one HTTP process running while `run` runs."""

    def __init__(
        self,
        *,
        begin: Begin,
        port: HttpPort,
        status: HttpProcess,
        quotas: QuotaMeters,
        gateway_secret: Callable[[], bytes],
    ) -> None:
        """Create the supervisor.

        `begin`: the first message to each process; its sockets and secret are replaced by the current ones. `quotas`:
        gets the counts of the process. `gateway_secret`: returns the current secret with which the process proves
        itself to nodes."""
        self.node: Node = StartingNode()
        self.status = status
        self._begin = begin
        self._port = port
        self._quotas = quotas
        self._gateway_secret = gateway_secret
        self._stopping = trio.Event()
        self._changed = trio.Event()
        """Set when `node` is replaced, so that the new one is reported at once."""
        self._ended = trio.Event()
        self._sending = trio.Lock()
        self._served = False
        """Whether the current process has begun to serve."""
        self._has_spoken = False
        """Whether the current process has sent a message."""
        self._unanswered = 0
        """Number of pushes since the last message of the process. Unlike a time, this number does not include periods
        in which the node itself hangs."""
        self._hung: str | None = None
        """Why the current process was killed as hung."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run processes until `stop` was called and the last one has ended. Started once the first one got its orders.

        If cancelled, kill the process.
        """
        began = trio.Event()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run_all, began)
                await began.wait()
                task_status.started()
        finally:
            self._ended.set()

    @asynccontextmanager
    async def reporting(self, node: Node) -> AsyncIterator[None]:
        """Report `node` to the process within the block.

        At the end, close the sockets, let the requests in progress be answered, and wait until the process has
        ended."""
        self.node = node
        self._changed.set()
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                self._port.close()
                self._stopping.set()
                await self._ended.wait()

    async def _run_all(self, began: trio.Event) -> None:
        """Run the HTTP process, and start it again when it ends, until the node stops.

        The pause before a start doubles while processes end early. After `FAILED_STARTS` processes that never served,
        close the sockets, so that clients are refused at once."""
        back_off_s, failed_starts = BACK_OFF_FIRST_S, 0
        while True:
            began_s = trio.current_time()
            ended = await self._run_one(began)
            began.set()
            self.status.held_bytes = 0
            if self._stopping.is_set():
                return
            failed_starts = 0 if self._served else failed_starts + 1
            if failed_starts >= FAILED_STARTS:
                self._port.close()
            if trio.current_time() - began_s >= STEADY_S:
                back_off_s = BACK_OFF_FIRST_S
            self.status.down = ended.text
            log.error("the HTTP process has ended: it is started again", why=ended.text, in_s=back_off_s)
            with trio.move_on_after(back_off_s):
                await self._stopping.wait()
                return
            back_off_s = min(2 * back_off_s, BACK_OFF_MOST_S)
            self.status.restarts[ended.why] += 1

    async def _run_one(self, began: trio.Event) -> _End:
        """Run one process until it ends. Return why it has ended."""
        self._served = self._has_spoken = False
        self._unanswered, self._hung = 0, None
        try:
            process = await self._port.launch()
        except OSError as error:
            return _End("not_started", f"it cannot be started: {error.strerror or error}")
        except StartupError as error:
            return _End("not_started", error.message)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._push, process, began)
                nursery.start_soon(self._listen, process)
                nursery.start_soon(self._end, process)
                code = await process.wait()
                nursery.cancel_scope.cancel()
        finally:
            await end(process)
        if self._hung is not None:
            return _End("hung", self._hung)
        return _End("killed", f"signal {-code}") if code < 0 else _End("ended", f"exit code {code}")

    async def _push(self, process: Process, began: trio.Event) -> None:
        """Send the process its listeners and secret, then the node's state every `PUSH_S`. Kill a process that does not
        react."""
        secret = self._gateway_secret().hex()
        begin = replace(self._begin, gateway_secret=secret, listeners=self._port.descriptors)
        await self._send(process, encode({"begin": begin.as_json()}))
        began.set()
        while True:
            before, secret = secret, self._gateway_secret().hex()
            if secret != before:
                await self._send(process, encode({"gateway_secret": secret}))
            await self._send(process, encode({"health": self._health()}))
            with trio.move_on_after(PUSH_S):
                await self._changed.wait()
                self._changed = trio.Event()
            self._unanswered += 1
            if self._unanswered * PUSH_S >= (SILENT_S if self._has_spoken else START_S):
                self._kill(process, f"it has answered nothing for {self._unanswered * PUSH_S:g} s")

    def _kill(self, process: Process, why: str) -> None:
        """Kill the process. `why`: the reason, for the log and for health."""
        log.error("the HTTP process is killed", why=why)
        self._hung = why
        process.kill()

    def _health(self) -> list[str | None]:
        """Return the health of the node, as its health message has it."""
        node = self.node
        try:
            return [node.failure(), node.stalled(), node.ready()]
        except Exception:  # a bug in a report must not end the node
            log.exception("the report of the node failed with an unexpected error")
            return [None, FAULT, FAULT]

    async def _send(self, process: Process, data: bytes) -> None:
        """Send a message to the process. Kill the process if it does not read for `SILENT_S`."""
        assert process.stdin is not None
        with trio.move_on_after(SILENT_S) as scope:
            async with self._sending:
                with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # the process is ending
                    await process.stdin.send_all(data)
        if scope.cancelled_caught:  # the pipe is full, and may contain a part of a message
            self._kill(process, f"it has read nothing for {SILENT_S:g} s")

    async def _listen(self, process: Process) -> None:
        """Handle the messages of the process: lines of JSON on its standard output."""
        assert process.stdout is not None
        kept = b""
        try:
            while data := await process.stdout.receive_some(RECEIVE_BYTES):
                *lines, kept = (kept + data).split(b"\n")
                for line in lines:
                    await self._on_message(process, json.loads(line))
                if len(kept) > LINE_BYTES:
                    raise ValueError(f"a line of more than {LINE_BYTES} bytes")
        except Exception:  # an invalid message must not end the node
            log.exception("the HTTP process has sent an invalid message")
            self._kill(process, "it does not speak the protocol of this node")

    async def _on_message(self, process: Process, message: Any) -> None:
        """Handle one message of the process: it serves, its report, or a request for metrics."""
        self._has_spoken, self._unanswered = True, 0
        match message:
            case {"serves": _}:
                self._served = True
                self.status.down = None
                log.info("HTTP is served by a process", pid=process.pid)
            case {"report": report}:
                self.status.requests.add(report["requests"])
                self._quotas.add_counts(report["identities"])
                self.status.held_bytes = int(report["held_bytes"])
            case {"metrics": number, "accept": accept}:
                try:
                    text, content_type = await self.node.metrics(accept)
                except Exception:
                    log.exception("metrics failed with an unexpected error")  # the process gives up waiting
                    return
                await self._send(process, encode({"metrics": number, "content_type": content_type}, text))

    async def _end(self, process: Process) -> None:
        """When the node stops: ask the process to end, and kill it after `STOP_S`."""
        await self._stopping.wait()
        with trio.move_on_after(STOP_S):
            await self._send(process, encode({"stop": True}))
            await trio.sleep_forever()
        log.warning("the HTTP process has not ended in time: it is killed", after_s=STOP_S)
        process.kill()
