"""`sandq http`: the HTTP API in a separate process, a gateway to the nodes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import anyio
import anyio.to_thread

import sandq
from sandq.broker.peers.secret import CHECK_S, Secrets
from sandq.client.options import parse_server
from sandq.client.tls import ClientTls
from sandq.model.config import Address, NodeConfig
from sandq.model.config_schema import is_beyond
from sandq.model.config_tls import OFF, REQUIRE, TlsSection
from sandq.model.errors import InvalidRequest, StartupError
from sandq.model.logger import get_logger
from sandq.server import logs, process_tuning
from sandq.server.gateway_proof import SETTING
from sandq.server.http.backups import target_of
from sandq.server.http.bounds import Deadlines
from sandq.server.http.serve import HttpSettings
from sandq.server.http.standalone import bind, serve_standalone
from sandq.server.http.tls_listener import TlsListener
from sandq.server.process_tuning import collect_rarely, give_back_heap
from sandq.tls.certificates import Certificates

EXIT_AT_ONCE = 130
"""Exit code after a second SIGINT or SIGTERM."""


log = get_logger("sandq.http")


def serve_gateway(
    servers: tuple[str, ...],
    listen: str | None,
    config: NodeConfig,
    log_format: str,
    log_level: str,
    ca: Path | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM. Raises SandqError. `ca`: the authority of the nodes' certificates, for TLS."""
    host, port = _address(listen, config)
    is_open = is_beyond(host) and config.tls.http != REQUIRE
    if is_open and not config.security.insecure:
        raise StartupError(
            f"HTTP on {host} would be without TLS: set tls.http: require, with a certificate (docs/security.md). In a "
            "network that only trusted machines reach, set security.insecure: true (SANDQ_SECURITY__INSECURE=true)"
        )
    secret_file = config.http.gateway_secret_file
    secrets = None if secret_file is None else Secrets(secret_file, SETTING)
    settings = _settings(servers, config, ca, secrets)
    tls_listener = TlsListener(config.tls, Certificates(config.tls)) if config.tls.http != OFF else None
    deadlines = Deadlines(grace_s=config.shutdown_grace_ms / 1000)
    people = logs.set_up(log_format, log_level, "http")

    def announce(line: str) -> None:
        if people is not None:
            people.write(f"{line}\n")

    async def run() -> None:
        listeners = bind(host, port)
        bound = listeners[0].getsockname()
        scheme = "http" if config.tls.http == OFF else "https"
        address = f"{scheme}://{f'[{bound[0]}]' if ':' in bound[0] else bound[0]}:{bound[1]}"
        stop = anyio.Event()

        def on_ready() -> None:
            collect_rarely()
            announce(f"sandq {sandq.__version__}: HTTP for {', '.join(servers)}")
            announce(f"HTTP: {address}")
            if is_open:
                announce(f"INSECURE: HTTP on {host} without TLS")
                log.warning("this gateway accepts any client", host=host, remedy="docs/security.md")
            log.info("ready", servers=servers, http=address)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_stop_on_signal, stop, announce)
            if secrets is not None:
                tasks.start_soon(_follow_secrets, secrets)
            await serve_standalone(listeners, settings, config.limits, deadlines, stop, on_ready, tls_listener)
            tasks.cancel_scope.cancel()

    try:
        process_tuning.raise_file_limit()
        give_back_heap()
        anyio.run(run, backend="asyncio", backend_options={"use_uvloop": True})
        log.info("stopped")
    finally:
        logs.finish()


def _settings(servers: tuple[str, ...], config: NodeConfig, ca: Path | None, secrets: Secrets | None) -> HttpSettings:
    """Return the settings of the HTTP application. Raises InvalidRequest if a server is not HOST:PORT."""
    if not servers:
        raise InvalidRequest("--server has no server: at least one HOST:PORT is expected")
    for server in servers:
        parse_server(server)
    names = (config.node.advertise_host, *config.http.allowed_hosts)
    return HttpSettings(
        names=frozenset(name.lower() for name in names if name),
        origins=frozenset(config.http.allowed_origins),
        servers=servers,
        version=sandq.__version__,
        starts_alone=True,
        gateway_secret=None if secrets is None else lambda: secrets.current[0],
        nodes_tls=_nodes_tls(config.tls, ca),
        backup=target_of(config.backup),
        sql=config.sql if config.sql.http else None,
        requires_tls=config.tls.http == REQUIRE,
        sql_tls=_sql_tls(config.tls, ca),
    )


async def _stop_on_signal(stop: anyio.Event, announce: Callable[[str], None]) -> None:
    """Set `stop` at the first SIGINT or SIGTERM. End the process immediately at the second."""
    with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            if stop.is_set():
                os._exit(EXIT_AT_ONCE)
            announce("stopping")
            log.info("stopping", signal=signal.Signals(number).name)
            stop.set()


async def _follow_secrets(secrets: Secrets) -> None:
    """Read the secret again when its file changes. If the file is unusable, keep the present secret and log an
    error."""
    while True:
        await anyio.sleep(CHECK_S)
        try:
            await anyio.to_thread.run_sync(secrets.check)
        except StartupError as error:
            log.error("the secret is not changed: the file cannot be used", error=error.message)


def _nodes_tls(section: TlsSection, ca: Path | None) -> ClientTls | None:
    """Return the TLS settings for connections to nodes. TLS is used if an authority is known, unless the configuration
    disables it."""
    trusted = _trusted(section, ca)
    return None if trusted is None else ClientTls(ca=trusted, cert=section.cert_file, key=section.key_file)


def _sql_tls(section: TlsSection, ca: Path | None) -> dict[str, str] | None:
    """Return the TLS settings for processes of SQL. They exclude the gateway's certificate, because these processes act
    as their callers."""
    trusted = _trusted(section, ca)
    return None if trusted is None else {"ca": str(trusted)}


def _trusted(section: TlsSection, ca: Path | None) -> Path | None:
    is_off = section.cert_file is not None and section.client == OFF
    return ca or (None if is_off else section.ca_file)


def _address(listen: str | None, config: NodeConfig) -> Address:
    if listen is not None:
        try:
            return Address.parse(listen)
        except ValueError as error:
            raise InvalidRequest(f"--listen: {error}") from None
    if config.listen.http is None:
        raise InvalidRequest("listen.http is none: set the address of the HTTP server with --listen HOST:PORT")
    return config.listen.http
