"""`sandctl token`: what programs and people show to say who they are."""

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
    """Make, list, rotate and revoke tokens.

    Whoever shows a token is its principal, token:NAME, and may do what that is granted: docs/security.md.
    """


@token.command()
@click.argument("name")
@grant_option
@expires_options
@click.option("--note", metavar="TEXT", default="", help="What it is for.")
@click.option("--out", metavar="FILE", help="Write the token to FILE, which only you may read, and do not print it.")
@common_options
def create(
    name: str, grants: tuple[str, ...], expires: timedelta | datetime | None, never: bool, note: str, out: str | None
) -> None:
    """Make a token NAME, and print it: it is not shown again.

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


@token.command(short_help="Give a token another text; the old one ends at once.")
@click.argument("name")
@expires_options
@click.option("--out", metavar="FILE", help="Write the token to FILE, which only you may read, and do not print it.")
@common_options
def rotate(name: str, expires: timedelta | datetime | None, never: bool, out: str | None) -> None:
    """Give the token NAME another text, and print that; the old one ends at once.

    \b
      sandctl token rotate billing --expires 90d --out billing.token

    To change over without a gap make a second token, give it to the programs, and revoke the first.
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
    """End the token NAME: whoever uses it is cut off within a second.

    \b
      sandctl token revoke billing --yes
    """
    if not yes:
        need_yes("revoking a token cuts off who uses it")
        confirm(f"Revoke token {name}, and cut off who uses it?", "revoked")

    async def work(client: Client) -> None:
        await client.admin.revoke_token(name)

    run(work)
    done(f"token {name} is revoked", {"name": name, "revoked": True})


@token.command("list")
@limit_option
@common_options
def list_(limit: int | None) -> None:
    """List all tokens: who they are, never their text.

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
    """Before anything is made: a token that nobody got would be lost."""
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
