"""`sandctl message list`, `get` and `why`. `cancel` and `move` are in `sandctl.commands.message_changes`, `update` is
in `sandctl.commands.message_update`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sandctl.commands.message_changes import cancel, move
from sandctl.commands.message_update import update
from sandctl.options.common import common_options, run
from sandctl.options.names import topic_argument
from sandctl.options.targets import UniqueName, one, unique_key_options
from sandctl.options.times import ID, Window, limit_option, newest_option, now_ms, window_options
from sandctl.output.records import biography_record, key_cell, stored_record, value_cell, when, without_long_value
from sandctl.output.results import say, show_one, show_stream
from sandctl.settings import settings

if TYPE_CHECKING:
    from sandq.client import Client, StoredMessage

STATES = ("delayed", "ready", "leased", "waiting", "acked")


@click.group()
def message() -> None:
    """Look at stored messages; cancel, move and update pending ones.

    Name a message by its ID or by the unique key that its producer gave it. An ID has 26 characters; `produce` and
    `message list` print it, and it stays when the message moves. With a unique key, also give the message's key if it
    has one, and its tenant in a fair topic.
    """


@message.command("list")
@topic_argument()
@click.option(
    "--state",
    type=click.Choice(STATES),
    help="Only messages in this state, in any group. For dead ones, see `dead list`.",
)
@window_options("Due", unique=True)
@click.option("--values", is_flag=True, help="Also show values.")
@newest_option
@limit_option
@common_options
def list_(
    topic: str,
    state: str | None,
    since: int | None,
    until: int | None,
    key_prefix: str | None,
    unique_key_prefix: str | None,
    values: bool,
    newest: bool,
    limit: int | None,
) -> None:
    """List messages of TOPIC in order of time, from all its partitions.

    \b
      sandctl message list orders --state delayed --until +1h
      sandctl message list orders --until now --newest --limit 20
      sandctl message list orders --key-prefix customer-7 --values -o jsonl > saved.jsonl

    With --values -o jsonl each line is valid input of `produce --jsonl`. An INSTANT is 2030-01-31T08:00:00Z, epoch
    milliseconds, or a duration from now with its sign: +5m, -1h.
    """
    window = Window.of(since, until, key_prefix, unique_key_prefix)
    columns: dict[str, Any] = {
        "ID": lambda row: row.id,
        "STATE": lambda row: row.state,
        "DELIVER AT": lambda row: when(row.deliver_at_ms),
        "KEY": lambda row: key_cell(row.key),
        "UNIQUE KEY": lambda row: key_cell(row.unique_key),
        "BYTES": lambda row: row.size,
        **({"VALUE": lambda row: value_cell(row.value)} if values else {}),
    }

    async def work(client: Client) -> None:
        asked = None if limit is None else limit + 1
        which = {"state": state, **window.arguments()}
        rows = client.messages(topic).list(**which, limit=asked, values=values, newest=newest)
        await show_stream(rows, lambda row: stored_record(row, value=values), columns, limit)

    run(work)


@message.command()
@topic_argument()
@click.argument("message_id", metavar="ID", type=ID, required=False)
@unique_key_options
@common_options
def get(topic: str, message_id: str | None, name: UniqueName) -> None:
    """Show one message of TOPIC, with its value.

    \b
      sandctl message get orders 01HN7K2B6R0000000001000000
      sandctl message get orders --unique-key order-17 -o json
      sandctl message get orders --unique-key invoice-1 --key customer-7

    The table cuts a long value short; -o json prints all of it.
    """
    target = one(message_id, name)

    async def work(client: Client) -> StoredMessage:
        return await client.messages(topic).get(**target.arguments)

    record = stored_record(run(work), value=True)
    show_one(without_long_value(record) if settings().output == "table" else record)


@message.command(short_help="Explain why a message was delivered or not.")
@topic_argument()
@click.argument("message_id", metavar="ID", type=ID, required=False)
@unique_key_options
@common_options
def why(topic: str, message_id: str | None, name: UniqueName) -> None:
    """Show the history of one message of TOPIC: why it was delivered, or why not.

    \b
      sandctl message why orders --unique-key order-17

    The history says when the message was created, moved and due. For each group it lists each attempt (who, how it
    ended), who holds the message until when, and what the message waits for.
    """
    target = one(message_id, name)

    async def work(client: Client) -> dict[str, Any]:
        return await client.messages(topic).why(**target.arguments)

    found = run(work)
    if settings().output != "table":
        show_one(biography_record(found))
        return
    from sandctl.output.biography import biography

    for line in biography(found, topic, now_ms()):
        say(line)


message.add_command(cancel)
message.add_command(move)
message.add_command(update)
