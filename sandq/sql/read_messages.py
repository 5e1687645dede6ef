"""Reads the messages that a scan needs: by id or unique key, as lists with their states, or as pages of the log."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import pyarrow as pa

from sandq.client import StoredMessage
from sandq.model import offsets as offset_model
from sandq.model.errors import InvalidRequest, NotFound, ProtocolError
from sandq.model.limits import DEFAULT, FIXED
from sandq.model.names import COMPACTED, FAIR
from sandq.model.retries import UNLIMITED
from sandq.model.times import TIME_MAX_MS
from sandq.protocol.replies_messages import page
from sandq.protocol.requests_messages import LISTED_STATES, PAGE_MAX, List
from sandq.sql.bounds import Bound
from sandq.sql.budget import Held
from sandq.sql.caller_view import CallerView
from sandq.sql.pages import (
    MovedMessages,
    backoff_array,
    columns_of,
    headers_array,
    headers_text,
    text_of,
    texts,
    texts_array,
)
from sandq.sql.row_tables import Row, each, empty, prefix_of, schema_of, span_of, table_of, time, topics_of
from sandq.sql.scan import Scan, check_count, is_id


async def messages(view: CallerView, scan: Scan, held: Held) -> Any:
    """Return the messages of all topics of a scan."""
    found: list[Any] = []
    rows = 0
    for topic in await topics_of(view, scan.bounds.of("topic")):
        # With ORDER BY, all of the first rows may belong to one topic. So read each topic up to the whole limit.
        left = None if scan.limit is None or scan.is_ordered else scan.limit - rows
        if left is not None and left <= 0:
            break
        table = await _messages_of(view, topic, scan, scan.limit if left is None else left, held)
        rows += table.num_rows
        found.append(table)
    return pa.concat_tables(found) if found else empty(scan.table, scan.needed)


async def _messages_of(view: CallerView, topic: str, scan: Scan, limit: int | None, held: Held) -> Any:
    """Read the messages of one topic in the cheapest way.

    By id or unique key (GET) if the query names messages. As pages of the log (FETCH) if no column needs the state. As
    a list (LIST) for few rows, or for states other than delayed. Otherwise as a list of due messages and pages of later
    messages.
    """
    column = scan.by_name
    if column == "id":
        return await _by_names(view, topic, scan, [(name, {}) for name in scan.bounds.of("id").values or ()], held)
    if column == "unique_key":
        names, names_cover_all = await _unique_names(view, topic, scan)
        if names_cover_all:
            return await _by_names(view, topic, scan, names, held)
        if names:
            return await _by_names_and_listed(view, topic, scan, names, held)
    if scan.by_page:
        return await _pages(view, topic, scan, limit, held)
    states = scan.bounds.of("state").values
    if scan.is_few or (states is not None and "delayed" not in states):
        return await _listed(view, topic, scan, limit, held)
    return await _listed_then_pages(view, topic, scan, limit, held)


async def _listed_then_pages(view: CallerView, topic: str, scan: Scan, limit: int | None, held: Held) -> Any:
    """Read messages with their states.

    Messages that are due now or within a second are listed with their states. All later messages are delayed, and are
    read as pages.
    """
    at_us = (_MARGIN_MS + (await view.forecast(topic, "second", 1)).now_ms) * 1000
    due, later = scan.within("deliver_at"), scan.within("deliver_at")
    due.bounds.columns["deliver_at"].below(at_us, True)
    later.bounds.columns["deliver_at"].above(at_us, False)
    try:
        pages = await _pages(view, topic, later, limit, held)
    except MovedMessages:  # pages lack the number of moves; listed messages have it
        return await _listed(view, topic, scan, limit, held)
    return pa.concat_tables([await _listed(view, topic, due, limit, held), pages])


_MARGIN_MS: Final = 1000
"""Margin for clock differences: a message that is due this soon may already be due on its leader."""


_Name = tuple[Any, dict[str, Any]]
"""Name of a message: (its id, no arguments), or (None, arguments of `get`)."""


async def _unique_names(view: CallerView, topic: str, scan: Scan) -> tuple[list[_Name], bool]:
    """Return names of messages for the unique keys of a query, and whether they cover all messages with these keys.

    In a fair topic, a unique key is unique within its tenant. In other topics, it is unique within the message's key,
    if the message has a key.
    """
    record, of = await view.topic(topic), scan.bounds.of
    if record.kind == COMPACTED:
        return [], False
    unique_keys = [name for name in of("unique_key").values or () if _fits(name, 1, FIXED.unique_key_bytes)]
    column = "tenant" if record.kind == FAIR else "key"
    within = of(column).values
    if record.kind == FAIR and (within is None or len(within) != 1):
        return [], False
    if within is None:  # these names find only messages without a key
        return [(None, {"unique_key": name}) for name in unique_keys], not unique_keys
    within = tuple(one for one in within if _fits(one, 0, DEFAULT.key_bytes))
    check_count(len(unique_keys) * len(within))  # before the pairs are created, because there may be very many
    return [(None, {"unique_key": name, column: one}) for name in unique_keys for one in within], True


def _fits(name: Any, least: int, most: int) -> bool:
    """Return whether a value is a text within these limits, in bytes. No other value can name a message."""
    return isinstance(name, str) and least <= len(name.encode()) <= most


async def _by_names_and_listed(view: CallerView, topic: str, scan: Scan, names: Sequence[_Name], held: Held) -> Any:
    """Read messages by unique keys without knowing their keys.

    Messages without a key are looked up by their unique key; messages with a key are found in a list.
    """
    wide = replace(scan, needed=tuple(dict.fromkeys([*scan.needed, "id", "unique_key"])))
    named = await _by_names(view, topic, wide, names, held)
    listed = await _listed(view, topic, wide, None, held)
    is_wanted = pa.compute.is_in(listed["unique_key"], pa.array([name["unique_key"] for _, name in names]))
    is_known = pa.compute.is_in(listed["id"], named["id"].combine_chunks())
    listed = listed.filter(pa.compute.and_not(is_wanted, is_known))
    return pa.concat_tables([named, listed]).select(list(scan.needed))


async def _by_names(view: CallerView, topic: str, scan: Scan, names: Sequence[_Name], held: Held) -> Any:
    """Look up messages by their names. Messages that do not exist are left out."""
    check_count(len(names))
    messages = view.messages(topic)

    async def get(name: _Name) -> StoredMessage | None:
        """Return the message with a name; None if there is none."""
        id, arguments = name
        try:
            if id is not None:
                one = await messages.get(id) if is_id(id) else None
                return one if one is not None and one.id == id else None  # `get` also accepts an offset
            return await messages.get(**arguments)
        except NotFound:
            return None
        except InvalidRequest:  # an invalid tenant: no message has it
            return None

    found = await each(get, [name for name in names if name[0] is None or isinstance(name[0], str)])
    return table_of(scan, [_of_stored(one, scan.needed) for one in found if one is not None], held)


async def _listed(view: CallerView, topic: str, scan: Scan, limit: int | None, held: Held) -> Any:
    """Read messages with their states in pages of maps, from several partitions at a time."""
    of = scan.bounds.of
    start, end = _range(scan)
    if end is not None and start >= end:
        return empty(scan.table, scan.needed)
    from_ms = offset_model.deliver_ms(start)
    # Lists are bounded by whole milliseconds. For an offset within a millisecond, other messages are removed here.
    is_filtered = any(start[6:]) or (end is not None and any(end[6:]))
    until_ms = TIME_MAX_MS if end is None else min(offset_model.deliver_ms(end) + bool(any(end[6:])), TIME_MAX_MS)
    prefixes = [
        None if prefix is None else prefix.encode() for prefix in (prefix_of(of("key")), prefix_of(of("unique_key")))
    ]
    values = not {"value", "text"}.isdisjoint(scan.needed)
    states = of("state").values
    # (None,): one list of messages in all states.
    listed_states = (None,) if states is None or not set(states) <= set(LISTED_STATES) else tuple(states)

    async def of_partition(partition: int, most: int | None = limit) -> list[Any]:
        """Return the listed messages of a partition as batches, at most `most`."""
        found: list[Any] = []
        for state in listed_states:
            after, rows = None, 0
            while most is None or rows < most:
                # A full page if some of its messages may be removed.
                count = PAGE_MAX if most is None or is_filtered else min(most - rows, PAGE_MAX)
                request = List(
                    topic, partition, state, from_ms, until_ms, prefixes[0], count, after, values, prefixes[1]
                )
                maps, after = page(await view.ask_leader(request), _map)
                if is_filtered:
                    maps = [row for row in maps if start <= _offset(row) and (end is None or _offset(row) < end)]
                found.append(_of_maps(scan, topic, partition, maps, held))
                rows += len(maps)
                if after is None:
                    break
        return found

    numbers = await _numbers(view, topic, of("partition"))
    if limit is None or scan.is_ordered:
        tables = [table for found in await each(of_partition, numbers) for table in found]
    else:
        tables, rows = [], 0
        for partition in numbers:
            tables += await of_partition(partition, limit - rows)
            rows = sum(table.num_rows for table in tables)
            if rows >= limit:
                break
    return pa.concat_tables(tables) if tables else empty(scan.table, scan.needed)


def _offset(row: Mapping[str, Any]) -> bytes:
    """Return the offset in a message map. Raise ProtocolError if it has none."""
    found = row.get("offset")
    if not isinstance(found, bytes):
        raise ProtocolError("message map: an offset is expected")
    return found


def _map(row: object) -> Mapping[str, Any]:
    """Return a row of a reply as a message map. Raise ProtocolError if it is no map."""
    if not isinstance(row, dict):
        raise ProtocolError("message map: a map is expected")
    return row


async def _numbers(view: CallerView, topic: str, bound: Bound) -> list[int]:
    """Return the numbers of a topic's partitions that a query needs."""
    record = await view.topic(topic)
    return [row.partition for row in record.partitions if bound.values is None or row.partition in bound.values]


def _of_maps(scan: Scan, topic: str, partition: int, maps: Sequence[Mapping[str, Any]], held: Held) -> Any:
    """Convert maps of messages from a node to columns."""
    count = len(maps)
    schema = schema_of(scan.table, scan.needed)
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
"""Columns that have the name and the value of a field."""


def _of_map(name: str, kind: Any, topic: str, partition: int, maps: Sequence[Mapping[str, Any]], count: int) -> Any:
    """Convert one field of the messages to a column."""
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
    if name == "backoff":
        return backoff_array(pa.array([row.get(name) for row in maps], pa.binary()))
    if name in _SAME:
        return pa.array([row[name] for row in maps], kind)
    if name == "key_bytes":
        return pa.array([row["key"] for row in maps], kind)
    if name == "cost":
        return pa.array([row.get(name) or 1 for row in maps], kind)
    return pa.array([row.get(name, 0 if name == "priority" else None) for row in maps], kind)


async def _pages(view: CallerView, topic: str, scan: Scan, limit: int | None, held: Held) -> Any:
    """Read pages of the log as columns, from several partitions at a time."""
    numbers = await _numbers(view, topic, scan.bounds.of("partition"))
    start, end = _range(scan)
    if end is not None and start >= end:
        return empty(scan.table, scan.needed)
    names = list(scan.needed)
    schema = schema_of(scan.table, names)

    async def of_partition(partition: int) -> list[Any]:
        """Return the messages of a partition's log as batches, at most `limit`."""
        found: list[Any] = []
        # The bound may be an offset of a different partition. Requests need an offset of this partition.
        rows, cursor = 0, offset_model.of_partition(start, partition)
        if offset_model.unpack(cursor).partition != partition:
            return found  # the bound is the largest offset: no message of this partition is after it
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

    batches = [batch for found in await each(of_partition, numbers) for batch in found]
    return pa.Table.from_batches(batches, schema=schema)


def _batch(columns: Mapping[str, Any], schema: Any) -> Any:
    """Return a batch with these columns, in the order of the schema."""
    return pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)


def _range(scan: Scan) -> tuple[bytes, bytes | None]:
    """Return the start and the exclusive end of a scan, as offsets; the end may be None."""
    since, until = span_of(scan.bounds.of("deliver_at"))
    start = offset_model.pack(since or 0, 0, 0, 0)
    end = None if until is None else offset_model.pack(until, 0, 0, 0)
    bound = scan.bounds.of("offset")
    texts = [text for text in (bound.values or ()) if is_id(text)]
    # Several offsets: read the range that contains all of them. DuckDB removes the others.
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
    """Return the next offset. For the largest offset, return the offset itself: no message can have its time."""
    try:
        return offset_model.behind(offset)
    except InvalidRequest:
        return offset


async def tasks(view: CallerView, scan: Scan, held: Held) -> Any:
    """Return the rows of z4's table `task`: only delayed messages, because in z4 a due message is no task."""
    inner = scan.of_messages()
    bounds = inner.bounds
    if inner.by_name is None:  # GET reads messages in all states: only the filter below removes the others
        bounds.columns["state"] = Bound(values=("delayed",))
    needed = tuple(dict.fromkeys([*inner.needed, "state"]))
    table = await messages(view, Scan(inner.table, bounds, needed, scan.limit, scan.is_ordered), held)
    table = table.filter(pa.compute.equal(table["state"], "delayed"))
    names = {"topic": "queue", "moved_at": "last_retry", "headers": "metadata", "value": "payload"}
    return table.select(list(inner.needed)).rename_columns([names.get(name, name) for name in inner.needed])


def _of_stored(one: StoredMessage, needed: Iterable[str]) -> Row:
    """Convert a message of the client to a row."""
    special: dict[str, Callable[[StoredMessage], Any]] = {
        "key": lambda one: text_of(one.key),
        "key_bytes": lambda one: one.key,
        "unique_key": lambda one: text_of(one.unique_key),
        "text": lambda one: text_of(one.value),
        "headers": lambda one: headers_text(one.headers_bytes),
        "max_attempts": lambda one: UNLIMITED if one.max_attempts == "none" else one.max_attempts,
        "backoff": lambda one: None if one.backoff is None else json.dumps(one.backoff),
        "cost": lambda one: one.cost or 1,
        "deliver_at": lambda one: time(one.deliver_at_ms),
        "created_at": lambda one: time(one.created_ms),
        "due_at": lambda one: time(one.due_ms),
        "moved_at": lambda one: time(one.moved_ms),
    }
    return {name: special[name](one) if name in special else getattr(one, name) for name in needed}
