"""`sandctl bench`: measure how fast and how punctual a cluster is, as seen by this client."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar

import click

from sandctl.options.common import common_options, run
from sandctl.options.names import topic_option
from sandctl.options.times import DURATION, RATE
from sandctl.output.results import say, show_one
from sandctl.settings import settings

F = TypeVar("F", bound=Callable[..., Any])

MESSAGES = 100_000
MESSAGES_MAX = 5_000_000
DURATION_S = 60
LATENESS_RATE = 200
RATE_S = 10
"""Duration in s of a measurement with a rate and without a number of messages."""
SPARE_S = 2.0
"""Time in s that is added to the time limit of a measurement with a rate, so that all its messages can be sent."""
STAMP_CHARS = 16
"""Minimum size of a message of `lateness`."""


@click.group()
def bench() -> None:
    """Measure how fast and how punctual a cluster is.

    \b
      sandctl bench produce
      sandctl bench lateness --rate 1000 --duration 5s

    Each command creates a topic, and deletes it at the end. After Ctrl-C, it prints the measurements up to then.
    """


def _options(least_size: int) -> Callable[[F], F]:
    options = (
        topic_option("An existing topic, which stays.  [default: a new topic, which is deleted again]"),
        click.option(
            "--partitions",
            type=click.IntRange(1, 4096),
            default=4,
            show_default=True,
            help="Partitions of the new topic.",
        ),
        click.option(
            "--messages",
            type=click.IntRange(1, MESSAGES_MAX),
            metavar="N",
            help="Number of messages, if the time is enough.",
        ),
        click.option(
            "--size",
            type=click.IntRange(least_size, 8 << 20),
            default=100,
            show_default=True,
            metavar="BYTES",
            help="Size of a message.",
        ),
        click.option(
            "--duration", type=DURATION, metavar="DURATION", help=f"End after this time.  [default: {DURATION_S}s]"
        ),
    )

    def add(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def _batch_option(default: int, text: str) -> Callable[[F], F]:
    return click.option(
        "--batch", type=click.IntRange(1, 10_000), default=default, show_default=True, metavar="N", help=text
    )


def _rate_option(text: str, default: float | None = None) -> Callable[[F], F]:
    return click.option(
        "--rate",
        type=RATE,
        default=default,
        show_default=default is not None,
        metavar="R",
        help=text,
    )


@bench.command()
@_options(0)
@_batch_option(1, "Messages per call of the client.")
@_rate_option("Messages per second; latency then counts from the time at which each should be sent.")
@common_options
def produce(**options: Any) -> None:
    """Produce messages as fast as they are stored, or at a rate.

    \b
      sandctl bench produce
      sandctl bench produce --rate 2000 --duration 10s -o json
      sandctl bench produce --batch 1000 --size 1000 --messages 500000

    Latency is the time from the call, or with --rate from the moment at which the message should have been sent, until
    the message is confirmed as stored.
    """
    _measure("produce", options)


@bench.command(short_help="Measure how fast messages are consumed and acked.")
@_options(0)
@_batch_option(1000, "Messages that are stored, and delivered, together.")
@common_options
def consume(**options: Any) -> None:
    """Store messages, then consume and ack them at full speed. Only consuming and acking is measured.

    \b
      sandctl bench consume --messages 200000

    "ack" is the time until the ack of a batch is confirmed. A topic given by --topic must be empty.
    """
    _measure("consume", {**options, "rate": None})


@bench.command(short_help="Measure how late scheduled messages arrive.")
@_options(STAMP_CHARS)
@_rate_option("Messages that become due per second.", LATENESS_RATE)
@common_options
def lateness(**options: Any) -> None:
    """Schedule messages evenly over time, and print how late they arrive. A negative lateness is early.

    \b
      sandctl bench lateness
      sandctl bench lateness --rate 5000 --duration 20s -o json

    Lateness is this machine's clock at arrival minus the requested time. If the node is on another machine, lateness
    includes the difference of the two clocks. A topic given by --topic must be empty.
    """
    _measure("lateness", {**options, "batch": 1})


def _measure(what: str, options: dict[str, Any]) -> None:
    from sandctl.bench_loads import Load, Plan

    duration: timedelta | None = options.pop("duration")
    seconds = float(DURATION_S if duration is None else duration.total_seconds())
    if not seconds:
        raise click.UsageError("--duration: it must be longer than 0")
    messages, rate = options.pop("messages"), options["rate"]
    if messages is None:
        messages = MESSAGES
        if rate is not None:
            messages = max(1, round(rate * (RATE_S if duration is None else seconds)))
            seconds += SPARE_S
        elif duration is not None and what == "produce":
            messages = MESSAGES_MAX
    if messages > MESSAGES_MAX:
        raise click.UsageError(f"{messages:,} messages would be measured; {MESSAGES_MAX:,} is the limit")
    load = Load(what, Plan(messages=messages, duration_s=seconds, **options))
    try:
        run(load.run, waits=True)
    finally:
        # Print the measurements so far, even if the run failed or was interrupted.
        if load.measured.messages:
            if settings().output == "table":
                for line in load.measured.lines():
                    say(line)
            else:
                show_one(load.measured.record())
