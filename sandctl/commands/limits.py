"""`sandctl limit`: named limits, which groups of several topics share."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from sandctl.options.common import common_options, run
from sandctl.options.times import DURATION, END, end_text
from sandctl.output.records import limit_record
from sandctl.output.results import done, show_one, show_rows

if TYPE_CHECKING:
    from sandq.client import Client

_COLUMNS = {
    "limit": "LIMIT",
    "max_in_flight": "IN FLIGHT",
    "given": "GIVEN",
    "rate": "RATE",
    "unit": "UNIT",
    "burst": "BURST",
    "members": "MEMBERS",
    "unheard": "UNHEARD",
    "paused": "PAUSED",
}
name_argument = click.argument("name")


@click.group(short_help="Set, show, list and delete limits of several topics.")
def limit() -> None:
    """Set, show, list and delete named limits, which groups of several topics share."""


@limit.command("set", short_help="Create a named limit, or replace it.")
@name_argument
@click.option(
    "--max-in-flight", metavar="N", type=int, help="Maximum number of messages that are leased and not settled."
)
@click.option(
    "--rate", metavar="N/s", help="Maximum number of messages per second (N/s), minute (N/m), hour (N/h), day (N/d)."
)
@click.option("--burst", metavar="N", type=int, help="Number of these messages at once after a pause.")
@click.option("--unit", metavar="NAME", help="The rate and the burst count costs of messages, for example tokens.")
@common_options
def set_(name: str, **options: Any) -> None:
    """Create the limit NAME, or replace it; a part that is not given is removed.

    \b
      sandctl limit set llm --rate 90000/m --unit tokens --max-in-flight 50
      sandctl limit set mailserver --rate 10/s

    All groups that use the limit stay within it together: sandctl group limit TOPIC GROUP --limit NAME. After a change,
    they receive nothing until each of their partitions has confirmed it, which usually takes milliseconds.
    """
    given = {option: value for option, value in options.items() if value is not None}
    if not given:
        raise click.UsageError("nothing to set: give --max-in-flight N, --rate N/s, --burst N, --unit NAME")

    async def work(client: Client) -> None:
        await client.admin.set_limit(name, **given)

    run(work)
    done(f"set limit {name}", {"limit": name, **given})


@limit.command("list", short_help="List the named limits.")
@common_options
def list_() -> None:
    """List the named limits.

    \b
      sandctl limit list
      sandctl limit list -o json

    GIVEN is how many messages the members may have in flight at present. MEMBERS are the groups that use the limit,
    counted once per partition. UNHEARD are those that have not confirmed the last change; until they do, nothing is
    delivered. While the limit is PAUSED, they get nothing either: "sandctl limit show" shows until when, and by whom.
    """

    async def work(client: Client) -> list[dict[str, Any]]:
        return [limit_record(row) for row in await client.admin.limits()]

    show_rows(run(work), _COLUMNS)


@limit.command("show", short_help="Show a named limit and the groups that use it.")
@name_argument
@common_options
def show(name: str) -> None:
    """Show the limit NAME, and its members: the groups that use it, in each partition.

    \b
      sandctl limit show llm
    """

    async def work(client: Client) -> dict[str, Any]:
        return limit_record(await client.admin.limit(name))

    show_one(run(work))


@limit.command("pause", short_help="Stop deliveries to all groups that use a limit.")
@name_argument
@click.option(
    "--until", type=END, metavar="END", help="When the pause ends: an instant, or 18:00 (the next, on this machine)."
)
@click.option("--for", "for_", type=DURATION, metavar="DURATION", help="Duration of the pause.")
@common_options
def pause(name: str, until: int | None, for_: timedelta | None) -> None:
    """Stop deliveries to all groups that use the limit NAME, until it is resumed, or up to an end.

    \b
      sandctl limit pause llm --for 1m
      sandctl limit pause llm

    A further pause replaces the first one, with its end. Consumers keep their leases, and can ack. A consumer can pause
    the limit as well, when the service that it calls asks to wait.
    """
    if until is not None and for_ is not None:
        raise click.UsageError("--until and --for are both given: give one of them")
    end: dict[str, Any] = {name: value for name, value in (("until", until), ("for_", for_)) if value is not None}

    async def work(client: Client) -> None:
        await client.admin.pause_limit(name, **end)

    run(work)
    done(f"paused limit {name}{end_text(until, for_)}", {"limit": name, "paused": True})


@limit.command("resume", short_help="Resume a paused limit.")
@name_argument
@common_options
def resume(name: str) -> None:
    """End the pause of the limit NAME, also one by a consumer.

    \b
      sandctl limit resume llm
    """

    async def work(client: Client) -> None:
        await client.admin.resume_limit(name)

    run(work)
    done(f"resumed limit {name}", {"limit": name, "paused": False})


@limit.command("delete", short_help="Delete a named limit that no group uses.")
@name_argument
@common_options
def delete(name: str) -> None:
    """Delete the limit NAME. This is refused while a group uses it.

    \b
      sandctl limit delete llm
    """

    async def work(client: Client) -> None:
        await client.admin.delete_limit(name)

    run(work)
    done(f"deleted limit {name}", {"limit": name, "deleted": True})
