"""`sandctl lease`: take messages of a group, and settle messages that any consumer has leased."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from sandctl.options.common import common_options, run
from sandctl.options.names import group_only_option, group_option, one_group, topic_argument
from sandctl.options.targets import Target, UniqueName, change_each, named, show_outcomes, unique_key_options
from sandctl.options.times import DURATION, EARLIEST, ID, PLACE
from sandctl.output.jsonl import message_record
from sandctl.output.records import key_cell, value_cell, when
from sandctl.output.results import show_rows, text_of
from sandctl.settings import settings

if TYPE_CHECKING:
    from sandq.client import Client, Held, LeasedMessage, Leases, Messages

F = TypeVar("F", bound=Callable[..., Any])

_COLUMNS = ("ID", "LEASE TOKEN", "ATTEMPT", "HELD UNTIL", "KEY", "VALUE")


@click.group(short_help="Lease messages of a group; ack, nack, extend, give back.")
def lease() -> None:
    """Take messages of a group. Ack, nack or bury leased messages, give them back, or hold them longer.

    Name a message by its ID or its unique key. Any consumer may hold the message: if you settle it, this consumer
    learns that its lease is lost. `message why` says which consumer holds it. --lease-token means every message under
    one lease.
    """


@lease.command(short_help="Lease ready messages, and print them with their tokens.")
@topic_argument()
@group_option
@click.option("--max", "maximum", type=click.IntRange(1, 1000), default=1, show_default=True, metavar="N")
@click.option(
    "--wait", type=DURATION, default="0", metavar="DURATION", help="How long to wait if nothing is ready; 1m at most."
)
@click.option(
    "--lease", "held_for", type=DURATION, metavar="DURATION", help="Length of the leases.  [default: the topic's]"
)
@click.option(
    "--start",
    type=PLACE,
    default=EARLIEST,
    show_default=True,
    metavar="PLACE",
    help="Where a new group begins: earliest, latest, an instant, or an offset.",
)
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    metavar="N",
    help="Take from this partition only. May be repeated.  [default: all]",
)
@common_options
def take(
    topic: str,
    group: str,
    maximum: int,
    wait: timedelta,
    held_for: timedelta | None,
    start: str | int,
    partitions: tuple[int, ...],
) -> None:
    """Lease ready messages, N at most, and print them with their lease tokens.

    \b
      sandctl lease take orders --group billing --max 5 --lease 10m
      sandctl lease take orders -g billing --wait 30s -o jsonl > leased.jsonl

    These leases are not extended automatically. A message that is not settled in time is delivered again, and the
    attempt counts. The exit code is 0 even if nothing was ready.
    """

    async def work(client: Client) -> tuple[list[LeasedMessage], list[int]]:
        leases = client.leases(topic, group)
        chosen = partitions or None
        found = await leases.take(maximum, wait=wait, lease=held_for, start=start, partitions=chosen)
        return list(found), found.without_leader

    found, without_leader = run(work, waits=bool(wait))
    if settings().output == "table":
        rows = [dict(zip(_COLUMNS, _cells(one), strict=True)) for one in found]
        show_rows(rows, {name: name for name in _COLUMNS})
    else:
        show_rows([message_record(one) for one in found], {})
    if without_leader:
        names = text_of(without_leader)
        click.echo(f"sandctl: skipped, because they have no leader now: partitions {names}", err=True)


def _cells(one: LeasedMessage) -> list[object]:
    value = "(deleted)" if one.deleted else value_cell(one.value)
    return [one.id, one.lease_token, one.attempt, when(one.lease_until_ms), key_cell(one.key), value]


def _which_messages(command: F) -> F:
    """Give a command the messages to settle, as `chosen`."""

    @wraps(command)
    def with_chosen(
        *,
        topic: str,
        group_given: str | None,
        ids: tuple[str, ...],
        name: UniqueName,
        tokens: tuple[str, ...],
        **others: Any,
    ) -> Any:
        if group_given is None and ids:
            group_named, *ids_left = ids
        else:
            group_named, ids_left = None, [*ids]
        group = one_group(group_named, group_given)
        context = click.get_current_context()
        ids = tuple(ID.convert(one_id, None, context) for one_id in ids_left)
        return command(chosen=_Chosen(topic, group, ids, name, tokens), **others)

    options = click.option(
        "--lease-token",
        "tokens",
        metavar="TOKEN",
        multiple=True,
        help="All messages under this lease. May be repeated.",
    )(with_chosen)
    options = click.argument("ids", metavar="[GROUP] [ID]...", nargs=-1)(unique_key_options(options))
    return cast("F", topic_argument()(group_only_option(options)))


@lease.command()
@_which_messages
@common_options
def ack(
    chosen: _Chosen,
) -> None:
    """Ack messages: the group does not get them again.

    \b
      sandctl lease ack orders 01HN7K2B6R0000000001000000 --group billing

    The outcome of each message is printed. The exit code is 1 unless all were acked.
    """
    chosen.settle("acked", lambda leases, held: leases.ack([held]))


@lease.command(short_help="Return messages for another attempt.")
@_which_messages
@click.option(
    "--in",
    "--delay",
    "delay",
    type=DURATION,
    metavar="DURATION",
    help="Deliver again after this time.  [default: the back-off]",
)
@click.option("--error", metavar="TEXT", help="The reason; `message why` and dead letters show it.")
@click.option("--no-count", is_flag=True, help="Snooze: do not count the attempt. Allowed max_snoozes times.")
@common_options
def nack(
    chosen: _Chosen,
    delay: timedelta | None,
    error: str | None,
    no_count: bool,
) -> None:
    """Nack messages: they are delivered again after the back-off or after --in. After the last attempt they become dead
    letters.

    \b
      sandctl lease nack orders 01HN7K2B6R0000000001000000 --group billing --in 10m --error closed
      sandctl lease nack orders --unique-key order-17 --group billing --in 1h --no-count

    The outcome of each message is printed. The exit code is 1 unless all were nacked.
    """
    terms: dict[str, Any] = {"delay": delay, "error": error, "count": not no_count}
    chosen.settle("nacked", lambda leases, held: leases.nack([held], **terms))


@lease.command(short_help="Turn messages into dead letters now.")
@_which_messages
@click.option("--error", metavar="TEXT", help="The reason; their dead letters show it.")
@common_options
def dead(
    chosen: _Chosen,
    error: str | None,
) -> None:
    """Turn messages into dead letters of the group now, with the reason "rejected", even if they have attempts left.

    \b
      sandctl lease dead orders 01HN7K2B6R0000000001000000 --group billing --error "410 gone"

    The outcome of each message is printed. The exit code is 1 unless all are dead.
    """
    chosen.settle("dead", lambda leases, held: leases.dead([held], error))


@lease.command("give-back", short_help="Return messages unprocessed; the attempt does not count.")
@_which_messages
@click.option(
    "--in", "--delay", "delay", type=DURATION, metavar="DURATION", help="Deliver again after this time.  [default: now]"
)
@click.option("--error", metavar="TEXT", help="Why they wait; `message why` shows it.")
@common_options
def give_back(
    chosen: _Chosen,
    delay: timedelta | None,
    error: str | None,
) -> None:
    """Return messages that were not processed: they are ready again now, or after --in. Neither the attempt nor a
    snooze counts.

    \b
      sandctl lease give-back orders 01HN7K2B6R0000000001000000 --group billing
      sandctl lease give-back orders 01HN7K2B6R0000000001000000 --group billing --in 10s

    The outcome of each message is printed. The exit code is 1 unless all were given back.
    """
    chosen.settle("given back", lambda leases, held: leases.give_back([held], delay=delay, error=error))


@lease.command(short_help="Extend the leases of messages.")
@_which_messages
@click.option(
    "--for",
    "held_for",
    type=DURATION,
    required=True,
    metavar="DURATION",
    help="New end of the leases, counted from now.",
)
@common_options
def extend(
    chosen: _Chosen,
    held_for: timedelta,
) -> None:
    """Extend the leases of these messages, with every other message under the same leases, until DURATION from now.

    \b
      sandctl lease extend orders 01HN7K2B6R0000000001000000 --group billing --for 10m

    The outcome of each message is printed. The exit code is 1 unless all were extended.
    """

    async def do(leases: Leases, held: Held) -> Sequence[Any]:
        return [one for one in await leases.extend([held], held_for) if one is None]

    chosen.settle("extended", do)


class _UnderLease(Target):
    """All messages under a lease; `id` is the lease token."""

    @property
    def name(self) -> str:
        return f"lease {self.id}"

    @property
    def record(self) -> dict[str, Any]:
        return {"lease_token": self.id}


class _Chosen:
    """The messages that a command settles."""

    def __init__(
        self,
        topic: str,
        group: str,
        ids: Sequence[str],
        name: UniqueName,
        tokens: Sequence[str],
    ) -> None:
        """Return the messages to settle. Raises UsageError unless they are given in exactly one way."""
        self._topic = topic
        self._group = group
        if bool(ids) + name.is_given + bool(tokens) != 1:
            raise click.UsageError("name the messages in one way: ID..., --unique-key K, or --lease-token TOKEN")
        if not tokens:
            self._targets = named(ids, name)
            return
        name.check()
        from sandq.errors import InvalidRequest
        from sandq.model.offsets import parse_lease

        for token in tokens:
            try:
                parse_lease(token)
            except InvalidRequest as error:
                raise click.UsageError(f"--lease-token: {error.message}") from None
        self._targets = [_UnderLease(token, None) for token in dict.fromkeys(tokens)]

    def settle(self, wanted: str, do: Callable[[Leases, Held], Awaitable[Sequence[Any]]]) -> None:
        """Settle each message and print the outcomes; `do` returns the messages whose lease was lost."""

        async def work(client: Client) -> list[dict[str, Any]]:
            leases = client.leases(self._topic, self._group)

            async def change(messages: Messages, target: Target) -> dict[str, Any]:
                found = await _held(messages, self._group, target)
                if isinstance(found, str):
                    return {"outcome": "not_leased", "state": found}
                return {"outcome": "lost" if await do(leases, found) else wanted.replace(" ", "_")}

            return await change_each(client, self._topic, self._targets, change)

        show_outcomes(self._targets, run(work), wanted.replace(" ", "_"))


async def _held(messages: Messages, group: str, target: Target) -> Held | str:
    """Return the reference by which to settle a message, or its state in the group if the group has not leased it."""
    from sandq.client import Held
    from sandq.errors import UnknownGroup

    if isinstance(target, _UnderLease):
        return Held(str(target.id))
    found = await messages.why(**target.arguments)
    row = next((row for row in found["groups"] if row["group"] == group), None)
    if row is None:
        raise UnknownGroup(f"topic {messages.topic!r} has no group {group!r}; `sandctl group list` lists its groups")
    if row.get("lease_token") is None:
        return str(row["state"])
    return Held(row["lease_token"], found["offset"])
