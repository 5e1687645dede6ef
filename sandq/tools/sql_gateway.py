"""`sandq sql`: SQL over MySQL's protocol, in a separate process that uses the cluster like any other client."""

from __future__ import annotations

import importlib.util
import os
import resource
import signal
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio

import sandq
from sandq.client import Client, connect_with
from sandq.client.options import Options, parse_server
from sandq.client.tls import ClientTls
from sandq.model.config import Address, NodeConfig
from sandq.model.config_schema import is_beyond
from sandq.model.config_sql import SqlSection
from sandq.model.config_tls import OFF, REQUIRE, TlsSection
from sandq.model.errors import InvalidRequest, StartupError
from sandq.model.logger import get_logger
from sandq.model.ports import LOCAL_HOST, SQL_PORT
from sandq.server import logs, process_tuning
from sandq.server.process_tuning import collect_rarely
from sandq.tls.certificates import Certificates

if TYPE_CHECKING:
    from sandq.sql import Budget

EXIT_AT_ONCE = 130
"""Exit code after a second SIGINT or SIGTERM."""
CLIENT_NAME: Final = "sandq-sql"
REQUEST_S: Final = 10.0
"""Time limit for a node's reply to one request, in s."""
_REQUIRED_PACKAGES: Final = ("sqlglot", "duckdb", "pyarrow")


def check_installed() -> None:
    """Raise StartupError if a package that SQL needs is not installed."""
    missing = [name for name in _REQUIRED_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise StartupError(f"SQL needs {', '.join(missing)}: pip install 'sandq[sql]'")


def budget_of(section: SqlSection) -> Budget:
    """Return the limits of one query, from the configuration."""
    from sandq.sql import Budget

    return Budget(
        scan_rows=section.rows,
        scan_bytes=section.bytes,
        result_rows=section.rows,
        result_bytes=section.bytes,
        memory_bytes=section.memory_bytes,
        seconds=section.timeout_ms / 1000,
        queries=section.queries,
    )


def limit_memory(section: SqlSection) -> None:
    """Limit this process's memory to the sum of its limits, plus some reserve.

    No other limit counts the memory that a function allocates for its result. An allocation beyond the limit fails. In
    the worst case, only this process ends.
    """
    from sandq.sql.own_memory import end_without_memory

    most = _BASE_BYTES + section.connections * _CONNECTION_BYTES
    # For each query: the rows that it reads, a copy of these rows for DuckDB, the result, and a copy of the result for
    # a slow client.
    most += section.queries * (4 * section.bytes + section.memory_bytes)
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    if hard == resource.RLIM_INFINITY or most < hard:
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))
        end_without_memory(most)


_BASE_BYTES: Final = 3 << 29
"""Base of the limit, in bytes. Arrow's allocator reserves a GiB of addresses within it, but uses only a small part."""
_CONNECTION_BYTES: Final = 2 << 20


def connector(
    servers: Sequence[str], tls: ClientTls | None, *, insecure: bool
) -> Callable[[str | None], AbstractAsyncContextManager[Client]]:
    """Return a function that creates a client with the caller's token. A token in this process's environment is
    ignored."""

    def connect(token: str | None) -> AbstractAsyncContextManager[Client]:
        options = Options(connect_timeout_s=REQUEST_S, timeout_s=REQUEST_S, tls=tls, token=token, insecure=insecure)
        return connect_with(options, tuple(servers), CLIENT_NAME)

    return connect


async def serve_sql(
    sockets: Sequence[socket.socket],
    connect: Callable[[str | None], AbstractAsyncContextManager[Client]],
    section: SqlSection,
    tls: Callable[[], ssl.SSLContext] | None,
    *,
    needs_tls: bool,
    on_ready: Callable[[], None],
    stop: anyio.Event,
) -> None:
    """Serve on these sockets until `stop` is set. Then cancel the running statements."""
    from anyio.abc import SocketListener

    from sandq.sql.wire.server import Server

    server = Server(connect, budget_of(section), connections=section.connections, tls=tls, needs_tls=needs_tls)
    listeners = [await SocketListener.from_socket(one) for one in sockets]
    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda *, task_status: server.serve(listeners, task_status=task_status))
        on_ready()
        await stop.wait()
        tasks.cancel_scope.cancel()


def serve_gateway(
    servers: tuple[str, ...],
    listen: str | None,
    config: NodeConfig,
    log_format: str,
    log_level: str,
    ca: Path | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM. Raises SandqError. `ca`: the authority of the nodes' certificates, for TLS."""
    # Import this module late: it loads the whole HTTP server, which a node does not need to start a process of SQL.
    from sandq.server.http.standalone import bind

    check_installed()
    host, port = _address(listen, config)
    is_open = is_beyond(host) and config.tls.sql != REQUIRE
    if is_open and not config.security.insecure:
        raise StartupError(
            f"SQL on {host} would be without TLS: set tls.sql: require, with a certificate (docs/security.md). In a "
            "network that only trusted machines reach, set security.insecure: true (SANDQ_SECURITY__INSECURE=true)"
        )
    if not servers:
        raise InvalidRequest("--server has no server: at least one HOST:PORT is expected")
    for server in servers:
        parse_server(server)
    certificates = None if config.tls.sql == OFF else Certificates(config.tls)
    connect = connector(servers, _nodes_tls(config.tls, ca), insecure=config.security.insecure)
    people = logs.set_up(log_format, log_level, "sql")
    log = get_logger("sandq.sql")

    def announce(line: str) -> None:
        if people is not None:
            people.write(f"{line}\n")

    async def run() -> None:
        sockets = bind(host, port)
        bound = sockets[0].getsockname()
        address = f"{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}"
        stop = anyio.Event()

        def on_ready() -> None:
            collect_rarely()
            announce(f"sandq {sandq.__version__}: SQL for {', '.join(servers)}")
            announce(f"SQL: {address}{'' if certificates is None else ', by TLS'}")
            if is_open:
                announce(f"INSECURE: SQL on {host} without TLS")
                log.warning("SQL accepts any client", host=host, remedy="docs/security.md")
            log.info("ready", servers=servers, sql=address)

        async def until_stopped() -> None:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for number in signals:
                    if stop.is_set():
                        os._exit(EXIT_AT_ONCE)
                    announce("stopping")
                    log.info("stopping", signal=signal.Signals(number).name)
                    stop.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(until_stopped)
            if certificates is not None:
                tasks.start_soon(certificates.follow)
            await serve_sql(
                sockets,
                connect,
                config.sql,
                None if certificates is None else lambda: certificates.loaded.sql,
                needs_tls=config.tls.sql == REQUIRE,
                on_ready=on_ready,
                stop=stop,
            )
            tasks.cancel_scope.cancel()

    try:
        process_tuning.raise_file_limit()
        limit_memory(config.sql)
        anyio.run(run, backend="asyncio", backend_options={"use_uvloop": True})
        log.info("stopped")
    finally:
        logs.finish()


def _nodes_tls(section: TlsSection, ca: Path | None) -> ClientTls | None:
    """Return the TLS settings for connections to nodes. TLS is used if an authority is known, unless the configuration
    disables it."""
    is_off = section.cert_file is not None and section.client == OFF
    trusted = ca or (None if is_off else section.ca_file)
    return None if trusted is None else ClientTls(ca=trusted)


def _address(listen: str | None, config: NodeConfig) -> Address:
    if listen is None:
        return config.listen.sql or Address(LOCAL_HOST, SQL_PORT)
    try:
        return Address.parse(listen)
    except ValueError as error:
        raise InvalidRequest(f"--listen: {error}") from None
