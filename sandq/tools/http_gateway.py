"""`sandq http`: the HTTP API in a process of its own."""

from __future__ import annotations

import os
import signal

import anyio
import structlog

import sandq
from sandq.client.options import parse_server
from sandq.model.config_types import Address
from sandq.model.errors import InvalidRequest
from sandq.model.limits import DEFAULT
from sandq.server import logs, open_files
from sandq.server.http.alone import bind, serve_alone
from sandq.server.http.serve import HttpSettings

EXIT_AT_ONCE = 130
"""Told a second time to stop."""


def serve_gateway(
    servers: tuple[str, ...],
    listen: str,
    hosts: tuple[str, ...],
    origins: tuple[str, ...],
    log_format: str,
    log_level: str,
) -> None:
    """Serve until SIGINT or SIGTERM. Raises SandqError: an option is wrong, the port is taken, no server answers."""
    try:
        host, port = Address.parse(listen)
    except ValueError as error:
        raise InvalidRequest(f"--listen: {error}") from None
    for server in servers:
        parse_server(server)
    names = frozenset(name.lower() for name in hosts)
    settings = HttpSettings(names, frozenset(origin.lower() for origin in origins), servers, sandq.__version__)
    people = logs.set_up(log_format, log_level, "http")
    log = structlog.get_logger("sandq.http")

    def say(line: str) -> None:
        if people is not None:
            people.write(f"{line}\n")

    async def run() -> None:
        listeners = bind(host, port)
        at = listeners[0].getsockname()
        address = f"http://{f'[{at[0]}]' if ':' in at[0] else at[0]}:{at[1]}"
        stop = anyio.Event()

        def on_ready() -> None:
            say(f"sandq {sandq.__version__}: HTTP for {', '.join(servers)}")
            say(f"HTTP: {address}")
            log.info("ready", servers=servers, http=address)

        async def until_told() -> None:
            with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
                async for number in signals:
                    if stop.is_set():
                        os._exit(EXIT_AT_ONCE)
                    say("stopping")
                    log.info("stopping", signal=signal.Signals(number).name)
                    stop.set()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(until_told)
            await serve_alone(listeners, settings, DEFAULT, stop, on_ready)
            tasks.cancel_scope.cancel()

    try:
        open_files.raise_limit()
        anyio.run(run, backend="asyncio", backend_options={"use_uvloop": True})
    finally:
        logs.finish()
