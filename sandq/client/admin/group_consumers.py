"""The consumers of a group: merge the rows of all partition leaders."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple

from sandq.model.errors import ProtocolError
from sandq.protocol.frames import Frame

_REPLY: Final = 4
"""Number of items of a reply: type, id, rows, number of consumers that are left out."""
_FIELDS: Final[dict[str, tuple[type, ...]]] = {
    "consumer": (str,),
    "address": (str, type(None)),
    "since_ms": (int, type(None)),
    "credit": (int, type(None)),
    "partitions": (int,),
    "messages": (int,),
    "leased_ms": (int, type(None)),
}


class GroupConsumer(NamedTuple):
    """One consumer of a group.

    `address`, `since_ms` and `credit` (number of messages that it may still receive) are None if the consumer leases by
    requests, without a subscription. `partitions`: number of partitions that it is subscribed to. `messages`: number of
    messages that it holds. `leased_ms`: time at which the oldest of these messages was leased.
    """

    consumer: str
    address: str | None
    since_ms: int | None
    credit: int | None
    partitions: int
    messages: int
    leased_ms: int | None


class GroupConsumers(NamedTuple):
    """The consumers of a group, ordered by number of held messages. `left_out`: there are at least this many further
    consumers."""

    consumers: list[GroupConsumer]
    left_out: int


def consumers_of(frames: Iterable[Frame]) -> GroupConsumers:
    """Merge the replies of all leaders. Raises ProtocolError."""
    found: dict[str, GroupConsumer] = {}
    left_out = 0
    for frame in frames:
        if len(frame) < _REPLY or type(frame[2]) is not list or type(frame[3]) is not int:
            raise ProtocolError(f"CONSUMER_LIST reply: {str(frame[2:])[:100]}")
        left_out = max(left_out, frame[3])
        for row in map(_consumer, frame[2]):
            before = found.get(row.consumer)
            found[row.consumer] = row if before is None else _together(before, row)
    return GroupConsumers(sorted(found.values(), key=lambda row: (-row.messages, row.consumer)), left_out)


def _consumer(row: Any) -> GroupConsumer:
    if type(row) is not dict or any([type(row.get(name)) not in types for name, types in _FIELDS.items()]):
        raise ProtocolError(f"CONSUMER_LIST row: {str(row)[:100]}")
    return GroupConsumer(*[row[name] for name in _FIELDS])


def _together(one: GroupConsumer, other: GroupConsumer) -> GroupConsumer:
    return GroupConsumer(
        one.consumer,
        one.address if one.address is not None else other.address,
        _least(one.since_ms, other.since_ms),
        None if one.credit is None and other.credit is None else (one.credit or 0) + (other.credit or 0),
        one.partitions + other.partitions,
        one.messages + other.messages,
        _least(one.leased_ms, other.leased_ms),
    )


def _least(*instants_ms: int | None) -> int | None:
    return min([each for each in instants_ms if each is not None], default=None)
