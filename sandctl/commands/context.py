"""`sandctl context`: named clusters, with their servers, TLS files and tokens."""

from __future__ import annotations

import os
from dataclasses import replace

import click

from sandctl.options.common import common_options, named_servers
from sandctl.options.contexts import Context, complete_contexts, contexts_file, read_contexts, write_contexts
from sandctl.options.login import read_token
from sandctl.output.results import done, show_one, show_rows
from sandctl.settings import settings


@click.group(short_help="Store clusters by name: servers, TLS, token.")
def context() -> None:
    """Store clusters by name: their servers, their TLS options, and a token.

    \b
      sandctl context add prod -s db1:7170 -s db2:7170 --ca ca.pem --token-file admin.token --use
      sandctl --context prod topic list

    A command uses the context of --context, else of SANDCTL_CONTEXT, else the context of `context use`. Options
    override the context. If --server or SANDCTL_SERVERS names servers, only a context of --context is used, so that a
    token is sent only to its own servers. Contexts are stored in sandq/contexts.json of XDG_CONFIG_HOME (~/.config),
    which only you may read.
    """


name_argument = click.argument("name", shell_complete=complete_contexts)


@context.command()
@click.argument("name")
@click.option("--use", "is_used", is_flag=True, help="Use it from now on.")
@click.option("--replace", "is_replaced", is_flag=True, help="Replace the context of this name.")
@common_options
def add(name: str, is_used: bool, is_replaced: bool) -> None:
    """Add the context NAME with the connection options of this command.

    \b
      sandctl context add local -s 127.0.0.1:7170
      sandctl context add prod -s db1:7170 -s db2:7170 --ca ca.pem --token-file admin.token --use

    The token itself is stored, but only the paths of files. No server is asked.
    """
    from sandq.client.options import parse_server
    from sandq.model.names import check_name

    check_name("context", name)
    given = settings()
    servers = named_servers()
    if not servers:
        raise click.UsageError("name the servers: --server HOST:PORT, which may be repeated")
    for server in servers:
        parse_server(server)
    contexts = read_contexts()
    if name in contexts.named and not is_replaced:
        raise click.UsageError(f"context {name!r} exists: use --replace or another name")
    files = {kind: os.path.abspath(path) for kind, path in given.files.items()}
    for path in files.values():
        if not os.path.isfile(path):
            raise click.UsageError(f"{path}: there is no such file")
    token = None if given.token_file is None else read_token(given.token_file)
    made = Context(servers, given.tls, files, token)
    current = name if is_used else contexts.current
    where = write_contexts(replace(contexts, named={**contexts.named, name: made}, current=current))
    used = ", and used from now on" if is_used else ""
    done(f"context {name} is saved in {where}{used}", {"context": name, "current": is_used, **made.shown()})


@context.command()
@name_argument
@common_options
def use(name: str) -> None:
    """Use the context NAME, unless a command names a different context.

    \b
      sandctl context use prod
    """
    contexts = read_contexts()
    servers = contexts.get(name).servers
    write_contexts(replace(contexts, current=name))
    done(f"using context {name}: {', '.join(servers)}", {"context": name, "servers": list(servers)})


@context.command("list")
@common_options
def list_() -> None:
    """List the contexts.

    \b
      sandctl context list
    """
    contexts = read_contexts()
    current = contexts.current
    rows = [{"context": name, "current": name == current, **one.shown()} for name, one in contexts.named.items()]
    columns = {"context": "NAME", "current": "CURRENT", "servers": "SERVERS", "tls": "TLS", "token": "TOKEN"}
    show_rows(rows, columns)


@context.command()
@click.argument("name", required=False, shell_complete=complete_contexts)
@common_options
def show(name: str | None) -> None:
    """Show the context NAME, or the current one, without its token.

    \b
      sandctl context show prod
    """
    contexts = read_contexts()
    name = name or contexts.current
    if name is None:
        raise click.UsageError("no context is current: name one, or run sandctl context use NAME")
    found = contexts.get(name)
    show_one({"context": name, "current": name == contexts.current, **found.shown()})


@context.command()
@name_argument
@common_options
def delete(name: str) -> None:
    """Delete the context NAME with its token.

    \b
      sandctl context delete prod
    """
    contexts = read_contexts()
    contexts.get(name)
    named = {other: one for other, one in contexts.named.items() if other != name}
    current = None if contexts.current == name else contexts.current
    write_contexts(replace(contexts, named=named, current=current))
    done(f"deleted context {name} ({contexts_file()})", {"context": name})
