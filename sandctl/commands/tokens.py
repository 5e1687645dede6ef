"""`sandctl token`: tokens that authenticate programs and people."""

from __future__ import annotations

import os
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sandctl.options.common import common_options, run
from sandctl.options.confirmation import confirm, need_yes, yes_option
from sandctl.options.grants import expires_options, expiry, grant_option, identity_row
from sandctl.options.login import write_private
from sandctl.options.times import limit_option
from sandctl.output.results import done, say, show_rows
from sandctl.settings import settings

if TYPE_CHECKING:
    from sandq.client import Client, Identity, NewToken

COLUMNS = {"name": "NAME", "grants": "GRANTS", "expires": "EXPIRES", "quota": "QUOTA", "note": "NOTE"}
_KIND = "token:"


@click.group()
def token() -> None:
    """Create, list, rotate and revoke tokens.

    A token authenticates its holder as the principal token:NAME and gives it that principal's rights: docs/security.md.
    """


@token.command()
@click.argument("name")
@grant_option
@expires_options
@click.option("--note", metavar="TEXT", default="", help="Purpose of the token.")
@click.option("--out", metavar="FILE", help="Write the token to FILE, readable only by you, instead of printing it.")
@common_options
def create(
    name: str, grants: tuple[str, ...], expires: timedelta | datetime | None, never: bool, note: str, out: str | None
) -> None:
    """Create the token NAME, and print it: it is not shown again.

    \b
      sandctl token create billing --grant writer:billing.* --expires 90d --out billing.token
      sandctl token create ops --grant operator --expires 365d > ops.token
    """
    if not grants:
        raise click.UsageError("say what it may do: --grant GRANT (writer:billing.*, reader, admin, ...)")
    _check_out(out)

    async def work(client: Client) -> NewToken:
        return await client.admin.create_token(name, list(grants), expires=expiry(expires, never), note=note)

    _show_new(name, run(work), out)


@token.command(short_help="Replace a token; the old one ends at once.")
@click.argument("name")
@expires_options
@click.option("--out", metavar="FILE", help="Write the token to FILE, readable only by you, instead of printing it.")
@common_options
def rotate(name: str, expires: timedelta | datetime | None, never: bool, out: str | None) -> None:
    """Replace the token NAME and print the new one. The old one ends at once.

    \b
      sandctl token rotate billing --expires 90d --out billing.token

    To replace a token without a gap, create a second token, give it to the programs, and revoke the first token.
    """
    _check_out(out)
    changed: dict[str, Any] = {"expires": expiry(expires, never)} if never or expires is not None else {}

    async def work(client: Client) -> NewToken:
        return await client.admin.rotate_token(name, **changed)

    _show_new(name, run(work), out)


@token.command()
@click.argument("name")
@yes_option
@common_options
def revoke(name: str, yes: bool) -> None:
    """Revoke the token NAME: its connections are closed within a second.

    \b
      sandctl token revoke billing --yes
    """
    if not yes:
        need_yes("revoking a token closes the connections that use it")
        confirm(f"Revoke token {name} and close the connections that use it?", "revoked")

    async def work(client: Client) -> None:
        await client.admin.revoke_token(name)

    run(work)
    done(f"token {name} is revoked", {"name": name, "revoked": True})


@token.command("list")
@limit_option
@common_options
def list_(limit: int | None) -> None:
    """List all tokens: their principals and grants, never their text.

    \b
      sandctl token list
    """

    async def work(client: Client) -> list[Identity]:
        return await client.admin.identities()

    found = [one for one in run(work) if one.principal.startswith(_KIND)]
    show_rows([_row(one) for one in found], COLUMNS, limit)


def _row(one: Identity) -> dict[str, Any]:
    return {"name": one.principal.removeprefix(_KIND), **identity_row(one)}


def _check_out(out: str | None) -> None:
    """Raise UsageError if the token could not be saved, before it is created."""
    if out is None:
        return
    file = Path(out).absolute()
    if not file.parent.is_dir():
        raise click.UsageError(f"--out {out}: there is no such directory")
    if file.is_dir():
        raise click.UsageError(f"--out {out}: that is a directory; name a file")
    if not os.access(file.parent, os.W_OK | os.X_OK):
        raise click.UsageError(f"--out {out}: you may not write there")


def _show_new(name: str, made: NewToken, out: str | None) -> None:
    record = _row(made.identity)
    if out is not None:
        write_private(Path(out), made.text + "\n")
        done(f"token {name} is in {out}", {**record, "file": out})
    elif settings().output == "table":
        say(f"token {name}, which is not shown again:", err=True)
        say(made.text)
    else:
        done("", {**record, "token": made.text})
