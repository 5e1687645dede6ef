"""Settings of a topic, as a user writes them, and the record of them that the cluster stores.

    lease                duration        how long a consumer may hold a message
    max_attempts         number, none    number of attempts after which a message is dead
    max_snoozes          number, none    how often a message may be snoozed without counting an attempt
    backoff                              how long a message waits after attempt n:
      kind               text            exponential: first * factor ** (n - 1); linear: first * n; fixed: first; none
      first              duration
      factor             number          for exponential
      cap                duration        longest wait, before the jitter
      jitter_percent     number          the wait is longer or shorter by up to this part of it
    ttl                  duration, none  how long after its delivery time an unleased message expires
    on_expiry            text            dead: an expired message becomes a dead letter; drop: it is deleted and counted
    delete_on_ack        yes, no         whether a batch is deleted once every group acked it
    retention            duration        how long messages are kept after every group acked them
    retain               duration, none  greatest age of a message; only without delete_on_ack
    retain_bytes         size, none      how much a partition keeps; only without delete_on_ack
    group_ttl            duration, none  how long a group without consumers is kept
    max_message_bytes    size, none      largest value of a message; at most the limit of the node
    max_delay            duration, none  how far ahead a message may be; replaces the limit of the node
    dead_retention       duration, none  how long a dead letter is kept after its death
    max_dead_letters     number, none    how many dead letters each partition keeps for a group, the newest deaths
    max_lease            duration, none  longest lease, including leases that consumers ask for
    max_request_rate     rate, none      requests of a client about the topic, on a node: "50/s"
    max_request_burst    number, none    number of these requests at once after a pause; none: those of a second
    dedup_window         duration        how long a unique key stays taken after its delivery
    dead_letter_topic    text, none      another topic, to which dead letters go
    push_targets         yes, no         whether messages may have URLs, to which groups push them
    precision            duration, auto  how long a due message may wait for others; auto: the node chooses
    ordering             text            key: one message of a key at a time, or none; never changes
    max_in_flight_per_key
                         number, none    messages of a key that a group's consumers may hold at a time; never changes

A compacted topic has `lease`, `max_attempts`, `max_snoozes`, `backoff`, `group_ttl`, `max_message_bytes`,
`dead_retention`, `max_dead_letters`, `max_lease`, `max_request_rate` and `max_request_burst` as above, and

    ttl                  duration, none  how long a value stays that was put without a ttl
    history              duration        how long every write can be read, even after a later write of its key
    tombstone_retention  duration        how long the deletion of a key can be read
    partition_delimiter  text, none      the part of a key before the first delimiter chooses its partition; fixed

A priority topic has the settings of a timer topic without `ordering` and `max_in_flight_per_key`, and

    ageing               duration, none  how long a message waits to count as one priority better (lower); none: strict

A fair topic has the settings of a priority topic, and

    tenants              mapping         pattern -> weight, max_in_flight (`model.tenants`); changed as a whole

The fields below have the defaults and ranges. A test compares the documents with these fields.

A group may override `max_attempts`, `max_snoozes`, `backoff` and `on_expiry`, and may lower `max_in_flight_per_key`. It
uses the topic's value for each setting that it does not have.

In the record all numbers are integers (the factor in thousandths), because replicas calculate with them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast

from pydantic import BeforeValidator, Field, ValidationError

from sandq.model import schema
from sandq.model.dead_letter_settings import DEAD, DEAD_RETENTION_MS, KEY_TTL_MS, MAX_DEAD_LETTERS, ON_EXPIRY
from sandq.model.errors import InvalidSetting
from sandq.model.key_limits import MAX_IN_FLIGHT_PER_KEY, MOST_PER_KEY, NO_SETTINGS, key_limit
from sandq.model.message_targets import PUSH_TARGETS
from sandq.model.nack_ends import MAX_SNOOZES
from sandq.model.names import COMPACTED, FAIR, PRIORITY, TIMER
from sandq.model.outbox import DEAD_LETTER_TOPIC
from sandq.model.partitioning import PARTITION_DELIMITER
from sandq.model.rates import interval_us
from sandq.model.retries import MOST_ATTEMPTS, MOST_BACKOFF_MS
from sandq.model.tenants import Tenants
from sandq.model.times import format_duration
from sandq.model.topic_limits import (
    AUTO,
    MAX_DELAY_MS,
    MAX_LEASE_MS,
    MAX_MESSAGE_BYTES,
    MAX_REQUEST_BURST,
    MAX_REQUEST_RATE_US,
    PRECISION_MS,
)

_DAY_MS = 86_400_000
MOST_SNOOZES = 1_000_000
MOST_BURST = 1_000_000
MOST_DEAD_LETTERS = 1_000_000_000
DELIMITER_BYTES = 16
_MIB = 1024**2
_PIB = 1024**5

_COMPACTED_EXPIRY = "a compacted topic does not have it: its ttl deletes keys; give it to a topic of another kind"
_ABSENT = {
    MAX_IN_FLIGHT_PER_KEY: "only timer topics have it",
    ON_EXPIRY: _COMPACTED_EXPIRY,
    PUSH_TARGETS: "a compacted topic does not have it: its messages are values of keys; give it to one of another kind",
}
"""Why some kinds of topics do not have a setting, by setting."""

S = TypeVar("S", bound=schema.Section)


def _or_none(check: BeforeValidator, word: str = "none") -> BeforeValidator:
    """Return a validator that accepts what `check` accepts, and also None or the text `word`, which become None."""
    inner = cast(Callable[[object], object], check.func)
    return BeforeValidator(lambda value: None if value is None or value == word else inner(value))


def _interval_us(value: object) -> int:
    """Return the time between two requests at a rate, in microseconds."""
    try:
        return interval_us(value)
    except ValueError as error:
        raise schema.mistake(str(error).replace("messages a second", "a number a second")) from None


def _delimiter(value: object) -> str:
    """Return a delimiter, checked."""
    if not isinstance(value, str) or not 1 <= len(value.encode(errors="replace")) <= DELIMITER_BYTES:
        raise schema.mistake(f'text of 1 to {DELIMITER_BYTES} bytes is expected, as "/"')
    if not value.isprintable():
        raise schema.mistake("characters that can be printed are expected")
    return value


class Backoff(schema.Section):
    """How long a message waits before its next attempt."""

    kind: Literal["exponential", "fixed", "linear", "none"] = "exponential"
    first_ms: Annotated[int, schema.duration(0, MOST_BACKOFF_MS)] = Field(default=1000, alias="first")
    factor: Annotated[float, BeforeValidator(schema.no_bool), Field(ge=1, le=100)] = 2.0
    cap_ms: Annotated[int, schema.duration(0, MOST_BACKOFF_MS)] = Field(default=600_000, alias="cap")
    jitter_percent: Annotated[int, schema.integer(0, 100)] = 20

    def contradictions(self) -> list[str]:
        """Return one text for each pair of settings that contradict each other."""
        if self.kind == "none" or self.first_ms <= self.cap_ms:
            return []
        first, cap = format_duration(self.first_ms), format_duration(self.cap_ms)
        return [
            f"backoff.first: {first} is longer than backoff.cap ({cap}), and no message waits longer: raise the cap"
        ]

    def record(self) -> dict[str, Any]:
        """Return the record: plain values, integers only."""
        return {
            "kind": self.kind,
            "first_ms": self.first_ms,
            "factor_permille": round(self.factor * 1000),
            "cap_ms": self.cap_ms,
            "jitter_percent": self.jitter_percent,
        }


class _Settings(schema.Section):
    """Settings that topics of every kind have."""

    lease_ms: Annotated[int, schema.duration(1000, _DAY_MS // 2)] = Field(default=30_000, alias="lease")
    max_attempts: Annotated[int | None, _or_none(schema.integer(1, MOST_ATTEMPTS))] = 10
    max_snoozes: Annotated[int | None, _or_none(schema.integer(0, MOST_SNOOZES))] = None
    backoff: Backoff = Backoff()
    group_ttl_ms: Annotated[int | None, _or_none(schema.duration(60_000, 366 * _DAY_MS))] = Field(
        default=7 * _DAY_MS, alias="group_ttl"
    )
    max_message_bytes: Annotated[int | None, _or_none(schema.size(1024, 48 * _MIB))] = None
    dead_retention_ms: Annotated[int | None, _or_none(schema.duration(1000, 3660 * _DAY_MS))] = Field(
        default=None, alias="dead_retention"
    )
    max_dead_letters: Annotated[int | None, _or_none(schema.integer(1, MOST_DEAD_LETTERS))] = None
    max_lease_ms: Annotated[int | None, _or_none(schema.duration(1000, _DAY_MS // 2))] = Field(
        default=None, alias="max_lease"
    )
    max_request_rate_us: Annotated[int | None, _or_none(BeforeValidator(_interval_us))] = Field(
        default=None, alias="max_request_rate"
    )
    max_request_burst: Annotated[int | None, _or_none(schema.integer(1, MOST_BURST))] = None

    def contradictions(self) -> list[str]:
        """Return one text for each pair of settings that contradict each other."""
        found = self.backoff.contradictions()
        if self.max_lease_ms is not None and self.lease_ms > self.max_lease_ms:
            lease, most = format_duration(self.lease_ms), format_duration(self.max_lease_ms)
            found.append(f"lease: {lease} is longer than max_lease ({most}): shorten it, or raise that")
        if self.dead_retention_ms is not None and self.dead_retention_ms < self.lease_ms:
            lease, kept = format_duration(self.lease_ms), format_duration(self.dead_retention_ms)
            found.append(f"dead_retention: the lease ({lease}) is longer than it ({kept}): raise it, or shorten that")
        return found

    def record(self) -> dict[str, Any]:
        """Return the record that msgpack stores and replicas read. PERSISTED: never rename a key.

        `max_snoozes`, the limits of dead letters, and the other limits are included only if they are set, so that
        versions without these settings never read them.
        """
        bounds = {
            MAX_SNOOZES: self.max_snoozes,
            MAX_MESSAGE_BYTES: self.max_message_bytes,
            DEAD_RETENTION_MS: self.dead_retention_ms,
            MAX_DEAD_LETTERS: self.max_dead_letters,
            MAX_LEASE_MS: self.max_lease_ms,
            MAX_REQUEST_RATE_US: self.max_request_rate_us,
            MAX_REQUEST_BURST: self.max_request_burst,
        }
        bound = {name: most for name, most in bounds.items() if most is not None}
        return {
            "lease_ms": self.lease_ms,
            "max_attempts": self.max_attempts,
            **bound,
            "backoff": self.backoff.record(),
            "group_ttl_ms": self.group_ttl_ms,
        }


class CompactedSettings(_Settings):
    """Settings of a compacted topic. Made by `parse_settings` or `from_record`."""

    key_ttl_ms: Annotated[int | None, _or_none(schema.duration(1, 366 * _DAY_MS))] = Field(default=None, alias="ttl")
    history_ms: Annotated[int, schema.duration(0, 366 * _DAY_MS)] = Field(default=60_000, alias="history")
    tombstone_retention_ms: Annotated[int, schema.duration(0, 366 * _DAY_MS)] = Field(
        default=_DAY_MS, alias="tombstone_retention"
    )
    partition_delimiter: Annotated[str | None, _or_none(BeforeValidator(_delimiter))] = None

    def record(self) -> dict[str, Any]:
        """Return the record of a timer topic that keeps everything in its log, plus the fields that compaction
        reads."""
        return {
            **TopicSettings(delete_on_ack=False, dedup_window=0).record(),
            **super().record(),
            "key_ttl_ms": self.key_ttl_ms,
            "history_ms": self.history_ms,
            "tombstone_retention_ms": self.tombstone_retention_ms,
            **({} if self.partition_delimiter is None else {PARTITION_DELIMITER: self.partition_delimiter}),
        }


class _LogSettings(_Settings):
    """Settings of topics whose messages have delivery times."""

    ttl_ms: Annotated[int | None, _or_none(schema.duration(1, 366 * _DAY_MS))] = Field(default=None, alias="ttl")
    on_expiry: Literal["dead", "drop"] = DEAD
    delete_on_ack: bool = True
    retention_ms: Annotated[int, schema.duration(0, 366 * _DAY_MS)] = Field(default=0, alias="retention")
    retain_ms: Annotated[int | None, _or_none(schema.duration(1000, 3660 * _DAY_MS))] = Field(
        default=None, alias="retain"
    )
    retain_bytes: Annotated[int | None, _or_none(schema.size(_MIB, _PIB))] = None
    dedup_window_ms: Annotated[int, schema.duration(0, 7 * _DAY_MS)] = Field(default=600_000, alias="dedup_window")
    max_delay_ms: Annotated[int | None, _or_none(schema.duration(1000, 366_000 * _DAY_MS))] = Field(
        default=None, alias="max_delay"
    )
    dead_letter_topic: Annotated[str | None, _or_none(schema.name("topic"))] = None
    push_targets: bool = False
    precision_ms: Annotated[int | None, _or_none(schema.duration(1, 1000), AUTO)] = Field(
        default=None, alias="precision"
    )

    def record(self) -> dict[str, Any]:
        """Return the record. It has the name of the dead letter topic only if one is set.

        Replicas read `DEAD_LETTER` instead of the name. The caller adds `DEAD_LETTER`, because only the caller can look
        up that topic.
        """
        named = {} if self.dead_letter_topic is None else {DEAD_LETTER_TOPIC: self.dead_letter_topic}
        return {
            **super().record(),
            **({} if self.max_delay_ms is None else {MAX_DELAY_MS: self.max_delay_ms}),
            **({} if self.precision_ms is None else {PRECISION_MS: self.precision_ms}),
            **({} if self.on_expiry == DEAD else {ON_EXPIRY: self.on_expiry}),
            **({PUSH_TARGETS: True} if self.push_targets else {}),
            **named,
            "ttl_ms": self.ttl_ms,
            "delete_on_ack": self.delete_on_ack,
            "retention_ms": self.retention_ms,
            "retain_ms": self.retain_ms,
            "retain_bytes": self.retain_bytes,
            "dedup_window_ms": self.dedup_window_ms,
        }

    def contradictions(self) -> list[str]:
        """Return the mistakes of settings that do not go together."""
        found = super().contradictions()
        if not self.delete_on_ack:
            return found
        return found + [
            f"{key}: it goes with delete_on_ack false only; otherwise it must be none"
            for key, value in (("retain", self.retain_ms), ("retain_bytes", self.retain_bytes))
            if value is not None
        ]


class TopicSettings(_LogSettings):
    """Settings of a timer topic. Made by `parse_settings` or `from_record`."""

    ordering: Literal["none", "key"] = "none"
    max_in_flight_per_key: Annotated[int | None, _or_none(schema.integer(1, MOST_PER_KEY))] = None

    def record(self) -> dict[str, Any]:
        """Return the settings as they are stored."""
        return {**super().record(), "ordering": self.ordering, MAX_IN_FLIGHT_PER_KEY: self.max_in_flight_per_key}

    def contradictions(self) -> list[str]:
        """Return the mistakes of settings that do not go together."""
        found = super().contradictions()
        if self.ordering == "key" and self.max_in_flight_per_key is not None:
            found.append(
                f"{MAX_IN_FLIGHT_PER_KEY}: it does not go with ordering key, which is one message of a key at a time: "
                "give one of the two"
            )
        return found


class PrioritySettings(_LogSettings):
    """Settings of a priority topic. Made by `parse_settings` or `from_record`."""

    rank: ClassVar[str] = PRIORITY
    ageing_ms: Annotated[int | None, _or_none(schema.duration(1000, 366 * _DAY_MS))] = Field(
        default=None, alias="ageing"
    )

    def record(self) -> dict[str, Any]:
        """Return the settings as they are stored."""
        return {**super().record(), "ordering": "none", "rank": self.rank, "ageing_ms": self.ageing_ms}


class FairSettings(PrioritySettings):
    """Settings of a fair topic. Made by `parse_settings` or `from_record`."""

    rank: ClassVar[str] = FAIR
    tenants: Tenants = Field(default=[])

    def record(self) -> dict[str, Any]:
        """Return the settings as they are stored."""
        return {**super().record(), "tenants": self.tenants}


class GroupSettings(schema.Section):
    """Settings that a group may override."""

    max_attempts: Annotated[int | None, _or_none(schema.integer(1, MOST_ATTEMPTS))] = None
    max_snoozes: Annotated[int | None, _or_none(schema.integer(0, MOST_SNOOZES))] = None
    backoff: Backoff = Backoff()
    on_expiry: Literal["dead", "drop"] = DEAD
    max_in_flight_per_key: Annotated[int, schema.integer(1, MOST_PER_KEY)] = MOST_PER_KEY


Settings = TopicSettings | CompactedSettings | PrioritySettings
CLASSES: dict[str, type[Settings]] = {
    TIMER: TopicSettings,
    COMPACTED: CompactedSettings,
    PRIORITY: PrioritySettings,
    FAIR: FairSettings,
}


def parse_settings(mapping: Mapping[str, object], kind: str = TIMER) -> Settings:
    """Return the settings that a user wrote, with defaults for the rest. Raise InvalidSetting, which names every
    mistake."""
    return _consistent(_validated(CLASSES[kind], mapping))


def update_settings(record: Mapping[str, Any], mapping: Mapping[str, object], kind: str = TIMER) -> Settings:
    """Return the settings of a record with the user's changes applied; `backoff` is changed key by key.

    Raise InvalidSetting, which names every mistake. `ordering`, `max_in_flight_per_key` and `partition_delimiter`
    cannot be changed after the topic's creation. Only the changed settings are checked against the ranges.
    """
    present, given = from_record(record, kind), _validated(CLASSES[kind], mapping)
    changes = {field: getattr(given, field) for field in given.model_fields_set}
    fixed = {name: getattr(present, name, None) for name in ("ordering", MAX_IN_FLIGHT_PER_KEY, PARTITION_DELIMITER)}
    mistakes = [
        f"{name}: it is {'none' if was is None else repr(was)} since the topic was created, and cannot be changed"
        for name, was in fixed.items()
        if changes.get(name, was) != was
    ]
    if mistakes:
        raise _refused(mistakes)
    if "backoff" in changes:
        parts = {field: getattr(given.backoff, field) for field in given.backoff.model_fields_set}
        changes["backoff"] = present.backoff.model_copy(update=parts)
    return _consistent(present.model_copy(update=changes))


def parse_group_settings(mapping: Mapping[str, object], topic: Mapping[str, Any] = NO_SETTINGS) -> dict[str, Any]:
    """Return the record of a group's own settings: only those that were given, with a complete `backoff`. An empty
    record means that the group uses the topic's settings.

    `topic`: the record of the topic's settings. The group's `max_in_flight_per_key` cannot exceed the topic's.
    """
    given = _validated(GroupSettings, mapping)
    mistakes = given.backoff.contradictions()
    record: dict[str, Any] = {
        "max_attempts": given.max_attempts,
        MAX_SNOOZES: given.max_snoozes,
        "backoff": given.backoff.record(),
        ON_EXPIRY: given.on_expiry,
        MAX_IN_FLIGHT_PER_KEY: given.max_in_flight_per_key,
    }
    record = {key: value for key, value in record.items() if key in given.model_fields_set}
    if ON_EXPIRY in record and KEY_TTL_MS in topic:
        mistakes.append(f"{ON_EXPIRY}: {_COMPACTED_EXPIRY}")
    asked, most = record.get(MAX_IN_FLIGHT_PER_KEY), key_limit(topic)
    if asked is not None and most is None:
        mistakes.append(
            f"{MAX_IN_FLIGHT_PER_KEY}: the topic has none, and a group can only lower it; it is set when a timer "
            "topic is created"
        )
    elif asked is not None and most is not None and asked > most:
        mistakes.append(f"{MAX_IN_FLIGHT_PER_KEY}: {asked} is more than the topic's, which is {most}")
    if mistakes:
        raise _refused(mistakes)
    return record


def _validated(model: type[S], mapping: Mapping[str, object]) -> S:
    """Return settings of a model. Raise InvalidSetting with all mistakes."""
    try:
        return model.model_validate(dict(mapping))
    except ValidationError as error:
        mistakes = [
            f"{mistake.path}: {_ABSENT[mistake.path]}"
            if mistake.key_is_wrong and mistake.path in _ABSENT
            else str(mistake)
            for mistake in schema.mistakes_of(error, model)
        ]
    raise _refused(mistakes)


def _consistent(settings: Settings) -> Settings:
    """Return settings. Raise InvalidSetting if some of them do not go together."""
    mistakes = settings.contradictions()
    if mistakes:
        raise _refused(mistakes)
    return settings


def _refused(mistakes: list[str]) -> InvalidSetting:
    """Return the error for these mistakes."""
    return InvalidSetting("; ".join(mistakes), mistakes=mistakes)


def from_record(record: Mapping[str, Any], kind: str = TIMER) -> Settings:
    """Return the settings of a record: a missing key gets its default, an unknown key is ignored.

    The values are not checked against the ranges: settings that were accepted once stay readable.
    """
    backoff = dict(record.get("backoff", {}))
    if "factor_permille" in backoff:
        backoff["factor"] = backoff["factor_permille"] / 1000
    fields = CLASSES[kind].model_fields
    known = {key: record[key] for key in fields if key in record}
    known["backoff"] = Backoff.model_construct(**{k: backoff[k] for k in Backoff.model_fields if k in backoff})
    return CLASSES[kind].model_construct(**known)
