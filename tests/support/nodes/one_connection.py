"""Run the server end of one client connection, without a node."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import trio

from sandq.model.limits import DEFAULT
from sandq.server.connection import Connection
from sandq.server.output import Sender
from tests.support.waiting import PATIENCE_S


class NothingTogether:
    """A session that handles requests one by one."""

    def gather(self, frames: Any, first: int, most: int, requests: Any, mark: Any) -> int:
        return 0


@asynccontextmanager
async def one_connection(
    make_session: Callable[[Connection], Any], **options: Any
) -> AsyncIterator[tuple[Connection, trio.SocketStream]]:
    """Run the connection during the block. Yield it and the client's end of its socket.

    `options`: arguments of `Connection`."""
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
    client = await trio.open_tcp_stream(*listener.socket.getsockname()[:2])
    stream = await listener.accept()
    await listener.aclose()
    sender = Sender()
    connection = Connection(stream=stream, sender=sender, limits=DEFAULT, http_address="", **options)
    with trio.fail_after(PATIENCE_S):
        async with client, trio.open_nursery() as nursery:
            nursery.start_soon(connection.run, make_session)
            nursery.start_soon(sender.run)
            yield connection, client
            nursery.cancel_scope.cancel()
