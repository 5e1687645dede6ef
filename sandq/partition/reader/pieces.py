"""Reads the messages of ranges, as pieces that are ready to be sent. If it pays off, a batch is sent unchanged."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, cast

from sandq.model import offsets
from sandq.model.batch import Batch, Column, encode
from sandq.model.errors import Corruption
from sandq.model.piece import Piece
from sandq.partition.base import rows
from sandq.partition.base.rows import Fields, Range
from sandq.partition.base.view import Row, View
from sandq.partition.reader import overlays
from sandq.partition.reader.reader import row_holding
from sandq.partition.shared_state import SLICE_ITEMS

PIECE_MESSAGES = 1000
PIECE_BYTES = 1 << 20
FAR_MS = 1000
"""If a message is placed at least this many ms later than requested, its row contains the requested time."""
FEW_OF = 16
"""If at most 1/`FEW_OF` of the messages of a batch are needed, they are decoded one by one. Otherwise the whole batch
is decoded once."""
SCAN_RANGES = 8
SCAN_BYTES = 8 << 20
NEAR_OF = 3
"""Maximum number of rows to scan for each row that is needed."""
FEW_OTHERS = 16
"""Maximum number of overlaid messages around which a range is cut. If there are more, the whole range is decoded."""
PROBE_ROWS = 64
"""Number of rows that the first scan reads, to find out whether the needed rows are close together."""


class Wanted(NamedTuple):
    """The requested delivery time of a message, as its row stores it."""

    ms: int | None
    """The requested time, in ms, if the message was placed far later. Otherwise None."""
    is_delay: bool
    """Whether the time was given as a delay, which counts from the time when the message was stored or last moved."""

    @classmethod
    def of(cls, ms: int, placed_ms: int, is_delay: bool) -> Wanted:
        """Return the value for a message that was requested at `ms` and is placed at `placed_ms`."""
        return cls(ms, is_delay) if placed_ms - ms >= FAR_MS else FROM_STAMP if is_delay else AS_PLACED


AS_PLACED, FROM_STAMP = Wanted(None, False), Wanted(None, True)


class Message(NamedTuple):
    offset: bytes
    id: bytes
    created_ms: int
    fields: Fields
    wanted: Wanted | None = None
    """None if the requested time is not known, or was not asked for."""
    lives: Sequence[Any] = ()
    """Earlier lives of a redriven message in a group, as packed in its row (`records.lives`)."""


_Loose = Message | tuple[bytes, bytes]
"""A message that is not sent as part of a batch row: a decoded message, or (offset, plain row)."""


class _BatchRow(NamedTuple):
    base: bytes
    length: int
    created_ms: int
    raw: bytes


class MessageReader:
    """Reads messages. Caches the last batch row, decoded as far as needed: small leases read the same row many
    times."""

    def __init__(self) -> None:
        self._row: _BatchRow | None = None
        self._batch: Batch | None = None
        self._fields: list[Fields] | None = None
        self._wanted: list[Wanted] | None = None
        self._ahead: dict[bytes, bytes] = {}
        """By key: log rows that were read in advance."""

    def pieces(
        self,
        view: View,
        ranges: Sequence[Range],
        kept_of: int | None = None,
        plain: Sequence[bytes] | None = None,
    ) -> list[Piece]:
        """Return the messages of `ranges`, in their order. `kept_of`: id of a group that keeps them in its own rows.
        `plain`: the rows of the messages, if the rows are in memory and plain."""
        if plain is not None:
            return _plain_pieces([base for base, _ in ranges], plain)
        if kept_of is not None:
            return _loose_pieces(kept_messages(view, ranges, kept_of))
        found = self._read_ahead(view, ranges)
        if found and _are_plain(ranges, found):
            return _plain_pieces([base for base, _ in ranges], [value for _, value in found])
        ahead = dict(found)
        if len(ranges) >= SCAN_RANGES and _are_apart(ranges, found):
            ahead = _look_up(view, ranges)
            rows_of = [(key, ahead[key]) for one in ranges if (key := rows.LOG + one.base) in ahead]
            if _are_plain(ranges, rows_of):
                return _plain_pieces([base for base, _ in ranges], [value for _, value in rows_of])
        return [*self.each_piece(view, ranges, ahead)]

    def each_piece(
        self,
        view: View,
        ranges: Sequence[Range],
        ahead: dict[bytes, bytes],
        yield_now: Callable[[], None] | None = None,
    ) -> Iterator[Piece]:
        """Yield the messages of `ranges` in the log, in their order, one piece at a time.

        `ahead`: rows that were read already; used rows are removed from it. `yield_now`: called from time to time;
        while it runs, this partition must not be read or changed.
        """
        self._ahead = ahead
        try:
            yield from self._each_piece(view, ranges if yield_now is None else _in_slices(ranges, yield_now))
        finally:
            self._ahead = {}

    def _each_piece(self, view: View, ranges: Iterable[Range]) -> Iterator[Piece]:
        """Yield the messages of `ranges` in the log as pieces, in order.

        Successive ranges of one batch row (`picked`) become one piece. Messages with rows of their own (`loose`) are
        collected until a piece is full, or until a batch row follows."""
        loose: list[_Loose] = []
        loose_bytes = 0
        picked: list[tuple[int, int]] = []
        picked_row: _BatchRow | None = None
        ahead, has_others = self._ahead, overlays.are_there(view)
        for base, count in _around_others(view, ranges) if has_others else ranges:
            key = rows.LOG + base
            value = ahead.get(key)
            row: _BatchRow | None = None
            alone: Sequence[_Loose] = ()
            if value is not None and rows.is_plain(value):
                del ahead[key]
                alone = [(base, value)]
            else:
                row, message = self._find_row(view, base)
                if message is not None:
                    alone = [message]
                elif has_others and row is not None and overlays.between(view, base, count):
                    row, alone = None, [*self.messages(view, [Range(base, count)])]
            if row is not picked_row:
                if picked_row is not None:
                    yield self._piece(picked_row, picked)
                picked_row, picked = row, []
            for one in alone:
                loose.append(one)
                loose_bytes += _bytes_of(one) if isinstance(one, Message) else len(one[1])
                if len(loose) >= PIECE_MESSAGES or loose_bytes >= PIECE_BYTES:
                    yield _loose_piece(loose, view)
                    loose, loose_bytes = [], 0
            if row is None:
                continue
            if loose:
                yield _loose_piece(loose, view)
                loose, loose_bytes = [], 0
            picked.append((_position(row, base), count))
        if picked_row is not None:
            yield self._piece(picked_row, picked)
        if loose:
            yield _loose_piece(loose, view)

    def _read_ahead(self, view: View, ranges: Sequence[Range]) -> list[Row]:
        """Read the rows of ranges in one scan, if possible. Most ranges are adjacent rows, and one scan costs less than
        many look-ups."""
        if len(ranges) < SCAN_RANGES or ranges[-1].base < ranges[0].base:
            return []
        start, stop = rows.log_key(ranges[0].base), rows.after(rows.log_key(ranges[-1].base))
        if len(ranges) > PROBE_ROWS and all([one.length == 1 for one in ranges]):
            first = view.scan(start, stop, limit=PROBE_ROWS, max_bytes=SCAN_BYTES)
            if first and first[-1][0] != rows.log_key(ranges[len(first) - 1].base):
                return first
        return view.scan(start, stop, limit=len(ranges), max_bytes=SCAN_BYTES)

    def messages(
        self, view: View, ranges: Sequence[Range], kept_of: int | None = None, *, timed: bool = False
    ) -> Iterator[Message]:
        """Yield the decoded messages of `ranges`. `timed`: include the requested times of messages in batch rows."""
        if kept_of is not None:
            yield from kept_messages(view, ranges, kept_of)
            return
        for base, count in ranges:
            row, message = self._find_row(view, base)
            if message is not None:
                yield message
                continue
            assert row is not None
            start = _position(row, base)
            decoded = self._decoded(row, start, count)
            others = overlays.between(view, base, count)
            wanted: Sequence[Wanted | None] = self._timed(row)[start : start + count] if timed else [None] * count
            for at in range(count):
                offset = offsets.shift(base, at)
                fields = overlays.laid_over(view, others, offset, decoded[at]) if others else decoded[at]
                yield Message(offset, offset, row.created_ms, fields, wanted[at])

    def forget(self, base: bytes) -> None:
        """Drop the cached batch row with this base, which was deleted."""
        if self._row is not None and self._row.base == base:
            self._row, self._batch, self._fields, self._wanted = None, None, None, None

    def _find_row(self, view: View, offset: bytes) -> tuple[_BatchRow | None, Message | None]:
        """Find the log row of a message. Return (batch row, None), or (None, message) for a single-message row.

        The last batch row stays cached, because the next messages are often in it. Raises Corruption if no row exists.
        """
        row = self._row
        if row is not None and _holds(row, offset):
            return row, None
        key = rows.log_key(offset)
        value = self._ahead.pop(key, None)
        if value is None:
            value = view.get(key)
        if value is None:  # the message is not the first one of its batch row
            found = row_holding(view, offset)
            if found is None:
                raise Corruption(f"the log row of leased offset {offsets.to_text(offset)} is gone")
            key, value = found
        kind, _, count, created_ms = rows.LOG_HEADER.unpack_from(value)
        if kind == rows.KIND_MESSAGE:
            return None, load_message(view, offset, value)
        row = _BatchRow(key[1:], count, created_ms, value[rows.LOG_HEADER.size :])
        self._row, self._batch, self._fields, self._wanted = row, None, None, None
        return row, None

    def _parsed(self, row: _BatchRow) -> Batch:
        """Return the batch of a row, parsed. The batch of the cached row is parsed only once."""
        if row is not self._row:
            return Batch.parse(row.raw)
        if self._batch is None:
            self._batch = Batch.parse(row.raw)
        return self._batch

    def _decoded(self, row: _BatchRow, start: int, count: int) -> list[Fields]:
        """Return the fields of `count` messages of a row, from `start` on."""
        known = self._fields if row is self._row else None
        if known is None:
            batch = self._parsed(row)
            if FEW_OF * count <= row.length:
                return [_fields_at(batch, start + at) for at in range(count)]
            known = decode_fields(batch)
            if row is self._row:
                self._fields = known
        return known[start : start + count]

    def _timed(self, row: _BatchRow) -> list[Wanted]:
        """Return the requested time of each message of a row."""
        known = self._wanted if row is self._row else None
        if known is None:
            batch = self._parsed(row)
            wanted = wanted_times(batch, row.created_ms)
            known = wanted_each(batch, row.created_ms, wanted, [offsets.deliver_ms(row.base)] * batch.count)
            if row is self._row:
                self._wanted = known
        return known

    def _piece(self, row: _BatchRow, picked: list[tuple[int, int]]) -> Piece:
        """Return runs of messages of a batch row as one piece.

        The whole row is sent if at least half of it is needed, in order; otherwise only the needed messages. `picked`:
        (first position, number of messages) of each run."""
        picked = _joined(picked)
        count = sum(n for _, n in picked)
        if count == row.length and len(picked) == 1:
            return Piece(row.base, None, row.created_ms, None, row.raw)
        in_order = all([one[0] < other[0] for one, other in pairwise(picked)])
        if 2 * count >= row.length and in_order:
            return Piece(row.base, None, row.created_ms, picked, row.raw)
        batch = self._parsed(row)
        if len(picked) == 1:
            start, n = picked[0]
            sliced = batch.slice(start, start + n)
            return Piece(offsets.shift(row.base, start), None, row.created_ms, None, sliced)
        positions = [start + at for start, n in picked for at in range(n)]
        column = b"".join([offsets.shift(row.base, position) for position in positions])
        return Piece(column, None, row.created_ms, None, batch.take(positions))


def _are_apart(ranges: Sequence[Range], found: Sequence[Row]) -> bool:
    """Return whether the ranges are single messages with other rows in between, so that the scan did not find all of
    them."""
    if found and found[-1][0] >= rows.LOG + ranges[-1].base:
        return False
    return all([one.length == 1 for one in ranges])


def _look_up(view: View, ranges: Sequence[Range]) -> dict[bytes, bytes]:
    """Return the first row, by key, of each range. The ranges need not be sorted. Rows that are close together are read
    in one scan."""
    keys = sorted([rows.LOG + one.base for one in ranges])
    stop = rows.after(keys[-1])
    found = dict(view.scan(keys[0], stop, limit=PROBE_ROWS, max_bytes=SCAN_BYTES))
    if NEAR_OF * len(found.keys() & set(keys)) >= len(found) == PROBE_ROWS:
        found = dict(view.scan(keys[0], stop, limit=NEAR_OF * len(keys), max_bytes=SCAN_BYTES))
    for key in keys:
        if key not in found and (value := view.get(key)) is not None:
            found[key] = value
    return found


def _joined(picked: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge adjacent runs of positions."""
    if len(picked) == 1:
        return picked
    found = picked[:1]
    for start, length in picked[1:]:
        last, before = found[-1]
        if last + before == start:
            found[-1] = last, before + length
        else:
            found.append((start, length))
    return found


def _around_others(view: View, ranges: Iterable[Range]) -> Iterator[Range]:
    """If a range has few overlaid messages, cut it around them, so that all other messages stay together."""
    for one in ranges:
        others = overlays.between(view, one.base, one.length) if one.length > 1 else {}
        if not 0 < len(others) <= FEW_OTHERS:
            yield one
            continue
        at = 0
        for offset in sorted(others):
            behind = offsets.distance(one.base, offset)
            assert behind is not None
            if behind > at:
                yield Range(offsets.shift(one.base, at), behind - at)
            yield Range(offset, 1)
            at = behind + 1
        if at < one.length:
            yield Range(offsets.shift(one.base, at), one.length - at)


def _in_slices(ranges: Sequence[Range], yield_now: Callable[[], None]) -> Iterator[Range]:
    """Yield the ranges. Call `yield_now` after each `SLICE_ITEMS` messages, or after a larger range."""
    messages = 0
    for one in ranges:
        yield one
        messages += one.length
        if messages >= SLICE_ITEMS:
            yield_now()
            messages = 0


def wanted_times(batch: Batch, stamp_ms: int) -> list[int]:
    """Return the requested times of the messages of a batch, in ms. 0: immediately. `stamp_ms`: time from which delays
    count."""
    start_ms = stamp_ms if batch.relative else 0
    asked = batch.int_column(Column.DELIVER_MS) or [0] * batch.count
    return [start_ms + (asked_ms or 0) for asked_ms in asked]


def wanted_each(batch: Batch, stamp_ms: int, wanted: list[int], times: list[int]) -> list[Wanted]:
    """Return the `Wanted` of each message of a batch. `wanted`: requested times (`wanted_times`); `times`: times at
    which the messages are placed."""
    if wanted == times and (batch.relative or batch.min_deliver_ms > 0):  # no time is missing
        return [FROM_STAMP if batch.relative else AS_PLACED] * batch.count  # usual: the floor is not ahead
    asked = [0] * batch.count if batch.relative else batch.int_column(Column.DELIVER_MS) or [0] * batch.count
    return [
        Wanted.of(at_ms if asked_ms else max(at_ms, stamp_ms), placed_ms, not asked_ms)
        for asked_ms, at_ms, placed_ms in zip(asked, wanted, times, strict=True)
    ]


def decode_fields(batch: Batch) -> list[Fields]:
    """Return the column values of each message, without null ones and without DELIVER_MS."""
    messages: list[Fields] = [{} for _ in range(batch.count)]
    for column in batch.columns:
        if column == Column.DELIVER_MS:
            continue
        cells: Sequence[Any] | None = batch.bytes_column(column)
        if cells is None:
            cells = batch.int_column(column)
        assert cells is not None
        for fields, value in zip(messages, cells, strict=True):
            if value is not None:
                fields[column] = value
    return messages


def values_alone(batch: Batch) -> list[bytes] | None:
    """Return the values of messages. None if the batch has any other columns than values and times."""
    if not set(batch.columns) <= {Column.VALUE, Column.DELIVER_MS}:
        return None
    values = batch.values()
    return None if None in values else cast("list[bytes]", values)


def _fields_at(batch: Batch, position: int) -> Fields:
    """Return the fields of one message, as `decode_fields` does."""
    fields: Fields = batch.cells_at(position)
    fields.pop(Column.DELIVER_MS, None)
    return fields


def _holds(row: _BatchRow, offset: bytes) -> bool:
    """Return whether a batch row contains the message at this offset."""
    behind = offsets.distance(row.base, offset)
    return behind is not None and 0 <= behind < row.length


def _position(row: _BatchRow, offset: bytes) -> int:
    """Return the position of a message in its batch row."""
    behind = offsets.distance(row.base, offset)
    assert behind is not None
    return behind


def load_message(view: View, offset: bytes, value: bytes) -> Message:
    """Return the message in a log row of its own. Raise Corruption if its payload row is missing."""
    _, flags, _, created_ms = rows.LOG_HEADER.unpack_from(value)
    stored = rows.unpack(value[rows.LOG_HEADER.size :])
    original_id = stored[0] or offset
    wanted = Wanted(stored[-1].pop(Column.DELIVER_MS, None), bool(flags & rows.FLAG_DELAY))
    fields: Fields | None = stored[1]
    if fields is None:
        payload = view.get(rows.PAYLOAD + original_id)
        if payload is None:
            raise Corruption(f"the payload of message {offsets.to_text(original_id)} is gone")
        fields = rows.unpack(payload)[0]
        if Column.PRIORITY in stored[-1]:
            fields[Column.PRIORITY] = stored[-1][Column.PRIORITY]
    assert fields is not None
    fields.pop(Column.ORDERING_HASH, None)
    fields.pop(Column.KEY_DIGEST, None)
    return Message(offset, original_id, created_ms, fields, wanted)


def kept_messages(view: View, ranges: Sequence[Range], group_id: int) -> Iterator[Message]:
    """Yield messages that a group keeps in its own rows. Raise Corruption if a row is missing."""
    for base, count in ranges:
        for offset in offsets.run(base, count):
            row = view.get(rows.of_group(rows.KEPT, group_id, offset))
            if row is None:
                raise Corruption(f"the kept row of offset {offsets.to_text(offset)} of group {group_id} is gone")
            yield load_kept(offset, row)


def load_kept(offset: bytes, row: bytes) -> Message:
    """Return the message in a kept row of a group."""
    message_id, created_ms, fields, _, is_delay, lives = rows.load_kept(row)
    wanted_ms = fields.pop(Column.DELIVER_MS, None)
    is_known = is_delay is not None or wanted_ms is not None
    wanted = Wanted(wanted_ms, bool(is_delay)) if is_known else None
    return Message(offset, message_id, created_ms, fields, wanted, lives)


def _loose_pieces(messages: Iterator[Message]) -> list[Piece]:
    """Return pieces of at most `PIECE_MESSAGES`. Each ends with the message that brings it to `PIECE_BYTES`."""
    pieces: list[Piece] = []
    loose: list[Message] = []
    size = 0
    for message in messages:
        loose.append(message)
        size += _bytes_of(message)
        if len(loose) >= PIECE_MESSAGES or size >= PIECE_BYTES:
            pieces.append(from_messages(loose))
            loose, size = [], 0
    if loose:
        pieces.append(from_messages(loose))
    return pieces


def _bytes_of(message: Message) -> int:
    """Return the size of the bytes fields of a message, in bytes."""
    return sum([len(value) for value in message.fields.values() if isinstance(value, bytes)])


def _are_plain(ranges: Sequence[Range], found: Sequence[Row]) -> bool:
    """Return whether the ranges match the rows one by one, and all rows are plain."""
    if len(found) < len(ranges) or not rows.are_plain([value for _, value in found]):
        return False
    return [rows.LOG + base for base, _ in ranges] == [key for key, _ in found]


def _plain_pieces(bases: Sequence[bytes], values: Sequence[bytes]) -> list[Piece]:
    """Return pieces of plain rows, limited in messages and bytes like other pieces."""
    pieces: list[Piece] = []
    start, ends = 0, list(accumulate(map(len, values)))
    while start < len(values):
        before = ends[start - 1] if start else 0
        stop = min(bisect_left(ends, before + PIECE_BYTES) + 1, start + PIECE_MESSAGES)
        pieces.append(_plain_piece(bases[start:stop], values[start:stop]))
        start = stop
    return pieces


def _plain_piece(bases: Sequence[bytes], values: Sequence[bytes]) -> Piece:
    """Return the piece of plain rows. `bases`: offsets of the messages; `values`: their rows."""
    created = b"".join([value[rows.CREATED] for value in values])
    return Piece(b"".join(bases), None, created, None, _encoded(rows.plain_fields(values)))


def _loose_piece(loose: list[_Loose], view: View) -> Piece:
    """Return the piece of messages with rows of their own."""
    plain = [one for one in loose if not isinstance(one, Message)]
    if len(plain) < len(loose):
        return from_messages([one if isinstance(one, Message) else load_message(view, *one) for one in loose])
    return _plain_piece([offset for offset, _ in plain], [value for _, value in plain])


def from_messages(messages: list[Message]) -> Piece:
    """Return the piece of decoded messages."""
    moved = any(m.id != m.offset for m in messages)
    return Piece(
        # A column of 16 bytes is the base of a run. For a single message, this has the same meaning as a column of
        # offsets.
        b"".join([m.offset for m in messages]),
        b"".join([m.id for m in messages]) if moved else None,
        b"".join([m.created_ms.to_bytes(8, "little") for m in messages]),
        None,
        _encoded([m.fields for m in messages]),
    )


def _encoded(messages: list[Fields]) -> bytes:
    """Return a batch of messages with these fields."""
    columns: dict[int, list[Any]] = {Column.VALUE: [fields.get(Column.VALUE) for fields in messages]}
    for column in sorted(set().union(*messages) - {Column.VALUE}):
        columns[column] = [fields.get(column) for fields in messages]
    return encode(columns)
