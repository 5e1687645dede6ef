"""`sandctl message update`: change value and headers of named messages."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from sandctl.options.common import common_options, run
from sandctl.options.names import topic_argument
from sandctl.options.payload import headers_of, open_source, whole
from sandctl.options.targets import Target, UniqueName, change_each, named, show_outcomes, unique_key_options
from sandctl.options.times import DURATION, ID, INSTANT

if TYPE_CHECKING:
    from sandq.client import Messages


@click.command(short_help="Change value or headers of pending messages.")
@topic_argument()
@click.argument("ids", metavar="[ID]...", nargs=-1, type=ID)
@unique_key_options
@click.option("--value", metavar="TEXT", help="The new value.")
@click.option("--file", "-f", "path", metavar="FILE|-", help="Read the new value from a file; - is standard input.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="Headers that replace the old ones.")
@click.option("--no-headers", is_flag=True, help="Remove all headers.")
@click.option("--at", "--deliver-at", "at", type=INSTANT, metavar="INSTANT", help="Also move them to this instant.")
@click.option(
    "--in", "--delay", "delay", type=DURATION, metavar="DURATION", help="Also move them to this long from now."
)
@click.option("--priority", type=int, metavar="N", help="Also change the priority, in a priority or fair topic.")
@common_options
def update(
    topic: str,
    ids: tuple[str, ...],
    name: UniqueName,
    value: str | None,
    path: str | None,
    headers: tuple[str, ...],
    no_headers: bool,
    at: int | None,
    delay: timedelta | None,
    priority: int | None,
) -> None:
    """Change the value, the headers, or both, of pending messages of TOPIC. Their ids and times stay.

    \b
      sandctl message update orders 01HN7K2B6R0000000001000000 --value '{"order": 18}'
      sandctl message update orders --unique-key order-17 --file order.json --header source=desk
      sandctl message update orders --unique-key order-17 --no-headers --in 10m

    Other parts stay. A message that a group has leased, acked or made dead cannot be updated; a message that waits for
    another attempt can be updated. --at, --in and --priority move the messages in the same step. The outcome of each
    message is printed. The exit code is 1 unless all were updated.
    """
    targets = named(ids, name)
    if value is not None and path is not None:
        raise click.UsageError("--value and --file cannot be used together")
    if headers and no_headers:
        raise click.UsageError("--header and --no-headers cannot be used together")
    if at is not None and delay is not None:
        raise click.UsageError("--at and --in cannot be used together")
    changes: dict[str, Any] = {"deliver_at": at, "delay": delay, "priority": priority}
    changes["headers"] = {} if no_headers else headers_of(headers)
    if value is not None:
        changes["value"] = os.fsencode(value)
    elif path is not None:
        with open_source(path, needed=True) as source:
            changes["value"] = whole(source)
    changes = {name: change for name, change in changes.items() if change is not None}
    if changes.keys().isdisjoint(("value", "headers")):
        raise click.UsageError("say what to change: --value TEXT, --file FILE, --header NAME=VALUE or --no-headers")

    async def change(messages: Messages, target: Target) -> dict[str, Any]:
        return {"outcome": "updated", "offset": await messages.update(**target.arguments, **changes)}

    show_outcomes(targets, run(lambda client: change_each(client, topic, targets, change)), "updated")
