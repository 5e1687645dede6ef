"""Options that all commands share: servers, output, and connection settings."""

from __future__ import annotations

import logging
import os
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sandctl.options.contexts import CONTEXT_VARIABLE, chosen, complete_contexts
from sandctl.options.login import TOKEN_VARIABLE
from sandctl.options.times import DURATION
from sandctl.settings import CONNECT_S, DELIVERY_S, REQUEST_S, Settings, settings

if TYPE_CHECKING:
    from sandq.client import Client
    from sandq.client.options import Options

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

SERVERS_VARIABLE = "SANDCTL_SERVERS"
TLS_PREFIX = "SANDCTL_"
DEFAULT_SERVERS = ("127.0.0.1:7170",)
OUTPUTS = ("table", "json", "jsonl")

ALOUD_S = 2.0
"""Time after which a waiting command tells the user at a terminal why it waits."""


class CannotConnect(Exception):
    """No server can be reached, or the server is not a sandq node."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class ConnectionOption(click.Option):
    """A connection option. Only the help of the top command lists it."""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:
        """Return name and help. In the help of other commands, the line of `--server` refers to all connection
        options."""
        if ctx.parent is None:
            return super().get_help_record(ctx)
        if self.name == "server":
            return "-s, --server HOST:PORT", "A node. All connection options: sandctl --help"
        return None


def _keep_context(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.find_root().ensure_object(Settings).context = value


def _keep_servers(context: click.Context, parameter: click.Parameter, value: tuple[str, ...]) -> None:
    if value:
        context.find_root().ensure_object(Settings).servers = value


def _keep_data(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.find_root().ensure_object(Settings).data = value


def _keep_output(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.find_root().ensure_object(Settings).output = value


def _keep_token_file(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.find_root().ensure_object(Settings).token_file = value


def _keep_insecure(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value:
        context.find_root().ensure_object(Settings).insecure = True


def _keep_timeout(context: click.Context, parameter: click.Parameter, value: timedelta | None) -> None:
    if value is None:
        return
    if not value:
        raise click.BadParameter("it must be greater than zero", context, parameter)
    context.find_root().ensure_object(Settings).timeout_s = value.total_seconds()


def _keep_tls(context: click.Context, parameter: click.Parameter, value: bool | None) -> None:
    if value is not None:
        context.find_root().ensure_object(Settings).tls = value


def _keep_file(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    if value is not None:
        assert parameter.name is not None
        context.find_root().ensure_object(Settings).files[parameter.name.removesuffix("_file")] = value


def common_options(command: F) -> F:
    """Add `--server`, `--output` and `--timeout` to a command. They are accepted before and after its name."""
    return timeout_option(options_of_all(command))


def timeout_option(command: F) -> F:
    """Add `--timeout`, for commands without another option of this name."""
    return click.option(
        "--timeout",
        cls=ConnectionOption,
        type=DURATION,
        metavar="DURATION",
        callback=_keep_timeout,
        expose_value=False,
        help=f"Give up if no server or response arrives in this time. Default: {CONNECT_S:g}s "
        f"to connect, {REQUEST_S:g}s for a response, {DELIVERY_S:g}s for a message to be stored.",
    )(command)


def options_of_all(command: F) -> F:
    """Add `--server`, `--token-file`, `--insecure`, `--output` and TLS options.

    They are accepted before and after the name of the command.
    """
    command = tls_options(command)
    command = click.option(
        "--insecure",
        cls=ConnectionOption,
        is_flag=True,
        callback=_keep_insecure,
        expose_value=False,
        help="Send a token to another machine without TLS, too.",
    )(command)
    command = click.option(
        "--token-file",
        cls=ConnectionOption,
        metavar="FILE",
        callback=_keep_token_file,
        expose_value=False,
        help="Authenticate with the token in FILE. Default: SANDCTL_TOKEN, or the token that `sandctl login` saved.",
    )(command)
    command = click.option(
        "-o",
        "--output",
        type=click.Choice(OUTPUTS),
        callback=_keep_output,
        expose_value=False,
        help="Print results as a table (the default), as json, or as one JSON object per line.",
    )(command)
    command = click.option(
        "--context",
        cls=ConnectionOption,
        metavar="NAME",
        callback=_keep_context,
        expose_value=False,
        shell_complete=complete_contexts,
        help=f"Name of a cluster, as given to `sandctl context add`. Default: {CONTEXT_VARIABLE}, or the one of "
        "`sandctl context use`.",
    )(command)
    command = click.option(
        "--data",
        cls=ConnectionOption,
        metavar="DIR",
        callback=_keep_data,
        expose_value=False,
        help="Use the broker of this data directory on this machine. If no process has it open, the command does.",
    )(command)
    return click.option(
        "-s",
        "--server",
        cls=ConnectionOption,
        metavar="HOST:PORT",
        multiple=True,
        callback=_keep_servers,
        expose_value=False,
        help=f"A node; may be given several times. Default: {SERVERS_VARIABLE}, those of the context, or "
        f"{DEFAULT_SERVERS[0]}.",
    )(command)


def tls_options(command: F) -> F:
    """Add `--tls`, `--ca`, `--cert` and `--cert-key`. They are accepted before and after the name of the command.

    `--key` is not among them: it is the key of a message.
    """
    for name, what in (
        ("cert-key", "Private key of the certificate, if it is not in the same file."),
        ("cert", "Your client certificate, PEM."),
        ("ca", "Certificate authority of the nodes' certificates, PEM. Turns TLS on."),
    ):
        command = click.option(
            f"--{name}",
            f"{name.removeprefix('cert-')}_file",
            cls=ConnectionOption,
            metavar="FILE",
            callback=_keep_file,
            expose_value=False,
            help=f"{what} Default: {TLS_PREFIX}{name.removeprefix('cert-').upper()}.",
        )(command)
    return click.option(
        "--tls/--no-tls",
        "tls",
        cls=ConnectionOption,
        default=None,
        callback=_keep_tls,
        expose_value=False,
        help=f"Use TLS with this machine's trusted authorities, or no TLS. Default: {TLS_PREFIX}TLS=1, or with a file.",
    )(command)


def named_servers() -> tuple[str, ...]:
    """Return the servers of the option, else of the environment (comma-separated). Empty if neither names a server."""
    listed = [name.strip() for name in os.environ.get(SERVERS_VARIABLE, "").split(",")]
    return settings().servers or tuple(name for name in listed if name)


def effective() -> Settings:
    """Return the settings of this command, completed by the settings of its context.

    Options take precedence over the context, and the context of `--context` over the environment. If an
    option or the environment names servers, any other context (of SANDCTL_CONTEXT, or the current one) is ignored,
    because its token must not be sent to those servers. Environment variables take precedence over such a context.
    """
    given = settings()
    if given.data is not None:
        from sandq.model.ports import UNIX
        from sandq.model.unix_sockets import socket_of

        if given.servers or given.context is not None:
            raise click.UsageError("--data is the broker of a directory: --server and --context do not go with it")
        return replace(given, servers=(f"{UNIX}{socket_of(Path(given.data).absolute())}",), tls=False)
    if given.context is None and named_servers():
        return replace(given, servers=named_servers())
    context = chosen(given.context)
    if context is None:
        return replace(given, servers=named_servers() or DEFAULT_SERVERS)

    def is_free(variable: str) -> bool:
        return given.context is not None or not os.environ.get(variable)

    files = {} if given.tls is False else dict(context.files)
    files = {name: path for name, path in files.items() if is_free(f"{TLS_PREFIX}{name.upper()}")}
    tls = context.tls if given.tls is None and is_free(f"{TLS_PREFIX}TLS") else given.tls
    is_silent = given.token is None and given.token_file is None and is_free(TOKEN_VARIABLE)
    return replace(
        given,
        servers=given.servers or context.servers,
        files={**files, **given.files},
        tls=tls,
        token=context.token if is_silent else given.token,
    )


def servers() -> tuple[str, ...]:
    """Return the servers to which this command connects."""
    return effective().servers


def shown_token() -> str | None:
    """Return the token for these servers; None if there is none."""
    from sandctl.options.login import credentials

    given = effective()
    found: str | None = credentials(given.token, given.token_file, given.insecure, given.servers).get("token")
    return found


@contextmanager
def tls_in_environment() -> Iterator[None]:
    """Apply this command's TLS settings to all connections inside the block, and to processes started there."""
    given = effective()
    said = {f"SANDQ_{name.upper()}": path for name, path in given.files.items()}
    for name in ("TLS", "CA", "CERT", "KEY"):
        if path := os.environ.get(f"{TLS_PREFIX}{name}"):
            said.setdefault(f"SANDQ_{name}", path)
    if given.tls:
        said["SANDQ_TLS"] = "1"
    elif given.tls is False:
        said = {}
    before = {name: os.environ.get(name) for name in said}
    os.environ.update(said)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@asynccontextmanager
async def connected() -> AsyncIterator[Client]:
    """Connect a client. Raises CannotConnect if that fails within a few seconds."""
    from sandctl.options.login import credentials
    from sandq.client.options import Options
    from sandq.client.tls import tls_of
    from sandq.errors import ProtocolError, Retriable, StartupError, WrongPort

    given = effective()
    connect_s, request_s, delivery_s = given.deadlines_s
    ca, cert, key = (given.files.get(name) for name in ("ca", "cert", "key"))
    options = Options(
        connect_timeout_s=connect_s,
        timeout_s=request_s,
        delivery_timeout_s=delivery_s,
        tls=tls_of(given.tls, ca, cert, key, os.environ, TLS_PREFIX),
        **credentials(given.token, given.token_file, given.insecure, given.servers),
    )
    async with AsyncExitStack() as stack:
        try:
            client = await stack.enter_async_context(_client(given, options))
        except (Retriable, ProtocolError, WrongPort, StartupError) as error:
            raise CannotConnect(error.message) from None
        yield client


def _client(given: Settings, options: Options) -> AbstractAsyncContextManager[Client]:
    """Return the client of the servers, or of the broker of a data directory."""
    from sandq.client import connect_with

    if given.data is None or _is_open(given.data):
        return connect_with(options, given.servers, "sandctl")
    return _opened(given.data, options)


def _is_open(data: str) -> bool:
    """Return whether a process serves a data directory at its socket. A killed process leaves the socket."""
    from sandq.model.unix_sockets import reachable, socket_of

    with socket.socket(socket.AF_UNIX) as one:
        try:
            with reachable(str(socket_of(Path(data).absolute()))) as short:
                one.connect(short)
        except OSError:
            return False
    return True


@asynccontextmanager
async def _opened(data: str, options: Options) -> AsyncIterator[Client]:
    """Open a data directory that no process has open, for this command. Raises StartupError."""
    from sandq.errors import StartupError

    if not (Path(data) / "identity").is_file():
        raise click.UsageError(f"--data: {data} has no data of a broker")
    try:
        from sandq.embed import embedded
    except ModuleNotFoundError:
        raise StartupError(
            f"no process has {data} open, and the broker is not installed here, only its client: pip install sandq"
        ) from None
    async with embedded(
        data,
        name="sandctl",
        timeout=options.timeout_s,
        delivery_timeout=options.delivery_timeout_s,
        token=options.token,
    ) as client:
        yield client


@asynccontextmanager
async def connected_aloud(waits: bool) -> AsyncIterator[Client]:
    """Connect as `connected` does. If this takes long, say so at a terminal."""
    import anyio

    if waits or not sys.stderr.isatty():
        async with connected() as client:
            yield client
        return
    connect_s, request_s, delivery_s = settings().deadlines_s
    at = f"no response from {', '.join(servers())} yet; giving up after {connect_s:g} s"

    async def tell() -> None:
        await anyio.sleep(ALOUD_S)
        click.echo(f"sandctl: {at} (--timeout; Ctrl-C ends it at once)", err=True)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(tell)
        async with connected() as client:
            longest_s = max(request_s, delivery_s)
            at = f"waiting for the cluster's response; giving up within {longest_s:g} s"
            yield client
        tasks.cancel_scope.cancel()


def run(work: Callable[[Client], Awaitable[T]], *, waits: bool = False) -> T:
    """Connect, do the work, disconnect.

    If this takes long, say at a terminal why the command waits. With `waits`, say nothing, because waiting is the
    command's purpose or the command shows its progress."""
    import asyncio

    import anyio

    from sandctl.interrupts import Interrupts

    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="sandctl: %(message)s")

    async def main() -> T:
        try:
            with anyio.CancelScope() as scope:
                interrupts.cancel = partial(asyncio.get_running_loop().call_soon_threadsafe, scope.cancel)
                async with connected_aloud(waits) as client:
                    return await work(client)
            raise KeyboardInterrupt
        finally:
            interrupts.cancel = lambda: None  # the work has finished, and the loop accepts no more calls

    try:
        with Interrupts() as interrupts:
            return anyio.run(main)
    except BaseExceptionGroup as group:
        # These are errors of the command's own tasks. A closed stream is never the cause.
        causes = list(_leaves(group))
        raise next((one for one in causes if not isinstance(one, anyio.BrokenResourceError)), causes[0]) from None


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
