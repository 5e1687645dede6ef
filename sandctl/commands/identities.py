"""`sandctl identity`: who may do what."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import click

from sandctl.options.common import common_options, run
from sandctl.options.confirmation import confirm, need_yes, yes_option
from sandctl.options.grants import expires_options, expiry, grant_option, identity_row
from sandctl.options.times import limit_option
from sandctl.output.results import done, show_rows

if TYPE_CHECKING:
    from sandq.client import Client, Identity

COLUMNS = {"principal": "PRINCIPAL", "grants": "GRANTS", "expires": "EXPIRES", "quota": "QUOTA", "note": "NOTE"}


@click.group()
def identity() -> None:
    """Look at who may do what; grant rights, take them away, delete identities.

    A PRINCIPAL is token:NAME, cert:NAME (of a client's certificate) or jwt:SUBJECT (of a token of an outside issuer).
    """


@identity.command("list")
@limit_option
@common_options
def list_(limit: int | None) -> None:
    """List all identities: tokens, names of certificates, subjects of an outside issuer.

    \b
      sandctl identity list -o json
    """

    async def work(client: Client) -> list[Identity]:
        return await client.admin.identities()

    show_rows([_row(one) for one in run(work)], COLUMNS, limit)


@identity.command()
@click.argument("principal")
@grant_option
@expires_options
@click.option("--note", metavar="TEXT", default="", help="What it is for.")
@common_options
def create(
    principal: str, grants: tuple[str, ...], expires: timedelta | datetime | None, never: bool, note: str
) -> None:
    """Let in who shows a certificate of this name, or a token of this subject of an outside issuer.

    \b
      sandctl identity create cert:till-7 --grant writer:tills.*
      sandctl identity create jwt:ada@example.com --grant operator

    Tokens of the cluster's own are made by `sandctl token create`.
    """
    if not grants:
        raise click.UsageError("say what it may do: --grant GRANT (writer:billing.*, reader, admin, ...)")

    async def work(client: Client) -> Identity:
        return await client.admin.create_identity(principal, list(grants), expires=expiry(expires, never), note=note)

    _changed(run(work))


@identity.command()
@click.argument("principal")
@click.argument("grants", metavar="GRANT...", nargs=-1, required=True)
@common_options
def grant(principal: str, grants: tuple[str, ...]) -> None:
    """Grant PRINCIPAL more; what it has stays.

    \b
      sandctl identity grant token:billing read:reports.* payments
    """

    async def work(client: Client) -> Identity:
        return await client.admin.update_identity(principal, add=list(grants))

    _changed(run(work))


@identity.command()
@click.argument("principal")
@click.argument("grants", metavar="GRANT...", nargs=-1, required=True)
@common_options
def ungrant(principal: str, grants: tuple[str, ...]) -> None:
    """Take grants from PRINCIPAL, each as `identity list` shows it.

    \b
      sandctl identity ungrant token:billing read:reports.*
    """

    async def work(client: Client) -> Identity:
        return await client.admin.update_identity(principal, remove=list(grants))

    _changed(run(work))


@identity.command()
@click.argument("principal")
@yes_option
@common_options
def delete(principal: str, yes: bool) -> None:
    """Forget PRINCIPAL: who shows it is cut off within a second.

    \b
      sandctl identity delete cert:till-7 --yes
    """
    if not yes:
        need_yes("deleting an identity cuts off who shows it")
        confirm(f"Delete {principal}, and cut off who shows it?", "deleted")

    async def work(client: Client) -> None:
        await client.admin.delete_identity(principal)

    run(work)
    done(f"{principal} is deleted", {"principal": principal, "deleted": True})


def _row(one: Identity) -> dict[str, Any]:
    return {"principal": one.principal, **identity_row(one)}


def _changed(one: Identity) -> None:
    done(f"{one.principal} has {', '.join(one.grants) or 'no grants'}", _row(one))
