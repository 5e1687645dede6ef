"""`sandctl consume`: print messages as a consumer of a group."""

from __future__ import annotations

import math
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

import click

from sandctl.jsonl import message_record
from sandctl.output import to_json
from sandctl.settings import common_options, run, settings
from sandctl.times import DURATION, EARLIEST, PLACE

if TYPE_CHECKING:
    from sandq.client import Client, Message, Subscription

CREDIT = 1000
NO_ACK_CREDIT = 10_000
FIRST_QUIET_S = 1.0
QUIET_S = 0.5


@click.command()
@click.argument("topic")
@click.option("--group", "-g", required=True, help="The consumer group.")
@click.option("--max", "maximum", type=click.IntRange(1), metavar="N", help="Wait for N messages, then exit.")
@click.option("--follow", is_flag=True, help="Go on until interrupted.")
@click.option("--no-ack", is_flag=True, help="Look only: at the end the messages are given back to the group.")
@click.option("--lease", type=DURATION, metavar="DURATION", help="How long messages are held.  [default: the topic's]")
@click.option(
    "--start",
    type=PLACE,
    default=EARLIEST,
    show_default=True,
    metavar="PLACE",
    help="Where a new group begins: earliest, latest, an instant, or an offset.",
)
@common_options
def consume(
    topic: str, group: str, maximum: int | None, follow: bool, no_ack: bool, lease: timedelta | None, start: str | int
) -> None:
    """Print messages of TOPIC as a consumer of a group, and ack each once it is printed.

    Without --max and --follow: what is ready now; it ends when no message came for half a second (for the first one it
    waits a second). Each message is printed as its bytes and a line feed; with -o jsonl as an object that
    `produce --jsonl` takes.

    \b
      sandctl consume orders --group billing
      sandctl consume orders --group audit --start -1h --follow -o jsonl

    With --no-ack at most 10,000 messages are held, and it ends there. --start of a group that is there already does
    nothing: see `group seek`.
    """
    if maximum is not None and follow:
        raise click.UsageError("--max and --follow: one of them, not both")
    if no_ack and maximum is not None and maximum > NO_ACK_CREDIT:
        raise click.UsageError(f"--no-ack holds {NO_ACK_CREDIT:,} messages at most")
    wanted = math.inf if maximum is None else maximum
    credit = int(min(wanted, NO_ACK_CREDIT if no_ack else CREDIT))

    async def work(client: Client) -> None:
        async with client.subscribe(topic, group=group, credit=credit, lease=lease, start=start) as subscription:
            quiet = not follow and maximum is None
            limit = min(wanted, NO_ACK_CREDIT) if no_ack else wanted
            taken = await _print_messages(subscription, limit, quiet=quiet, ack=not no_ack)
        if no_ack and taken == NO_ACK_CREDIT and maximum is None:
            click.echo(f"sandctl: stopped after {taken:,} messages, which nobody acked", err=True)

    run(work)


async def _print_messages(subscription: Subscription, limit: float, *, quiet: bool, ack: bool) -> int:
    """How many were printed: `limit`, or fewer when it is to end once it is quiet."""
    printer = _Printer()
    count = 0
    try:
        while count < limit:
            message = await _next(subscription, (QUIET_S if count else FIRST_QUIET_S) if quiet else math.inf)
            if message is None:
                break
            await printer.message(message)
            if ack:
                message.ack()
            count += 1
    finally:
        await printer.close()
    return count


async def _next(subscription: Subscription, wait_s: float) -> Message | None:
    """The next message; None when none comes for so long."""
    import anyio

    with anyio.move_on_after(wait_s):
        return await subscription.__anext__()
    return None


class _Printer:
    """Prints messages in the chosen output."""

    def __init__(self) -> None:
        from sandctl.streams import Writer

        self._writer = Writer(sys.stdout.buffer)
        self._output = settings().output
        self._count = 0
        self._whole = True

    async def message(self, message: Message) -> None:
        """Out of this process when it returns."""
        if self._output == "table":
            data = message.value + b"\n"
        else:
            data = to_json(message_record(message)).encode("utf-8", "surrogatepass")
            data = data + b"\n" if self._output == "jsonl" else (b",\n  " if self._count else b"[\n  ") + data
        self._whole = False
        await self._writer.write(data)
        self._whole = True
        self._count += 1

    async def close(self) -> None:
        """End a JSON array; not after half a message."""
        if self._output == "json" and self._whole:
            import anyio

            with anyio.CancelScope(shield=True), anyio.move_on_after(1):
                await self._writer.write(b"\n]\n" if self._count else b"[]\n")
