"""`embedded`: a node in this process, and a client of it."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from typing import Any, Final

import anyio
import anyio.to_thread

from sandq.client.client import CLIENT_NAME, Client, connect
from sandq.client.options import DEFAULTS, Token
from sandq.embed.node_thread import TAKE_OVER_S, NodeThread
from sandq.embed.settings import Listen, config_of
from sandq.model.errors import ConnectionLost, SandqError
from sandq.model.ports import UNIX
from sandq.model.times import Duration

ATTEMPTS: Final = 40
"""Number of attempts to connect to a shared directory, because its process may end at this moment."""


@asynccontextmanager
async def embedded(
    data: str | os.PathLike[str],
    *,
    listen: Listen = False,
    share: bool = False,
    config: str | os.PathLike[str] | None = None,
    name: str = CLIENT_NAME,
    timeout: Duration = DEFAULTS.timeout_s,
    delivery_timeout: Duration = DEFAULTS.delivery_timeout_s,
    token: Token | None = None,
    tracing: bool | str = False,
) -> AsyncIterator[Client]:
    """Run a broker in this process, with its data in the directory `data`: `async with sandq.embedded("./data") as
    client:`.

    It is a complete node: what it has confirmed is on the disk, and survives the end of the process. It runs in a
    thread of its own, and opens no port. The client is one of `sandq.connect`. The node stops at the end of the block.

    `listen=True` opens the ports of a server (127.0.0.1:7170, and HTTP at 127.0.0.1:2108) to other programs;
    `listen={"client": "127.0.0.1:0"}` names the addresses. `share=True`: if another process has the directory open,
    become its client, and run the broker when that process ends. Otherwise, DataDirInUse is raised, which names it.
    `config`: the YAML file of a node with other settings. `name`, `timeout`, `delivery_timeout`, `token`, `tracing`:
    as for `sandq.connect`.

    Raises StartupError (ConfigError, DataDirInUse, Corruption) and StorageFailed.
    """
    settings = await anyio.to_thread.run_sync(config_of, data, listen, config)
    node = NodeThread(settings, clients="both" if listen else "socket", share=share)
    failed: list[SandqError] = []
    soon = _threadsafe()
    node.on_failure = lambda error: soon(failed.append, error)
    try:
        await anyio.to_thread.run_sync(node.start)
        options: dict[str, Any] = {"name": name, "timeout": timeout, "delivery_timeout": delivery_timeout}
        options |= {"tls": False, "token": token, "tracing": tracing}
        async with AsyncExitStack() as stack:
            client = await _enter(stack, partial(connect, f"{UNIX}{node.path}", **options), ATTEMPTS if share else 1)
            node.on_failure = lambda error: soon(client._cluster.fail, error)
            if failed:
                raise failed[0]
            yield client
    except BaseException:
        with suppress(SandqError):
            await _stop(node)
        raise
    await _stop(node)


async def _enter(
    stack: AsyncExitStack, connecting: Callable[[], AbstractAsyncContextManager[Client]], attempts: int
) -> Client:
    """Connect. Raises ConnectionLost if all attempts fail."""
    while True:
        attempts -= 1
        try:
            return await stack.enter_async_context(connecting())
        except ConnectionLost:
            if not attempts:
                raise
        await anyio.sleep(TAKE_OVER_S)


async def _stop(node: NodeThread) -> None:
    with anyio.CancelScope(shield=True):
        await anyio.to_thread.run_sync(node.stop)


def _threadsafe() -> Callable[..., object]:
    """Return a function that other threads call to run a function in this event loop. It has no effect once the loop
    has ended."""
    native: Any = anyio.lowlevel.current_token().native_token
    schedule: Callable[..., object] = getattr(native, "call_soon_threadsafe", None) or native.run_sync_soon

    def soon(*call: Any) -> None:
        with suppress(RuntimeError):  # the loop has ended, and so has the client
            schedule(*call)

    return soon
