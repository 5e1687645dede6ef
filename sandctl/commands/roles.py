"""`sandctl role`: named lists of grants."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from sandctl.options.common import common_options, run
from sandctl.options.times import limit_option
from sandctl.output.results import done, show_rows

if TYPE_CHECKING:
    from sandq.client import Client


@click.group(short_help="List, create and delete roles, which are lists of grants.")
def role() -> None:
    """List roles, which are named lists of grants; create and delete them."""


@role.command("list")
@limit_option
@common_options
def list_(limit: int | None) -> None:
    """List all roles, built-in roles first.

    \b
      sandctl role list
    """
    from sandq.model.access import ROLES

    async def work(client: Client) -> dict[str, list[str]]:
        return await client.admin.roles()

    built_in = [
        {"role": name, "grants": [str(right) for right in rights], "built_in": True} for name, rights in ROLES.items()
    ]
    made = [{"role": name, "grants": grants, "built_in": False} for name, grants in run(work).items()]
    show_rows([*built_in, *made], {"role": "ROLE", "grants": "GRANTS", "built_in": "BUILT IN"}, limit)


@role.command(short_help="Create a role, or replace its grants.")
@click.argument("name")
@click.argument("grants", metavar="GRANT...", nargs=-1, required=True)
@common_options
def put(name: str, grants: tuple[str, ...]) -> None:
    """Create the role NAME, or replace its grants.

    \b
      sandctl role put payments produce:pay.* reader:pay.*

    Grants of a role are rights and built-in roles. Identities that have the role get the new grants within a second.
    """

    async def work(client: Client) -> None:
        await client.admin.put_role(name, list(grants))

    run(work)
    done(f"role {name} has {', '.join(grants)}", {"role": name, "grants": list(grants)})


@role.command()
@click.argument("name")
@common_options
def delete(name: str) -> None:
    """Delete the role NAME. Refused while identities have it.

    \b
      sandctl role delete payments
    """

    async def work(client: Client) -> None:
        await client.admin.delete_role(name)

    run(work)
    done(f"role {name} is deleted", {"role": name, "deleted": True})
