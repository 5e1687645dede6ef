"""The options of the source: texts by name, from Spark; the case of names does not matter.

They follow Spark's Kafka connector.

    sandq.bootstrap.servers   "host:port,host:port"
    token, token_file         a token, or a file with one on every executor; by default SANDQ_TOKEN, SANDQ_TOKEN_FILE
    insecure                  true: the token is sent to other machines without encryption, too
    subscribe                 topics: "orders,payments"       \\
    subscribePattern          a regular expression             | one of these
    assign                    JSON {"orders": [0, 1]}         /
    startingOffsets           "earliest" | "latest" (streams only) | JSON {"orders": {"0": an offset or such a word}}
    endingOffsets             "latest" | the same JSON; batches only; exclusive
    startingTimestamp         a time: RFC 3339 or epoch milliseconds; instead of startingOffsets
    endingTimestamp           the same for the end; batches only; exclusive
    startingOffsetsByTimestamp, endingOffsetsByTimestamp
                              the same by partition: JSON {"orders": {"0": time}}; instead of the others
    maxOffsetsPerTrigger      approximate number of messages per micro-batch; streams only
    minOffsetsPerTrigger      with fewer messages, a micro-batch waits, at most maxTriggerDelay; streams only
    minPartitions             minimum number of tasks
    failOnDataLoss            true: an error if data was trimmed before it was read; false: a warning
    includeHeaders            true: the column `headers`
    includeRaw                true: the columns `raw_headers` and `ttl_ms`, to write messages again unchanged
    includeRank               true: the columns `priority` and `tenant`
    columns                   "key,value": only these columns; instead of the three options above
    pushFilters               true: filters on topic, partition, deliver_at and key limit what is read; batches only
    view                      "log" (messages that are due), "pending" (messages that are not), "all" (both), "latest"
                              (the current value of each key of a compacted topic); all but "log" are for batches only
    holdName, holdTtl         streams only: the name of the hold, which keeps unread messages from being trimmed, and
                              how long it stays after its last renewal; holdName "none": no hold

A partition that a JSON of offsets or times does not name is read from its beginning, or to its end.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sandq.model import offsets as offset_model
from sandq.model.errors import InvalidRequest
from sandq.model.limits import FIXED
from sandq.model.names import check_name
from sandq.model.ports import DEFAULT_SERVER
from sandq.model.times import instant_ms
from sandq.spark.credentials import NO_CREDENTIALS, Credentials, credentials_of
from sandq.spark.credentials import OPTIONS as CREDENTIALS
from sandq.spark.option_texts import (
    SERVERS,
    OptionTexts,
    Side,
    duration_within,
    one_of,
    servers,
    shown,
    truth,
    whole_number,
)

EARLIEST: Final = "earliest"
LATEST: Final = "latest"

TASKS_MAX: Final = 10_000
"""Maximum number of tasks of a batch; more would only cost time in Spark's scheduler."""
OFFSETS_MAX: Final = 10**12

LOG: Final = "log"
PENDING: Final = "pending"
ALL: Final = "all"
LATEST_VALUES: Final = "latest"
VIEWS: Final = (LOG, PENDING, ALL, LATEST_VALUES)
NO_HOLD: Final = "none"
HOLD_TTL_MS: Final = 86_400_000

OPTIONS: Final = (
    SERVERS,
    *("subscribe", "subscribePattern", "assign"),
    *("startingOffsets", "endingOffsets", "startingTimestamp", "endingTimestamp"),
    *("startingOffsetsByTimestamp", "endingOffsetsByTimestamp"),
    *("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "minPartitions", "failOnDataLoss"),
    *("includeHeaders", "includeRaw", "includeRank", "columns", "pushFilters"),
    *("view", "holdName", "holdTtl"),
    *CREDENTIALS,
)
_SOURCE: Final = Side(
    "source",
    OPTIONS,
    path="nothing is read from a path; call load() without one, and name the topic with subscribe",
)
_TOPICS: Final = OPTIONS[1:4]
_BOUNDS: Final = OPTIONS[4:10]
_ENDINGS: Final = frozenset(name for name in _BOUNDS if name.startswith("ending"))
_OF_STREAMS: Final = ("holdName", "holdTtl")
_TRIGGERS: Final = ("minOffsetsPerTrigger", "maxTriggerDelay")
TRIGGER_DELAY_MOST_MS: Final = 7 * 86_400_000


@dataclass(frozen=True, slots=True)
class Topics:
    """The partitions to read: of named topics, of topics whose whole name matches a pattern, or single partitions."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def wants(self, topic: str, partition: int) -> bool:
        """Return whether a partition is selected."""
        if self.assigned:
            return partition in self.assigned.get(topic, ())
        return topic in self.names if self.pattern is None else re.fullmatch(self.pattern, topic) is not None

    def __str__(self) -> str:
        if self.assigned:
            return ", ".join(f"{topic} {list(partitions)}" for topic, partitions in self.assigned.items())
        return ", ".join(self.names) if self.pattern is None else f"topics like {self.pattern}"


@dataclass(frozen=True, slots=True)
class Bound:
    """The start or the end of reading.

    For a partition in `offsets` or `instants_ms` it is that value, otherwise `instant_ms` if it is set, otherwise
    `word` (EARLIEST or LATEST).
    """

    word: str
    instant_ms: int | None = None
    offsets: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    instants_ms: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def of(self, topic: str, partition: int) -> str | int:
        """Return the bound of a partition: EARLIEST, LATEST, a time (epoch ms), or the text of an offset."""
        named = self.offsets.get(topic, {}).get(partition)
        if named is not None:
            return named
        named_ms = self.instants_ms.get(topic, {}).get(partition)
        if named_ms is not None:
            return named_ms
        return self.word if self.instant_ms is None else self.instant_ms


class Extra(NamedTuple):
    """The optional columns. `raw`: headers as bytes, and times to live. `rank`: priorities and tenants.

    `only`: the selected columns; if it is empty, all columns are returned.
    """

    headers: bool = False
    raw: bool = False
    rank: bool = False
    only: tuple[str, ...] = ()

    def has(self, name: str) -> bool:
        """Return whether `only` allows a column; the flags are not considered."""
        return not self.only or name in self.only


PLAIN: Final = Extra()
COLUMNS: Final = (
    *("key", "value", "topic", "partition", "offset", "timestamp", "headers", "deliver_at", "message_id"),
    *("raw_headers", "ttl_ms", "priority", "tenant"),
)
"""All columns, in their order."""
_INCLUDES: Final = ("includeHeaders", "includeRaw", "includeRank")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The parsed options of a read."""

    topics: Topics
    servers: tuple[str, ...] = (DEFAULT_SERVER,)
    starting: Bound = Bound(EARLIEST)
    ending: Bound = Bound(LATEST)
    max_offsets_per_trigger: int | None = None
    min_offsets_per_trigger: int = 1
    max_trigger_delay_ms: int = 900_000
    min_partitions: int = 1
    fail_on_data_loss: bool = True
    extra: Extra = PLAIN
    push_filters: bool = False
    view: str = LOG
    hold_name: str | None = None
    """Name of the hold; None if the stream chooses a random name."""
    hold_ttl_ms: int = HOLD_TTL_MS
    credentials: Credentials = NO_CREDENTIALS
    given: frozenset[str] = frozenset()
    """Names of the options that were given."""

    def check_batch(self) -> None:
        """Raise InvalidSetting if an option is not allowed in a batch."""
        mistakes = []
        if self.starting.word == LATEST and self.starting.instant_ms is None:
            mistakes.append("startingOffsets: a batch cannot begin at 'latest'; nothing would be read")
        if _is_anywhere(self.starting, LATEST):
            mistakes.append("startingOffsets: a batch cannot begin at 'latest' of a partition")
        if self.max_offsets_per_trigger is not None:
            mistakes.append("maxOffsetsPerTrigger: it is for streams; endingOffsets bounds a batch")
        mistakes += [f"{name}: it is for streams; a batch holds nothing" for name in _OF_STREAMS if name in self.given]
        mistakes += [
            f"{name}: it is for streams; a batch waits for nothing" for name in _TRIGGERS if name in self.given
        ]
        if self.view == LATEST_VALUES:
            refused = [name for name in (*_BOUNDS, "minPartitions") if name in self.given]
            mistakes += [f"{name}: the view 'latest' always reads whole partitions, one task each" for name in refused]
        if self.view == PENDING and any(self.ending.offsets) | any(self.starting.offsets):
            mistakes.append("startingOffsets, endingOffsets: pending messages are bounded by timestamps")
        _SOURCE.refuse(mistakes)

    def check_stream(self) -> None:
        """Raise InvalidSetting if an option is not allowed in a stream."""
        mistakes = []
        if self.given & _ENDINGS:
            mistakes.append(f"{', '.join(sorted(self.given & _ENDINGS))}: a stream has no end; that is for spark.read")
        if self.view != LOG:
            mistakes.append(f"view: a stream reads the log; {self.view!r} is for spark.read")
        if "pushFilters" in self.given:
            mistakes.append("pushFilters: Spark pushes filters into batches only")
        most = self.max_offsets_per_trigger
        if most is not None and self.min_offsets_per_trigger > most:
            mistakes.append(f"minOffsetsPerTrigger: {self.min_offsets_per_trigger} is more than maxOffsetsPerTrigger")
        _SOURCE.refuse(mistakes)


DEFAULTS: Final = SourceOptions(topics=Topics())


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """Parse the options of a read. Raises InvalidSetting with all mistakes."""
    texts, default = OptionTexts(options, _SOURCE), DEFAULTS
    found = SourceOptions(
        topics=_topics(texts),
        servers=texts.value(SERVERS, servers, default.servers),
        starting=_bound(texts, "starting", EARLIEST),
        ending=_bound(texts, "ending", LATEST),
        max_offsets_per_trigger=texts.value(
            "maxOffsetsPerTrigger", whole_number(OFFSETS_MAX), default.max_offsets_per_trigger
        ),
        min_offsets_per_trigger=texts.value(
            "minOffsetsPerTrigger", whole_number(OFFSETS_MAX), default.min_offsets_per_trigger
        ),
        max_trigger_delay_ms=texts.value(
            "maxTriggerDelay", duration_within(1, TRIGGER_DELAY_MOST_MS), default.max_trigger_delay_ms
        ),
        min_partitions=texts.value("minPartitions", whole_number(TASKS_MAX), default.min_partitions),
        fail_on_data_loss=texts.value("failOnDataLoss", truth, default.fail_on_data_loss),
        extra=_extra(texts),
        push_filters=texts.value("pushFilters", truth, default.push_filters),
        view=texts.value("view", one_of({view: view for view in VIEWS}), default.view),
        hold_name=texts.value("holdName", lambda text: check_name("hold", text), default.hold_name),
        hold_ttl_ms=texts.value(
            "holdTtl", duration_within(FIXED.hold_least_ms, FIXED.hold_most_ms), default.hold_ttl_ms
        ),
        credentials=credentials_of(texts),
        given=texts.names,
    )
    if _is_anywhere(found.ending, EARLIEST):
        texts.mistakes.append("endingOffsets: nothing ends at 'earliest'")
    texts.mistakes += _not_read(found)
    texts.mistakes += _of_neither(found)
    _SOURCE.refuse(texts.mistakes)
    return found


def _extra(texts: OptionTexts) -> Extra:
    """Return which optional columns to read, by the option `columns` or by the include options."""
    includes = [texts.value(name, truth, False) for name in _INCLUDES]
    only = texts.value("columns", _columns, ())
    if not only:
        return Extra(includes[0], includes[1], includes[2])
    redundant = [name for name in _INCLUDES if name in texts.names]
    if redundant:
        texts.mistakes.append(f"{', '.join(redundant)}: the option columns already selects the columns")
    return Extra("headers" in only, not {"raw_headers", "ttl_ms"}.isdisjoint(only), _has_rank(only), only)


def _has_rank(only: tuple[str, ...]) -> bool:
    return not {"priority", "tenant"}.isdisjoint(only)


def _not_read(found: SourceOptions) -> list[str]:
    """Return mistakes for partitions with a bound that are not read.

    Such a bound is probably meant for a different partition, which would silently be read from its beginning.
    """
    if found.topics == Topics():
        return []
    sides = (("starting", found.starting), ("ending", found.ending))
    named = [
        (f"{side}{suffix}", topic, partition)
        for side, bound in sides
        for suffix, by_topic in (("Offsets", bound.offsets), ("OffsetsByTimestamp", bound.instants_ms))
        for topic, by_partition in by_topic.items()
        for partition in by_partition
    ]
    return [
        f"{name}: topic {topic!r}, partition {partition} is not one of the partitions that are read: {found.topics}"
        for name, topic, partition in named
        if not found.topics.wants(topic, partition)
    ][:1]


def _of_neither(found: SourceOptions) -> list[str]:
    """Return mistakes for options that exclude each other, because some are for batches and some for streams.

    Whether the read is a batch or a stream is not known here: Spark says it only when the query begins.
    """
    of_batches = sorted(found.given & _ENDINGS) + ([f"view {found.view!r}"] if found.view != LOG else [])
    if "pushFilters" in found.given:
        of_batches.append("pushFilters")
    of_streams = sorted(found.given & {*_OF_STREAMS, *_TRIGGERS, "maxOffsetsPerTrigger"})
    if not of_batches or not of_streams:
        return []
    return [f"{', '.join(of_batches)}: that is for batches, and {', '.join(of_streams)} for streams"]


def _topics(texts: OptionTexts) -> Topics:
    given = [name for name in _TOPICS if name in texts.names]
    if len(given) != 1:
        has = f"{' and '.join(given)} are given" if given else "none of them is given"
        texts.mistakes.append(f"exactly one of subscribe, subscribePattern and assign is required; {has}")
    return Topics(
        texts.value("subscribe", _names, ()),
        texts.value("subscribePattern", _pattern, None),
        texts.value("assign", _assigned, {}),
    )


def _bound(texts: OptionTexts, which: str, word: str) -> Bound:
    """Parse the options of one bound. `which`: "starting" or "ending". `word`: the default, EARLIEST or LATEST."""
    names = (f"{which}Offsets", f"{which}Timestamp", f"{which}OffsetsByTimestamp")
    given = [name for name in names if name in texts.names]
    if len(given) > 1:
        texts.mistakes.append(f"{' and '.join(given)}: one of them is enough")
    found = texts.value(names[0], lambda text: _offsets(text, word), Bound(word))
    at_ms = texts.value(names[1], instant_ms, None)
    by_partition = texts.value(names[2], _instants, {})
    return Bound(word, None, {}, by_partition) if by_partition else found if at_ms is None else Bound(word, at_ms)


def _is_anywhere(bound: Bound, word: str) -> bool:
    return any(named == word for by_partition in bound.offsets.values() for named in by_partition.values())


# ------------------------------------------------------------------------------------------------ single values


def _columns(text: str) -> tuple[str, ...]:
    wanted = {part.strip() for part in text.split(",")}
    unknown = sorted(wanted - {*COLUMNS})
    if unknown:
        raise InvalidRequest(f"there is no column {shown(unknown[0])!r}; there are {', '.join(COLUMNS)}")
    return tuple(name for name in COLUMNS if name in wanted)


def _names(text: str) -> tuple[str, ...]:
    names = [check_name("topic", part.strip()) for part in text.split(",")]
    return tuple(dict.fromkeys(names))


def _pattern(text: str) -> str | None:
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidRequest(f"{shown(text)} is not a regular expression: {error}") from None
    if not text:
        raise InvalidRequest("an empty pattern matches no topic")
    return text


def _json(text: str, form: str) -> Mapping[str, Any]:
    try:
        found = json.loads(text, object_pairs_hook=_unique_names)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not found:
        raise InvalidRequest(f"JSON like {form} is expected, not {shown(text)!r}")
    for topic in found:
        check_name("topic", topic)
    return found


def _unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise InvalidRequest("the JSON has a name twice")
    return found


def _partition(topic: str, partition: object) -> int:
    text = str(partition)
    fits = text.isascii() and text.isdecimal() and len(text) <= 4 and str(int(text)) == text
    if isinstance(partition, bool) or not fits or int(text) > offset_model.PARTITION_MAX:
        raise InvalidRequest(f"{shown(partition)!r} is no partition of {topic}: 0 to {offset_model.PARTITION_MAX}")
    return int(text)


def _assigned(text: str) -> dict[str, tuple[int, ...]]:
    found = {}
    for topic, partitions in _json(text, '{"orders": [0, 1]}').items():
        if not isinstance(partitions, list) or not partitions:
            raise InvalidRequest(f"{topic}: a list of partitions is expected, not {shown(partitions)!r}")
        if not all(type(partition) is int for partition in partitions):
            raise InvalidRequest(f"{topic}: partitions are numbers, not {shown(partitions)!r}")
        found[topic] = tuple(sorted({_partition(topic, partition) for partition in partitions}))
    return found


def _instants(text: str) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for topic, by_partition in _json(text, '{"orders": {"0": 1893456000000}}').items():
        if not isinstance(by_partition, dict):
            raise InvalidRequest(f"{topic}: times by partition are expected, not {shown(by_partition)!r}")
        named = found.setdefault(topic, {})
        for key, at in by_partition.items():
            partition = _partition(topic, key)
            try:
                named[partition] = instant_ms(at)
            except InvalidRequest as error:
                raise InvalidRequest(f"{topic}, partition {partition}: {error.message}") from None
    return found


def _offsets(text: str, default: str) -> Bound:
    if text.lower() in (EARLIEST, LATEST):
        if text.lower() == EARLIEST and default == LATEST:
            raise InvalidRequest("nothing ends at 'earliest'")
        return Bound(text.lower())
    if not text.startswith("{"):
        raise InvalidRequest(f"'earliest', 'latest' or JSON of offsets is expected, not {shown(text)!r}")
    offsets = {}
    for topic, by_partition in _json(text, '{"orders": {"0": "01J...26 characters"}}').items():
        if not isinstance(by_partition, dict):
            raise InvalidRequest(f"{topic}: offsets by partition are expected, not {shown(by_partition)!r}")
        offsets[topic] = {_partition(topic, key): _offset(topic, key, named) for key, named in by_partition.items()}
    return Bound(default, None, offsets)


def _offset(topic: str, partition: str, named: object) -> str:
    if named in (EARLIEST, LATEST):
        return str(named)
    try:
        return offset_model.to_text(offset_model.from_text(named))  # type: ignore[arg-type]  # refuses other types
    except InvalidRequest as error:
        raise InvalidRequest(f"{topic}, partition {partition}: {error.message}") from None
