"""The `sandq` command: run a node, check a configuration and a machine, serve HTTP, SQL and the documentation, and
inspect a log.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

import sandq
from sandq.model.ports import DEFAULT_SERVER, HTTP_PORT, LOCAL_HOST, SQL_PORT
from sandq.tools.running import Root

if TYPE_CHECKING:
    from sandq.node.running import Serving

EXIT_AT_ONCE = 130
"""Exit code after a second signal: the process ends without a clean stop."""


@click.group("sandq", cls=Root, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--config", "config_file", type=click.Path(dir_okay=False, path_type=Path), help="YAML file of this node."
)
@click.option("--data", "data_dir", metavar="DIR", help="Directory of its data (node.data_dir).")
@click.option("--log-format", type=click.Choice(["auto", "json", "text"]), default="auto", show_default=True)
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
)
@click.version_option(sandq.__version__, prog_name="sandq")
@click.pass_context
def main(
    context: click.Context, config_file: Path | None, data_dir: str | None, log_format: str, log_level: str
) -> None:
    """Run a sandq node until it is stopped (SIGINT or SIGTERM).

    \b
      sandq --config configs/single.yaml
      sandq --data ./data

    Without --config: one node, node1, with its data in ./sandq-data and the default ports. A directory that has data
    keeps the id of its node, also if an embedded broker (sandq.embedded) made it. Any key can also be set
    in the environment, for example SANDQ_LISTEN__CLIENT=127.0.0.1:7171.
    """
    if context.invoked_subcommand is None:
        with _errors():
            _serve(config_file, data_dir, log_format, log_level)


_FILE = click.Path(dir_okay=False, path_type=Path)


@main.command("check-config")
@click.argument("config_file", metavar="[FILE]", type=_FILE, required=False)
@click.option("--show", is_flag=True, help="Print the complete configuration as YAML, with defaults and SANDQ_...")
def check_config(config_file: Path | None, show: bool) -> None:
    """Check a configuration FILE, and report all mistakes.

    \b
      sandq check-config configs/single.yaml
      SANDQ_NODE__ID=node7 sandq check-config --show

    Without FILE: the defaults. The environment (SANDQ_...) is included in both cases.
    """
    from sandq.model.config import load_config

    with _errors():
        config = load_config(config_file, os.environ)
        if show:
            from sandq.model.show_config import effective

            text = None if config_file is None else config_file.read_text(encoding="utf-8")
            for line in effective(config, text, os.environ):
                click.echo(line)
        else:
            click.echo(f"{config_file or 'defaults'}: fine (node {config.node.id}, data in {config.node.data_dir})")


@main.command()
@click.option("--config", "config_file", type=_FILE, help="YAML file of the node.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def doctor(config_file: Path | None, as_json: bool) -> None:
    """Check whether, and how well, a node can run here: packages, disk, ports, clock, data.

    \b
      sandq doctor --config configs/single.yaml

    It changes nothing, and can be used while the node runs. Exit code 1 if a check failed.
    """
    from sandq.tools.doctor.doctor import examine, report

    if not report(examine(config_file, os.environ), as_json=as_json, write=click.echo):
        sys.exit(1)


@main.command()
@click.option("--config", "config_file", type=_FILE, help="YAML file of the node.")
@click.option(
    "--lost", metavar="NODE", multiple=True, required=True, help="A node whose disk is lost; repeat it for each."
)
@click.option("--dry-run", is_flag=True, help="Only print the changes.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def recover(config_file: Path | None, lost: tuple[str, ...], dry_run: bool, yes: bool) -> None:
    """Let this node continue alone with partitions whose other nodes are lost for good. It must not run.

    \b
      sandq recover --config node1.yaml --lost node2 --lost node3 --dry-run
      sandq recover --config node1.yaml --lost node2 --lost node3

    Entries that this node has not received are lost. Never start the lost nodes with their data again.
    """
    from sandq.model.config import load_config
    from sandq.tools.recover import recover

    with _errors():
        config = load_config(config_file, os.environ)
        for found in recover(config, lost, dry_run=True):
            click.echo(found.text())
        if dry_run:
            return
        if not yes:
            nodes = ", ".join(lost)
            click.confirm(f"{config.node.id} continues alone with these; {nodes} must never come back", abort=True)
        forced = [found for found in recover(config, lost) if found.is_forced]
        names = ", ".join(lost)
        click.echo(f"{len(forced)} groups have {config.node.id} as their only member; start it, and remove {names}")


@main.command()
@click.option(
    "--server",
    "servers",
    metavar="HOST:PORT[,..]",
    multiple=True,
    default=(DEFAULT_SERVER,),
    show_default=True,
    help="Client ports of nodes; any node finds the others.",
)
@click.option(
    "--listen", metavar="HOST:PORT", help=f"Address of HTTP; default: listen.http ({LOCAL_HOST}:{HTTP_PORT})."
)
@click.option("--config", "config_file", type=_FILE, help="YAML file with limits and access.")
@click.option(
    "--ca", type=_FILE, metavar="FILE", help="Connect to nodes with TLS, and trust this authority (tls.ca_file)."
)
@click.pass_context
def http(
    context: click.Context, servers: tuple[str, ...], listen: str | None, config_file: Path | None, ca: Path | None
) -> None:
    """Serve HTTP for a cluster from a separate process, until it is stopped (SIGINT or SIGTERM).

    \b
      sandq http --server 10.0.0.1:7170,10.0.0.2:7170 --listen 127.0.0.1:2108

    It stores nothing, and you can run any number of them. /healthz and /metrics are its own; it is ready while a node
    answers it. From the file, and from the environment (SANDQ_...), it uses listen.http, http, tls, limits.http_...,
    limits.memory_bytes and shutdown_grace, with the same meaning as for a node. A node does not need it: it serves HTTP
    from a process that it starts itself.
    """
    from sandq.model.config import load_config
    from sandq.tools.http_gateway import serve_gateway

    options = context.find_root().params
    addresses = tuple(server for several in servers for server in several.split(",") if server)
    with _errors():
        config = load_config(config_file or options["config_file"], os.environ, is_node=False)
        serve_gateway(addresses, listen, config, options["log_format"], options["log_level"], ca)


@main.command()
@click.option(
    "--server",
    "servers",
    metavar="HOST:PORT[,..]",
    multiple=True,
    default=(DEFAULT_SERVER,),
    show_default=True,
    help="Client ports of nodes; any node finds the others.",
)
@click.option("--listen", metavar="HOST:PORT", help=f"Address of SQL; default: listen.sql ({LOCAL_HOST}:{SQL_PORT}).")
@click.option("--config", "config_file", type=_FILE, help="YAML file with limits and certificates.")
@click.option(
    "--ca", type=_FILE, metavar="FILE", help="Connect to nodes with TLS, and trust this authority (tls.ca_file)."
)
@click.pass_context
def sql(
    context: click.Context, servers: tuple[str, ...], listen: str | None, config_file: Path | None, ca: Path | None
) -> None:
    """Serve SQL for a cluster to MySQL's clients, read-only, until it is stopped (SIGINT or SIGTERM).

    \b
      sandq sql --server 10.0.0.1:7170,10.0.0.2:7170 --listen 127.0.0.1:3306
      mysql -h 127.0.0.1 -P 3306 sandq

    It stores nothing, and you can run any number of them. It needs `pip install 'sandq[sql]'`. The password of a user
    is a token, which is accepted only over TLS. From the file, and from the environment (SANDQ_...), it uses
    listen.sql, sql and tls, with the same meaning as for a node. A node with listen.sql starts one by itself.
    """
    from sandq.model.config import load_config
    from sandq.tools.sql_gateway import serve_gateway

    options = context.find_root().params
    addresses = tuple(server for several in servers for server in several.split(",") if server)
    with _errors():
        config = load_config(config_file or options["config_file"], os.environ, is_node=False)
        serve_gateway(addresses, listen, config, options["log_format"], options["log_level"], ca)


@main.command()
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default=True, help="Port; 0: any free port.")
@click.option("--open", "opens", is_flag=True, help="Open the site in a browser.")
def docs(port: int, opens: bool) -> None:
    """Serve this documentation to a browser on this machine, without the internet, until Ctrl-C.

    \b
      sandq docs --open

    Each node serves the same pages at /help/ of its HTTP port.
    """
    from sandq.server.http import site
    from sandq.tools.docs import serve

    with _errors():
        serve(site.archive(), port, opens, click.echo)


@main.group()
def certs() -> None:
    """Create certificates for TLS: your own authority, and certificates of nodes and clients.

    \b
      sandq certs ca --out certs
      sandq certs node node1 --host 10.0.0.1 --ca certs --out certs
      sandq certs client billing --ca certs --out certs

    If you have an authority already, issue them there: a node's certificate has its id and its hosts as names, and the
    usages serverAuth and clientAuth.
    """


_OUT = click.option(
    "--out",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory for the files.",
)
_CA = click.option(
    "--ca",
    required=True,
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the authority.",
)
_FORCE = click.option("--force", is_flag=True, help="Replace existing files.")


@certs.command("ca")
@click.option("--name", default="sandq", show_default=True, help="Name of the authority.")
@click.option("--days", default=3650, show_default=True, help="Days of validity.")
@_OUT
@_FORCE
def certs_ca(name: str, days: int, out: Path, force: bool) -> None:
    """Create an authority: ca.pem, which is public, and ca-key.pem, which is secret.

    \b
      sandq certs ca --out certs

    With the key one can create certificates of any node and any client. It is only needed to issue certificates: do not
    store it on nodes.
    """
    from sandq.tools import certs as tool

    with _errors():
        pair = tool.make_ca(out, name=name, days=days, force=force)
        click.echo(f"{pair.certificate}: the authority; give it to nodes and clients")
        click.echo(f"{pair.key}: its key; keep it secret")


@certs.command("node")
@click.argument("node_id", metavar="NODE_ID")
@click.option(
    "--host", "hosts", metavar="HOST", multiple=True, help="A host by which it is reached; repeat it for each."
)
@click.option("--days", default=365, show_default=True, help="Days of validity.")
@_CA
@_OUT
@_FORCE
def certs_node(node_id: str, hosts: tuple[str, ...], days: int, ca: Path, out: Path, force: bool) -> None:
    """Issue the certificate of the node with the id NODE_ID (node.id).

    \b
      sandq certs node node1 --host node1.example --host 10.0.0.1 --ca certs --out certs

    It is valid for that id, these hosts, and loopback. A running node loads replaced files within seconds.
    """
    from sandq.tools import certs as tool

    with _errors():
        pair = tool.make_node(node_id, hosts, ca, out, days=days, force=force)
        click.echo(f"{pair.certificate} and {pair.key}: for the configuration of {node_id}:")
        for line in tool.for_node(pair):
            click.echo(line)


@certs.command("revoke")
@click.argument("certificates", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=Path))
@_CA
@_OUT
def certs_revoke(certificates: tuple[Path, ...], ca: Path, out: Path) -> None:
    """Revoke certificates: add them to crl.pem, which nodes use as tls.crl_file.

    \b
      sandq certs revoke --ca ca --out certs
      sandq certs revoke billing.pem --ca ca --out certs

    Without a FILE the list stays as it is, or begins empty. A running node loads a replaced list within seconds, and
    rejects these certificates from then on; open connections continue. To end those of a client, delete its identity:
    `sandctl identity delete cert:NAME`.
    """
    from sandq.tools import certs as tool

    with _errors():
        path, count = tool.revoke(certificates, ca, out)
        click.echo(f"{path}: {count} revoked {'certificate' if count == 1 else 'certificates'}")


@certs.command("client")
@click.argument("name", metavar="NAME")
@click.option("--days", default=365, show_default=True, help="Days of validity.")
@_CA
@_OUT
@_FORCE
def certs_client(name: str, days: int, ca: Path, out: Path, force: bool) -> None:
    """Issue the certificate of a client with the name NAME.

    \b
      sandq certs client billing --ca certs --out certs
    """
    from sandq.tools import certs as tool

    with _errors():
        pair = tool.make_client(name, ca, out, days=days, force=force)
        click.echo(f"{pair.certificate} and {pair.key}: for {name}:")
        click.echo(tool.for_client(pair))


@main.group()
def wal() -> None:
    """Inspect a node's write-ahead log."""


@wal.command()
@click.argument("paths", metavar="DATA_DIR|SEGMENT...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--group", type=click.IntRange(0), metavar="N", help="Only records of this Raft group.")
@click.option("--from", "first", type=click.IntRange(1), metavar="INDEX", help="Only entries from this index on.")
@click.option("--to", "last", type=click.IntRange(1), metavar="INDEX", help="Only entries up to this index.")
@click.option("--values", is_flag=True, help="Also print values and keys of messages.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
def dump(
    paths: tuple[Path, ...], group: int | None, first: int | None, last: int | None, values: bool, as_json: bool
) -> None:
    """Print every record of a log, and its damage.

    \b
      sandq wal dump ./sandq-data
      sandq wal dump ./sandq-data --group 3 --from 100 --to 120 --json

    It only reads, also while the node runs. Exit code 1 if a record is damaged; a torn end is not damage.
    """
    from sandq.tools.wal.dump import RecordFilter, dump

    if first is not None and last is not None and last < first:
        raise click.UsageError("--to is less than --from: no entry lies between them")
    with _errors():
        wanted = RecordFilter(group, first, last)
        totals = dump(paths, wanted, values=values, as_json=as_json, write=lambda line: print(line))
        sys.stdout.flush()
        click.echo(totals.text(), err=True)
        if totals.damaged:
            sys.exit(1)


def _serve(config_file: Path | None, data_dir: str | None, log_format: str, log_level: str) -> None:
    import trio

    # Import only what `run_node` needs to launch HTTP: the modules of the node are loaded in parallel.
    from sandq.model.config import load_config
    from sandq.model.logger import get_logger
    from sandq.node import SWITCH_INTERVAL_S, run_node
    from sandq.node.restarts import serve_until
    from sandq.server import logs, process_tuning
    from sandq.server.debug.loop_watch import LoopWatch
    from sandq.server.process_tuning import collect_rarely, give_back_heap
    from sandq.storage.secret_file import OTHERS

    config = load_config(config_file, _environment(config_file, data_dir))
    people = logs.set_up(log_format, log_level, config.node.id)
    log = get_logger("sandq.node")
    sys.setswitchinterval(SWITCH_INTERVAL_S)

    def say(line: str) -> None:
        if people is not None:
            people.write(f"{line}\n")

    def abandon() -> None:
        logs.finish()
        os._exit(EXIT_AT_ONCE)  # a thread that hangs on the disk would keep the process

    def on_ready(serving: Serving) -> None:
        clients, http = f"{serving.client_host}:{serving.client_port}", None
        say(f"sandq {sandq.__version__}: node {config.node.id}, data in {serving.data_dir}")
        say(f"clients: {clients}")
        if serving.http is not None:
            host, port = serving.http
            scheme = "http" if config.tls.http == "off" else "https"
            http = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}"
            say(f"HTTP: {http}")
        if serving.sql is not None:
            say(f"SQL: {serving.sql}")
        for exposed in config.exposed:
            say(f"INSECURE: {exposed}")
            log.warning("this node accepts any client", what=exposed, remedy="docs/security.md")
        collect_rarely()
        log.info("ready", data_dir=str(serving.data_dir), clients=clients, http=http)
        ready.set()

    async def run() -> None:
        stop, starting, watch = trio.Event(), trio.CancelScope(), LoopWatch()
        with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_for_signals, signals, stop, starting)
                nursery.start_soon(watch_once_ready, watch)
                with starting:
                    await serve_until(
                        stop, partial(run_node, config, clients="both", abandon=abandon, watch=watch), on_ready
                    )
                nursery.cancel_scope.cancel()

    async def wait_for_signals(signals: AsyncIterator[int], stop: trio.Event, starting: trio.CancelScope) -> None:
        async for number in signals:
            if stop.is_set():
                os._exit(EXIT_AT_ONCE)  # a second signal: the log is as after a crash, and the next start replays it
            say("stopping")
            log.info("stopping", signal=signal.Signals(number).name)
            stop.set()
            if not ready.is_set():
                starting.cancel()  # the start may be waiting for other nodes

    async def watch_once_ready(watch: LoopWatch) -> None:
        await ready.wait()  # imports block the loop for seconds on a slow machine; requests are served only after that
        await watch.run()

    ready = trio.Event()
    try:
        log.info("started", version=sandq.__version__)
        process_tuning.raise_file_limit()
        give_back_heap()
        os.umask(OTHERS)  # LevelDB creates its files with it
        trio.run(run)
        log.info("stopped")
    finally:
        logs.finish()


def _environment(config_file: Path | None, data_dir: str | None) -> dict[str, str]:
    """Return the environment of a node, with the directory of `--data`, and the id of the node to which it belongs."""
    environ = dict(os.environ)
    if data_dir is None:
        return environ
    from sandq.storage.files import RealFiles
    from sandq.storage.identity import load

    environ["SANDQ_NODE__DATA_DIR"] = data_dir
    if config_file is None and "SANDQ_NODE__ID" not in environ and Path(data_dir).is_dir():
        own = load(RealFiles(data_dir))
        if own is not None:
            environ["SANDQ_NODE__ID"] = own.node
    return environ


@contextlib.contextmanager
def _errors() -> Iterator[None]:
    from sandq.model.errors import SandqError

    try:
        yield
    except SandqError as error:
        click.echo(f"sandq: {error.message}", err=True)
        sys.exit(1)
    except BaseExceptionGroup as group:
        ours, others = group.split(SandqError)
        if ours is None or others is not None:
            raise
        for leaf in _leaves(ours):
            click.echo(f"sandq: {leaf}", err=True)
        sys.exit(1)


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error


if __name__ == "__main__":
    main()
