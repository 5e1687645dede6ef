"""`sandctl message update`: another value, other headers, of named messages."""

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


@click.command(short_help="Give pending messages another value or other headers.")
@topic_argument()
@click.argument("ids", metavar="[ID]...", nargs=-1, type=ID)
@unique_key_options
@click.option("--value", metavar="TEXT", help="Their new value.")
@click.option("--file", "-f", "path", metavar="FILE|-", help="Their new value is in a file; - is standard input.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="Headers in place of theirs.")
@click.option("--no-headers", is_flag=True, help="They have no headers any more.")
@click.option("--at", "--deliver-at", "at", type=INSTANT, metavar="INSTANT", help="Move them to this moment, too.")
@click.option("--in", "--delay", "delay", type=DURATION, metavar="DURATION", help="Move them to so long from now, too.")
@click.option("--priority", type=int, metavar="N", help="And another priority, in a priority or fair topic.")
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
    """Give pending messages of TOPIC another value, other headers, or both; they keep their ids and their places.

    \b
      sandctl message update orders 01HN7K2B6R0000000001000000 --value '{"order": 18}'
      sandctl message update orders --unique-key order-17 --file order.json --header source=desk
      sandctl message update orders --unique-key order-17 --no-headers --in 10m

    What is not given stays as it is. What a group has leased, acked or killed is too late to update; what waits for
    another attempt is not. With --at, --in or --priority they are moved in the same step. The outcome of each is
    printed, and the exit code is 1 unless all were updated.
    """
    targets = named(ids, name)
    if value is not None and path is not None:
        raise click.UsageError("--value and --file: one of them, not both")
    if headers and no_headers:
        raise click.UsageError("--header and --no-headers: one of them, not both")
    if at is not None and delay is not None:
        raise click.UsageError("--at and --in: one of them, not both")
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
