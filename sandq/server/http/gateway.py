"""What the routes work with."""

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
from sandq.server.http.guards import WAIT_APART
from sandq.server.http.in_flight import OpenStreams
from sandq.server.http.looks import Looks
from sandq.server.http.queries import HttpSql

T = TypeVar("T")


class Node(Protocol):
    """What the routes ask the node itself, not the cluster."""

    def failure(self) -> str | None:
        """Why it cannot store anything any more."""
        ...

    def stalled(self) -> str | None:
        """What stands still here, and may go on by itself."""
        ...

    def silent(self) -> str | None:
        """That nothing is heard of it: its process hangs."""
        ...

    def ready(self) -> str | None:
        """Why it is not ready to work; None when it is."""
        ...

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        """What Prometheus reads, and its content type."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """`client` reaches every node of the cluster, this one as any other; `ending` is set when the node stops."""

    client: Client
    node: Node
    version: str
    ending: anyio.Event
    stream_messages: int
    """That a stream may have out, and that are not settled, at most."""
    looks: Looks
    """At the cluster, shared by all who watch it."""
    backups: HttpBackups
    sql: HttpSql
    streams: OpenStreams = field(default_factory=OpenStreams)


def gateway_of(request: Request) -> Gateway:
    """For routes."""
    gateway: Gateway = request.state.gateway
    return gateway


async def while_connected(request: Request, work: Callable[[], Awaitable[T]]) -> T:
    """What the work gives; it is cancelled when the client goes away, or the node stops. Raises what it raises."""
    results: list[T] = []
    errors: list[Exception] = []

    async def do() -> None:
        try:
            results.append(await work())
        except Exception as error:
            errors.append(error)
        tasks.cancel_scope.cancel()

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        tasks.cancel_scope.cancel()

    async def end() -> None:
        await gateway_of(request).ending.wait()
        tasks.cancel_scope.cancel()

    async def revoked() -> None:
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
        raise Unavailable("this node is stopping; ask another one, or this one in a moment")
    raise ClientDisconnect


async def wait_apart(request: Request, work: Callable[[], Awaitable[T]]) -> T:
    """As `while_connected`, for what waits for something to happen: it takes no place of those that do not. Raises
    Overloaded."""
    with getattr(request.state, WAIT_APART)():
        return await while_connected(request, work)


Found = dict[str, Any]
"""An object of JSON."""
