"""`sandctl topic`: create, list, show, delete."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from sandctl.output import done, show_one, show_rows
from sandctl.settings import common_options, run

if TYPE_CHECKING:
    from sandq.client import Client, TopicRecord

_COLUMNS = {
    "name": "TOPIC",
    "kind": "KIND",
    "partition_count": "PARTITIONS",
    "replicas": "REPLICAS",
    "lease": "LEASE",
    "max_attempts": "MAX ATTEMPTS",
    "without_leader": "WITHOUT LEADER",
}


@click.group()
def topic() -> None:
    """Create, list, show and delete topics."""


@topic.command()
@click.argument("name")
@click.option("--kind", default="timer", show_default=True, help="What the topic is; this version has timer.")
@click.option("--partitions", type=int, default=1, show_default=True)
@click.option("--replicas", type=int, default=1, show_default=True, help="Copies of each partition.")
@click.option("--lease", metavar="DURATION", help="How long a consumer may hold a message.  [default: 30s]")
@click.option("--max-attempts", metavar="N|none", help="After so many deliveries a message is dead.  [default: 10]")
@click.option(
    "--backoff",
    type=click.Choice(["exponential", "fixed", "linear", "none"]),
    help="How long a nacked message waits.  [default: exponential]",
)
@click.option("--backoff-first", metavar="DURATION", help="The wait after the first attempt.  [default: 1s]")
@click.option("--backoff-factor", type=float, help="Of exponential.  [default: 2]")
@click.option("--backoff-cap", metavar="DURATION", help="The longest wait.  [default: 10m]")
@click.option("--backoff-jitter", type=int, metavar="PERCENT", help="Spread around the wait.  [default: 20]")
@click.option(
    "--delete-on-ack/--retain",
    default=None,
    help="Whether messages go once every group acked them.  [default: delete-on-ack]",
)
@common_options
def create(name: str, kind: str, partitions: int, replicas: int, **options: Any) -> None:
    """Create the topic NAME."""
    settings = _topic_settings(options)

    async def work(client: Client) -> TopicRecord:
        return await client.admin.create_topic(name, kind=kind, partitions=partitions, replicas=replicas, **settings)

    record = run(work)
    count = len(record.partitions)
    done(f"created topic {name} ({count} partition{'s' if count != 1 else ''})", _row(record))


@topic.command("list")
@common_options
def list_() -> None:
    """List all topics."""

    async def work(client: Client) -> list[TopicRecord]:
        return await client.admin.list_topics()

    show_rows([_row(record) for record in run(work)], _COLUMNS)


@topic.command()
@click.argument("name")
@common_options
def show(name: str) -> None:
    """Show the topic NAME: settings, partitions, what they hold."""

    async def work(client: Client) -> tuple[TopicRecord, list[dict[str, Any]]]:
        return await client.admin.topic(name), await client.admin.stats(name)

    record, stats = run(work)
    held = {row.get("partition"): row for row in stats}
    rows = [
        {
            "partition": row.partition,
            "leader": row.leader,
            "group_number": row.group_number,
            **{key: value for key, value in held.get(row.partition, {}).items() if key != "groups"},
        }
        for row in record.partitions
    ]
    show_one({**_row(record), "settings": dict(record.settings), "partitions": rows})


@topic.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common_options
def delete(name: str, yes: bool) -> None:
    """Delete the topic NAME and all its messages."""
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("deleting a topic deletes its messages: say --yes")
        typed = click.prompt(f"This deletes {name} and all its messages. Type its name to go on", err=True)
        if typed != name:
            raise click.UsageError("the name is another one: nothing was deleted")

    async def work(client: Client) -> None:
        await client.admin.delete_topic(name)

    run(work)
    done(f"deleted topic {name}", {"deleted": name})


def _topic_settings(options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were given, by the names of a topic's settings; the broker checks their values."""
    settings: dict[str, Any] = {}
    backoff = {
        "kind": options["backoff"],
        "first": options["backoff_first"],
        "factor": options["backoff_factor"],
        "cap": options["backoff_cap"],
        "jitter_percent": options["backoff_jitter"],
    }
    backoff = {key: value for key, value in backoff.items() if value is not None}
    if backoff:
        settings["backoff"] = backoff
    for key in ("lease", "delete_on_ack"):
        if options[key] is not None:
            settings[key] = options[key]
    attempts = options["max_attempts"]
    if attempts is not None:
        if attempts != "none" and not attempts.isdecimal():
            raise click.BadParameter(f"{attempts!r} is neither a number nor none", param_hint="--max-attempts")
        settings["max_attempts"] = None if attempts == "none" else int(attempts)
    return settings


def _row(record: TopicRecord) -> dict[str, Any]:
    from sandq.model.times import format_duration

    settings = record.settings
    lease_ms = settings.get("lease_ms")
    return {
        "name": record.name,
        "number": record.number,
        "kind": record.kind,
        "partition_count": len(record.partitions),
        "initial_partitions": record.initial_partitions,
        "replicas": record.replicas,
        "lease": format_duration(lease_ms) if isinstance(lease_ms, int) else None,
        "max_attempts": settings.get("max_attempts"),
        "without_leader": sum(1 for row in record.partitions if row.leader is None),
    }
