"""Starts the HTTP process of a node, watches it, and ends it (ADR 25); the node's side of `worker_pipe`.

A process that ends by itself is started again, a little later each time. The node's sockets go on listening meanwhile:
who connects waits. The process learns of the node's end by the end of its input, whatever ended it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from subprocess import PIPE
from typing import Any, Final, Protocol

import structlog
import trio

from sandq.server.http.worker_pipe import LINE_BYTES, PUSH_S, Begin, encode
from sandq.server.metrics.http_requests import HttpRequests

log = structlog.get_logger("sandq.http")

STOP_S: Final = 15.0
"""A process that is to end has so long: more than its requests and their answers have (`Deadlines`)."""
START_S: Final = 120.0
"""A process has so long to load its modules, and to say its first word: on a machine that has much else to do ..."""
SILENT_S: Final = 30.0
"""... and one that says nothing for so long after that hangs: it says something twice a second."""
BACK_OFF_FIRST_S: Final = 0.1
BACK_OFF_MOST_S: Final = 5.0
"""Before it is started again: the first time, then doubled."""
STEADY_S: Final = 60.0
"""One that lived for so long begins anew with the first."""
RECEIVE_BYTES: Final = 65_536
FAULT: Final = "a fault of sandq; the node's log has it"


class Node(Protocol):
    """What the process is told of the node."""

    def failure(self) -> str | None: ...

    def stalled(self) -> str | None: ...

    def ready(self) -> str | None: ...

    async def metrics(self, accept: str) -> tuple[bytes, str]: ...


class Process(Protocol):
    """What is used of `trio.Process`."""

    @property
    def pid(self) -> int: ...

    @property
    def stdin(self) -> trio.abc.SendStream | None: ...

    @property
    def stdout(self) -> trio.abc.ReceiveStream | None: ...

    @property
    def returncode(self) -> int | None: ...

    async def wait(self) -> int: ...

    def kill(self) -> None: ...


Launch = Callable[[], Awaitable[Process]]
"""Start a process. Raises OSError."""


class Supervisor:
    """Sees to it that there is one process, while it runs."""

    def __init__(
        self,
        begin: Begin,
        node: Node,
        requests: HttpRequests,
        on_restart: Callable[[], None],
        launch: Launch,
        gateway_secret: Callable[[], bytes],
    ) -> None:
        """`requests`: where those of all its processes are counted. `gateway_secret`: what they prove themselves to
        nodes with, as it is now."""
        self._gateway_secret = gateway_secret
        self._begin = begin
        self._node = node
        self._requests = requests
        self._on_restart = on_restart
        self._launch = launch
        self._stopping = trio.Event()
        self._sending = trio.Lock()
        self._patience = trio.CancelScope()
        """For the process to say something."""
        self.held_bytes = 0
        """What the process' account held when it last said so."""

    async def run(self) -> None:
        """Until `stop` was called and the process has ended; one that is there when this is cancelled is killed."""
        back_off_s = BACK_OFF_FIRST_S
        while True:
            began_s = trio.current_time()
            why = await self._run_one()
            self.held_bytes = 0
            if self._stopping.is_set():
                return
            if trio.current_time() - began_s >= STEADY_S:
                back_off_s = BACK_OFF_FIRST_S
            log.error("the HTTP process has ended: it is started again", why=why, in_s=back_off_s)
            with trio.move_on_after(back_off_s):
                await self._stopping.wait()
                return
            back_off_s = min(2 * back_off_s, BACK_OFF_MOST_S)
            self._on_restart()

    def stop(self) -> None:
        """Have the process answer what is under way, and end."""
        self._stopping.set()

    async def _run_one(self) -> str:
        """Why it has ended."""
        try:
            process = await self._launch()
        except OSError as error:
            return f"it cannot be started: {error.strerror or error}"
        try:
            async with trio.open_nursery() as nursery:
                for task in (self._say, self._listen, self._watch, self._end):
                    nursery.start_soon(task, process)
                code = await process.wait()
                nursery.cancel_scope.cancel()
            return f"signal {-code}" if code < 0 else f"exit code {code}"
        finally:
            with trio.CancelScope(shield=True):
                if process.returncode is None:
                    process.kill()
                    await process.wait()
                for stream in (process.stdin, process.stdout):
                    if stream is not None:
                        await trio.aclose_forcefully(stream)

    async def _watch(self, process: Process) -> None:
        """Kill one that hangs: it reports behind each word of how the node is, from its first moment on."""
        with trio.move_on_after(START_S) as self._patience:
            await trio.sleep_forever()
        log.error("the HTTP process says nothing: it is killed")
        process.kill()

    async def _say(self, process: Process) -> None:
        secret = self._gateway_secret().hex()
        await self._send(process, encode({"begin": replace(self._begin, gateway_secret=secret).said()}))
        while True:
            before, secret = secret, self._gateway_secret().hex()
            if secret != before:
                await self._send(process, encode({"gateway_secret": secret}))
            await self._send(process, encode({"health": self._health()}))
            await trio.sleep(PUSH_S)

    def _health(self) -> list[str | None]:
        node = self._node
        try:
            return [node.failure(), node.stalled(), node.ready()]
        except Exception:  # as one in a request: the node goes on
            log.exception("what the node is to say of itself failed with an unexpected error")
            return [None, FAULT, FAULT]

    async def _send(self, process: Process, data: bytes) -> None:
        assert process.stdin is not None
        async with self._sending:
            with suppress(trio.BrokenResourceError):  # it ends
                await process.stdin.send_all(data)

    async def _listen(self, process: Process) -> None:
        assert process.stdout is not None
        kept = b""
        try:
            while data := await process.stdout.receive_some(RECEIVE_BYTES):
                *lines, kept = (kept + data).split(b"\n")
                for line in lines:
                    await self._on_message(process, json.loads(line))
                if len(kept) > LINE_BYTES:
                    raise ValueError(f"a line of more than {LINE_BYTES} bytes")
        except (ValueError, LookupError, TypeError):
            log.exception("the HTTP process says what means nothing")
            process.kill()

    async def _on_message(self, process: Process, message: Any) -> None:
        self._patience.deadline = trio.current_time() + SILENT_S
        match message:
            case {"serves": _}:
                log.info("HTTP is served by a process", pid=process.pid)
            case {"report": report}:
                self._requests.add(report["requests"])
                self.held_bytes = report["held_bytes"]
            case {"metrics": number, "accept": accept}:
                try:
                    text, content_type = await self._node.metrics(accept)
                except Exception:
                    log.exception("metrics failed with an unexpected error")  # who asked gives up
                    return
                await self._send(process, encode({"metrics": number, "content_type": content_type}, text))

    async def _end(self, process: Process) -> None:
        await self._stopping.wait()
        with trio.move_on_after(STOP_S):
            await self._send(process, encode({"stop": True}))
            await trio.sleep_forever()
        log.warning("the HTTP process has not ended in time: it is killed", after_s=STOP_S)
        process.kill()


@asynccontextmanager
async def serve_http_apart(listeners: list[trio.SocketListener], supervisor: Supervisor) -> AsyncIterator[None]:
    """A process serves inside the block, on sockets that are closed at its end; what is under way then is done."""
    ended = trio.Event()

    async def run() -> None:
        try:
            await supervisor.run()
        finally:
            ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        try:
            yield
        finally:
            with trio.CancelScope(shield=True):
                for listener in listeners:
                    await listener.aclose()
                supervisor.stop()
                await ended.wait()


def launch_on(descriptors: Sequence[int]) -> Launch:
    """Start processes that get these sockets, under the numbers that they have here."""
    # Modules are found where this process finds them, whatever lies where it was started.
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([path or os.getcwd() for path in sys.path])}

    async def launch() -> Process:
        return await trio.lowlevel.open_process(
            [sys.executable, "-P", "-m", "sandq.server.http"],
            stdin=PIPE,
            stdout=PIPE,
            pass_fds=descriptors,
            env=environ,
        )

    return launch
