"""Options for a schedule's recurrence and message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

from sandctl.options.payload import headers_of
from sandctl.options.times import DURATION, INSTANT, raw
from sandctl.options.topic_settings import BACKOFF_OPTIONS, message_options, message_rules

F = TypeVar("F", bound=Callable[..., Any])

CHANGEABLE = (
    *("cron", "every", "zone", "start", "end", "count", "jitter", "misfire", "misfire-most", "overlap-group"),
    *("key", "headers", "ttl", "priority", "max-attempts", "backoff", "cost"),
)
"""Names that `--reset` accepts."""

_TIMES = (
    click.option("--cron", metavar="EXPRESSION", help='Five fields, or six with seconds first: "0 9 * * MON-FRI".'),
    click.option("--every", type=DURATION, metavar="DURATION", help="Instead of --cron: the interval."),
    click.option("--zone", metavar="ZONE", help="IANA time zone for --cron, such as Europe/Berlin.  [default: UTC]"),
    click.option("--start", type=INSTANT, metavar="INSTANT", help="No occurrence before this; --every counts from it."),
    click.option("--end", type=INSTANT, metavar="INSTANT", help="No occurrence at this instant or later."),
    click.option(
        "--jitter", type=DURATION, metavar="DURATION", help="Delay each message at random, by less than this."
    ),
)
_MORE = (
    click.option("--count", type=click.IntRange(1), metavar="N", help="End after this many occurrences."),
    click.option(
        "--misfire",
        type=click.Choice(["one", "skip", "all"]),
        help=(
            "For occurrences that were missed because no node could send them: send none, one message for"
            " all, or one each.  [default: one]"
        ),
    ),
    click.option("--misfire-most", type=click.IntRange(1), metavar="N", help="With --misfire all: only the last N."),
    click.option(
        "--overlap-group", metavar="GROUP", help="Skip an occurrence while GROUP has not acked the previous message."
    ),
    click.option("--key", help="Key of its messages."),
    click.option(
        "--header",
        "headers",
        metavar="NAME=VALUE",
        multiple=True,
        help="A header of its messages. May be given several times.",
    ),
    click.option("--ttl", type=DURATION, metavar="DURATION", help="TTL of its messages.  [default: the topic's]"),
    click.option("--priority", type=int, metavar="N", help="Priority in a priority or fair TOPIC: lower goes first."),
)


def time_options(command: F) -> F:
    """Add the options for the recurrence: `--cron` or `--every`, `--zone`, `--start`, `--end`, `--jitter`."""
    for option in reversed(_TIMES):
        command = option(command)
    return command


def schedule_options(command: F) -> F:
    """Add all settings of a schedule except its name and its value."""
    command = message_options()(command)
    for option in reversed(_MORE):
        command = option(command)
    return time_options(command)


def given_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given settings as the client takes them."""
    rules = message_rules(options)
    apart = ("key", "headers", "max_attempts", *BACKOFF_OPTIONS)
    given = {name: value for name, value in options.items() if value is not None and name not in apart}
    given |= {name: rule for name, rule in rules.items() if name in ("max_attempts", "backoff", "cost")}
    if (key := raw(options.get("key"))) is not None:
        given["key"] = key
    if (headers := headers_of(options.get("headers", ()))) is not None:
        given["headers"] = headers
    return given
