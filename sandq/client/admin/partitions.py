"""The partitions of a cluster as people look at them: who leads each, who is to hold it, how far it is on its way."""

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
    """Those of a topic, or of all; no more topics than `most` rows need; `moving`: those alone of which something is
    under way. `sees`: whether a topic of the listing is wanted; no node is asked about the others. UnknownTopic when
    the named one is not there."""
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
        "steps": steps(row, held.get("members")),
        "replicas": record.replicas,
        "group_number": row.group_number,
        **{key: value for key, value in held.items() if key not in ("partition", "groups")},
    }


def steps(row: Partition, members: Sequence[Mapping[str, Any]] | None) -> list[str]:
    """What is under way or still to be done in a partition that moves, in words. `members`: those of its group, as
    TOPIC_STATS tells them; None: nobody could be asked."""
    if not row.moving:
        return []
    if members is None:
        return ["it waits for a leader"]
    there = [member.get("node") for member in members]
    found = [f"{node} is to come" for node in row.nodes if node not in there]
    for member in members:
        node = member.get("node")
        if node not in row.nodes:
            found.append(f"{node} goes")
        elif not member.get("voter"):
            found.append(f"{node} learns{_how_far(member)}")
    return found or ["it is written down"]


def _how_far(member: Mapping[str, Any]) -> str:
    total, behind = member.get("snapshot_bytes"), member.get("behind")
    if total:
        # The total is an estimate.
        return f" {min(99, member.get('snapshot_sent', 0) * 100 // total)} %"
    return f", {behind:,} entr{'y' if behind == 1 else 'ies'} behind" if behind else ""
