"""Messages and dead letters as the broker stores them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sandq.client.messages.log_page import LogMessage, LogPiece
from sandq.client.producer.validation import Value, as_bytes, as_unique_key, too_large
from sandq.model import offsets as offset_model
from sandq.model.batch import headers_unpack
from sandq.model.errors import InvalidRequest
from sandq.model.json_values import json_of
from sandq.model.limits import DEFAULT
from sandq.model.names import DEFAULT_TENANT, check_tenant
from sandq.model.retries import Backoff, MaxAttempts, written_rules
from sandq.protocol.replies_messages import DeadRecord, MessageRecord
from sandq.protocol.requests_messages import BY_ID, BY_UNIQUE_KEY, Target


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message and its state over all groups: delayed, ready, leased, waiting, acked or dead.

    `deliver_at_ms` is the current delivery time, `due_ms` the original one. `value` is None if values were not
    requested, or if the message is a deletion. `tenant` is None if no tenant is set. `max_attempts`, `backoff` and
    `cost` are None unless the message has its own.
    """

    id: str
    offset: str
    topic: str
    partition: int
    state: str
    value: bytes | None
    key: bytes | None
    created_ms: int
    deliver_at_ms: int
    due_ms: int
    ttl_ms: int | None
    unique_key: bytes | None
    moves: int
    moved_ms: int | None
    size: int
    _headers: bytes | None = field(repr=False)
    priority: int = 0
    tenant: str | None = None
    max_attempts: MaxAttempts | None = None
    backoff: Backoff | None = None
    cost: int | None = None

    @classmethod
    def of(cls, topic: str, record: MessageRecord) -> StoredMessage:
        """Build a stored message from the broker's record of it."""
        return cls(
            id=offset_model.to_text(record.id),
            offset=offset_model.to_text(record.offset),
            topic=topic,
            partition=offset_model.unpack(record.offset).partition,
            state=record.state,
            value=record.value,
            key=record.key,
            created_ms=record.created_ms,
            deliver_at_ms=record.deliver_ms,
            due_ms=record.due_ms,
            ttl_ms=record.ttl_ms,
            unique_key=record.unique_key,
            moves=record.moves,
            moved_ms=record.moved_ms,
            size=record.size,
            _headers=record.headers,
            priority=record.priority,
            tenant=record.tenant,
            **written_rules(record.max_attempts, record.backoff, record.cost),
        )

    @property
    def headers(self) -> dict[str, Any]:
        """The headers, as a new dict for each access; {} if there are none. Raises InvalidRequest if they are not a
        map."""
        return headers_unpack(self._headers)

    @property
    def headers_bytes(self) -> bytes | None:
        """The headers as they are stored (msgpack); None if there are none."""
        return self._headers

    def json(self) -> Any:
        """Return the value, decoded as JSON. Raises InvalidRequest if it is not JSON."""
        return json_of(self.value)


class Attempt(NamedTuple):
    """One delivery of a message to a group."""

    attempt: int
    consumer: str
    leased_ms: int
    ended_ms: int
    outcome: str
    error: str | None


class Life(NamedTuple):
    """A life of a message in a group: its attempts until it died and was redriven. `life`: number of the life, from 1
    on."""

    life: int
    attempts: int
    reason: str
    error: str | None
    dead_ms: int
    redriven_ms: int
    history: Sequence[Attempt]
    """The last attempts of this life. Attempts are numbered from 1 in each life."""


def lives_of(rows: Sequence[Sequence[Any]], history: Sequence[Sequence[Any]]) -> list[Life]:
    """Return the former lives of a message. `history`: the attempts of all lives, in order."""
    lives: list[Life] = []
    start = 0
    for life, count, *ended in rows:
        attempts, reason, error, dead_ms, redriven_ms = ended[:5]
        own = [Attempt._make(row[: len(Attempt._fields)]) for row in history[start : start + count]]
        lives.append(Life(life, attempts, reason, error, dead_ms, redriven_ms, own))
        start += count
    return lives


class DeadOutcome(NamedTuple):
    """The outcome for one dead letter: redriven, purged, not_dead or not_found.

    If the outcome is not_dead, `state` is the message's state in the group: leased, waiting or ready.
    """

    id: str
    outcome: str
    state: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that a group no longer gets. `reason`: see `DeadLetters`.

    `history` has the last attempts, oldest first, including attempts before earlier redrives. `lives` has the lives
    that redrives ended, each with its part of the history. `attempts`, `reason` and `error` belong to the last life.
    `not_forwarded`: why the topic's dead letter topic did not accept it.
    """

    id: str
    offset: str
    topic: str
    group: str
    partition: int
    attempts: int
    reason: str
    error: str | None
    dead_ms: int
    created_ms: int
    deliver_at_ms: int
    key: bytes | None
    value: bytes | None
    unique_key: bytes | None
    size: int
    history: Sequence[Attempt]
    _headers: bytes | None = field(repr=False)
    priority: int = 0
    tenant: str | None = None
    lives: Sequence[Life] = ()
    not_forwarded: str | None = None
    max_attempts: MaxAttempts | None = None
    backoff: Backoff | None = None
    cost: int | None = None

    @classmethod
    def of(cls, topic: str, group: str, record: DeadRecord) -> DeadLetter:
        """Build a dead letter from the broker's record of it."""
        return cls(
            id=offset_model.to_text(record.id),
            offset=offset_model.to_text(record.offset),
            topic=topic,
            group=group,
            partition=offset_model.unpack(record.offset).partition,
            attempts=record.attempts,
            reason=record.reason,
            error=record.error,
            dead_ms=record.dead_ms,
            created_ms=record.created_ms,
            deliver_at_ms=record.deliver_ms,
            key=record.key,
            value=record.value,
            unique_key=record.unique_key,
            size=record.size,
            history=[Attempt._make(row[: len(Attempt._fields)]) for row in record.history],
            _headers=record.headers,
            priority=record.priority,
            tenant=record.tenant,
            lives=lives_of(record.lives, record.history),
            not_forwarded=record.not_forwarded,
            **written_rules(record.max_attempts, record.backoff, record.cost),
        )

    @property
    def life(self) -> int:
        """Number of the message's last life in the group: 1 unless it was redriven."""
        return self.lives[-1].life + 1 if self.lives else 1

    @property
    def headers(self) -> dict[str, Any]:
        """The headers, as a new dict for each access; {} if there are none. Raises InvalidRequest if they are not a
        map."""
        return headers_unpack(self._headers)

    @property
    def headers_bytes(self) -> bytes | None:
        """The headers as they are stored (msgpack); None if there are none."""
        return self._headers

    def json(self) -> Any:
        """Return the value, decoded as JSON. Raises InvalidRequest if it is not JSON."""
        return json_of(self.value)


class FetchedMessage(LogMessage[LogPiece]):
    """A message that was read without a lease."""

    __slots__ = ("partition", "topic")

    def __init__(self, piece: LogPiece, position: int, value: bytes, topic: str, partition: int) -> None:
        super().__init__(piece, position, value)
        self.topic = topic
        self.partition = partition

    def __repr__(self) -> str:
        return f"<FetchedMessage {self.offset} topic={self.topic!r} bytes={len(self.value)}>"


class JobResult(NamedTuple):
    """The counts of a job, over all partitions."""

    matched: int
    done: int
    too_late: int


def target_of(
    id_text: str | None, unique_key: Value | None, tenant: str | None = None, key: Value | None = None
) -> Target:
    """Return the wire form of a message's name: its id, or its unique key with a tenant or a key.

    Raises InvalidRequest, TooLarge.
    """
    if (id_text is None) is (unique_key is None):
        raise InvalidRequest("a message is identified either by its id or by unique_key=...")
    if tenant is not None:
        check_tenant(tenant)
        if unique_key is None:
            raise InvalidRequest("tenant: it belongs to unique_key; an id needs no tenant")
    if unique_key is None:
        if key is not None:
            raise InvalidRequest("key: it belongs to unique_key; an id needs no key")
        return [BY_ID, offset_model.from_text(str(id_text))]
    name = as_unique_key(unique_key)
    if key is not None:
        if tenant is not None:
            raise InvalidRequest(
                "key and tenant: one of them; in a fair topic a unique key is unique within the tenant"
            )
        data = as_bytes("key", key)
        if len(data) > DEFAULT.key_bytes:
            raise too_large("key", "key_bytes", DEFAULT.key_bytes, len(data))
        return [BY_UNIQUE_KEY, name, None, data]
    return [BY_UNIQUE_KEY, name] if tenant in (None, DEFAULT_TENANT) else [BY_UNIQUE_KEY, name, tenant]


def target_text(target: Target) -> str:
    """Return a target as text, for error messages."""
    kind, data, *within = target
    if kind == BY_ID:
        return offset_model.to_text(data)
    text = f"of unique key {_shown(data)}"
    if len(within) > 1:
        return f"{text} and key {_shown(within[1])}"
    return f"{text} of tenant {within[0]}" if within else text


def _shown(key: bytes) -> str:
    """Return the beginning of a key as text, for error messages."""
    return repr(key[:80].decode("utf-8", "backslashreplace"))
