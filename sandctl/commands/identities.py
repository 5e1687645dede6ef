"""`sandctl identity`: manage identities."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from sandctl.options.common import common_options, run
from sandctl.options.confirmation import confirm, need_yes, yes_option
from sandctl.options.grants import expires_options, expiry, grant_option, identity_row
from sandctl.options.times import limit_option
from sandctl.output.results import done, show_one, show_rows

if TYPE_CHECKING:
    from sandq.client import Client, Identity

F = TypeVar("F", bound=Callable[..., Any])

COLUMNS = {"principal": "PRINCIPAL", "grants": "GRANTS", "expires": "EXPIRES", "quota": "QUOTA", "note": "NOTE"}


_QUOTAS: Final = {
    "connections": ("N", "Connections to each node."),
    "requests_per_s": ("N", "Requests per second to each node."),
    "bytes_per_s": ("SIZE", "Bytes of requests per second to each node."),
    "stored_bytes": ("SIZE", "Bytes stored in the topics that it owns."),
    "topics": ("N", "Topics that it owns."),
    "partitions": ("N", "Partitions of the topics that it owns."),
    "pending_messages": ("N", "Messages that are not due yet in the topics that it owns."),
    "max_delay": ("DURATION", "How far ahead it may send messages."),
}
"""Options of quotas, and the limits that they set."""
_NONE: Final = "none"
_UNITS: Final = "KMGT"


def _quota_options(command: F) -> F:
    """Add an option for each quota."""
    for name, (metavar, text) in reversed(_QUOTAS.items()):
        option = f"--{name.replace('_', '-')}"
        command = click.option(option, name, metavar=f"{metavar}|{_NONE}", help=text)(command)
    return command


def _bound(name: str, text: str) -> int | str | None:
    """Return the quotas as the client takes them. Raise UsageError."""
    metavar, _ = _QUOTAS[name]
    if text == _NONE:
        return None
    if metavar == "DURATION":
        return text
    found = re.fullmatch(r"(\d{1,16})([KMGT]iB)?", text.strip())
    if found is not None and (found[2] is None or metavar == "SIZE"):
        return int(found[1]) * (1 if found[2] is None else 1024 ** (_UNITS.index(found[2][0]) + 1))
    expected = "a number, 64KiB, 10MiB or 1GiB" if metavar == "SIZE" else "a whole number"
    raise click.UsageError(f"--{name.replace('_', '-')}: {expected} is expected, or {_NONE}, not {text!r:.40}")


async def _find(client: Client, principal: str) -> Identity:
    from sandq.errors import NotFound

    for one in await client.admin.identities():
        if one.principal == principal:
            return one
    raise NotFound(f"there is no identity {principal!r}; `sandctl identity list` lists all")


@click.group(short_help="Show, create, change and delete identities.")
def identity() -> None:
    """Show identities, grant and revoke rights, delete identities.

    A PRINCIPAL is token:NAME, cert:NAME (of a client's certificate) or jwt:SUBJECT (of a token of an external issuer).
    """


@identity.command("list", short_help="List all identities: tokens, certificates, subjects.")
@limit_option
@common_options
def list_(limit: int | None) -> None:
    """List all identities: tokens, names of certificates, subjects of an external issuer.

    \b
      sandctl identity list -o json
    """

    async def work(client: Client) -> list[Identity]:
        return await client.admin.identities()

    show_rows([_row(one) for one in run(work)], COLUMNS, limit)


@identity.command(short_help="Create an identity for a certificate or a subject.")
@click.argument("principal")
@grant_option
@expires_options
@click.option("--note", metavar="TEXT", default="", help="A note about its purpose.")
@common_options
def create(
    principal: str, grants: tuple[str, ...], expires: timedelta | datetime | None, never: bool, note: str
) -> None:
    """Create an identity for a certificate of this name, or a token of this subject of an external issuer.

    \b
      sandctl identity create cert:till-7 --grant writer:tills.*
      sandctl identity create jwt:ada@example.com --grant operator

    `sandctl token create` creates tokens of the cluster itself.
    """
    if not grants:
        raise click.UsageError("name its rights: --grant GRANT (writer:billing.*, reader, admin, ...)")

    async def work(client: Client) -> Identity:
        return await client.admin.create_identity(principal, list(grants), expires=expiry(expires, never), note=note)

    _changed(run(work))


@identity.command()
@click.argument("principal")
@click.argument("grants", metavar="GRANT...", nargs=-1, required=True)
@common_options
def grant(principal: str, grants: tuple[str, ...]) -> None:
    """Grant rights to PRINCIPAL in addition to the rights that it has.

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
    """Revoke grants of PRINCIPAL, each as `identity list` shows it.

    \b
      sandctl identity ungrant token:billing read:reports.*
    """

    async def work(client: Client) -> Identity:
        return await client.admin.update_identity(principal, remove=list(grants))

    _changed(run(work))


@identity.command()
@click.argument("principal")
@common_options
def show(principal: str) -> None:
    """Show the rights of PRINCIPAL, its quota, and its usage.

    \b
      sandctl identity show token:billing

    QUOTA and USED: topics, partitions, stored bytes and pending messages are those of the whole cluster; connections,
    requests and bytes are those of the node that answers; each node allows the whole quota.
    """

    async def work(client: Client) -> Identity:
        return await _find(client, principal)

    one = run(work)
    show_one({**_row(one), "used": dict(one.used) or None})


@identity.command()
@click.argument("principal")
@_quota_options
@common_options
def quota(principal: str, **given: str | None) -> None:
    """Set quotas of PRINCIPAL. Quotas that you do not give stay as they are.

    \b
      sandctl identity quota token:billing --requests-per-s 100 --topics 10
      sandctl identity quota token:billing --stored-bytes 10GiB --max-delay 30d
      sandctl identity quota token:billing --requests-per-s none

    `none` removes a quota. Connections, requests and bytes of requests are limits of each node. Topics and partitions
    count from now on: only those that PRINCIPAL creates. Stored bytes and pending messages limit their content.
    """
    changes = {name: _bound(name, text) for name, text in given.items() if text is not None}
    if not changes:
        raise click.UsageError(
            "nothing to change: give --requests-per-s 100, for example (`identity show` shows the quotas)"
        )

    async def work(client: Client) -> Identity:
        return await client.admin.update_identity(principal, quota=changes)

    one = run(work)
    told = ", ".join(f"{name}={value}" for name, value in one.quota.items()) or "no quota"
    done(f"{one.principal} has {told}", _row(one))


@identity.command()
@click.argument("principal")
@yes_option
@common_options
def delete(principal: str, yes: bool) -> None:
    """Delete PRINCIPAL: its clients are disconnected within a second.

    \b
      sandctl identity delete cert:till-7 --yes
    """
    if not yes:
        need_yes("deleting an identity disconnects its clients")
        confirm(f"Delete {principal} and close its connections?", "deleted")

    async def work(client: Client) -> None:
        await client.admin.delete_identity(principal)

    run(work)
    done(f"{principal} is deleted", {"principal": principal, "deleted": True})


def _row(one: Identity) -> dict[str, Any]:
    return {"principal": one.principal, **identity_row(one)}


def _changed(one: Identity) -> None:
    done(f"{one.principal} has {', '.join(one.grants) or 'no grants'}", _row(one))
