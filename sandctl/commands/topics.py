"""`sandctl topic`: create, list, show, update, raise-replicas, purge, delete. `forecast` is in commands/forecast.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from sandctl.commands.forecast import forecast
from sandctl.options.common import common_options, run
from sandctl.options.confirmation import confirm_name, need_yes, yes_option
from sandctl.options.names import topic_argument
from sandctl.options.times import limit_option
from sandctl.options.topic_settings import settings_of, settings_options, shown
from sandctl.output.progress import Progress
from sandctl.output.results import counted, done, show_one, show_rows

if TYPE_CHECKING:
    from sandq.client import Client, JobResult, TopicRecord

_COLUMNS = {
    "name": "TOPIC",
    "kind": "KIND",
    "partition_count": "PARTITIONS",
    "replicas": "REPLICAS",
    "lease": "LEASE",
    "max_attempts": "MAX ATTEMPTS",
    "without_leader": "WITHOUT LEADER",
}


@click.group(short_help="Create, list, show, change, purge and delete topics.")
def topic() -> None:
    """Create, list, show, change, purge and delete topics; forecast when their messages are due."""


@topic.command()
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(["timer", "compacted", "priority", "fair"]),
    default="timer",
    show_default=True,
    help=(
        "timer: each message at its time; compacted: the last value of each key; priority: lowest "
        "number first; fair: shared among tenants."
    ),
)
@click.option("--partitions", type=int, default=1, show_default=True)
@click.option(
    "--replicas", type=int, metavar="N", help="Replicas of each partition.  [default: 3 with 3 nodes or more, else 1]"
)
@settings_options(update=False)
@common_options
def create(name: str, kind: str, partitions: int, replicas: int | None, **options: Any) -> None:
    """Create the topic NAME.

    \b
      sandctl topic create orders --partitions 4 --lease 1m --max-attempts 5
      sandctl topic create log --retain --retain-for 30d --retain-bytes 10GiB
      sandctl topic create config --kind compacted --partitions 3 --history 10m
      sandctl topic create mails --kind fair --ageing 1m --tenants '{"acme": {"weight": 3}}'

    A compacted topic has --lease, --max-attempts, --backoff..., --ttl, --group-ttl, --history and
    --tombstone-retention. A priority or fair topic has --ageing, but not --ordering or --max-in-flight-per-key; a fair
    topic also has --tenants.
    """
    given = settings_of(options)

    async def work(client: Client) -> TopicRecord:
        return await client.admin.create_topic(name, kind=kind, partitions=partitions, replicas=replicas, **given)

    record = run(work)
    copies = counted(record.replicas, "replica")
    done(f"created topic {name} ({counted(len(record.partitions), 'partition')}, {copies})", _row(record))


@topic.command(short_help="Change settings, partitions or replicas of a topic.")
@topic_argument("name")
@click.option("--partitions", type=int, metavar="N", help="New number of partitions; it can only grow.")
@click.option("--replicas", type=int, metavar="N", help="Replicas of each partition.")
@settings_options(update=True)
@common_options
def update(name: str, partitions: int | None, replicas: int | None, **options: Any) -> None:
    """Change settings of the topic NAME, or its number of partitions or replicas. Other settings stay.

    \b
      sandctl topic update orders --ttl 1h --backoff-cap 1m
      sandctl topic update orders --ttl none
      sandctl topic update orders --partitions 12 --replicas 3

    Settings apply from now on; leases and retries that have begun keep their times. With more partitions, some keys go
    to a different partition than before. A compacted topic cannot grow. Replicas are added and removed in the
    background: `cluster partitions` shows them.
    """
    given = settings_of(options)
    if not given and partitions is None and replicas is None:
        raise click.UsageError("nothing to change: give at least one setting, --partitions or --replicas")

    async def work(client: Client) -> TopicRecord:
        return await client.admin.update_topic(name, partitions=partitions, replicas=replicas, **given)

    record = run(work)
    done(f"updated topic {name}", {**_row(record), "settings": shown(record.settings, record.kind)})


@topic.command("raise-replicas", short_help="Give topics more replicas after adding nodes.")
@click.argument("names", metavar="[TOPIC]...", nargs=-1)
@click.option("--all", "is_all", is_flag=True, help="All topics that have fewer replicas.")
@click.option("--replicas", type=click.IntRange(min=2), default=3, show_default=True, metavar="N")
@common_options
def raise_replicas(names: tuple[str, ...], is_all: bool, replicas: int) -> None:
    """Give topics more replicas after you add nodes to the cluster.

    \b
      sandctl topic raise-replicas --all
      sandctl topic raise-replicas orders payments

    Topics that already have this number of replicas stay as they are. The new replicas are created in the background:
    `cluster partitions` shows them.
    """
    if bool(names) == is_all:
        raise click.UsageError("name topics, or give --all")

    async def work(client: Client) -> list[str]:
        from sandq.errors import UnknownTopic

        topics = await client.admin.list_topics()
        if unknown := sorted({*names} - {topic.name for topic in topics}):
            raise UnknownTopic(f"there is no topic {unknown[0]!r}", topic=unknown[0])
        fewer = [topic.name for topic in topics if topic.replicas < replicas and (is_all or topic.name in names)]
        for name in fewer:
            await client.admin.update_topic(name, replicas=replicas)
        return fewer

    raised = run(work)
    done(f"raised {counted(len(raised), 'topic')} to {replicas} replicas", {"raised": raised, "replicas": replicas})


@topic.command("list")
@limit_option
@common_options
def list_(limit: int | None) -> None:
    """List all topics.

    \b
      sandctl topic list -o json
    """

    async def work(client: Client) -> list[TopicRecord]:
        return await client.admin.list_topics()

    show_rows([_row(record) for record in run(work)], _COLUMNS, limit)


@topic.command()
@topic_argument("name")
@common_options
def show(name: str) -> None:
    """Show the topic NAME: settings, partitions, message counts.

    \b
      sandctl topic show orders
    """

    async def work(client: Client) -> tuple[TopicRecord, list[dict[str, Any]]]:
        return await client.admin.topic(name), await client.admin.stats(name)

    from sandq.client.json_format import group_limits_json

    record, stats = run(work)
    held = {row.get("partition"): row for row in stats}
    rows = [
        {
            "partition": row.partition,
            "leader": row.leader,
            "nodes": list(row.nodes),
            "moving": row.moving,
            "group_number": row.group_number,
            **{key: value for key, value in held.get(row.partition, {}).items() if key not in ("groups", "members")},
        }
        for row in record.partitions
    ]
    limits = {"group_limits": found} if (found := group_limits_json(record.settings)) else {}
    show_one({**_row(record), "settings": shown(record.settings, record.kind), **limits, "partitions": rows})


@topic.command()
@topic_argument("name")
@yes_option
@common_options
def delete(name: str, yes: bool) -> None:
    """Delete the topic NAME and all its messages.

    \b
      sandctl topic delete orders
    """
    if not yes:
        need_yes("deleting a topic deletes its messages")
        confirm_name(name, f"This deletes {name} and all its messages", "deleted")

    async def work(client: Client) -> None:
        await client.admin.delete_topic(name)

    run(work)
    done(f"deleted topic {name}", {"deleted": name})


@topic.command(short_help="Cancel all pending messages of a topic.")
@topic_argument("name")
@click.option("--dead", is_flag=True, help="Also purge the dead letters of all groups.")
@yes_option
@common_options
def purge(name: str, dead: bool, yes: bool) -> None:
    """Cancel all pending messages of the topic NAME. With --dead, also delete its dead letters.

    \b
      sandctl topic purge orders
      sandctl topic purge orders --dead --yes

    The topic, its settings and its groups stay. Leased messages are not touched.
    """
    if not yes:
        need_yes("purging a topic cancels its pending messages")
        confirm_name(
            name, f"This cancels all pending messages of {name}{' and purges its dead letters' * dead}", "purged"
        )

    async def work(client: Client) -> tuple[JobResult, int]:
        with Progress("cancelled") as progress:
            cancelled = await client.messages(name).cancel_all(progress=progress)
        purged = 0
        if dead:
            for group in sorted({str(row["group"]) for row in await client.admin.groups(name)}):
                with Progress(f"purged dead letters of group {group}:") as progress:
                    purged += (await client.dead(name, group).purge(progress=progress)).done
        return cancelled, purged

    cancelled, purged = run(work, waits=True)
    text = f"cancelled {counted(cancelled.done, 'message')} of {name}"
    if dead:
        text += f", purged {counted(purged, 'dead letter')}"
    record = {"matched": cancelled.matched, "done": cancelled.done, "too_late": cancelled.too_late}
    done(text, {**record, "dead_purged": purged} if dead else record)


topic.add_command(forecast)


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
        **({"owner": record.owner} if record.owner is not None else {}),
        "lease": format_duration(lease_ms) if isinstance(lease_ms, int) else None,
        "max_attempts": settings.get("max_attempts"),
        "without_leader": sum(1 for row in record.partitions if row.leader is None),
    }
