"""The partitions of a cluster for display: leader, assigned nodes, and the progress of moves."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sandq.client.admin.admin import Admin
from sandq.model.errors import UnknownTopic
from sandq.protocol.replies import Partition, TopicRecord


async def partition_rows(
    admin: Admin,
    topic: str | None = None,
    most: int | None = None,
    *,
    moving: bool = False,
    sees: Callable[[str], bool] | None = None,
) -> list[dict[str, Any]]:
    """Return rows for the partitions of a topic, or of all topics.

    `most`: stop after the topic that reaches this number of rows. `moving`: only partitions that are moving. `sees`:
    returns whether to include a listed topic; the nodes are not queried about other topics. Raises UnknownTopic if the
    named topic does not exist.
    """
    rows: list[dict[str, Any]] = []
    for record in await admin.list_topics() if topic is None else [await admin.topic(topic)]:
        if most is not None and len(rows) >= most:
            break
        if sees is not None and not sees(record.name):
            continue
        wanted = [row for row in record.partitions if row.moving or not moving]
        if not wanted:
            continue
        try:
            stats = {row.get("partition"): row for row in await admin.stats(record.name)}
        except UnknownTopic:
            if topic is not None:
                raise
            continue  # deleted since it was listed
        rows += [_row(record, row, stats.get(row.partition, {})) for row in wanted]
    return rows


def _row(record: TopicRecord, row: Partition, held: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "topic": record.name,
        "partition": row.partition,
        "leader": row.leader,
        "nodes": list(row.nodes),
        "moving": row.moving,
        "steps": steps(row, held.get("members"), record.replicas),
        "replicas": record.replicas,
        "group_number": row.group_number,
        **{key: value for key, value in held.items() if key not in ("partition", "groups")},
    }


def steps(row: Partition, members: Sequence[Mapping[str, Any]] | None, replicas: int) -> list[str]:
    """Return the current and remaining steps of a partition's move, as text.

    `members`: the members of its Raft group, as in TOPIC_STATS; None if no node has replied. `replicas`: of the topic.
    """
    if not row.moving:
        # The number of replicas was raised a moment ago, or there are fewer nodes than that.
        missing = replicas - len(row.nodes)
        return [f"{missing} of {replicas} replicas have no node yet"] if missing > 0 else []
    if members is None:
        return ["waiting for a leader"]
    current = [member.get("node") for member in members]
    found = [f"{node} will be added" for node in row.nodes if node not in current]
    for member in members:
        node = member.get("node")
        if node not in row.nodes:
            found.append(f"{node} is being removed")
        elif not member.get("voter"):
            found.append(f"{node} is catching up{_progress(member)}")
    return found or ["recording the result"]


def _progress(member: Mapping[str, Any]) -> str:
    total, behind = member.get("snapshot_bytes"), member.get("behind")
    if total:
        # The total is an estimate.
        return f" {min(99, member.get('snapshot_sent', 0) * 100 // total)} %"
    return f", {behind:,} entr{'y' if behind == 1 else 'ies'} behind" if behind else ""
