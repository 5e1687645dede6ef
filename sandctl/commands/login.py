"""`sandctl whoami`, `login` and `logout`: your identity on a cluster."""

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
    """An identity as `whoami` prints it."""
    from sandq.model.times import format_instant

    everything = "everything (authentication is off, or you gave no token)"
    return {
        "principal": found.principal,
        "grants": (everything if settings().output == "table" else None) if found.grants is None else [*found.grants],
        "expires": None if found.expires_ms is None else format_instant(found.expires_ms),
        "quota": dict(found.quota) or None,
    }


@click.command()
@common_options
def whoami() -> None:
    """Show your identity on the cluster and your rights.

    \b
      sandctl whoami

    GRANTS lists rights (roles are resolved) with the topics and groups that they cover.
    """
    show_one(shown(run(_whoami)))


@click.command()
@common_options
def login() -> None:
    """Save a token for these servers. Later commands use it.

    \b
      sandctl login --token-file admin.token

    Without --token-file, the command asks for the token. It checks the token with a server before it saves it in
    sandq/login.json of XDG_CONFIG_HOME (~/.config). Only you may read that file.
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
    """Delete the saved token of these servers.

    \b
      sandctl logout

    The token itself stays valid: `sandctl token revoke` revokes it.
    """
    logins = read_logins()
    gone = [server for server in servers() if logins.pop(server, None) is not None]
    if gone:
        write_logins(logins)
    names = ", ".join(gone) or "none of the servers"
    done(f"no token is saved for {names} any more ({login_file()})", {"servers": gone})
