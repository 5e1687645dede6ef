"""Start of a node: the steps before the node's modules are loaded (floor F6).

First the data directory is locked, the ports of clients and of HTTP are bound, and the HTTP process is launched. Only
then are the modules of the node imported. These imports take about as long as those of the HTTP process, and both
run at the same time. This module therefore imports little.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, Unpack

import trio

from sandq.model.config import NodeConfig
from sandq.model.errors import StartupError
from sandq.model.logger import get_logger
from sandq.model.unix_sockets import socket_of
from sandq.node.started import LOCK_NAME, Started
from sandq.server.http.launch import HttpPort, Launch, launch_process
from sandq.server.listening import BoundPort, LocalPort, PortInUse, bind, bind_local, listen
from sandq.storage import identity
from sandq.storage.files import DIRECTORY_MODE, Files, RealFiles

log = get_logger("sandq.node")

if TYPE_CHECKING:
    from sandq.node.context import NodeOptions
    from sandq.node.running import Serving

ClientPorts = Literal["port", "socket", "both"]
"""Where clients connect: the TCP port of the configuration, the Unix socket in the data directory, or both."""
HTTP_FREED_WITHIN_S: Final = 2.0
"""Time in s within which the HTTP process of a killed node gives up its port."""
HTTP_RETRY_S: Final = 0.05


@contextlib.asynccontextmanager
async def run_node(
    config: NodeConfig,
    *,
    files: Files | None = None,
    launch: Launch = launch_process,
    clients: ClientPorts = "port",
    **options: Unpack[NodeOptions],
) -> AsyncIterator[Serving]:
    """Run a node inside the block, and stop it cleanly at the end of the block.

    `files`: the files of the data directory; by default, those in the directory that `config` names. `launch`: starts
    the process that serves HTTP. `clients`: where clients connect.

    Raises StartupError (ConfigError, DataDirInUse, Corruption), StorageFailed."""
    data_dir = _make_data_dir(config)
    files = files or RealFiles(data_dir)
    identity.load(files)  # refuses data of another version before any file is written or opened
    with contextlib.closing(files.lock(LOCK_NAME)) as lock:
        async with _bound(config, data_dir, clients) as (client, local), _launched(config, launch) as http:
            from sandq.node.node import running

            started = Started(
                config=config, data_dir=data_dir, files=files, lock=lock, client=client, local=local, http=http
            )
            async with running(started, **options) as serving:
                yield serving


@contextlib.asynccontextmanager
async def _bound(
    config: NodeConfig, data_dir: Path, clients: ClientPorts
) -> AsyncIterator[tuple[BoundPort, LocalPort | None]]:
    """Bind the client port and the Unix socket. If there is no port, the socket takes its place.

    Until the node serves, connections are refused at once, so clients try other nodes."""
    path, address = socket_of(data_dir), config.listen.client
    with contextlib.ExitStack() as stack:
        if clients == "socket":
            only = bind_local(path)
            stack.callback(only.close)
            yield only, None
            return
        port, local = await bind(address.host, address.port, "client"), None
        stack.callback(port.close)
        if clients == "both":
            try:
                local = bind_local(path)
                stack.callback(local.close)
            except StartupError as error:  # for example, this file system has no sockets
                log.warning("clients on this machine need the port", error=error.message)
        yield port, local


@contextlib.asynccontextmanager
async def _launched(config: NodeConfig, launch: Launch) -> AsyncIterator[HttpPort | None]:
    """Listen for HTTP, and launch the process that serves it."""
    address = config.listen.http
    if address is None:
        yield None
        return
    port = HttpPort(address.host, await _listen_for_http(address.host, address.port), launch)
    try:
        with contextlib.suppress(OSError):  # the supervisor launches the process again, and logs the reason
            await port.launch_early()
        yield port
    finally:
        with trio.CancelScope(shield=True):
            await port.end()


async def _listen_for_http(host: str, port: int) -> list[trio.SocketListener]:
    """Listen for HTTP. If the port is in use, try again for `HTTP_FREED_WITHIN_S`.

    The HTTP process of a killed node ends a little later than the node, and uses the port until then. Raise
    StartupError."""
    deadline_s = trio.current_time() + HTTP_FREED_WITHIN_S
    while True:
        try:
            return await listen(host, port, "http")
        except PortInUse:
            if trio.current_time() >= deadline_s:
                raise
        await trio.sleep(HTTP_RETRY_S)


def _make_data_dir(config: NodeConfig) -> Path:
    data_dir = Path(config.node.data_dir).absolute()
    try:
        data_dir.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(f"node.data_dir {data_dir}: {error.strerror or error}") from None
    return data_dir
