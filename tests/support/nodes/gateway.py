"""Run an HTTP gateway on uvloop, in a thread of the process of the test."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import fields
from typing import Final

import anyio
import trio
from anyio.from_thread import BlockingPortal, start_blocking_portal

from sandq.client.tls import ClientTls
from sandq.model.config_sql import SqlSection
from sandq.model.config_types import Address
from sandq.model.limits import Limits
from sandq.server.http.bounds import Deadlines
from sandq.server.http.serve import HttpSettings
from sandq.server.http.standalone import bind, serve_standalone
from sandq.server.http.tls_listener import TlsListener
from tests.support.waiting import PATIENCE_S

PATIENT: Final = Deadlines(*[PATIENCE_S] * len(fields(Deadlines)))
"""Deadlines that are long enough for each request of a test.

They use the machine's clock, even if the test has another clock. A test of one deadline shortens that deadline."""


@asynccontextmanager
async def gateway(
    server: str,
    limits: Limits,
    deadlines: Deadlines = PATIENT,
    secret: bytes | None = None,
    *,
    timeout_s: float = PATIENCE_S,
    starts_alone: bool = False,
    tls: TlsListener | None = None,
    nodes_tls: ClientTls | None = None,
    sql: SqlSection | None = None,
) -> AsyncIterator[Address]:
    """Serve during the block and return the address.

    `server`: the client port of a node. `secret`: shared with the node. `tls`: TLS of the gateway. `nodes_tls`: TLS of
    its connections to nodes."""
    listeners = bind("127.0.0.1", 0)
    address = Address(*listeners[0].getsockname()[:2])
    settings = HttpSettings(
        names=frozenset(),
        origins=frozenset(),
        servers=(server,),
        version="0.0.0",
        timeout_s=timeout_s,
        starts_alone=starts_alone,
        gateway_secret=None if secret is None else lambda: secret,
        nodes_tls=nodes_tls,
        sql=sql,
        requires_tls=tls is not None and tls.requires_tls,
    )
    ready, ended = trio.Event(), trio.Event()
    token = trio.lowlevel.current_trio_token()
    stops: list[tuple[BlockingPortal, anyio.Event]] = []

    async def serve(portal: BlockingPortal) -> None:
        stops.append((portal, anyio.Event()))
        await serve_standalone(
            listeners, settings, limits, deadlines, stops[0][1], lambda: token.run_sync_soon(ready.set), tls
        )

    def run() -> None:
        with start_blocking_portal("asyncio", {"use_uvloop": True}) as portal:
            portal.call(serve, portal)

    async def run_in_thread() -> None:
        try:
            await trio.to_thread.run_sync(run)
        finally:
            ended.set()
            ready.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_in_thread)
        with trio.fail_after(PATIENCE_S):
            await ready.wait()
        try:
            yield address
        finally:
            with trio.CancelScope(shield=True):
                if not ended.is_set():
                    portal, stop = stops[0]
                    portal.start_task_soon(stop.set)
                await ended.wait()
