"""`sandctl whoami`, `login` and `logout`: who you are to a cluster."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from sandctl.options.common import common_options, run, servers
from sandctl.options.login import login_file, read_logins, read_token, write_logins
from sandctl.output.results import done, show_one
from sandctl.settings import settings

if TYPE_CHECKING:
    from sandq.client import Client, Whoami


async def _whoami(client: Client) -> Whoami:
    return await client.admin.whoami()


def shown(found: Whoami) -> dict[str, Any]:
    """As it is printed."""
    from sandq.model.times import format_instant

    everything = "everything (authentication is off, or nothing was shown)"
    return {
        "principal": found.principal,
        "grants": (everything if settings().output == "table" else None) if found.grants is None else [*found.grants],
        "expires": None if found.expires_ms is None else format_instant(found.expires_ms),
        "quota": dict(found.quota) or None,
    }


@click.command()
@common_options
def whoami() -> None:
    """Show who you are to the cluster, and what you may do.

    \b
      sandctl whoami

    GRANTS are rights, without roles, and the topics and groups that they are for.
    """
    show_one(shown(run(_whoami)))


@click.command()
@common_options
def login() -> None:
    """Keep a token for the servers, for the commands that follow.

    \b
      sandctl login --token-file admin.token

    Without --token-file it is asked for. It is shown to a server first, and kept if that knows it: in
    sandq/login.json of XDG_CONFIG_HOME (~/.config), which only you may read.
    """
    file = settings().token_file
    if file is None:
        if not sys.stdin.isatty():
            raise click.UsageError("give the token in a file: --token-file FILE, - for standard input")
        token = click.prompt("Token", hide_input=True, err=True).strip()
    else:
        token = read_token(file)
    settings().token = token
    found = run(_whoami)
    logins = read_logins()
    logins.update(dict.fromkeys(servers(), token))
    where = write_logins(logins)
    names = ", ".join(servers())
    done(f"you are {found.principal} to {names} (kept in {where})", {"principal": found.principal, "servers": names})


@click.command()
@common_options
def logout() -> None:
    """Forget the token that is kept for the servers.

    \b
      sandctl logout

    The token itself goes on: `sandctl token revoke` ends it.
    """
    logins = read_logins()
    gone = [server for server in servers() if logins.pop(server, None) is not None]
    if gone:
        write_logins(logins)
    names = ", ".join(gone) or "none of the servers"
    done(f"nothing is kept for {names} any more ({login_file()})", {"servers": gone})
