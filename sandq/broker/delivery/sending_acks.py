"""Prepare acks and nacks that send messages, on the leader of their partition.

Before one is proposed, each of its messages is validated like a produced message, and its target partition is
chosen.
"""

from __future__ import annotations

from typing import Any, Final

from sandq.broker.catalog import Catalog
from sandq.metadata.records import Topic
from sandq.model.access import Access
from sandq.model.batch import Column, encode
from sandq.model.errors import InvalidRequest, TooLarge
from sandq.model.key_limits import key_limit
from sandq.model.limits import FIXED, Limits
from sandq.model.names import COMPACTED, FAIR, RANKED, check_not_internal
from sandq.model.outbox import route
from sandq.model.partitioning import KeyPartitions, delimiter_of
from sandq.model.topic_limits import TopicLimits
from sandq.partition import commands as c
from sandq.partition.produce_validation import BatchTarget, check_batch
from sandq.protocol.requests import AckThen

_COLUMNS: Final = {
    "value": Column.VALUE.value,
    "key": Column.KEY.value,
    "headers": Column.HEADERS.value,
    "ttl_ms": Column.TTL_MS.value,
    "priority": Column.PRIORITY.value,
    "tenant": Column.TENANT.value,
    "max_attempts": Column.MAX_ATTEMPTS.value,
    "backoff": Column.BACKOFF.value,
    "cost": Column.COST.value,
}


def target_of(topic: Topic, partition: int) -> BatchTarget:
    """Return the data needed to validate a batch for a partition of a topic."""
    ordered, compacted = key_limit(topic.settings) is not None, topic.kind == COMPACTED
    rank, delimiter = topic.kind if topic.kind in RANKED else None, delimiter_of(topic.settings)
    return BatchTarget(partition, topic.initial_partitions, ordered, compacted, rank, delimiter)


def command_of(
    request: AckThen, catalog: Catalog, now_ms: int, limits: Limits, access: Access | None
) -> tuple[c.AckThen, int]:
    """Return the command for an ack or a nack that sends messages, and its size in bytes. `access`: rights of the
    caller; None: all.

    Raise UnknownTopic, InvalidRequest, InvalidTime, TooLarge, Forbidden or Unavailable. If this function raises,
    nothing is acked."""
    own = catalog.topic(catalog.view.partition_of_group[request.group_number][0]).record
    messages = []
    size = len(request.error or "")
    for number, (name, at_ms, is_delay, named) in enumerate(request.messages):
        topic = own if name is None else catalog.topic(name).record
        fields: dict[int, Any] = {_COLUMNS[key]: value for key, value in named.items()}
        if isinstance(tenant := fields.get(Column.TENANT), str):
            fields[Column.TENANT] = tenant.encode()
        partition = _partition_of(fields, topic, own, request.partition)
        try:
            check_not_internal(topic.name, "no messages can be sent to it")
            own_limits = catalog.limits_of(topic, access)
            _check(fields, at_ms, is_delay, now_ms, limits, target_of(topic, partition), own_limits)
        except InvalidRequest as error:
            raise error.again(f"message {number} for topic {topic.name!r}: {error.message}") from None
        # A message for the partition of the acked message is stored in the log entry of the ack. Other messages go
        # through the outbox.
        is_here = topic.number == own.number and partition == request.partition and topic.kind != COMPACTED
        target = (None, None) if is_here else (topic.number, partition)
        messages.append((*target, at_ms, is_delay, fields))
        size += 64 + sum([len(cell) for cell in fields.values() if isinstance(cell, bytes)])
    if size > FIXED.then_bytes + 64 * FIXED.then_messages:
        raise TooLarge(
            f"messages of {size} bytes; an ack may send at most {FIXED.then_bytes}",
            limit="then_bytes",
            maximum=FIXED.then_bytes,
        )
    return c.AckThen(request.token, request.what, messages, request.end, request.delay_ms, request.error), size


def _partition_of(fields: dict[int, Any], topic: Topic, own: Topic, sender: int) -> int:
    """Return the partition to which a message goes.

    `own`, `sender`: topic and partition of the acked message. A message without a key for the topic `own` stays in the
    partition `sender`, unless the topic is fair."""
    if topic.number == own.number and topic.kind != FAIR and Column.KEY not in fields:
        return sender
    key = fields.get(Column.KEY)
    if topic.kind == COMPACTED and key is not None:
        return KeyPartitions.of_topic(topic.initial_partitions, topic.settings).of(key)
    return route(fields, topic.kind, topic.initial_partitions, sender)


def _check(
    fields: dict[int, Any],
    at_ms: int | None,
    is_delay: bool,
    now_ms: int,
    limits: Limits,
    target: BatchTarget,
    own: TopicLimits | None,
) -> None:
    """Raise an error if the message could not be produced. `own`: limits of its topic."""
    columns: dict[int, Any] = {Column.VALUE: [None]} | {column: [cell] for column, cell in fields.items()}
    if at_ms is not None:
        columns[Column.DELIVER_MS] = [at_ms]
    check_batch(encode(columns, relative=is_delay), now_ms, limits, target, own)
