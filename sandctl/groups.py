"""`sandctl group`: the consumer groups of a topic."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sandctl.output import show_rows
from sandctl.settings import common_options, run

if TYPE_CHECKING:
    from sandq.client import Client

_COLUMNS = {
    "group": "GROUP",
    "partition": "PARTITION",
    "cursor": "CURSOR",
    "committed": "COMMITTED",
    "leased": "LEASED",
    "waiting": "WAITING",
    "dead": "DEAD",
    "reason": "STOPPED BECAUSE",
}


@click.group()
def group() -> None:
    """Look at consumer groups."""


@group.command("list")
@click.argument("topic")
@common_options
def list_(topic: str) -> None:
    """List the groups of TOPIC, a row for each partition.

    CURSOR is the last offset that was leased, COMMITTED the lowest that is not acked.
    """

    async def work(client: Client) -> list[dict[str, Any]]:
        return await client.admin.groups(topic)

    show_rows(run(work), _COLUMNS)
