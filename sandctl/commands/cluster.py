"""`sandctl cluster`: found it, show nodes and partitions, and the guarded clock. `sandctl.commands.cluster_moves` has
`drain`, `remove`, `transfer` and `rebuild`."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import click

from sandctl.commands.cluster_moves import drain, rebuild, remove, transfer
from sandctl.commands.plan import plan
from sandctl.options.common import common_options, run
from sandctl.options.confirmation import confirm, need_yes, yes_option
from sandctl.options.names import topic_option
from sandctl.options.times import limit_option
from sandctl.output.results import done, say, show_one, show_rows

if TYPE_CHECKING:
    from sandq.client import Client, TopicRecord


AHEAD_MS: Final = 1000
"""Minimum time in ms by which a partition must be ahead to be reported."""
_OUTCOMES: Final = {
    "begun": "the reset has begun",
    "under_way": "the reset had begun before",
    "not_ahead": "is no longer ahead",
}


@click.group(short_help="Show the cluster, form it, drain and remove nodes.")
def cluster() -> None:
    """Show the cluster, found it, drain and remove nodes, finalize upgrades, and correct clocks."""


@cluster.command()
@common_options
def info() -> None:
    """Show the cluster as the server sees it.

    \b
      sandctl cluster info
    """

    show_one(run(_info))


async def _info(client: Client) -> dict[str, Any]:
    return await client.admin.cluster()


@cluster.command(short_help="Found a cluster with the node that answers.")
@yes_option
@common_options
def init(yes: bool) -> None:
    """Found the cluster now, with only the node that answers.

    \b
      sandctl cluster init --server node1:7170

    Use it if all nodes have seeds and wait, because no node is configured to found the cluster (cluster.bootstrap). The
    other nodes join. This cannot be undone: nodes of another cluster with the same name never join this cluster.
    """
    if not yes:
        need_yes("founding a cluster cannot be undone")
    found = run(_info)
    if found.get("waiting") and not yes:
        met = ", ".join(str(row.get("node")) for row in found.get("others") or ()) or "no other node"
        confirm(f"{found['node']} founds cluster {found['cluster']!r}; it has met {met}. Continue?", "founded")

    async def work(client: Client) -> str:
        if (await _info(client)).get("node") != found.get("node"):  # a different server may respond now
            raise click.ClickException(f"{found.get('node')} no longer responds: nothing was founded")
        return await client.admin.init_cluster()

    uuid = run(work)
    told = {"node": found.get("node"), "cluster": found.get("cluster"), "cluster_uuid": uuid}
    done(f"{told['node']} has founded cluster {uuid}", told)


@cluster.command(short_help="Let the cluster use the features of a new version.")
@click.option("--dry-run", is_flag=True, help="Only print the feature levels.")
@yes_option
@common_options
def finalize(dry_run: bool, yes: bool) -> None:
    """Permanently turn on the features of a new version.

    \b
      sandctl cluster finalize --dry-run
      sandctl cluster finalize --yes

    Use it in clusters whose nodes have `cluster.finalize: manual`. Other clusters finalize automatically, some seconds
    after the last node was upgraded. Before, each node can go back to the previous version; afterwards no node can.
    """

    async def work(client: Client, dry_run: bool) -> tuple[int, int]:
        return await client.admin.finalize(dry_run=dry_run)

    if not yes and not dry_run:
        need_yes("finalizing an upgrade cannot be undone")
    before, after = run(lambda client: work(client, dry_run or not yes))
    told = {"before": before, "after": after, "dry_run": dry_run}
    if dry_run:
        return done(f"the cluster is at feature level {before}, and all its nodes support {after}", told)
    if not yes:
        confirm(
            f"From feature level {before} to {after}: no node can return to an earlier version. Continue?", "changed"
        )
        before, after = run(lambda client: work(client, False))
    done(f"the cluster moved from feature level {before} to {after}", told)


@cluster.command(short_help="List the nodes: state, roles, addresses, version.")
@limit_option
@common_options
def nodes(limit: int | None) -> None:
    """List the nodes as the node that answers sees them. MEMBER is the state of the node, SINCE when that state began;
    with static membership, MEMBER is always `named`. UP: there is a link to the node. LEADS is the number of partitions
    that it leads. VOTER: it votes in the metadata group.

    STANDING is stored in the metadata: in, draining, removing or failed. A node is `sick` if it reports that its disk
    failed or hangs. A member that is not (yet) a node of the cluster has no STANDING.

    \b
      sandctl cluster nodes
    """

    async def work(client: Client) -> tuple[dict[str, Any], list[TopicRecord]]:
        return await client.admin.cluster(), await client.admin.list_topics()

    from sandq.model.times import format_instant

    found, topics = run(work)
    leads = Counter(row.leader for record in topics for row in record.partitions)
    rows = [
        {
            **row,
            **{
                name: format_instant(row[f"{name}_ms"]) if isinstance(row.get(f"{name}_ms"), int) else None
                for name in ("since", "failed_since")
            },
            "condition": _condition(row),
            "levels": _levels(row),
            "leads": leads[row.get("node")],
            "asked": row.get("node") == found.get("node"),
        }
        for row in [*(found.get("nodes") or ()), *(found.get("others") or ())]
    ]
    columns = {
        "node": "NODE",
        "member": "MEMBER",
        "since": "SINCE",
        "up": "UP",
        "condition": "STANDING",
        "zone": "ZONE",
        "client": "CLIENTS",
        "http": "HTTP",
        "leads": "LEADS",
        "replicas": "REPLICAS",
        "voter": "VOTER",
        "version": "VERSION",
        "levels": "LEVELS",
    }
    show_rows(rows, columns, limit)


def _levels(row: dict[str, Any]) -> str | None:
    """Return the feature levels that a node's version supports."""
    levels = row.get("feature_levels")
    return None if levels is None else "-".join(map(str, dict.fromkeys(levels)))


def _condition(row: dict[str, Any]) -> str | None:
    """Return the standing of a node, and whether it reports that it cannot work."""
    standing = row.get("standing")
    if standing is None:
        return None
    if row.get("failed_since_ms") is not None:
        return "failed" if standing == "in" else f"{standing}, failed"
    return f"{standing}, sick" if row.get("sick") else str(standing)


@cluster.command(short_help="List partitions: leader, nodes, moves, content.")
@topic_option("Only those of this topic.")
@limit_option
@common_options
def partitions(topic: str | None, limit: int | None) -> None:
    """List the partitions of all topics, or of one: leader, nodes that should hold each (the preferred leader first),
    moves in progress, and content.

    \b
      sandctl cluster partitions
      sandctl cluster partitions --topic orders -o json
    """

    async def work(client: Client) -> list[dict[str, Any]]:
        from sandq.client.admin import partition_rows

        # One row above the limit shows that there are more rows.
        return await partition_rows(client.admin, topic, None if limit is None else limit + 1)

    columns = {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "leader": "LEADER",
        "nodes": "NODES",
        "steps": "MOVING",
        "replicas": "REPLICAS",
        "messages": "MESSAGES",
        "delayed": "DELAYED",
        "bytes": "BYTES",
    }
    show_rows(run(work), columns, limit)


cluster.add_command(drain)
cluster.add_command(remove)
cluster.add_command(transfer)
cluster.add_command(rebuild)
cluster.add_command(plan)


@cluster.group(invoke_without_command=True, short_help="Show clocks, and correct what a wrong clock did.")
@common_options
@click.pass_context
def clock(context: click.Context) -> None:
    """Show the node's guarded clock, or accept a jump of its wall clock; list partitions that a wrong clock put ahead,
    and set them back.

    \b
      sandctl cluster clock
    """
    if context.invoked_subcommand is None:
        context.invoke(show)


@clock.command(short_help="Show the guarded clock and the wall clock.")
@common_options
def show() -> None:
    """Show the guarded clock and the wall clock, and how far the other nodes' clocks are ahead.

    \b
      sandctl cluster clock show
    """
    show_one(_clock(accept=False))


@clock.command(short_help="Accept a jump of the wall clock.")
@common_options
def accept() -> None:
    """Follow the wall clock although it jumped. Use this if the wall clock is right, and the guarded clock was wrong.

    \b
      sandctl cluster clock accept
    """
    state = _clock(accept=True)
    stays = f"; the alarm stays: {state['reason']}" if state.get("reason") else ""
    done(f"the guarded clock is now {state['guarded']}{stays}", state)


@clock.command(short_help="List partitions whose time is ahead of the clock.")
@click.argument("topic", required=False)
@common_options
def floors(topic: str | None) -> None:
    """List the partitions, of all topics or of TOPIC, whose time is ahead of their leader's clock. Also list partitions
    that are being set back.

    \b
      sandctl cluster clock floors
      sandctl cluster clock floors orders -o json
    """

    async def work(client: Client) -> list[dict[str, Any]]:
        return [row for row in await _floors(client, topic) if row["ahead_ms"] >= AHEAD_MS or row["clock_reset"]]

    columns = {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "floor": "FLOOR",
        "ahead": "AHEAD",
        "clock_epoch": "EPOCH",
        "reset": "RESET",
    }
    show_rows(run(work), columns)


@clock.command(short_help="Set partitions back that a wrong clock put ahead.")
@click.argument("topic", required=False)
@click.argument("partition", type=int, required=False)
@yes_option
@common_options
def reset(topic: str | None, partition: int | None, yes: bool) -> None:
    """Set partitions back whose time a wrong clock put ahead: all such partitions, those of TOPIC, or only PARTITION of
    TOPIC.

    \b
      sandctl cluster clock reset
      sandctl cluster clock reset orders 0 --yes

    Set the clocks right first: a partition is set back to the guarded clock of its leader's node. Until the reset is
    complete, the partition neither stores nor delivers; leases end, and bulk jobs are stopped. `floors` shows the
    progress.
    """
    if not yes:
        need_yes("a partition neither stores nor delivers until its reset is complete")

    async def fetch(client: Client) -> list[dict[str, Any]]:
        found = [row for row in await _floors(client, topic) if partition in (None, row["partition"])]
        return [row for row in found if row["ahead_ms"] >= AHEAD_MS]

    async def work(client: Client) -> list[dict[str, Any]]:
        return [
            {"topic": row["topic"], **await client.admin.reset_clock(row["topic"], row["partition"])}
            | {"partition": row["partition"]}
            for row in chosen
        ]

    chosen = run(fetch)
    if not chosen:
        done("no partition is ahead of its leader's clock", {"reset": []})
        return
    if not yes:
        for row in chosen:
            say(f"partition {row['partition']} of {row['topic']} is {row['ahead']} ahead")
        confirm("Set them back?", "set back")
    results = run(work)
    names = [f"partition {row['partition']} of {row['topic']}: {_OUTCOMES[row['outcome']]}" for row in results]
    done("\n".join(names), {"reset": results})


async def _floors(client: Client, topic: str | None) -> list[dict[str, Any]]:
    """Return how far the time of each partition, of all topics or of one, is ahead of its leader's clock."""
    from sandq.model.times import format_duration, format_instant

    topics = [topic] if topic is not None else [record.name for record in await client.admin.list_topics()]
    found: list[dict[str, Any]] = []
    for name in topics:
        for row in await client.admin.stats(name):
            ahead_ms, progress = row.get("ahead_ms") or 0, row.get("clock_reset")
            found.append(
                {
                    "topic": name,
                    "partition": row["partition"],
                    "floor": format_instant(row["floor_ms"]),
                    "ahead": format_duration(ahead_ms),
                    "reset": f"{progress[0]} of {progress[1]}" if progress else None,
                    "floor_ms": row["floor_ms"],
                    "ahead_ms": ahead_ms,
                    "clock_epoch": row.get("clock_epoch") or 0,
                    "clock_reset": progress,
                }
            )
    return found


def _clock(*, accept: bool) -> dict[str, Any]:
    from sandq.model.times import format_instant

    async def work(client: Client) -> dict[str, Any]:
        return await client.admin.clock(accept=accept)

    state = run(work)
    instants = {
        name: format_instant(state[f"{name}_ms"])
        for name in ("guarded", "wall")
        if isinstance(state.get(f"{name}_ms"), int)
    }
    return {"guarded": None, **instants, **state}
