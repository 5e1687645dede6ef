"""The thread of an embedded node, which runs the node on an event loop of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from sandq.model.config import NodeConfig
from sandq.model.errors import ClosedError, DataDirInUse, SandqError, StartupError, TimedOut
from sandq.model.members import node_of
from sandq.model.unix_sockets import reachable, socket_of
from sandq.node.restarts import serve_until
from sandq.node.start import ClientPorts, run_node

if TYPE_CHECKING:
    from sandq.node.running import Serving

TAKE_OVER_S: Final = 0.25
"""Interval in s at which a process that shares a directory tries to become its node."""
ANSWERED_WITHIN_S: Final = 10.0
"""Time in s within which the process that has locked the directory must listen at its socket."""
MARGIN_S: Final = 30.0
"""Time in s that a node may take to stop, in addition to twice its grace time."""


class NodeThread:
    """A node in a daemon thread. Any thread of the process may call the methods.

    If the node ends by itself, because of a bug, the process lives on; `on_failure` says so."""

    def __init__(self, config: NodeConfig, *, clients: ClientPorts, share: bool) -> None:
        """`share`: if another process has the directory open, wait until it ends, and then run the node."""
        self.config = config
        self.path = socket_of(Path(config.node.data_dir).absolute())
        """Path of the Unix socket at which this node, or the process that shares its directory, serves."""
        self.on_failure: Callable[[SandqError], object] = lambda error: None
        """Called in the node's thread if the node ends by itself. Set it before `start`."""
        self._clients = clients
        self._share = share
        self._pid = os.getpid()
        self._stop = trio.Event()
        self._token: trio.lowlevel.TrioToken
        self._serves: Future[None] = Future()
        self._failure: SandqError | None = None
        self._thread = threading.Thread(target=self._run, name="sandq-node", daemon=True)

    def start(self) -> None:
        """Start the node, and return once it serves, or once the process that has the directory serves.

        Raises StartupError (ConfigError, DataDirInUse, Corruption), StorageFailed."""
        self._thread.start()
        self._serves.result()

    def stop(self) -> None:
        """Stop the node, and return once its files are closed. It has no effect in a forked process, or if the node was
        not started. If the start is in progress, wait for it first.

        Raises StorageFailed if the disk hangs, TimedOut."""
        if os.getpid() != self._pid or self._thread.ident is None or self._serves.exception() is not None:
            return
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._stop.set)
        within_s = 2 * self.config.shutdown_grace_ms / 1000 + MARGIN_S
        self._thread.join(within_s)
        if self._thread.is_alive():
            raise TimedOut(f"the embedded broker did not stop in {within_s:g} s")
        if self._failure is not None:
            raise self._failure

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            failure = _failure_of(error)
            if not self._serves.done():
                self._serves.set_exception(failure)
                return
            self._failure = failure
            if not self._stop.is_set():
                self.on_failure(failure)

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        run = partial(run_node, self.config, clients=self._clients)
        with trio.CancelScope() as waiting:
            waiting.deadline = trio.current_time() + ANSWERED_WITHIN_S if self._share else float("inf")
            while not self._stop.is_set():
                try:
                    await serve_until(self._stop, run, partial(self._on_serving, waiting))
                except DataDirInUse:
                    if not self._share:
                        raise
                    if not self._serves.done() and await self._answers():
                        self._on_serving(waiting)
                    with trio.move_on_after(TAKE_OVER_S):
                        await self._stop.wait()
        if waiting.cancelled_caught:
            directory = self.path.parent
            raise DataDirInUse(f"another process has {directory} open, but does not listen at {self.path}")

    def _on_serving(self, waiting: trio.CancelScope, serving: Serving | None = None) -> None:
        if serving is not None:
            self._check_alone(serving)
        waiting.deadline = float("inf")
        if not self._serves.done():
            self._serves.set_result(None)

    def _check_alone(self, serving: Serving) -> None:
        """Raise StartupError if the directory belongs to a node of a cluster of several nodes."""
        members = serving.broker.metadata_host.members  # they are in the log; other metadata may need a leader
        others = sorted({node_of(member) for member in (*members.voters, *members.learners)} - {self.config.node.id})
        if others:
            raise StartupError(
                f"{self.path.parent} belongs to a cluster with other nodes ({', '.join(others)}): start it with the "
                "command sandq and the configuration of this node"
            )

    async def _answers(self) -> bool:
        """Return whether another process listens at the socket."""
        try:
            with reachable(str(self.path)) as short:
                stream = await trio.open_unix_socket(short)
        except OSError:
            return False
        await stream.aclose()
        return True


def _failure_of(error: BaseException) -> SandqError:
    """Return the error that callers get if a node has ended with `error`."""
    leaves = list(_leaves(error))
    for leaf in leaves:
        if isinstance(leaf, SandqError):
            return leaf
    failure = ClosedError(f"the embedded broker has ended: {leaves[0]!r}")
    failure.__cause__ = error
    return failure


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for inner in error.exceptions:
        yield from _leaves(inner)
