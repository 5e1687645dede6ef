"""Tests of the sockets of a port: bound before they listen, and closed at any end."""

from __future__ import annotations

import gc
import stat
import warnings
from pathlib import Path

import pytest
import trio

from sandq.model.errors import StartupError
from sandq.server.listening import bind, bind_local, listen

HOST = "127.0.0.1"
STEPS = 8
"""More than the checkpoints of `bind`."""


async def test_bound_port_refuses_until_it_listens() -> None:
    port = await bind(HOST, 0, "client")
    with pytest.raises(OSError):
        await trio.open_tcp_stream(*port.address)
    (listener,) = port.listen()
    async with listener, await trio.open_tcp_stream(*port.address), await listener.accept():
        pass


async def test_port_that_is_taken_is_named() -> None:
    (listener,) = await listen(HOST, 0, "client")
    async with listener:
        port = listener.socket.getsockname()[1]
        with pytest.raises(StartupError, match=f"{HOST}:{port} is in use .* set listen.http to another port"):
            await bind(HOST, port, "http")


async def test_bind_that_is_cancelled_leaves_no_socket() -> None:
    """A start that is cancelled at any wait closes its open sockets."""
    ended = []
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for steps in range(STEPS):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:

                    async def cancel_later(steps: int = steps, scope: trio.CancelScope = scope) -> None:
                        for _ in range(steps):
                            await trio.lowlevel.checkpoint()
                        scope.cancel()

                    nursery.start_soon(cancel_later)
                    port = await bind(HOST, 0, "client")
                    port.close()
                    ended.append(steps)
                    nursery.cancel_scope.cancel()
        gc.collect()
    assert [str(one.message) for one in seen] == []
    assert 0 not in ended and STEPS - 1 in ended, "the start is cancelled at each checkpoint, and once after the last"


async def test_socket_of_a_killed_node_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    for _ in range(2):
        port = bind_local(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        with pytest.raises(OSError, match="refused"):
            await trio.open_unix_socket(str(path))
        (listener,) = port.listen()
        stream = await trio.open_unix_socket(str(path))
        await stream.aclose()
        await listener.aclose()  # leaves the path, as a kill does
    port.close()
    assert not path.exists()


async def test_socket_that_cannot_be_bound_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "socket"
    with pytest.raises(StartupError, match=f"cannot listen on the Unix socket {path}: No such file"):
        bind_local(path)
