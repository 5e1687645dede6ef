"""`sandctl produce`: send one message, a message per line, or a JSON object per line."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from sandctl.options.common import common_options, run
from sandctl.options.names import topic_argument
from sandctl.options.payload import as_json, headers_of, open_source, whole
from sandctl.options.push_target import target_of, target_options
from sandctl.options.times import DURATION, INSTANT, RATE, now_ms, raw
from sandctl.options.topic_settings import message_options, message_rules
from sandctl.output.jsonl import LINE_BYTES_MAX, BadLine, parse_line
from sandctl.output.progress import Progress
from sandctl.output.results import counted, to_json
from sandctl.pacing import Pacer
from sandctl.settings import settings

if TYPE_CHECKING:
    from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

    from sandq.client import Client, Producer, Receipt, SendOptions

_UNCONFIRMED = 10_000  # maximum number of receipts that wait to be printed


@click.command(short_help="Send messages, and print the offset of each.")
@topic_argument()
@click.argument("payload", required=False)
@click.option("--file", "-f", "path", metavar="FILE|-", help="Read the messages from a file; - is standard input.")
@click.option("--lines", is_flag=True, help="Each line is a message, without its line end.")
@click.option("--jsonl", is_flag=True, help="Each line is a JSON object; see below.")
@click.option("--json", "is_json", is_flag=True, help="The message is JSON: check it, and show it as JSON.")
@click.option("--key", help="Messages with the same key go to the same partition.")
@click.option("--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header. May be given several times.")
@click.option(
    "--at", "--deliver-at", "at", type=INSTANT, metavar="INSTANT", help="Deliver at this instant, not before."
)
@click.option("--in", "--delay", "delay", type=DURATION, metavar="DURATION", help="Deliver after this delay.")
@click.option(
    "--ttl",
    type=DURATION,
    metavar="DURATION",
    help="Becomes a dead letter if no consumer receives it within this time after it is due.  [default: the topic's]",
)
@click.option(
    "--unique-key",
    metavar="K",
    help="Only one pending message may have this unique key: per key, or without --key in the whole of TOPIC.",
)
@click.option(
    "--on-conflict",
    type=click.Choice(["reject", "replace", "replace_pending", "ignore", "debounce", "throttle"]),
    default="reject",
    show_default=True,
    help=(
        "If the unique key is taken: fail; replace (cancel the other message, or send beside a "
        "settled one); replace-pending (cancel it or fail); ignore (keep the other one); debounce (cancel it, "
        "or send beside one that a group holds or settled); or throttle (send one in a --window). -o json prints the "
        "outcome."
    ),
)
@click.option(
    "--max-wait",
    type=DURATION,
    metavar="DURATION",
    help="With debounce: deliver at most this long after the first message of the series.  [default: no limit]",
)
@click.option(
    "--window", type=DURATION, metavar="DURATION", help="With throttle: send at most one message in this time."
)
@click.option(
    "--edge",
    type=click.Choice(["leading", "both"]),
    help="With throttle: the first message of a window; or both: also the newest of the others, at the end of the "
    "window.  [default: leading]",
)
@click.option("--priority", type=int, metavar="N", help="Of a priority or fair TOPIC: lower goes first.  [default: 0]")
@click.option(
    "--tenant", metavar="NAME", help="Of a fair TOPIC: the tenant whose share the message uses.  [default: default]"
)
@message_options()
@target_options
@click.option("--partition", type=click.IntRange(0), help="Send to this partition.")
@click.option("--count", type=click.IntRange(1), metavar="N", help="Send the message N times.")
@click.option(
    "--rate",
    type=RATE,
    metavar="R",
    help="Messages a second; with --count, --lines or --jsonl.",
)
@common_options
def produce(
    topic: str,
    payload: str | None,
    path: str | None,
    lines: bool,
    jsonl: bool,
    is_json: bool,
    key: str | None,
    headers: tuple[str, ...],
    at: int | None,
    delay: timedelta | None,
    ttl: timedelta | None,
    unique_key: str | None,
    on_conflict: str,
    max_wait: timedelta | None,
    window: timedelta | None,
    edge: str | None,
    priority: int | None,
    tenant: str | None,
    partition: int | None,
    count: int | None,
    rate: float | None,
    **more: Any,
) -> None:
    """Send messages to TOPIC, and print the offset of each once it is stored.

    PAYLOAD is one message. --file is also one message, unless --lines or --jsonl say that it holds many. With these,
    standard input is read if no file is named.

    \b
      sandctl produce orders '{"order": 17}' --json --key customer-7 --in 2h
      sandctl produce orders "call Ada" --unique-key ada --on-conflict replace --at +1d
      sandctl produce index page-7 --unique-key page-7 --on-conflict debounce --in 5s --max-wait 1m
      sandctl produce alarms "full" --unique-key disk --on-conflict throttle --window 1m --edge both
      sandctl produce orders tick --count 600 --rate 10
      sandctl produce calls '{"user": 7}' --json --in 1d --push-url https://shop.example/remind
      sandctl produce invoices 4711 --max-attempts 20 --backoff linear --backoff-first 30s
      sandctl consume orders -g copy -o jsonl | sandctl produce archive --jsonl

    --json adds the header content-type: application/json, so that consumers show the value as JSON.

    A JSON object has the value as "text", as "value" (base64) or as "json". In a compacted topic a "value" of null
    deletes the key. The object may also have "key", "headers", "deliver_at" or "delay", "ttl", "priority", "tenant",
    "max_attempts", "backoff", "cost", "push" and "unique_key"; use "key_base64" and "unique_key_base64" for bytes that
    are not text. `consume -o jsonl` prints such objects. --key, --header, --at, --in, --ttl, --priority, --tenant,
    --max-attempts, --backoff..., --cost and --push-... apply to the objects that do not have these fields.
    """
    is_many = lines or jsonl
    _check_alternatives(lines=lines, jsonl=jsonl, at=at, delay=delay)
    _check_rule(on_conflict, max_wait=max_wait, window=window, edge=edge)
    _check_source(payload, path, is_many=is_many)
    if is_many:
        _check_many(is_json=is_json, unique_key=unique_key, count=count)
    else:
        _check_one(unique_key=unique_key, count=count, rate=rate)
    given: SendOptions = {
        "key": raw(key),
        "headers": headers_of(headers),
        "deliver_at": at,
        "delay": delay,
        "ttl": ttl,
        "unique_key": raw(unique_key),
        "on_conflict": on_conflict,
        "max_wait": max_wait,
        "window": window,
        "edge": edge,
        "priority": priority,
        "tenant": tenant,
        "partition": partition,
        "push": target_of(more),
    }
    common: dict[str, Any] = {name: value for name, value in given.items() if value is not None} | message_rules(more)
    with open_source(path, needed=payload is None) as source:
        if is_many:
            run(lambda client: _send_lines(client, topic, source, jsonl, common, rate), waits=True)
            return
        value = os.fsencode(payload) if payload is not None else whole(source)
        if is_json:
            value, common["headers"] = as_json(value, common.get("headers"))
    _produce_value(topic, value, common, rate, count)


def _check_alternatives(*, lines: bool, jsonl: bool, at: int | None, delay: timedelta | None) -> None:
    """Raise UsageError if both of two options are given of which only one may be."""
    if lines and jsonl:
        raise click.UsageError("--lines and --jsonl cannot be used together")
    if at is not None and delay is not None:
        raise click.UsageError("--at and --in cannot be used together")


def _check_rule(on_conflict: str, *, max_wait: timedelta | None, window: timedelta | None, edge: str | None) -> None:
    """Raise UsageError if an option of another rule is given, or the window of throttle is not given."""
    if max_wait is not None and on_conflict != "debounce":
        raise click.UsageError("--max-wait is for --on-conflict debounce")
    if on_conflict == "throttle":
        if window is None:
            raise click.UsageError("--on-conflict throttle needs --window")
    elif window is not None or edge is not None:
        raise click.UsageError("--window and --edge are for --on-conflict throttle")


def _check_source(payload: str | None, path: str | None, *, is_many: bool) -> None:
    """Raise UsageError if the command has no messages, or messages from two sources."""
    if payload is None and path is None and not is_many:
        raise click.UsageError("nothing to send: give PAYLOAD, or --file FILE (- is standard input)")
    if payload is not None and (path is not None or is_many):
        raise click.UsageError("PAYLOAD is one message: it cannot be used with --file, --lines or --jsonl")


def _check_many(*, is_json: bool, unique_key: str | None, count: int | None) -> None:
    """Raise UsageError if an option for one message is given with --lines or --jsonl."""
    if is_json:
        raise click.UsageError("--json is for one message: it cannot be used with --lines or --jsonl")
    if unique_key is not None:
        raise click.UsageError('--unique-key names one message; with --jsonl, each line may have its own "unique_key"')
    if count is not None:
        raise click.UsageError("--count repeats one message: it cannot be used with --lines or --jsonl")


def _check_one(*, unique_key: str | None, count: int | None, rate: float | None) -> None:
    """Raise UsageError if an option for many messages is given with one message."""
    if count is None and rate is not None:
        raise click.UsageError("--rate is for many messages: use it with --count, --lines or --jsonl")
    if count is not None and unique_key is not None:
        raise click.UsageError("--unique-key names one message: it cannot be used with --count")


def _produce_value(topic: str, value: bytes, common: dict[str, Any], rate: float | None, count: int | None) -> None:
    """Send one message, `count` times if that is given, and print the offset of each."""
    if count is not None:
        messages = _repeated({"value": value, **common}, count)
        run(lambda client: _send_many(client, topic, messages, rate, count), waits=True)
        return
    receipt = run(lambda client: _send_one(client, topic, value, common))
    with _Offsets("message", None) as offsets:
        offsets.add(*receipt)


async def _send_one(client: Client, topic: str, value: bytes, common: dict[str, Any]) -> tuple[str, Receipt]:
    receipt = await client.send(topic, value, **common)
    return await receipt, receipt


async def _send_lines(
    client: Client, topic: str, source: BinaryIO, jsonl: bool, common: dict[str, Any], rate: float | None
) -> None:
    compacted = jsonl and (await client.admin.topic(topic)).kind == "compacted"
    await _send_many(client, topic, _of_lines(source, jsonl, common, compacted), rate, None)


async def _send_many(
    client: Client, topic: str, messages: AsyncIterator[dict[str, Any] | BadLine], rate: float | None, total: int | None
) -> None:
    """`total`: number of messages if it is known, which it is not for lines."""
    import anyio

    failure: Exception | None = None
    async with AsyncExitStack() as stack:
        offsets = stack.enter_context(_Offsets("line" if total is None else "message", total))
        producer = await stack.enter_async_context(client.producer(topic))
        sender, receiver = anyio.create_memory_object_stream[tuple[int, "Receipt"]](_UNCONFIRMED)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_confirm, receiver, offsets)
            try:
                failure = await _send_all(producer, sender, messages, rate, offsets.what)
            finally:
                sender.close()
    if failure is None:
        failure = offsets.failure
    if failure is not None:
        more = f"; {offsets.failed - 1:,} more failed" if offsets.failed > 1 else ""
        raise click.ClickException(f"{failure}{more}; {counted(offsets.stored, 'message')} sent")


class _Offsets:
    """Prints receipts as they arrive. The JSON output is complete even if sending ends early."""

    def __init__(self, what: str, total: int | None) -> None:
        self.what = what
        self.stored = 0
        self.failed = 0
        self.failure: Exception | None = None
        self._output = settings().output
        # While offsets are printed, a progress line that overwrites itself is useless.
        self._progress = Progress("sent", total) if total is not None and not sys.stdout.isatty() else None
        self._whole = True

    def __enter__(self) -> _Offsets:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.__exit__(kind, error, traceback)
        if self._output == "json" and self._whole and (self.stored or error is None):
            click.echo("\n]" if self.stored else "[]")

    def add(self, offset: str, receipt: Receipt) -> None:
        from sandq.client.json_format import outcome_fields

        row = {"offset": offset, **outcome_fields(receipt)}
        self._whole = False
        if self._output == "json":
            click.echo(("[\n  " if not self.stored else ",\n  ") + to_json(row), nl=False)
        else:
            click.echo(to_json(row) if self._output == "jsonl" else offset)
        self._whole = True
        self.stored += 1
        if self._progress is not None:
            self._progress.at(self.stored)


async def _confirm(receiver: MemoryObjectReceiveStream[tuple[int, Receipt]], offsets: _Offsets) -> None:
    """Print offsets in the order of the messages, and remember the first failure."""
    from sandq.errors import SandqError

    with receiver:
        async for number, receipt in receiver:
            try:
                offset = await receipt
            except SandqError as error:
                offsets.failed += 1
                offsets.failure = offsets.failure or BadLine(f"{offsets.what} {number}: {error.message}")
            else:
                offsets.add(offset, receipt)


async def _send_all(
    producer: Producer,
    sender: MemoryObjectSendStream[tuple[int, Receipt]],
    messages: AsyncIterator[dict[str, Any] | BadLine],
    rate: float | None,
    what: str,
) -> Exception | None:
    """Send one message after another. Return the error of the first message that could not be sent."""
    from sandq.errors import SandqError

    pacer = None if rate is None else Pacer(rate, slip=True)
    number = 0
    async for arguments in messages:
        number += 1
        try:
            if isinstance(arguments, BadLine):
                raise arguments
            if not arguments:
                continue  # skip empty JSON lines, but count them
            if pacer is not None:
                await pacer.wait()
            receipt = await producer.send(arguments.pop("value"), **arguments)
        except (BadLine, SandqError) as error:
            return BadLine(f"{what} {number}: {error}")
        await sender.send((number, receipt))
    return None


async def _repeated(message: dict[str, Any], count: int) -> AsyncIterator[dict[str, Any] | BadLine]:
    for _ in range(count):
        yield dict(message)


async def _of_lines(
    source: BinaryIO, jsonl: bool, common: dict[str, Any], compacted: bool
) -> AsyncIterator[dict[str, Any] | BadLine]:
    """Yield for each line the arguments of `send`, or the reason why the line is not a message."""
    from sandctl.streams import read_lines
    from sandq.client.json_format import at_once

    async for line in read_lines(source, LINE_BYTES_MAX):
        if line is None:
            yield BadLine(f"longer than {LINE_BYTES_MAX >> 20} MiB")
            return
        line = line.removesuffix(b"\r")
        if not jsonl:
            yield {"value": line, **common}
            continue
        if not line.strip():
            yield {}
            continue
        try:
            own = parse_line(line, common.get("headers"))
        except BadLine as error:
            yield error
            return
        yield {**common, **_without_times(own), **(at_once(own, now_ms()) if compacted else own)}


def _without_times(own: dict[str, Any]) -> dict[str, Any]:
    """Return the values that replace the options for a line with its own time."""
    return {"deliver_at": None, "delay": None} if "deliver_at" in own or "delay" in own else {}
