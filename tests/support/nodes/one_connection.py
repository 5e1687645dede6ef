"""A client port's end of one connection, without a node behind it."""

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
    """What a session that takes each request alone says of several."""

    def gather(self, frames: Any, first: int, most: int, requests: Any, mark: Any) -> int:
        return 0


@asynccontextmanager
async def one_connection(
    make_session: Callable[[Connection], Any], **options: Any
) -> AsyncIterator[tuple[Connection, trio.SocketStream]]:
    """It runs, and the other end of its socket. `options`: those of `Connection`."""
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
