"""Options that say when a schedule recurs, and what it sends."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from sandctl.options.payload import headers_of
from sandctl.options.times import DURATION, INSTANT, raw

F = TypeVar("F", bound=Callable[..., Any])

CHANGEABLE = (
    *("cron", "every", "zone", "start", "end", "count", "jitter", "misfire", "misfire-most", "overlap-group"),
    *("key", "headers", "ttl", "priority"),
)
"""What `--reset` takes."""

_TIMES = (
    click.option("--cron", metavar="EXPRESSION", help='Five fields, or six with the second first: "0 9 * * MON-FRI".'),
    click.option("--every", type=DURATION, metavar="DURATION", help="Or: every so long."),
    click.option("--zone", metavar="ZONE", help="Of --cron: an IANA time zone, Europe/Berlin.  [default: UTC]"),
    click.option("--start", type=INSTANT, metavar="INSTANT", help="None before; --every counts from it."),
    click.option("--end", type=INSTANT, metavar="INSTANT", help="None at this moment or later."),
    click.option("--jitter", type=DURATION, metavar="DURATION", help="Each is delivered by less than this later."),
)
_MORE = (
    click.option("--count", type=click.IntRange(1), metavar="N", help="It ends after so many."),
    click.option(
        "--misfire",
        type=click.Choice(["one", "skip", "all"]),
        help="What was missed while nobody could fire it becomes one message, none, or one each.  [default: one]",
    ),
    click.option("--misfire-most", type=click.IntRange(1), metavar="N", help="With --misfire all: the last N."),
    click.option("--overlap-group", metavar="GROUP", help="Send none while GROUP has not acked the last one."),
    click.option("--key", help="Of its messages."),
    click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="May be given several times."),
    click.option("--ttl", type=DURATION, metavar="DURATION", help="Of its messages.  [default: the topic's]"),
    click.option("--priority", type=int, metavar="N", help="Of a priority or fair TOPIC: lower goes first."),
)


def time_options(command: F) -> F:
    """When it recurs: `--cron` or `--every`, `--zone`, `--start`, `--end`, `--jitter`."""
    for option in reversed(_TIMES):
        command = option(command)
    return command


def schedule_options(command: F) -> F:
    """All that a schedule is told, but its name and its value."""
    for option in reversed(_MORE):
        command = option(command)
    return time_options(command)


def told(options: Mapping[str, Any]) -> dict[str, Any]:
    """What was given, as the client takes it."""
    given = {name: value for name, value in options.items() if value is not None and name not in ("key", "headers")}
    if (key := raw(options.get("key"))) is not None:
        given["key"] = key
    if (headers := headers_of(options.get("headers", ()))) is not None:
        given["headers"] = headers
    return given
