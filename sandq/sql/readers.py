"""Reads the rows that a scan needs as Arrow tables, with the rights of the caller (`caller_view`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import pyarrow as pa

from sandq.client import offset_time_ms
from sandq.model.errors import NotFound, UnknownGroup
from sandq.model.names import COMPACTED
from sandq.sql import read_messages
from sandq.sql.bounds import Bound
from sandq.sql.budget import IDS, Held
from sandq.sql.caller_view import CallerView
from sandq.sql.errors import TOO_BIG_SELECT, SqlError
from sandq.sql.pages import (
    headers_text,
    is_json,
    json_text,
    text_of,
)
from sandq.sql.row_tables import Row, each, empty, gathered, groups_of, prefix_of, span_of, table_of, time, topics_of
from sandq.sql.scan import Scan
from sandq.sql.schema import Column


async def read(view: CallerView, scan: Scan, held: Held) -> Any:
    """Return the rows of a scan (pyarrow.Table with its needed columns), possibly with rows that do not fit WHERE."""
    if any(bound.values == () for bound in scan.bounds.columns.values()):  # compared with NULL: no row can match
        return empty(scan.table, scan.needed)
    if scan.table.is_of_tasks:
        return await read_messages.tasks(view, scan, held)
    return await _READERS[scan.table.name](view, scan, held)


def as_result(table: Any, columns: Sequence[tuple[str, Column]]) -> Any:
    """Return fetched rows as the result of a query: rename the columns. A `json` that is no JSON becomes NULL."""
    arrays = []
    for _, column in columns:
        array = table.column(column.needs[0] if column.needs else column.name)
        if column.name == "json":
            array = pa.array([cell if is_json(cell) else None for cell in array.to_pylist()], pa.string())
        arrays.append(array)
    return pa.Table.from_arrays(arrays, names=[name for name, _ in columns])


async def _dead_letters(view: CallerView, scan: Scan, held: Held) -> Any:
    """Return the dead letters of all groups of a scan that the caller may read."""
    of = scan.bounds.of
    since, until = span_of(of("dead_at"))
    reasons = of("reason").values
    options: dict[str, Any] = {
        "since": since,
        "until": until,
        "key_prefix": prefix_of(of("key")),
        "reason": reasons[0] if reasons is not None and len(reasons) == 1 and reasons[0] in _REASONS else None,
        "values": not {"value", "text"}.isdisjoint(scan.needed),
        "limit": scan.limit,
    }
    found = []
    named = of("topic").values
    for topic in await topics_of(view, of("topic"), of("group")):
        for group in await groups_of(view, topic, of("group")):
            if named is None and not view.may_read(topic, group):
                continue  # the statement does not name the topic: leave out groups that the caller may not read
            rows = view.dead_letters(topic, group).list(**options)
            found.append(await gathered(scan, _if_known(rows), lambda one: _of_dead(one, scan.needed), held))
    return pa.concat_tables(found) if found else empty(scan.table, scan.needed)


_REASONS: Final = ("nacked", "lease_expired", "expired", "rejected")


async def _if_known(rows: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Return the rows of a group; none if the group does not exist."""
    try:
        async for row in rows:
            yield row
    except UnknownGroup:
        return


def _of_dead(one: Any, needed: Iterable[str]) -> Row:
    """Convert a dead letter to a row."""
    special: dict[str, Callable[[Any], Any]] = {
        "key": lambda one: text_of(one.key),
        "key_bytes": lambda one: one.key,
        "unique_key": lambda one: text_of(one.unique_key),
        "text": lambda one: text_of(one.value),
        "headers": lambda one: headers_text(one.headers_bytes),
        "deliver_at": lambda one: time(one.deliver_at_ms),
        "created_at": lambda one: time(one.created_ms),
        "dead_at": lambda one: time(one.dead_ms),
        "history": lambda one: json_text([attempt._asdict() for attempt in one.history]),
    }
    return {name: special[name](one) if name in special else getattr(one, name) for name in needed}


async def _leases(view: CallerView, scan: Scan, held: Held) -> Any:
    """Return leased and waiting messages, with a row for each group in which a message has such a state.

    List the messages in these states, then ask for the state of each message in each group (WHY).
    """
    of = scan.bounds.of
    since, until = span_of(of("deliver_at"))
    states = of("state").values
    rows: list[Row] = []
    for topic in await topics_of(view, of("topic")):
        messages = view.messages(topic)
        ids: dict[str, None] = {}
        for state in ("leased", "waiting"):
            # The state of a message in a list is that of one group; it may be different in other groups.
            async for one in messages.list(state=state, since=since, until=until, limit=IDS + 1):
                ids[one.id] = None
        if len(ids) > IDS:
            raise SqlError(
                TOO_BIG_SELECT,
                f"topic {topic}: more than {IDS:,} messages are leased or wait; bound deliver_at more closely",
            )

        async def why(id: str, topic: str = topic) -> dict[str, Any] | None:
            """Return the history of a message; None if there is none."""
            try:
                return await view.messages(topic).why(id)
            except NotFound:
                return None

        for found in await each(why, list(ids)):
            rows += [] if found is None else _of_groups(found, of("group"), states)
    return table_of(scan, rows, held)


def _of_groups(found: Mapping[str, Any], wanted: Bound, states: tuple[Any, ...] | None) -> list[Row]:
    """Return a row of `leases` for each group that has leased the message or will retry it.

    `found`: the reply of WHY for the message. `wanted`, `states`: bounds of the columns `group` and `state`.
    """
    rows: list[Row] = []
    for group in found["groups"]:
        if group["state"] not in ("leased", "waiting") or (states is not None and group["state"] not in states):
            continue
        if wanted.values is not None and group["group"] not in wanted.values:
            continue
        rows.append(
            {name: found[name] for name in ("topic", "partition", "id", "offset")}
            | {name: group.get(name) for name in ("group", "state", "attempt", "consumer", "lease_token", "error")}
            | {
                "lease_until": time(group.get("deadline_ms")),
                "retry_at": time(group.get("due_ms")),
                "deliver_at": time(found["deliver_ms"]),
                "key": text_of(found["key"]),
                "reason": group.get("reason"),
            }
        )
    return rows


async def _keys(view: CallerView, scan: Scan, held: Held) -> Any:
    """Return keys of compacted topics, with their values."""
    of = scan.bounds.of
    key = of("key")
    found = []
    records = {record.name: record for record in await view.topics() if record.kind == COMPACTED}
    wanted = of("topic").values
    for topic in records if wanted is None else wanted:
        kv = view.keys(str(topic))
        # Keys that the query names are looked up. Without names, the keys of the topic are scanned.
        if key.values is not None:
            if len(key.values) > IDS:
                raise SqlError(TOO_BIG_SELECT, f"the query names {len(key.values):,} keys; at most {IDS:,} are read")
            names = [name for name in key.values if isinstance(name, str) and name]
            entries = [] if not names else [one for one in await kv.get_many(names) if one is not None]
            found.append(table_of(scan, [_of_entry(topic, scan.needed, one) for one in entries], held))
            continue
        options: dict[str, Any] = {"limit": scan.limit}
        if key.prefix is not None:
            options["prefix"] = key.prefix
        elif key.is_range:
            options["start"] = key.low if isinstance(key.low, str) else None
            options["stop"] = f"{key.high}\0" if isinstance(key.high, str) else None
        partitions = of("partition").values
        if partitions is not None and len(partitions) == 1 and topic in records:
            if partitions[0] not in range(len(records[topic].partitions)):
                continue
            options["partition"] = partitions[0]
        rows = kv.scan(**options)
        found.append(await gathered(scan, rows, partial(_of_entry, topic, scan.needed), held))
    return pa.concat_tables(found) if found else empty(scan.table, scan.needed)


def _of_entry(topic: str, needed: Iterable[str], one: Any) -> Row:
    """Convert a key's entry to a row."""
    special: dict[str, Callable[[Any], Any]] = {
        "topic": lambda one: topic,
        "key": lambda one: text_of(one.key),
        "key_bytes": lambda one: one.key,
        "text": lambda one: text_of(one.value),
        "size": lambda one: len(one.value),
        "headers": lambda one: headers_text(one.headers_bytes),
        "written_at": lambda one: time(offset_time_ms(one.version)),
        "expires_at": lambda one: time(one.expires_ms),
    }
    return {name: special[name](one) if name in special else getattr(one, name) for name in needed}


async def _schedules(view: CallerView, scan: Scan, held: Held) -> Any:
    """Return the schedules of topics. Compacted topics have none."""
    wanted = scan.bounds.of("topic").values
    kinds = {record.name: record.kind for record in await view.topics()}
    topics = [name for name, kind in kinds.items() if kind != COMPACTED and (wanted is None or name in wanted)]
    found = []
    for topic in topics:
        rows = view.schedules(topic).list(prefix=prefix_of(scan.bounds.of("name")) or "")
        found.append(await gathered(scan, rows, lambda one: _of_schedule(one, scan.needed), held))
    return pa.concat_tables(found) if found else empty(scan.table, scan.needed)


def _of_schedule(one: Any, needed: Iterable[str]) -> Row:
    """Convert a schedule to a row."""
    special: dict[str, Callable[[Any], Any]] = {
        "key": lambda one: text_of(one.key),
        "text": lambda one: text_of(one.value),
        "headers": lambda one: headers_text(one.headers_bytes),
        "next_at": lambda one: time(one.next_ms),
        "fire_at": lambda one: time(one.fire_ms),
        "created_at": lambda one: time(one.created_ms),
        "changed_at": lambda one: time(one.changed_ms),
    }
    return {name: special[name](one) if name in special else getattr(one, name) for name in needed}


async def _groups(view: CallerView, scan: Scan, held: Held) -> Any:
    """Return a row for each group of a topic, from its rows of all partitions.

    Counts are summed. A consumer may have all partitions, so `consumers` is the largest number of a partition.
    """
    topics = await topics_of(view, scan.bounds.of("topic"))

    async def of_topic(topic: str) -> list[Row]:
        """Return one row per group: sums and extremes over the topic's partitions."""
        groups: dict[str, dict[str, Any]] = {}
        for row in await view.groups(topic):
            found = groups.setdefault(row["group"], {"topic": topic, "group": row["group"], "consumers": 0})
            for name in ("ready", "leased", "waiting", "dead", "lag"):
                found[name] = found.get(name, 0) + row.get(name, 0)
            found["consumers"] = max(found["consumers"], row.get("consumers") or 0)
            found["reason"] = found.get("reason") or row.get("reason")
            found["touched_ms"] = max(found.get("touched_ms") or 0, row.get("touched_ms") or 0)
            found["cursor"] = min(found.get("cursor") or row["cursor"], row["cursor"])
            found["settings"] = found.get("settings") or row.get("settings")
        for found in groups.values():
            found["touched_at"] = time(found.pop("touched_ms") or None)
            found["settings"] = json_text(found["settings"] or {})
        return list(groups.values())

    return table_of(scan, [row for rows in await each(of_topic, topics) for row in rows], held)


async def _topic_rows(view: CallerView, scan: Scan, held: Held) -> Any:
    """Return a row for each topic. Ask for its counters only if the query needs them.

    Counters are NULL if some partition has no leader.
    """
    counted = ("messages", "delayed", "dead", "keys", "bytes")
    wanted = scan.bounds.of("topic").values
    records = [one for one in await view.topics() if wanted is None or one.name in wanted]

    async def of_topic(record: Any) -> Row:
        """Return the row of a topic. Counts are NULL unless all partitions have answered."""
        row = {
            "topic": record.name,
            "kind": record.kind,
            "partitions": len(record.partitions),
            "replicas": record.replicas,
            "owner": record.owner,
            "settings": json_text(record.settings),
        }
        if set(counted).isdisjoint(scan.needed):
            return row
        stats = await view.stats(record.name)
        is_whole = len(stats) == len(record.partitions)
        return row | {name: sum(one.get(name, 0) for one in stats) if is_whole else None for name in counted}

    return table_of(scan, await each(of_topic, records), held)


async def _partitions(view: CallerView, scan: Scan, held: Held) -> Any:
    """Return the rows of all partitions of the scan's topics."""
    topics = await topics_of(view, scan.bounds.of("topic"))

    async def of_topic(topic: str) -> list[dict[str, Any]]:
        """Return the rows of a topic's partitions."""
        return await view.partitions(topic)

    rows = [row for found in await each(of_topic, topics) for row in found]
    return table_of(
        scan, [row | {"nodes": json_text(row["nodes"]), "now_at": time(row.get("now_ms"))} for row in rows], held
    )


async def _nodes(view: CallerView, scan: Scan, held: Held) -> Any:
    """Return the nodes of the cluster."""
    found = await view.cluster()
    leader = found.get("metadata_leader")
    rows = [row | {"metadata_leader": row.get("node") == leader} for row in found.get("nodes") or ()]
    return table_of(scan, rows, held)


async def _forecast(view: CallerView, scan: Scan, held: Held) -> Any:
    """Return the forecasts of each topic and unit.

    A forecast begins now. It ends at the upper bound of `starts_at`, or after `_DEFAULT_UNITS` units.
    """
    of = scan.bounds.of
    units = of("unit").values
    _, until = span_of(of("starts_at"))
    rows: list[Row] = []
    for topic in await topics_of(view, of("topic")):
        for unit in ("minute",) if units is None else units:
            if unit not in _UNITS_MS:
                continue
            count = _DEFAULT_UNITS
            if until is not None:
                now_ms = (await view.forecast(topic, unit, 1)).now_ms
                count = max(1, (until - now_ms) // _UNITS_MS[unit] + 2)  # the first and the last unit may be partial
                if count > _MOST_UNITS:
                    raise SqlError(
                        TOO_BIG_SELECT,
                        f"the forecast has at most {_MOST_UNITS:,} rows of a {unit}: "
                        "bound starts_at, or take a longer unit",
                    )
            found = await view.forecast(topic, unit, count)
            messages, scheduled = dict(found.buckets), dict(found.scheduled)
            rows += [
                {
                    "topic": topic,
                    "unit": unit,
                    "starts_at": time(start_ms),
                    "messages": messages.get(start_ms, 0),
                    "scheduled": scheduled.get(start_ms, 0),
                }
                for start_ms in sorted({*messages, *scheduled})
            ]
    return table_of(scan, rows, held)


_DEFAULT_UNITS: Final = 60
"""Number of units of a forecast without an upper bound."""
_MOST_UNITS: Final = 3600
"""Maximum number of units of a forecast."""
_UNITS_MS: Final = {"second": 1000, "minute": 60_000, "hour": 3_600_000}


async def _queues(view: CallerView, scan: Scan, held: Held) -> Any:
    """Return the topics as z4's queues. Ask for the cursors of groups only if the query needs them."""
    wanted = scan.bounds.of("id").values
    records = [one for one in await view.topics() if wanted is None or one.name in wanted]

    async def of_topic(record: Any) -> Row:
        """Return a topic as a queue: its groups' positions, and the deadline of acks in s."""
        positions: dict[str, dict[int, str]] = {}
        if "positions" in scan.needed:
            for row in await view.groups(record.name):
                positions.setdefault(row["group"], {})[row["partition"]] = row["cursor"]
        lease_ms = record.settings.get("lease_ms")
        deadline = None if lease_ms is None else lease_ms // 1000
        return {"id": record.name, "positions": json_text(positions), "ack_deadline": deadline}

    return table_of(scan, await each(of_topic, records), held)


_READERS: Final[Mapping[str, Callable[[CallerView, Scan, Held], Awaitable[Any]]]] = {
    "messages": read_messages.messages,
    "dead_letters": _dead_letters,
    "leases": _leases,
    "keys": _keys,
    "schedules": _schedules,
    "groups": _groups,
    "topics": _topic_rows,
    "partitions": _partitions,
    "nodes": _nodes,
    "forecast": _forecast,
    "queue": _queues,
    "queues": _queues,
}
