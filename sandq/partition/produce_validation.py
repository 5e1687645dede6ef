"""Checks whether a batch can be accepted.

The leader checks a batch before it proposes the batch. A compacted partition checks the writes again when it applies
them (`check_writes`). The second check must never change: otherwise replicas of different versions would diverge.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sandq.model import offsets
from sandq.model.batch import Batch, Column, plain_single
from sandq.model.batch_format import BODY_HEAD, CODEC_NONE, ENTRY, HEADER_BYTES, count_of, plain_bytes_of
from sandq.model.errors import BELONGS_TO, InvalidRequest, InvalidTime, TooLarge
from sandq.model.headers import headers_check
from sandq.model.limits import FIXED, Limits
from sandq.model.message_targets import check_target
from sandq.model.names import DEFAULT_TENANT, FAIR, PRIORITY, check_tenant
from sandq.model.partitioning import KeyPartitions, partition_for
from sandq.model.retries import (
    MOST_ATTEMPTS,
    MOST_COST,
    RULE_COLUMNS,
    UNLIMITED,
    is_backoff,
    is_cost,
    is_max_attempts,
)
from sandq.model.times import DAY_MS, LEAST_INSTANT_MS, format_duration
from sandq.model.topic_limits import MAX_MESSAGE_BYTES, TopicLimits

TAKEN = frozenset(
    {Column.VALUE, Column.KEY, Column.HEADERS, Column.DELIVER_MS, Column.TTL_MS, Column.UNIQUE_KEY, *RULE_COLUMNS}
)
"""Columns that a timer topic accepts. Other columns are rejected, because the topic would ignore them."""
TAKEN_BY_RANK = {None: TAKEN, PRIORITY: TAKEN | {Column.PRIORITY}, FAIR: TAKEN | {Column.PRIORITY, Column.TENANT}}
"""Accepted columns of a topic that is not compacted, by its rank."""
TAKEN_BY_KEY = frozenset({Column.VALUE, Column.KEY, Column.HEADERS, Column.TTL_MS, Column.EXPECTED_VERSION})
"""Accepted columns of a compacted topic."""
_NO_WRITE = (Column.DELIVER_MS, Column.PRIORITY, Column.TENANT, Column.UNIQUE_KEY)
"""Columns that a write to a key must not have."""
_RANKS = ((Column.PRIORITY, "priority or fair"), (Column.TENANT, "fair"))
"""Columns that rank a message, and the kinds of topics that accept them."""
_EACH = frozenset({Column.TTL_MS, Column.UNIQUE_KEY, *RULE_COLUMNS})
"""Columns that the log keeps per message."""


class BatchTarget(NamedTuple):
    """The target partition of a batch, with the properties that the checks need."""

    partition: int
    initial_partitions: int
    ordered: bool
    compacted: bool = False
    rank: str | None = None
    """The topic's kind if that is priority or fair. Otherwise None."""
    delimiter: bytes = b""
    """Delimiter after the partition key in keys of a compacted topic. Empty if there is none."""

    @property
    def is_by_tenant(self) -> bool:
        """Whether the topic has several partitions, and the tenant of a message determines its partition."""
        return self.rank == FAIR and self.initial_partitions > 1


class Checked(NamedTuple):
    """A batch that has passed all checks."""

    messages: int
    split: bool
    """Whether the log keeps its messages in rows of their own."""


PLAIN_SINGLE = Checked(1, False)

MUCH_MESSAGES: Final = 4096
MUCH_BYTES: Final = 2 << 20
"""Size in bytes above which checking a batch takes long."""


RATIO_MOST: Final = 256
"""Maximum size of the decompressed body of a batch, as a multiple of the size of the batch."""
RATIO_FREE_BYTES: Final = 64 << 10
"""A decompressed body up to this size, in bytes, is accepted at any ratio."""
MUCH_HEADERS_BYTES: Final = 256 << 10
"""Size in bytes above which checking a batch takes long if it has headers and other columns."""
MUCH_TARGETS_BYTES: Final = 16 << 10
"""The same for a topic whose messages may have URLs: a header with a URL takes ten times as long to check."""


def is_much(raw: bytes, headers_bytes: int = MUCH_HEADERS_BYTES) -> bool:
    """Return whether checking a batch takes so long that it should not be done in the event loop. `headers_bytes`: size
    above which headers take long."""
    if len(raw) < HEADER_BYTES:
        return False
    plain_bytes = plain_bytes_of(raw)
    if len(raw) > MUCH_BYTES or count_of(raw) > MUCH_MESSAGES or plain_bytes > MUCH_BYTES:
        return True
    return plain_bytes > headers_bytes and _may_have_much_headers(raw, headers_bytes)


def _may_have_much_headers(raw: bytes, headers_bytes: int) -> bool:
    """Return whether the headers of a batch may take long to check. Ignore errors of the batch: later checks report
    them."""
    if raw[9] != CODEC_NONE or len(raw) < HEADER_BYTES + BODY_HEAD.size:
        return True
    columns, _ = BODY_HEAD.unpack_from(raw, HEADER_BYTES)
    start = HEADER_BYTES + BODY_HEAD.size
    if columns > len(Column) or len(raw) < start + columns * ENTRY.size:
        return False
    entries = [ENTRY.unpack_from(raw, start + at * ENTRY.size) for at in range(columns)]
    return any([column == Column.HEADERS and size > headers_bytes for column, _, _, size in entries])


def check_batch(
    raw: bytes,
    now_ms: int,
    limits: Limits,
    target: BatchTarget,
    own: TopicLimits | None = None,
    *,
    is_checked: bool = False,
) -> Checked:
    """Check a batch that a producer sends to a partition. `own`: limits of the topic. `is_checked`: the headers were
    checked before. Raise InvalidRequest, TooLarge or InvalidTime."""
    value_bytes = None if target.compacted or target.is_by_tenant else plain_single(raw)
    if value_bytes is not None and value_bytes <= most_value_bytes(limits, own):
        return PLAIN_SINGLE
    if len(raw) > limits.batch_bytes:
        raise TooLarge(f"a batch of {len(raw)} bytes; at most {limits.batch_bytes} are taken: send it in parts")
    check_ratio(raw)
    batch = Batch.parse(raw, max_bytes=limits.batch_bytes)
    if batch.count > limits.batch_messages:
        raise TooLarge(f"a batch of {batch.count} messages; at most {limits.batch_messages} are taken")
    _check_columns(batch, target)
    _check_sizes(batch, limits, own)
    if Column.HEADERS in batch.columns and not is_checked:
        _check_headers(batch, own)
    _check_times(batch, now_ms, limits.delay_days, own)
    if Column.TTL_MS in batch.columns:
        _check_ttls(batch)
    _check_rules(batch)
    if target.compacted:
        _check_key_partitions(check_writes(batch), target)
        return Checked(batch.count, Column.EXPECTED_VERSION in batch.columns)
    _check_values(batch)
    if target.rank is not None:
        _check_ranks(batch, target)
    if Column.UNIQUE_KEY in batch.columns:
        _check_unique_keys(batch, target)
    split = not _EACH.isdisjoint(batch.columns) or (target.ordered and Column.KEY in batch.columns)
    return Checked(batch.count, split)


def check_ratio(raw: bytes) -> None:
    """Reject a batch that is cheap for its sender but expensive for the cluster. Read only the header. Raise
    TooLarge."""
    plain_bytes = plain_bytes_of(raw) if len(raw) >= HEADER_BYTES else 0
    most_bytes = max(RATIO_FREE_BYTES, RATIO_MOST * len(raw))
    if plain_bytes > most_bytes:
        raise TooLarge(
            f"a batch of {len(raw)} bytes has {plain_bytes} when decompressed; at most {RATIO_MOST} times its size is "
            f"taken beyond {RATIO_FREE_BYTES} bytes: send fewer messages at once, or do not compress them",
            limit="batch_ratio",
            maximum=most_bytes,
        )


def _check_columns(batch: Batch, target: BatchTarget) -> None:
    """Reject columns that the topic would ignore."""
    taken = TAKEN_BY_KEY if target.compacted else TAKEN_BY_RANK[target.rank]
    ignored = [column for column in batch.columns if column not in taken]
    if not ignored:
        return
    kind = "compacted" if target.compacted else target.rank or "timer"
    for column, kinds in _RANKS:
        if column in ignored:
            raise InvalidRequest(f"{column.name.lower()}: this is a {kind} topic; only {kinds} topics accept it")
    for column in RULE_COLUMNS:
        if column in ignored and column == Column.COST:
            raise InvalidRequest("cost: this is a compacted topic, whose groups have no limits")
        if column in ignored:
            raise InvalidRequest(
                f"{column.name.lower()}: this is a compacted topic, whose messages have no retry rules of their own; "
                "set it for the topic or a group"
            )
    names = ", ".join(Column(c).name.lower() if c in Column.__members__.values() else str(c) for c in ignored)
    where = " of a compacted topic" if target.compacted else ""
    raise InvalidRequest(f"this version takes no {names} with a message{where}")


def _check_ranks(batch: Batch, target: BatchTarget) -> None:
    """Check priorities and tenants, and that this partition has all messages of each tenant."""
    for position, priority in enumerate(batch.int_column(Column.PRIORITY) or ()):
        if priority is not None and not FIXED.priority_least <= priority <= FIXED.priority_most:
            raise InvalidRequest(
                f"message {position} of the batch: priority {priority} is not within {FIXED.priority_least} to "
                f"{FIXED.priority_most}"
            )
    if target.rank != FAIR:
        return
    known: set[bytes | None] = set()
    for position, tenant in enumerate(batch.bytes_column(Column.TENANT) or (None,)):
        if tenant in known:
            continue
        known.add(tenant)
        try:
            name = DEFAULT_TENANT if tenant is None else check_tenant(tenant.decode("ascii", "backslashreplace"))
        except InvalidRequest as error:
            raise InvalidRequest(f"message {position} of the batch: {error.message}") from None
        wanted = partition_for(name.encode(), target.initial_partitions)
        if wanted != target.partition and target.is_by_tenant:
            raise InvalidRequest(
                f"message {position} of the batch: its tenant {name} belongs to partition {wanted}, "
                f"not {target.partition}",
                **{BELONGS_TO: wanted},
            )


def _check_values(batch: Batch) -> None:
    """Raise InvalidRequest if a message has no value."""
    if batch.buffers(Column.VALUE)[0] is None:
        return  # there are no nulls
    for position, value in enumerate(batch.values()):
        if value is None:
            raise InvalidRequest(
                f"message {position} of the batch has no value: only in a compacted topic is that something, namely "
                "that its key is deleted"
            )


def check_writes(batch: Batch) -> Sequence[bytes]:
    """Check that each message of a batch is a write to a key, and return the keys. Raise InvalidRequest."""
    foreign = [column.name.lower() for column in _NO_WRITE if column in batch.columns]
    if foreign:
        raise InvalidRequest(f"a message of a compacted topic has no {foreign[0]}: it is a write, and is done at once")
    keys = batch.bytes_column(Column.KEY)
    if keys is None or not all(keys):
        raise InvalidRequest("every message of a compacted topic has a key, of one byte at least")
    versions = batch.bytes_column(Column.EXPECTED_VERSION) or ()
    if any(version and len(version) != offsets.OFFSET_BYTES for version in versions):
        raise InvalidRequest(f"a version has {offsets.OFFSET_BYTES} bytes; none at all mean that there is no value yet")
    return keys  # type: ignore[return-value]  # none of them is None


def _check_key_partitions(keys: Sequence[bytes], target: BatchTarget) -> None:
    """Check that each key belongs to this partition, where all readers look for it."""
    if target.initial_partitions == 1:
        return
    partitions = KeyPartitions(target.initial_partitions, target.delimiter)
    for position, key in enumerate(keys):
        wanted = partitions.of(key)
        if wanted != target.partition:
            raise InvalidRequest(
                f"message {position} of the batch: its key belongs to partition {wanted}, not {target.partition}",
                **{BELONGS_TO: wanted},
            )


def most_value_bytes(limits: Limits, own: TopicLimits | None) -> int:
    """Return the maximum size of a message's value, in bytes."""
    if own is None or own.message_bytes is None:
        return limits.message_bytes
    return min(own.message_bytes, limits.message_bytes)


def _check_sizes(batch: Batch, limits: Limits, own: TopicLimits | None) -> None:
    """Raise TooLarge if a value, key, header or unique key is too large."""
    most_bytes = most_value_bytes(limits, own)
    for column, most in (
        (Column.VALUE, most_bytes),
        (Column.KEY, limits.key_bytes),
        (Column.HEADERS, limits.headers_bytes),
        (Column.UNIQUE_KEY, FIXED.unique_key_bytes),
    ):
        if column not in batch.columns:
            continue
        # A cell can be too large only if its whole column is larger than the limit.
        if len(batch.buffers(column)[2]) > most:
            for position, cell in enumerate(batch.bytes_column(column) or ()):
                if cell is not None and len(cell) > most:
                    is_own = own is not None and column == Column.VALUE and most < limits.message_bytes
                    by = f" by topic {own.topic!r} ({MAX_MESSAGE_BYTES})" if own is not None and is_own else ""
                    raise TooLarge(
                        f"message {position} of the batch: {column.name.lower()} has {len(cell)} bytes, "
                        f"at most {most} are taken{by}"
                    )


def check_headers(cell: bytes, own: TopicLimits | None) -> None:
    """Check that every reader can decode the headers of a message, and that its topic accepts its URL, if it has one.
    Raise InvalidRequest; Forbidden or Unavailable because of the topics of its callbacks."""
    check_target(headers_check(cell), None if own is None else own.targets)


def _check_headers(batch: Batch, own: TopicLimits | None) -> None:
    """Check the headers of each message. Many messages have equal headers, so each distinct value is checked once."""
    cells = batch.bytes_column(Column.HEADERS) or ()
    for cell in {*cells}:
        if cell is None:
            continue
        try:
            check_headers(cell, own)
        except InvalidRequest as error:
            raise InvalidRequest(f"message {cells.index(cell)} of the batch: {error.message}") from None


def check_not_far(delay_ms: int, delay_days: int, own: TopicLimits | None = None) -> None:
    """Raise InvalidTime for a delay that is longer than the topic allows. If the topic has no limit, raise it for a
    delay so long that the sender probably used a wrong unit."""
    if own is not None and own.delay_ms is not None:
        if delay_ms > own.delay_ms:
            raise InvalidTime(
                f"a message due in {format_duration(delay_ms)}: topic {own.topic!r} takes none beyond "
                f"{format_duration(own.delay_ms)} (max_delay)",
                limit="max_delay",
                maximum=own.delay_ms,
                topic=own.topic,
            )
        return
    if delay_ms > delay_days * DAY_MS:
        far = format_duration(delay_ms // DAY_MS * DAY_MS)
        raise InvalidTime(
            f"a message due in {far}: at most {delay_days} days are taken (limits.delay_days of the node); was it "
            "counted in milliseconds, as delays and instants are on the wire?",
            limit="delay_days",
            maximum=delay_days,
        )


def _check_times(batch: Batch, now_ms: int, delay_days: int, own: TopicLimits | None) -> None:
    """Raise InvalidTime if a delivery time is out of range, too far ahead, or looks like seconds."""
    if Column.DELIVER_MS not in batch.columns:
        return
    if batch.relative:
        check_not_far(batch.max_deliver_ms, delay_days, own)
        if now_ms + batch.max_deliver_ms > offsets.U48_MAX:
            raise InvalidTime(f"a delay of {batch.max_deliver_ms} ms ends after the last instant there is")
        return
    check_not_far(batch.max_deliver_ms - now_ms, delay_days, own)
    if batch.max_deliver_ms > offsets.U48_MAX:
        raise InvalidTime(f"delivery time {batch.max_deliver_ms} lies after the last instant, {offsets.U48_MAX}")
    if batch.min_deliver_ms >= LEAST_INSTANT_MS:
        return
    for position, at_ms in enumerate(batch.int_column(Column.DELIVER_MS) or ()):
        if at_ms and at_ms < LEAST_INSTANT_MS:
            raise InvalidTime(
                f"message {position} of the batch: delivery time {at_ms} looks like seconds; milliseconds are wanted"
            )


def _check_ttls(batch: Batch) -> None:
    """Raise InvalidTime if a ttl is out of range."""
    for position, ttl_ms in enumerate(batch.int_column(Column.TTL_MS) or ()):
        if ttl_ms is not None and not 1 <= ttl_ms <= offsets.U48_MAX:
            raise InvalidTime(f"message {position} of the batch: a ttl of {ttl_ms} ms; at least 1 ms is wanted")


_IS_RULE: Final = {Column.MAX_ATTEMPTS: is_max_attempts, Column.BACKOFF: is_backoff, Column.COST: is_cost}


def _check_rules(batch: Batch) -> None:
    """Check the rules of messages. Many messages have equal rules, so each distinct cell is checked once."""
    for column, is_valid in _IS_RULE.items():
        if column not in batch.columns:
            continue
        cells: Sequence[Any] = batch.bytes_column(column) or batch.int_column(column) or ()
        for cell in {*cells}:
            if cell is not None and not is_valid(cell):
                name = column.name.lower()
                raise InvalidRequest(f"message {cells.index(cell)} of the batch: {name} is wrong: {_EXPECTED[column]}")


_EXPECTED: Final = {
    Column.MAX_ATTEMPTS: f"1 to {MOST_ATTEMPTS} is expected, or {UNLIMITED} for none",
    Column.BACKOFF: "[kind, first_ms, factor_permille, cap_ms, jitter_percent] is expected, within the ranges of the "
    "topic's setting",
    Column.COST: f"a whole number from 1 to {MOST_COST} is expected",
}


def _check_unique_keys(batch: Batch, target: BatchTarget) -> None:
    """Check that the unique keys belong to this partition. In topics with tenants, the tenant determines the partition.
    Otherwise the key does; if there is no key, the unique key."""
    keys = batch.bytes_column(Column.KEY) or [None] * batch.count
    for position, (unique_key, key) in enumerate(zip(batch.bytes_column(Column.UNIQUE_KEY) or (), keys, strict=True)):
        if unique_key is None:
            continue
        if not unique_key:
            raise InvalidRequest(f"message {position} of the batch: an empty unique key")
        if target.rank == FAIR:
            continue
        wanted = partition_for(unique_key if key is None else key, target.initial_partitions)
        if wanted != target.partition:
            name = "unique key" if key is None else "key"
            raise InvalidRequest(
                f"message {position} of the batch: its {name} belongs to partition {wanted}, not {target.partition}",
                **{BELONGS_TO: wanted},
            )
