"""Read the rows that a scan needs, as Arrow's tables, by the rights of the caller (`caller_view`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import anyio
import pyarrow as pa

from sandq.client import StoredMessage, offset_time_ms
from sandq.model import offsets as offset_model
from sandq.model.errors import InvalidRequest, NotFound, ProtocolError, UnknownGroup
from sandq.model.limits import DEFAULT, FIXED
from sandq.model.names import COMPACTED, FAIR
from sandq.model.times import LEAST_INSTANT_MS, TIME_MAX_MS
from sandq.protocol.replies_messages import page
from sandq.protocol.requests_messages import LISTED_STATES, PAGE_MAX, List
from sandq.sql.bounds import Bound
from sandq.sql.budget import IDS, Held
from sandq.sql.caller_view import CallerView
from sandq.sql.errors import TOO_BIG_SELECT, SqlError
from sandq.sql.pages import (
    MovedMessages,
    columns_of,
    headers_array,
    headers_text,
    is_json,
    json_text,
    text_of,
    texts,
    texts_array,
)
from sandq.sql.scan import Scan, check_count, is_id
from sandq.sql.schema import Column, Kind, Table

AT_ONCE: Final = 8
"""Requests of one query at a time."""
_BATCH_ROWS: Final = 5000
"""Rows that become columns together, and are counted then."""

Row = Mapping[str, Any]


async def read(view: CallerView, scan: Scan, held: Held) -> Any:
    """The rows of a scan (pyarrow.Table with its needed columns); there may be others that WHERE is not true of."""
    if any(bound.values == () for bound in scan.bounds.columns.values()):  # a comparison with NULL
        return empty(scan.table, scan.needed)
    if scan.table.is_of_tasks:
        return await _tasks(view, scan, held)
    return await _READERS[scan.table.name](view, scan, held)


def empty(table: Table, needed: Sequence[str]) -> Any:
    """No rows."""
    return _schema(table, needed).empty_table()


def as_they_are(table: Any, columns: Sequence[tuple[str, Column]]) -> Any:
    """Columns of rows that were read, under other names; JSON is checked."""
    arrays = []
    for _, column in columns:
        array = table.column(column.needs[0] if column.needs else column.name)
        if column.name == "json":
            array = pa.array([cell if is_json(cell) else None for cell in array.to_pylist()], pa.string())
        arrays.append(array)
    return pa.Table.from_arrays(arrays, names=[name for name, _ in columns])


# ------------------------------------------------------------------------------------------------ messages


async def _messages(view: CallerView, scan: Scan, held: Held) -> Any:
    found: list[Any] = []
    rows = 0
    for topic in await _topics(view, scan.bounds.of("topic")):
        left = None if scan.limit is None or scan.is_ordered else scan.limit - rows
        if left is not None and left <= 0:
            break
        table = await _messages_of(view, topic, scan, scan.limit if left is None else left, held)
        rows += table.num_rows
        found.append(table)
    return pa.concat_tables(found) if found else empty(scan.table, scan.needed)


async def _messages_of(view: CallerView, topic: str, scan: Scan, limit: int | None, held: Held) -> Any:
    named = scan.by_name
    if named == "id":
        return await _named(view, topic, scan, [(name, {}) for name in scan.bounds.of("id").values or ()], held)
    if named == "unique_key":
        names, are_all = await _unique_names(view, topic, scan)
        if are_all:
            return await _named(view, topic, scan, names, held)
        if names:
            return await _named_and_listed(view, topic, scan, names, held)
    if scan.by_page:
        return await _pages(view, topic, scan, limit, held)
    states = scan.bounds.of("state").values
    if scan.is_few or (states is not None and "delayed" not in states):
        return await _listed(view, topic, scan, limit, held)
    return await _listed_then_pages(view, topic, scan, limit, held)


async def _listed_then_pages(view: CallerView, topic: str, scan: Scan, limit: int | None, held: Held) -> Any:
    """Messages with their states: what is due is listed; what is not, by a second, is delayed, and read by the page."""
    at_us = (_MARGIN_MS + (await view.forecast(topic, "second", 1)).now_ms) * 1000
    due, later = scan.within("deliver_at"), scan.within("deliver_at")
    due.bounds.columns["deliver_at"].below(at_us, True)
    later.bounds.columns["deliver_at"].above(at_us, False)
    try:
        pages = await _pages(view, topic, later, limit, held)
    except MovedMessages:  # how often they were is told message by message
        return await _listed(view, topic, scan, limit, held)
    return pa.concat_tables([await _listed(view, topic, due, limit, held), pages])


_MARGIN_MS: Final = 1000
"""What is due so soon may be, by the clock of the node that leads it."""


_Name = tuple[Any, dict[str, Any]]
"""How a message is named: by its id, or (None) by these arguments of `get`."""


async def _unique_names(view: CallerView, topic: str, scan: Scan) -> tuple[list[_Name], bool]:
    """Return the names that the unique keys of a query may be, and whether no other message has these unique keys.

    A unique key is unique within a tenant in a fair topic, elsewhere within the key of a message that has one.
    """
    record, of = await view.topic(topic), scan.bounds.of
    if record.kind == COMPACTED:
        return [], False
    unique_keys = [name for name in of("unique_key").values or () if _fits(name, 1, FIXED.unique_key_bytes)]
    column = "tenant" if record.kind == FAIR else "key"
    within = of(column).values
    if record.kind == FAIR and (within is None or len(within) != 1):
        return [], False
    if within is None:
        return [(None, {"unique_key": name}) for name in unique_keys], not unique_keys
    within = tuple(one for one in within if _fits(one, 0, DEFAULT.key_bytes))
    check_count(len(unique_keys) * len(within))  # before the pairs are made: they may be many more
    return [(None, {"unique_key": name, column: one}) for name in unique_keys for one in within], True


def _fits(name: Any, least: int, most: int) -> bool:
    """Whether this is a text of so many bytes: no message is named by anything else."""
    return isinstance(name, str) and least <= len(name.encode()) <= most


async def _named_and_listed(view: CallerView, topic: str, scan: Scan, names: Sequence[_Name], held: Held) -> Any:
    """Messages of unique keys, with and without keys: those without are looked up, those in the log are listed."""
    wide = replace(scan, needed=tuple(dict.fromkeys([*scan.needed, "id", "unique_key"])))
    named = await _named(view, topic, wide, names, held)
    listed = await _listed(view, topic, wide, None, held)
    is_wanted = pa.compute.is_in(listed["unique_key"], pa.array([name["unique_key"] for _, name in names]))
    is_known = pa.compute.is_in(listed["id"], named["id"].combine_chunks())
    listed = listed.filter(pa.compute.and_not(is_wanted, is_known))
    return pa.concat_tables([named, listed]).select(list(scan.needed))


async def _named(view: CallerView, topic: str, scan: Scan, names: Sequence[_Name], held: Held) -> Any:
    check_count(len(names))
    messages = view.messages(topic)

    async def get(name: _Name) -> StoredMessage | None:
        id, arguments = name
        try:
            if id is not None:
                one = await messages.get(id) if is_id(id) else None
                return one if one is not None and one.id == id else None  # an offset names a message, too
            return await messages.get(**arguments)
        except NotFound:
            return None
        except InvalidRequest:  # a text that is no tenant is none of a message, either
            if "key" in arguments:  # an older node does not look messages up so
                raise
            return None

    found = await _each(get, [name for name in names if name[0] is None or isinstance(name[0], str)])
    return _made(scan, [_of_stored(one, scan.needed) for one in found if one is not None], held)


async def _listed(view: CallerView, topic: str, scan: Scan, limit: int | None, held: Held) -> Any:
    """Messages with their states, a page of maps at a time, of several partitions at a time."""
    of = scan.bounds.of
    start, end = _stretch(scan)
    if end is not None and start >= end:
        return empty(scan.table, scan.needed)
    from_ms = offset_model.deliver_ms(start)
    # An offset within a millisecond is no bound of a listing, which knows whole ones: the rest is left out here.
    is_within = any(start[6:]) or (end is not None and any(end[6:]))
    until_ms = TIME_MAX_MS if end is None else min(offset_model.deliver_ms(end) + bool(any(end[6:])), TIME_MAX_MS)
    prefixes = [
        None if prefix is None else prefix.encode() for prefix in (_prefix(of("key")), _prefix(of("unique_key")))
    ]
    values = not {"value", "text"}.isdisjoint(scan.needed)
    states = of("state").values
    chosen = (None,) if states is None or not set(states) <= set(LISTED_STATES) else tuple(states)

    async def of_partition(partition: int, most: int | None = limit) -> list[Any]:
        found: list[Any] = []
        for state in chosen:
            after, rows = None, 0
            while most is None or rows < most:
                count = PAGE_MAX if most is None or is_within else min(most - rows, PAGE_MAX)
                request = List(
                    topic, partition, state, from_ms, until_ms, prefixes[0], count, after, values, prefixes[1]
                )
                maps, after = page(await view.ask_leader(request), _map)
                if is_within:
                    maps = [row for row in maps if start <= _offset(row) and (end is None or _offset(row) < end)]
                found.append(_of_maps(scan, topic, partition, maps, held))
                rows += len(maps)
                if after is None:
                    break
        return found

    numbers = await _numbers(view, topic, of("partition"))
    if limit is None or scan.is_ordered:
        tables = [table for found in await _each(of_partition, numbers) for table in found]
    else:
        tables, rows = [], 0
        for partition in numbers:
            tables += await of_partition(partition, limit - rows)
            rows = sum(table.num_rows for table in tables)
            if rows >= limit:
                break
    return pa.concat_tables(tables) if tables else empty(scan.table, scan.needed)


def _offset(row: Mapping[str, Any]) -> bytes:
    found = row.get("offset")
    if not isinstance(found, bytes):
        raise ProtocolError("message map: an offset is expected")
    return found


def _map(row: object) -> Mapping[str, Any]:
    if not isinstance(row, dict):
        raise ProtocolError("message map: a map is expected")
    return row


async def _numbers(view: CallerView, topic: str, bound: Bound) -> list[int]:
    """The partitions of a topic that a query wants."""
    record = await view.topic(topic)
    return [row.partition for row in record.partitions if bound.values is None or row.partition in bound.values]


def _of_maps(scan: Scan, topic: str, partition: int, maps: Sequence[Mapping[str, Any]], held: Held) -> Any:
    """Columns of the maps that a node tells of messages."""
    count = len(maps)
    schema = _schema(scan.table, scan.needed)
    try:
        arrays = [_of_map(field.name, field.type, topic, partition, maps, count) for field in schema]
    except (KeyError, TypeError, ValueError, pa.ArrowException) as error:
        raise ProtocolError(f"message map: {error}") from None
    table = pa.Table.from_arrays(arrays, schema=schema)
    held.add(count, table.nbytes)
    return table


_MS: Final = {"deliver_at": "deliver_ms", "created_at": "created_ms", "due_at": "due_ms", "moved_at": "moved_ms"}
_TEXTS: Final = {"key": "key", "unique_key": "unique_key", "text": "value"}
_SAME: Final = {"state", "value", "moves", "size", "ttl_ms"}


def _of_map(name: str, kind: Any, topic: str, partition: int, maps: Sequence[Mapping[str, Any]], count: int) -> Any:
    if name == "topic":
        return pa.repeat(topic, count)
    if name == "partition":
        return pa.repeat(pa.scalar(partition, pa.int32()), count)
    if name in ("id", "offset"):
        return texts_array(b"".join([row[name] for row in maps]), count)
    if name in _MS:
        return pa.array([row[_MS[name]] for row in maps], pa.timestamp("ms")).cast(kind)
    if name in _TEXTS:
        return texts(pa.array([row[_TEXTS[name]] for row in maps], pa.binary()))
    if name == "headers":
        return headers_array(pa.array([row["headers"] for row in maps], pa.binary()))
    if name in _SAME:
        return pa.array([row[name] for row in maps], kind)
    if name == "key_bytes":
        return pa.array([row["key"] for row in maps], kind)
    return pa.array([row.get(name, 0 if name == "priority" else None) for row in maps], kind)


async def _pages(view: CallerView, topic: str, scan: Scan, limit: int | None, held: Held) -> Any:
    """Columns of the log, of several partitions at a time."""
    numbers = await _numbers(view, topic, scan.bounds.of("partition"))
    start, end = _stretch(scan)
    if end is not None and start >= end:
        return empty(scan.table, scan.needed)
    names = list(scan.needed)
    schema = _schema(scan.table, names)

    async def of_partition(partition: int) -> list[Any]:
        found: list[Any] = []
        # The bound may be an offset of another partition, which this one has no place of.
        rows, cursor = 0, offset_model.of_partition(start, partition)
        if offset_model.unpack(cursor).partition != partition:
            return found  # nothing of it comes behind the last offset there is
        while limit is None or rows < limit:
            stop = None if end is None else offset_model.to_text(end)
            reply = await view.page(topic, partition, offset_model.to_text(cursor), stop)
            for piece in reply.pieces:
                columns, count = columns_of(piece, topic, partition, names)
                batch = _batch(columns, schema)
                held.add(count, batch.nbytes)
                found.append(batch)
                rows += count
            if reply.next is None:
                break
            cursor = reply.next
        return found

    batches = [batch for found in await _each(of_partition, numbers) for batch in found]
    return pa.Table.from_batches(batches, schema=schema)


def _batch(columns: Mapping[str, Any], schema: Any) -> Any:
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _stretch(scan: Scan) -> tuple[bytes, bytes | None]:
    """Where to begin in the log, and what is not read any more."""
    since, until = span_of(scan.bounds.of("deliver_at"))
    start = offset_model.pack(since or 0, 0, 0, 0)
    end = None if until is None else offset_model.pack(until, 0, 0, 0)
    bound = scan.bounds.of("offset")
    texts = [text for text in (bound.values or ()) if is_id(text)]
    low = min(texts) if texts else bound.low if is_id(bound.low) else None
    high = max(texts) if texts else bound.high if is_id(bound.high) else None
    if low is not None:
        first = offset_model.from_text(low)
        start = max(start, _behind(first) if bound.low_open and not texts else first)
    if high is not None:
        last = offset_model.from_text(high)
        stop = last if bound.high_open and not texts else _behind(last)
        end = stop if end is None else min(end, stop)
    return start, end


def _behind(offset: bytes) -> bytes:
    """The place behind an offset; of the last one, itself: there is no message of that time."""
    try:
        return offset_model.behind(offset)
    except InvalidRequest:
        return offset


def span_of(bound: Bound) -> tuple[int | None, int | None]:
    """A bound of a time (microseconds) as `since` and `until` in milliseconds; the latter is not included."""
    low, high = bound.low, bound.high
    low_open, high_open = bound.low_open, bound.high_open
    if bound.values is not None:
        if not bound.values:
            return 1, 1
        first, last = min(bound.values), max(bound.values)
        low, low_open = (first, False) if low is None or first > low else (low, low_open)
        high, high_open = (last, False) if high is None or last < high else (high, high_open)
    since = None if low is None else low // 1000 + 1 if low_open or low % 1000 else low // 1000
    until = None if high is None else high // 1000 if high_open and not high % 1000 else high // 1000 + 1
    if since is not None and since < LEAST_INSTANT_MS:
        since = None
    if until is not None:
        until = None if until > TIME_MAX_MS else max(until, LEAST_INSTANT_MS)
    return None if since is None else min(since, TIME_MAX_MS), until


async def _tasks(view: CallerView, scan: Scan, held: Held) -> Any:
    """What is scheduled: what is due is no task any more."""
    inner = scan.of_messages()
    bounds = inner.bounds
    if inner.by_name is None:
        bounds.columns["state"] = Bound(values=("delayed",))
    needed = tuple(dict.fromkeys([*inner.needed, "state"]))
    table = await _messages(view, Scan(inner.table, bounds, needed, scan.limit, scan.is_ordered), held)
    table = table.filter(pa.compute.equal(table["state"], "delayed"))
    names = {"topic": "queue", "moved_at": "last_retry", "headers": "metadata", "value": "payload"}
    return table.select(list(inner.needed)).rename_columns([names.get(name, name) for name in inner.needed])


def _of_stored(one: StoredMessage, needed: Iterable[str]) -> Row:
    special: dict[str, Callable[[StoredMessage], Any]] = {
        "key": lambda one: text_of(one.key),
        "key_bytes": lambda one: one.key,
        "unique_key": lambda one: text_of(one.unique_key),
        "text": lambda one: text_of(one.value),
        "headers": lambda one: headers_text(one.headers_bytes),
        "deliver_at": lambda one: time(one.deliver_at_ms),
        "created_at": lambda one: time(one.created_ms),
        "due_at": lambda one: time(one.due_ms),
        "moved_at": lambda one: time(one.moved_ms),
    }
    return {name: special[name](one) if name in special else getattr(one, name) for name in needed}


# --------------------------------------------------------------------------------------------- beside messages


async def _dead_letters(view: CallerView, scan: Scan, held: Held) -> Any:
    of = scan.bounds.of
    since, until = span_of(of("dead_at"))
    reasons = of("reason").values
    options: dict[str, Any] = {
        "since": since,
        "until": until,
        "key_prefix": _prefix(of("key")),
        "reason": reasons[0] if reasons is not None and len(reasons) == 1 and reasons[0] in _REASONS else None,
        "values": not {"value", "text"}.isdisjoint(scan.needed),
        "limit": scan.limit,
    }
    found = []
    named = of("topic").values
    for topic in await _topics(view, of("topic"), of("group")):
        for group in await _groups_of(view, topic, of("group")):
            if named is None and not view.may_read(topic, group):
                continue  # of a topic that the statement does not name, only groups that the caller may read exist
            rows = view.dead_letters(topic, group).list(**options)
            found.append(await _gathered(scan, _if_known(rows), lambda one: _of_dead(one, scan.needed), held))
    return pa.concat_tables(found) if found else empty(scan.table, scan.needed)


_REASONS: Final = ("nacked", "lease_expired", "expired", "rejected")


async def _if_known(rows: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Rows of a group that may not be there (any more)."""
    try:
        async for row in rows:
            yield row
    except UnknownGroup:
        return


def _of_dead(one: Any, needed: Iterable[str]) -> Row:
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
    """What is leased or waits; of each message every group that has it so."""
    of = scan.bounds.of
    since, until = span_of(of("deliver_at"))
    states = of("state").values
    rows: list[Row] = []
    for topic in await _topics(view, of("topic")):
        messages = view.messages(topic)
        ids: dict[str, None] = {}
        for state in ("leased", "waiting"):
            # A message's own state is that of one group: another one may have it otherwise.
            async for one in messages.list(state=state, since=since, until=until, limit=IDS + 1):
                ids[one.id] = None
        if len(ids) > IDS:
            raise SqlError(
                TOO_BIG_SELECT,
                f"topic {topic}: more than {IDS:,} messages are leased or wait; bound deliver_at more closely",
            )

        async def why(id: str, topic: str = topic) -> dict[str, Any] | None:
            try:
                return await view.messages(topic).why(id)
            except NotFound:
                return None

        for found in await _each(why, list(ids)):
            rows += [] if found is None else _of_groups(found, of("group"), states)
    return _made(scan, rows, held)


def _of_groups(found: Mapping[str, Any], wanted: Bound, states: tuple[Any, ...] | None) -> list[Row]:
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
    of = scan.bounds.of
    key = of("key")
    found = []
    records = {record.name: record for record in await view.topics() if record.kind == COMPACTED}
    wanted = of("topic").values
    for topic in records if wanted is None else wanted:
        kv = view.keys(str(topic))
        if key.values is not None:
            if len(key.values) > IDS:
                raise SqlError(TOO_BIG_SELECT, f"the query names {len(key.values):,} keys; at most {IDS:,} are read")
            names = [name for name in key.values if isinstance(name, str) and name]
            entries = [] if not names else [one for one in await kv.get_many(names) if one is not None]
            found.append(_made(scan, [_of_entry(topic, scan.needed, one) for one in entries], held))
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
        found.append(await _gathered(scan, rows, partial(_of_entry, topic, scan.needed), held))
    return pa.concat_tables(found) if found else empty(scan.table, scan.needed)


def _of_entry(topic: str, needed: Iterable[str], one: Any) -> Row:
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
    wanted = scan.bounds.of("topic").values
    kinds = {record.name: record.kind for record in await view.topics()}
    topics = [name for name, kind in kinds.items() if kind != COMPACTED and (wanted is None or name in wanted)]
    found = []
    for topic in topics:
        rows = view.schedules(topic).list(prefix=_prefix(scan.bounds.of("name")) or "")
        found.append(await _gathered(scan, rows, lambda one: _of_schedule(one, scan.needed), held))
    return pa.concat_tables(found) if found else empty(scan.table, scan.needed)


def _of_schedule(one: Any, needed: Iterable[str]) -> Row:
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
    topics = await _topics(view, scan.bounds.of("topic"))

    async def of_topic(topic: str) -> list[Row]:
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

    return _made(scan, [row for rows in await _each(of_topic, topics) for row in rows], held)


async def _topic_rows(view: CallerView, scan: Scan, held: Held) -> Any:
    counted = ("messages", "delayed", "dead", "keys", "bytes")
    wanted = scan.bounds.of("topic").values
    records = [one for one in await view.topics() if wanted is None or one.name in wanted]

    async def of_topic(record: Any) -> Row:
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

    return _made(scan, await _each(of_topic, records), held)


async def _partitions(view: CallerView, scan: Scan, held: Held) -> Any:
    topics = await _topics(view, scan.bounds.of("topic"))

    async def of_topic(topic: str) -> list[dict[str, Any]]:
        return await view.partitions(topic)

    rows = [row for found in await _each(of_topic, topics) for row in found]
    return _made(
        scan, [row | {"nodes": json_text(row["nodes"]), "now_at": time(row.get("now_ms"))} for row in rows], held
    )


async def _nodes(view: CallerView, scan: Scan, held: Held) -> Any:
    found = await view.cluster()
    leader = found.get("metadata_leader")
    rows = [row | {"metadata_leader": row.get("node") == leader} for row in found.get("nodes") or ()]
    return _made(scan, rows, held)


async def _forecast(view: CallerView, scan: Scan, held: Held) -> Any:
    of = scan.bounds.of
    units = of("unit").values
    _, until = span_of(of("starts_at"))
    rows: list[Row] = []
    for topic in await _topics(view, of("topic")):
        for unit in ("minute",) if units is None else units:
            if unit not in _UNITS_MS:
                continue
            count = _COUNT
            if until is not None:
                now_ms = (await view.forecast(topic, unit, 1)).now_ms
                count = max(1, (until - now_ms) // _UNITS_MS[unit] + 2)
                if count > _MOST:
                    raise SqlError(
                        TOO_BIG_SELECT,
                        f"the forecast has at most {_MOST:,} rows of a {unit}: bound starts_at, or take a longer unit",
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
    return _made(scan, rows, held)


_COUNT: Final = 60
_MOST: Final = 3600
_UNITS_MS: Final = {"second": 1000, "minute": 60_000, "hour": 3_600_000}


async def _queues(view: CallerView, scan: Scan, held: Held) -> Any:
    wanted = scan.bounds.of("id").values
    records = [one for one in await view.topics() if wanted is None or one.name in wanted]

    async def of_topic(record: Any) -> Row:
        positions: dict[str, dict[int, str]] = {}
        if "positions" in scan.needed:
            for row in await view.groups(record.name):
                positions.setdefault(row["group"], {})[row["partition"]] = row["cursor"]
        lease_ms = record.settings.get("lease_ms")
        deadline = None if lease_ms is None else lease_ms // 1000
        return {"id": record.name, "positions": json_text(positions), "ack_deadline": deadline}

    return _made(scan, await _each(of_topic, records), held)


_READERS: Final[Mapping[str, Callable[[CallerView, Scan, Held], Awaitable[Any]]]] = {
    "messages": _messages,
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

# -------------------------------------------------------------------------------------------------- rows


def time(ms: int | None) -> int | None:
    """Return a time as the column has it, in microseconds. Times after the year 9999 become its last millisecond."""
    # SQL's clients have no form for later times. One such row must not make a whole table unreadable.
    return None if ms is None else min(ms, _LAST_MS) * 1000


_LAST_MS: Final = 253_402_300_799_999
"""Last millisecond of the year 9999."""


async def _topics(view: CallerView, bound: Bound, groups: Bound | None = None) -> list[str]:
    """Return the topics that a statement names, or all that the caller may read: whole, or one of `groups` of them."""
    if bound.values is not None:
        return [str(name) for name in bound.values]
    named = None if groups is None or groups.values is None else [str(name) for name in groups.values]
    return [record.name for record in await view.topics(named)]


async def _groups_of(view: CallerView, topic: str, bound: Bound) -> list[str]:
    if bound.values is not None:
        return [str(name) for name in bound.values]
    return sorted({str(row["group"]) for row in await view.groups(topic)})


def _prefix(bound: Bound) -> str | None:
    """What all values of a column begin with; None: nothing is known."""
    if bound.prefix is not None:
        return bound.prefix
    if bound.values is not None and len(bound.values) == 1 and isinstance(bound.values[0], str):
        return bound.values[0] or None
    return None


async def _gathered(scan: Scan, rows: AsyncIterator[Any], made: Callable[[Any], Row], held: Held) -> Any:
    tables, waiting = [], []
    async for row in rows:
        waiting.append(made(row))
        if len(waiting) >= _BATCH_ROWS:
            tables.append(_made(scan, waiting, held))
            waiting = []
    tables.append(_made(scan, waiting, held))
    return pa.concat_tables(tables)


def _schema(table: Table, needed: Sequence[str]) -> Any:
    columns = [table.column(name) for name in needed]
    return pa.schema([(column.name, column.kind.value.arrow) for column in columns if column is not None])


def _made(scan: Scan, rows: Sequence[Row], held: Held) -> Any:
    schema = _schema(scan.table, scan.needed)
    arrays = [_array([row.get(field.name) for row in rows], field.type) for field in schema]
    table = pa.Table.from_arrays(arrays, schema=schema)
    held.add(len(rows), table.nbytes)
    return table


def _array(cells: list[Any], kind: Any) -> Any:
    if kind == _BOOL:
        cells = [None if cell is None else int(cell) for cell in cells]
    return pa.array(cells, kind)


_BOOL: Final = Kind.BOOL.value.arrow


async def _each(ask: Callable[[Any], Awaitable[Any]], items: Sequence[Any]) -> list[Any]:
    """Ask for each, several at a time; the answers in the order of the items."""
    answers: list[Any] = [None] * len(items)
    if len(items) == 1:
        return [await ask(items[0])]
    failed: list[Exception] = []
    places = iter(range(len(items)))

    async def work() -> None:
        for place in places:
            if failed:
                return
            try:
                answers[place] = await ask(items[place])
            except Exception as error:
                failed.append(error)

    async with anyio.create_task_group() as tasks:
        for _ in range(min(AT_ONCE, len(items))):
            tasks.start_soon(work)
    if failed:
        raise failed[0]
    return answers
