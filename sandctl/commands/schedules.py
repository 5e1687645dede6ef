"""`sandctl schedule`: recurring messages."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from sandctl.options.common import common_options, run
from sandctl.options.names import schedule_argument, topic_argument
from sandctl.options.payload import open_source, whole
from sandctl.options.schedule_options import CHANGEABLE, given_settings, schedule_options, time_options
from sandctl.options.times import INSTANT, limit_option
from sandctl.output.jsonl import LINE_BYTES_MAX
from sandctl.output.records import when, without_long_value
from sandctl.output.results import counted, done, say, show_one, show_rows, show_stream
from sandctl.settings import settings

if TYPE_CHECKING:
    from sandq.client import Client, Fire, Schedule

_TOGETHER = 5000
"""Maximum number of schedules that one request creates."""
_FIRES = {"local": "ON ITS CLOCK", "occurrence_at": "UTC", "fire_at": "DELIVERED"}

_tenant_option = click.option("--tenant", metavar="T", help="The tenant, in a fair TOPIC.  [default: default]")
_file_option = click.option(
    "--file", "-f", "path", metavar="FILE|-", help="Read the value from a file; - is standard input."
)


@click.group(short_help="Send recurring messages by cron expression or interval.")
def schedule() -> None:
    """Send recurring messages: by a cron expression in a time zone, or at intervals.

    \b
      sandctl schedule create reports daily "make it" --cron "0 9 * * MON-FRI" --zone Europe/Berlin
      sandctl schedule list reports
      sandctl schedule next reports daily

    Each occurrence is exactly one message of TOPIC. A schedule has a NAME, which is any printable text. In a fair topic
    it also has a tenant.
    """


@schedule.command()
@topic_argument()
@click.argument("name", required=False)
@click.argument("value", required=False)
@_file_option
@click.option("--jsonl", is_flag=True, help="Each line of --file (standard input) is a schedule; see below.")
@schedule_options
@_tenant_option
@click.option("--paused", is_flag=True, help="Create it paused: it sends nothing until you resume it.")
@common_options
def create(
    topic: str, name: str | None, value: str | None, path: str | None, jsonl: bool, paused: bool, **options: Any
) -> None:
    """Create a schedule of TOPIC that sends VALUE at each occurrence.

    \b
      sandctl schedule create reports daily "make it" --cron "0 9 * * MON-FRI" --zone Europe/Berlin
      sandctl schedule create reports poll "" --every 5m --jitter 1m --overlap-group pollers
      sandctl schedule create reports trial "over" --every 1d --start 2030-01-31T08:00:00Z --count 3
      sandctl schedule list reports --values --limit all -o jsonl > all.jsonl
      sandctl schedule create reports --jsonl --file all.jsonl

    The command fails if a different schedule has this NAME; an identical schedule stays as it is. With --jsonl, each
    line is a JSON object as `list --values -o jsonl` prints it, and existing schedules are updated.
    """
    given = given_settings(options)
    if jsonl:
        if name is not None or given or paused:
            raise click.UsageError("with --jsonl, the lines hold NAME, VALUE and all other settings")
        with open_source(path, needed=True) as source:
            _create_many(topic, source)
        return
    if name is None:
        raise click.UsageError("name the schedule with NAME, or give many with --jsonl")
    with open_source(path, needed=value is None and path is not None) as source:
        data = _value(value, path, source)
    if data is None:
        raise click.UsageError('say what it sends: VALUE (which may be ""), or --file')
    _check_recurs(given)

    async def work(client: Client) -> Schedule:
        return await client.schedules(topic).create(name, data, paused=paused or None, **given)

    _tell("created schedule", run(work))


@schedule.command("list", short_help="List the schedules of a topic by name.")
@topic_argument()
@click.option("--prefix", metavar="TEXT", default="", help="Only schedules whose names begin with this.")
@click.option("--tenant", metavar="T", help="Only schedules of this tenant, in a fair TOPIC.")
@click.option("--values", is_flag=True, help="Also show the values of their messages (-o json, jsonl).")
@limit_option
@common_options
def list_(topic: str, prefix: str, tenant: str | None, values: bool, limit: int | None) -> None:
    """List the schedules of TOPIC, from all its partitions, in order of their names.

    \b
      sandctl schedule list reports
      sandctl schedule list reports --prefix daily -o json
    """
    from sandq.client.schedules import local, schedule_json

    columns: dict[str, Any] = {
        "NAME": lambda row: row.name,
        "TENANT": lambda row: row.tenant,
        "RECURS": _recurs,
        "STATE": lambda row: row.state,
        "NEXT": lambda row: when(row.next_ms),
        "ON ITS CLOCK": lambda row: None if row.next_ms is None else local(row.next_ms, row.zone),
        "FIRED": lambda row: row.fired,
        "MISSED": lambda row: row.missed,
    }

    async def work(client: Client) -> None:
        asked = None if limit is None else limit + 1
        rows = client.schedules(topic).list(prefix=prefix, tenant=tenant, limit=asked)
        await show_stream(rows, lambda row: schedule_json(row, value=values), columns, limit)

    run(work)


@schedule.command(short_help="Show one schedule, and what it did last.")
@topic_argument()
@schedule_argument
@_tenant_option
@common_options
def show(topic: str, name: str, tenant: str | None) -> None:
    """Show one schedule of TOPIC: its settings, its message, its state, and its last occurrence.

    \b
      sandctl schedule show reports daily
      sandctl schedule show reports daily -o json
    """
    from sandq.client.schedules import schedule_json

    async def work(client: Client) -> Schedule:
        return await client.schedules(topic).get(name, tenant=tenant)

    record = schedule_json(run(work))
    show_one(without_long_value(record) if settings().output == "table" else record)


@schedule.command()
@topic_argument()
@schedule_argument
@click.argument("value", required=False)
@_file_option
@schedule_options
@click.option(
    "--reset",
    type=click.Choice(CHANGEABLE),
    metavar="OPTION",
    multiple=True,
    help=f"Return a setting to its default: one of {', '.join(CHANGEABLE)}. May be given again.",
)
@_tenant_option
@common_options
def update(
    topic: str,
    name: str,
    value: str | None,
    path: str | None,
    reset: tuple[str, ...],
    tenant: str | None,
    **options: Any,
) -> None:
    """Change a schedule of TOPIC. Settings that you do not give stay as they are.

    \b
      sandctl schedule update reports daily "make it well"
      sandctl schedule update reports daily --cron "0 8 * * MON-FRI"
      sandctl schedule update reports daily --every 12h --reset jitter

    Messages that are already due do not change. The next message has the new settings.
    """
    changes = given_settings(options)
    with open_source(path, needed=value is None and path is not None) as source:
        data = _value(value, path, source)
    if data is not None:
        changes["value"] = data
    for what in reset:
        if changes.setdefault(what.replace("-", "_"), None) is not None:
            raise click.UsageError(f"--reset {what}: you also give it")
    if not changes:
        raise click.UsageError("nothing to change: give VALUE, an option, or --reset")

    async def work(client: Client) -> Schedule:
        return await client.schedules(topic).update(name, tenant=tenant, **changes)

    _tell("updated schedule", run(work))


@schedule.command(short_help="Pause a schedule until it is resumed.")
@topic_argument()
@schedule_argument
@_tenant_option
@common_options
def pause(topic: str, name: str, tenant: str | None) -> None:
    """Pause a schedule of TOPIC: it sends nothing until you resume it. Occurrences in between are skipped.

    \b
      sandctl schedule pause reports daily
    """

    async def work(client: Client) -> None:
        await client.schedules(topic).pause(name, tenant=tenant)

    run(work)
    done(f"paused schedule {name} of {topic}", {"schedule": name, "topic": topic, "paused": True})


@schedule.command(short_help="Resume a schedule from its next occurrence on.")
@topic_argument()
@schedule_argument
@_tenant_option
@common_options
def resume(topic: str, name: str, tenant: str | None) -> None:
    """Resume a schedule of TOPIC from its next occurrence on.

    \b
      sandctl schedule resume reports daily
    """

    async def work(client: Client) -> Schedule:
        await client.schedules(topic).resume(name, tenant=tenant)
        return await client.schedules(topic).get(name, tenant=tenant)

    _tell("resumed schedule", run(work))


@schedule.command(short_help="Send the message of a schedule now, and print its id.")
@topic_argument()
@schedule_argument
@_tenant_option
@common_options
def trigger(topic: str, name: str, tenant: str | None) -> None:
    """Send the message of a schedule of TOPIC now, in addition to its occurrences, and print its id.

    \b
      sandctl schedule trigger reports daily

    This also works for a schedule that is paused or has ended.
    """

    async def work(client: Client) -> str:
        return await client.schedules(topic).trigger(name, tenant=tenant)

    sent = run(work)
    done(sent, {"schedule": name, "topic": topic, "id": sent})


@schedule.command("next", short_help="Show the next times of a schedule.")
@topic_argument()
@schedule_argument
@click.option("--count", type=click.IntRange(1, 1000), default=10, show_default=True, help="Number of times to show.")
@_tenant_option
@common_options
def next_(topic: str, name: str, count: int, tenant: str | None) -> None:
    """Show when a schedule of TOPIC sends next: local time in its zone, UTC, and the delivery time.

    \b
      sandctl schedule next reports daily --count 3
    """

    async def work(client: Client) -> tuple[str, list[Fire]]:
        zone = (await client.schedules(topic).get(name, tenant=tenant)).zone
        return zone, [*await client.schedules(topic).next(name, count, tenant=tenant)]

    zone, fires = run(work)
    _show_fires(fires, zone)


@schedule.command()
@time_options
@click.option("--after", type=INSTANT, metavar="INSTANT", help="Show times after this instant.  [default: now]")
@click.option("--count", type=click.IntRange(1, 1000), default=10, show_default=True, help="Number of times to show.")
@click.option("--name", default="preview", help="Name of the schedule: the jitter depends on it and on the occurrence.")
@common_options
def preview(count: int, name: str, after: int | None, **options: Any) -> None:
    """Show when a schedule would send, without creating it.

    \b
      sandctl schedule preview --cron "30 2 * * *" --zone Europe/Berlin --after 2030-03-30T00:00:00Z
      sandctl schedule preview --every 90m --start 2030-01-31T08:00:00Z --count 3
    """
    given = given_settings(options)
    _check_recurs(given)

    async def work(client: Client) -> list[Fire]:
        # A preview needs no topic.
        return [*await client.schedules("none").preview(name=name, after=after, count=count, **given)]

    _show_fires(run(work), given.get("zone", "UTC"))


@schedule.command(short_help="Delete a schedule, and cancel its next message.")
@topic_argument()
@schedule_argument
@_tenant_option
@common_options
def delete(topic: str, name: str, tenant: str | None) -> None:
    """Delete a schedule of TOPIC, and cancel the message of its next occurrence. Messages that are already due stay.

    \b
      sandctl schedule delete reports daily
    """

    async def work(client: Client) -> None:
        await client.schedules(topic).delete(name, tenant=tenant)

    run(work)
    done(f"deleted schedule {name} of {topic}", {"deleted": name, "topic": topic})


def _create_many(topic: str, source: BinaryIO) -> None:
    from sandq.client.schedules import read_schedule
    from sandq.model.errors import InvalidRequest
    from sandq.model.json_values import read_strictly

    found: list[dict[str, Any]] = []
    for number, line in _lines(source):
        try:
            found.append(read_schedule(read_strictly(line.decode())))
        except (ValueError, RecursionError) as error:
            raise click.ClickException(f"line {number}: not JSON: {error}; nothing was created") from None
        except InvalidRequest as error:
            raise click.ClickException(f"line {number}: {error.message}; nothing was created") from None

    async def work(client: Client) -> dict[str, int]:
        counts = {"created": 0, "changed": 0, "unchanged": 0}
        for start in range(0, len(found), _TOGETHER):
            stored = await client.schedules(topic).create_many(found[start : start + _TOGETHER])
            counts = {name: counts[name] + count for name, count in stored._asdict().items()}
        return counts

    counts = run(work)
    words = ", ".join(f"{count:,} {name}" for name, count in counts.items())
    done(f"{counted(sum(counts.values()), 'schedule')} of {topic}: {words}", {"topic": topic, **counts})


def _lines(source: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Yield the lines that are not empty, with their numbers."""
    number = 0
    while line := source.readline(LINE_BYTES_MAX + 1):
        number += 1
        if len(line) > LINE_BYTES_MAX:
            raise click.ClickException(f"line {number}: longer than {LINE_BYTES_MAX >> 20} MiB; nothing was created")
        if line.strip():
            yield number, line


def _value(value: str | None, path: str | None, source: BinaryIO) -> bytes | None:
    if value is not None and path is not None:
        raise click.UsageError("--file cannot be used with VALUE")
    if value is not None:
        return os.fsencode(value)
    return None if path is None else whole(source)


def _check_recurs(given: Mapping[str, Any]) -> None:
    if ("cron" in given) == ("every" in given):
        raise click.UsageError("say when it recurs: either --cron EXPRESSION or --every DURATION")


def _recurs(schedule: Schedule) -> str:
    """Return the recurrence as a table cell."""
    from sandq.model.times import format_duration

    if schedule.every_ms is not None:
        return f"every {format_duration(schedule.every_ms)}"
    return f"{schedule.cron} {schedule.zone}"


def _tell(what: str, schedule: Schedule) -> None:
    """Print a schedule that was created or changed."""
    from sandq.client.schedules import local, schedule_json

    if settings().output != "table":
        show_one(schedule_json(schedule))
        return
    if schedule.next_ms is None:
        say(f"{what} {schedule.name} of {schedule.topic}: {schedule.state}")
        return
    clock = local(schedule.next_ms, schedule.zone)
    there = "" if schedule.zone == "UTC" or clock is None else f" ({clock} in {schedule.zone})"
    say(f"{what} {schedule.name} of {schedule.topic}: next {when(schedule.next_ms)}{there}")


def _show_fires(fires: list[Fire], zone: str) -> None:
    from sandq.client.schedules import fire_json

    show_rows([fire_json(fire, zone) for fire in fires], _FIRES)
