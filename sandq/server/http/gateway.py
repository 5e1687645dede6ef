"""The parts of a server that its routes use: the client, the node, and shared state."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import anyio
from fastapi import Request
from starlette.requests import ClientDisconnect

from sandq.client import Client
from sandq.model.errors import SandqError, Unavailable
from sandq.server.http.backups import HttpBackups
from sandq.server.http.caller import caller_of
from sandq.server.http.cluster_watch import ClusterWatch
from sandq.server.http.guards import WAITING_SLOT
from sandq.server.http.in_flight import OpenStreams
from sandq.server.http.queries import HttpSql

T = TypeVar("T")


class Node(Protocol):
    """State of the node itself, as opposed to that of the cluster."""

    def failure(self) -> str | None:
        """Return why the node cannot store anything any more; None if it can."""
        ...

    def stalled(self) -> str | None:
        """Return what is stalled in the node and may recover by itself; None if nothing is."""
        ...

    def silent(self) -> str | None:
        """Return an error if the node does not report, because its process hangs; None if it does."""
        ...

    def ready(self) -> str | None:
        """Return why the node is not ready; None if it is."""
        ...

    async def catch_up(self) -> None:
        """Wait a short time for an overdue report: the machine may have been suspended."""
        ...

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """Return the metrics in a format of Prometheus, and their content type."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """`client`: reaches every node of the cluster, including this one. `ending`: set when the server stops."""

    client: Client
    node: Node
    version: str
    ending: anyio.Event
    stream_messages: int
    """Maximum number of messages that a stream may have leased and not settled."""
    watch: ClusterWatch
    """The state of the cluster, shared by all clients that watch it."""
    backups: HttpBackups
    sql: HttpSql
    streams: OpenStreams = field(default_factory=OpenStreams)


def gateway_of(request: Request) -> Gateway:
    """Return the gateway that serves a request."""
    gateway: Gateway = request.state.gateway
    return gateway


async def while_connected(request: Request, work: Callable[[], Awaitable[T]]) -> T:
    """Return the result of `work`. Cancel it if the client disconnects, or the server stops. Raise its error."""
    results: list[T] = []
    errors: list[Exception] = []

    async def do() -> None:
        """Do the work, and keep its result or its error."""
        try:
            results.append(await work())
        except Exception as error:
            errors.append(error)
        tasks.cancel_scope.cancel()

    async def watch() -> None:
        """Wait until the client disconnects."""
        while (await request.receive())["type"] != "http.disconnect":
            pass
        tasks.cancel_scope.cancel()

    async def end() -> None:
        """Wait until the server stops."""
        await gateway_of(request).ending.wait()
        tasks.cancel_scope.cancel()

    async def revoked() -> None:
        """Wait until the caller's rights are revoked, and keep the reason."""
        try:
            await caller.until_revoked()  # type: ignore[union-attr]
        except SandqError as error:
            errors.append(error)
            tasks.cancel_scope.cancel()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch)
        tasks.start_soon(end)
        if (caller := caller_of(request)) is not None:
            tasks.start_soon(revoked)
        tasks.start_soon(do)
    if errors:
        raise errors[0]
    if results:
        return results[0]
    if gateway_of(request).ending.is_set():
        raise Unavailable("this node is stopping; ask another node, or ask again in a moment")
    raise ClientDisconnect


async def run_waiting(request: Request, work: Callable[[], Awaitable[T]]) -> T:
    """Run work that waits for an event, as `while_connected` does, in a slot for waiting requests. Raise Overloaded."""
    with getattr(request.state, WAITING_SLOT)():
        return await while_connected(request, work)


Found = dict[str, Any]
"""A JSON object."""
