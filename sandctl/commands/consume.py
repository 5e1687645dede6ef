"""`sandctl consume`: print messages as a consumer of a group."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from sandctl.options.common import common_options, run
from sandctl.options.names import group_only_option, one_group, topics_argument
from sandctl.options.times import DURATION, EARLIEST, PLACE
from sandctl.output.escaping import value_text
from sandctl.output.jsonl import message_record
from sandctl.output.printing import Printer

if TYPE_CHECKING:
    from sandq.client import Client, LeasedMessage, Leases, Message, Subscription, Topics

CREDIT = 1000
NO_ACK_CREDIT = 10_000
PAUSE_S = 0.02
"""If no message arrives for this time, in s, the server is asked whether messages are ready."""
ASKED_AT_MOST = 50
"""With --no-ack: maximum number of requests in a row to which the server reports ready messages, but none arrives."""


@click.command(short_help="Print and ack messages of topics, as a consumer of a group.")
@topics_argument
@group_only_option
@click.option("--max", "maximum", type=click.IntRange(1), metavar="N", help="Wait for N messages, then exit.")
@click.option("--follow", is_flag=True, help="Continue until interrupted.")
@click.option("--no-ack", is_flag=True, help="Do not ack: at the end the messages are released to the group.")
@click.option("--lease", type=DURATION, metavar="DURATION", help="Time of the leases.  [default: the topic's]")
@click.option(
    "--start",
    type=PLACE,
    default=EARLIEST,
    show_default=True,
    metavar="PLACE",
    help="Start of a new group: earliest, latest, an instant, or an offset.",
)
@click.option(
    "--consumer-id",
    metavar="NAME",
    help="A persistent name: after a crash, a consumer with the same name gets its messages back at once.",
)
@click.option(
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    metavar="N",
    help="Take messages of this partition only; may be repeated.  [default: all]",
)
@common_options
def consume(
    topics: tuple[str, ...],
    group_given: str | None,
    maximum: int | None,
    follow: bool,
    no_ack: bool,
    lease: timedelta | None,
    start: str | int,
    consumer_id: str | None,
    partitions: tuple[int, ...],
) -> None:
    """Print messages of TOPIC as a consumer of a group, and ack each once it is printed.

    Without --max and --follow it prints the messages that are ready now, then exits. Each message is printed as its
    bytes and a line feed; on a terminal, control characters are escaped. A deletion in a compacted topic is printed as
    "(deleted: KEY)". With -o jsonl, each message is an object that `produce --jsonl` accepts.

    \b
      sandctl consume orders billing
      sandctl consume orders --group audit --start -1h --follow -o jsonl
      sandctl consume orders refunds --group desk
      sandctl consume 'orders.*' --group desk --follow

    GROUP is the last word, unless --group names it. TOPIC is a name, or a pattern: "*" stands for any characters, "?"
    for one, "[ab]" for one of them. With --follow and --max it also subscribes to new topics that match a pattern.

    With --no-ack it ends after 10,000 messages at the latest. If the group exists, --start has no effect: use `group
    seek`.
    """
    group_named = topics[-1] if group_given is None and len(topics) > 1 else None
    group = one_group(group_named, group_given)
    topics = topics if group_named is None else topics[:-1]
    if maximum is not None and follow:
        raise click.UsageError("--max and --follow: only one of them")
    if no_ack and maximum is not None and maximum > NO_ACK_CREDIT:
        raise click.UsageError(f"--no-ack holds {NO_ACK_CREDIT:,} messages at most")
    if partitions and not isinstance(topics_of(topics), str):
        raise click.UsageError("--partition: it needs a single topic, and several are named")
    wanted = math.inf if maximum is None else maximum
    credit = int(min(wanted, NO_ACK_CREDIT if no_ack else CREDIT))

    async def work(client: Client) -> None:
        chosen = partitions or None
        async with client.subscribe(
            topics_of(topics),
            group=group,
            credit=credit,
            lease=lease,
            start=start,
            consumer_id=consumer_id,
            partitions=chosen,
        ) as subscription:
            if follow or maximum is not None:
                source = _as_they_come(subscription)
            elif no_ack:
                source = _until_the_group_has_none(subscription, client, group, chosen)
            else:
                leases = [client.leases(topic, group) for topic in subscription.topics]
                options = {"wait": 0, "lease": lease, "start": start, "partitions": chosen}
                source = _until_none_can_be_leased(subscription, leases, options)
            limit = min(wanted, NO_ACK_CREDIT) if no_ack else wanted
            taken = await _print_messages(source, limit, ack=not no_ack)
        if no_ack and taken == NO_ACK_CREDIT and maximum is None:
            click.echo(f"sandctl: stopped after {taken:,} messages, none of them acked", err=True)

    run(work, waits=True)


def topics_of(names: tuple[str, ...]) -> Topics:
    """Return the topics to subscribe to. If one name has wildcards, all names are patterns."""
    if not any(char in name for name in names for char in "*?["):
        return names[0] if len(names) == 1 else names
    from sandq.client import pattern

    return pattern(*names)


_Found = tuple["Message | LeasedMessage", Callable[[], Awaitable[None]]]
"""A message, and the function that acks it."""


async def _print_messages(source: AsyncGenerator[_Found, None], limit: float, *, ack: bool) -> int:
    """Return the number of printed messages: `limit`, or fewer if `source` ends."""
    printer = Printer()
    escapes = sys.stdout.isatty()
    count = 0
    try:
        async with contextlib.aclosing(source):
            async for message, settle in source:
                await printer.show(partial(message_record, message), partial(_text, message, escapes))
                if ack:
                    await settle()
                count += 1
                if count >= limit:
                    break
    finally:
        await printer.close()
    return count


def _text(message: Message | LeasedMessage, escapes: bool) -> bytes:
    """Return the text of a message for people: its value; for a deletion, its key."""
    if message.deleted:
        return b"(deleted: %b)\n" % value_text(message.key or b"")
    return (value_text(message.value) if escapes else message.value) + b"\n"


async def _as_they_come(subscription: Subscription) -> AsyncGenerator[_Found, None]:
    async for message in subscription:
        yield message, _acking(message)


async def _until_none_can_be_leased(
    subscription: Subscription, leases: list[Leases], options: dict[str, Any]
) -> AsyncGenerator[_Found, None]:
    """Yield the messages that are ready now. The subscription holds them and extends their leases.

    When nothing arrives, try to lease one more message: the answer shows for certain whether a message is ready. Pushed
    messages arrive before this answer."""
    while True:
        while (message := await _next(subscription, PAUSE_S)) is not None:
            yield message, _acking(message)
        is_any = False
        for of_topic in leases:
            for taken in await of_topic.take(1, **options):
                is_any = True
                yield taken, partial(_ack_taken, of_topic, taken)
        if is_any:
            continue
        message = subscription.take_arrived()
        if message is not None:
            yield message, _acking(message)
        elif not subscription.has_arrived:
            return


async def _until_the_group_has_none(
    subscription: Subscription, client: Client, group: str, partitions: tuple[int, ...] | None
) -> AsyncGenerator[_Found, None]:
    """Yield messages without acking, until the group has none.

    The row of the group shows whether messages are ready. A lease would show it, too, but would count an attempt. Also
    end if ready messages do not arrive, because the group is stopped or other consumers receive them.
    """
    asked = 0
    while True:
        while (message := await _next(subscription, PAUSE_S)) is not None:
            asked = 0
            yield message, _acking(message)
        rows = [
            row
            for topic in subscription.topics
            for row in await client.admin.groups(topic)
            if row.get("group") == group and (partitions is None or row.get("partition") in partitions)
        ]
        asked += 1
        message = subscription.take_arrived()
        if message is not None:
            yield message, _acking(message)
        elif subscription.has_arrived:
            continue  # yield the message only after the broker has noted that its handling begins
        elif asked >= ASKED_AT_MOST or not any(row.get("ready") for row in rows):
            return


def _acking(message: Message) -> Callable[[], Awaitable[None]]:
    async def settle() -> None:
        message.ack()  # this only queues the ack; the end of the subscription waits for its confirmation

    return settle


async def _ack_taken(leases: Leases, message: LeasedMessage) -> None:
    await leases.ack([message])


async def _next(subscription: Subscription, wait_s: float) -> Message | None:
    """Return the next message; None if none arrives in time."""
    import anyio

    with anyio.move_on_after(wait_s):
        return await subscription.__anext__()
    return None
