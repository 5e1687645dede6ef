"""`sandctl message cancel` and `move`: change named messages, or all messages of a window."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

import click

from sandctl.options.common import common_options, run
from sandctl.options.confirmation import confirm, need_yes, yes_option
from sandctl.options.names import topic_argument
from sandctl.options.targets import Target, UniqueName, change_each, named_or_window, show_outcomes, unique_key_options
from sandctl.options.times import DURATION, ID, INSTANT, SHIFT, Window, now_ms, window_options
from sandctl.output.progress import Progress
from sandctl.output.results import counted, done

if TYPE_CHECKING:
    from sandq.client import Client, JobResult, Messages

F = TypeVar("F", bound=Callable[..., Any])


def _which_options(command: F) -> F:
    command = click.argument("ids", metavar="[ID]...", nargs=-1, type=ID)(command)
    command = topic_argument()(command)
    for option in reversed(
        (
            unique_key_options,
            window_options("Due", unique=True),
            click.option("--all", "everything", is_flag=True, help="All pending messages."),
            click.option("--dry-run", is_flag=True, help="Only count the messages in the window."),
            yes_option,
        )
    ):
        command = option(command)
    return command


@click.command()
@_which_options
@common_options
def cancel(
    topic: str,
    ids: tuple[str, ...],
    name: UniqueName,
    since: int | None,
    until: int | None,
    key_prefix: str | None,
    unique_key_prefix: str | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
) -> None:
    """Cancel pending messages of TOPIC: they are never delivered.

    \b
      sandctl message cancel orders 01HN7K2B6R0000000001000000
      sandctl message cancel orders --unique-key order-17
      sandctl message cancel orders --unique-key invoice-1 --key customer-7
      sandctl message cancel orders --since now --until +1h --dry-run
      sandctl message cancel orders --key-prefix customer-7 --yes

    A message that a group has leased, acked or made dead cannot be cancelled. A window also leaves out messages that
    wait for a retry. For messages named by ID or key, the outcome of each is printed, and the exit code is 1 unless all
    were cancelled. For a window, the number is printed. Cancelling a window asks first; if you interrupt it, the
    messages already cancelled stay cancelled.
    """
    which = named_or_window(ids, name, everything, Window.of(since, until, key_prefix, unique_key_prefix))
    if isinstance(which, Window):
        _window(topic, which, _Cancel(), dry_run, yes)
        return
    _no_dry_run(dry_run)

    async def change(messages: Messages, target: Target) -> dict[str, Any]:
        found = await messages.cancel(**target.arguments)
        return {"id": found, "outcome": "cancelled"}

    show_outcomes(which, run(lambda client: change_each(client, topic, which, change)), "cancelled")


@click.command(short_help="Move pending messages to another time or priority.")
@_which_options
@click.option("--at", "--deliver-at", "at", type=INSTANT, metavar="INSTANT", help="Move to this instant.")
@click.option("--in", "--delay", "delay", type=DURATION, metavar="DURATION", help="Move to this long from now.")
@click.option("--shift", type=SHIFT, metavar="[+|-]DURATION", help="Move later by this much, or (-1h) earlier.")
@click.option("--priority", type=int, metavar="N", help="Another priority, in a priority or fair topic.")
@common_options
def move(
    topic: str,
    ids: tuple[str, ...],
    name: UniqueName,
    since: int | None,
    until: int | None,
    key_prefix: str | None,
    unique_key_prefix: str | None,
    everything: bool,
    dry_run: bool,
    yes: bool,
    at: int | None,
    delay: timedelta | None,
    shift: timedelta | None,
    priority: int | None,
) -> None:
    """Move pending messages of TOPIC to another time, or give them another priority. Their ids stay.

    \b
      sandctl message move orders 01HN7K2B6R0000000001000000 --at 2030-01-31T08:00:00Z
      sandctl message move orders --unique-key order-17 --in 10m
      sandctl message move orders --since +0s --until +1d --shift +1h --dry-run
      sandctl message move orders --key-prefix customer-7 --shift -30m --yes
      sandctl message move mails 01HN7K2B6R0000000001000000 --priority -5

    With --priority alone, the times of the messages stay. An instant in the past means now. A message that a group has
    leased cannot be moved. For messages named by ID or key, the outcome of each is printed, and the exit code is 1
    unless all were moved. For a window, the number is printed. Moving a window asks first; if you interrupt it, the
    messages already moved stay moved.
    """
    times = sum(value is not None for value in (at, delay, shift))
    if times > 1 or (not times and priority is None):
        raise click.UsageError(
            "say where to move them: one of --at INSTANT, --in DURATION and --shift DURATION; or --priority N"
        )
    which = named_or_window(ids, name, everything, Window.of(since, until, key_prefix, unique_key_prefix))
    if isinstance(which, Window):
        to_ms = at if delay is None else now_ms() + round(delay / timedelta(milliseconds=1))
        _window(topic, which, _Move(to_ms, shift, priority), dry_run, yes)
        return
    _no_dry_run(dry_run)

    async def change(messages: Messages, target: Target) -> dict[str, Any]:
        where_to = await _where_to(messages, target, at, delay, shift)
        ranked: dict[str, Any] = {} if priority is None else {"priority": priority}
        offset = await messages.move(**target.arguments, **where_to, **ranked)
        return {"outcome": "moved", "offset": offset, "deliver_at": _time_of(offset), **ranked}

    show_outcomes(which, run(lambda client: change_each(client, topic, which, change)), "moved")


async def _where_to(
    messages: Messages, target: Target, at: int | None, delay: timedelta | None, shift: timedelta | None
) -> dict[str, Any]:
    if at is not None:
        return {"deliver_at": at}
    if delay is not None:
        return {"delay": delay}
    if shift is None:
        return {}
    from sandq.model.times import LEAST_INSTANT_MS, TIME_MAX_MS

    found = await messages.get(**target.arguments)
    moved_ms = found.deliver_at_ms + shift // timedelta(milliseconds=1)
    return {"deliver_at": min(max(moved_ms, LEAST_INSTANT_MS), TIME_MAX_MS)}


def _time_of(offset: str) -> str:
    from sandq.client import offset_time_ms
    from sandq.model.times import format_instant

    return format_instant(offset_time_ms(offset))


def _no_dry_run(dry_run: bool) -> None:
    if dry_run:
        raise click.UsageError("--dry-run counts the messages of a window; for one message, use `message get`")


class _Cancel:
    """The options and texts of a change to a window."""

    verb = "cancelled"
    question = "Cancel"
    tail = ""

    async def run(self, messages: Messages, arguments: dict[str, Any]) -> JobResult:
        return await messages.cancel_all(**arguments)


class _Move:
    """The options and texts of a move to another time."""

    verb = "moved"
    question = "Move"

    def __init__(self, to_ms: int | None, shift: timedelta | None, priority: int | None) -> None:
        from sandq.model.times import format_duration, format_instant

        given = {"to": to_ms, "shift": shift, "priority": priority}
        self._to: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        self.tail = ""
        if to_ms is not None:
            self.tail = f" to {format_instant(to_ms)}"
        elif shift is not None:
            size = format_duration(abs(shift) // timedelta(milliseconds=1))
            self.tail = f" {size} {'earlier' if shift < timedelta() else 'later'}"
        if priority is not None:
            self.tail += f" to priority {priority}" if not self.tail else f", with priority {priority}"

    async def run(self, messages: Messages, arguments: dict[str, Any]) -> JobResult:
        return await messages.move_all(**self._to, **arguments)


def _window(topic: str, window: Window, job: _Cancel | _Move, dry_run: bool, yes: bool) -> None:
    """Count the messages, ask, change them, and print the result."""

    async def count(client: Client) -> JobResult:
        return await job.run(client.messages(topic), {**window.arguments(), "dry_run": True})

    total: int | None = None
    what = f"of {topic}{window.text('due')}{job.tail}"
    if dry_run:
        matched = run(count).matched
        done(f"{counted(matched, 'message')} {what} would be {job.verb}", {"matched": matched, "dry_run": True})
        return
    if not yes:
        need_yes(f"this may change many messages of {topic}")
        matched = total = run(count).matched
        if not matched:
            done(f"no pending messages {what}", {"matched": 0, "done": 0, "too_late": 0})
            return
        confirm(f"{job.question} {counted(matched, 'message')} {what}?", job.verb)

    async def work(client: Client) -> JobResult:
        with Progress(job.verb, total) as progress:
            return await job.run(client.messages(topic), {**window.arguments(), "progress": progress})

    result = run(work, waits=True)
    late = f"; too late for {result.too_late:,}" if result.too_late else ""
    record = {"matched": result.matched, "done": result.done, "too_late": result.too_late}
    done(f"{job.verb} {result.done:,} of {counted(result.matched, 'message')} {what}{late}", record)
