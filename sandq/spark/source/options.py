"""The options of the source, as Spark hands them over: text by name, in any case. They follow Spark's Kafka connector.

    sandq.bootstrap.servers   "host:port,host:port"
    token, token_file         says who reads, or a file that every executor has; else SANDQ_TOKEN, SANDQ_TOKEN_FILE
    insecure                  true: the token is sent in the clear to other machines, too
    subscribe                 topics: "orders,payments"       \\
    subscribePattern          a regular expression             | one of these
    assign                    JSON {"orders": [0, 1]}         /
    startingOffsets           "earliest" | "latest" (streams only) | JSON {"orders": {"0": offset or a word of these}}
    endingOffsets             "latest" | the same JSON; not for streams
    startingTimestamp         an instant: RFC 3339 or epoch milliseconds; instead of startingOffsets
    endingTimestamp           likewise, excluded; not for streams
    startingOffsetsByTimestamp, endingOffsetsByTimestamp
                              the same by partition: JSON {"orders": {"0": instant}}; instead of the others
    maxOffsetsPerTrigger      messages of one micro-batch, about; for streams only
    minOffsetsPerTrigger      with fewer a micro-batch waits, for maxTriggerDelay at most; for streams only
    minPartitions             tasks at least
    failOnDataLoss            true: an error when data was trimmed before it was read; false: a warning
    includeHeaders            true: the column `headers`
    includeRaw                true: the columns `raw_headers` and `ttl_ms`, for who writes the messages as they are
    includeRank               true: the columns `priority` and `tenant`
    columns                   "key,value": these columns alone, of all that there are; instead of the three above
    pushFilters               true: filters on topic, partition, deliver_at and key narrow what is read; for batches
    view                      what is read: "log" (what is due), "pending" (what is not), "all" (both; these two are for
                              batches), "latest" (the present value of each key of a compacted topic; for batches)
    holdName, holdTtl         of streams: the name under which they keep what they have yet to read from being trimmed,
                              and for how long after they were last heard of. "none" as a name: no hold

A partition that a JSON of offsets or instants does not name begins at its earliest, and ends at its latest.
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
from sandq.spark.credentials import NOBODY, Credentials, credentials_of
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
"""Tasks of one batch; more would only be overhead for Spark's scheduler."""
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
    """Which partitions are read: named topics, those whose whole name matches a pattern, or certain partitions."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    assigned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    def wants(self, topic: str, partition: int) -> bool:
        """Whether a partition is among them."""
        if self.assigned:
            return partition in self.assigned.get(topic, ())
        return topic in self.names if self.pattern is None else re.fullmatch(self.pattern, topic) is not None

    def __str__(self) -> str:
        if self.assigned:
            return ", ".join(f"{topic} {list(partitions)}" for topic, partitions in self.assigned.items())
        return ", ".join(self.names) if self.pattern is None else f"topics like {self.pattern}"


@dataclass(frozen=True, slots=True)
class Bound:
    """Where reading begins or ends: by partition if `offsets` or `instants_ms` names it, else at the instant, else at
    the word."""

    word: str
    instant_ms: int | None = None
    offsets: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    instants_ms: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def of(self, topic: str, partition: int) -> str | int:
        """EARLIEST, LATEST, an instant (epoch ms), or the text of an offset."""
        named = self.offsets.get(topic, {}).get(partition)
        if named is not None:
            return named
        named_ms = self.instants_ms.get(topic, {}).get(partition)
        if named_ms is not None:
            return named_ms
        return self.word if self.instant_ms is None else self.instant_ms


class Extra(NamedTuple):
    """Columns that are there when they are asked for. `raw`: headers as bytes, and times to live. `rank`: priorities
    and tenants. `only`: of all columns, those that are there; empty: all."""

    headers: bool = False
    raw: bool = False
    rank: bool = False
    only: tuple[str, ...] = ()

    def has(self, name: str) -> bool:
        """Whether a column is there, if what it is a part of is."""
        return not self.only or name in self.only


PLAIN: Final = Extra()
COLUMNS: Final = (
    *("key", "value", "topic", "partition", "offset", "timestamp", "headers", "deliver_at", "message_id"),
    *("raw_headers", "ttl_ms", "priority", "tenant"),
)
"""All columns that there are, in their order."""
_INCLUDES: Final = ("includeHeaders", "includeRaw", "includeRank")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """What a read was asked for."""

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
    """None: one is drawn when the stream begins."""
    hold_ttl_ms: int = HOLD_TTL_MS
    who: Credentials = NOBODY
    given: frozenset[str] = frozenset()
    """Which options were named."""

    def check_batch(self) -> None:
        """InvalidSetting when there is something that only a stream can do."""
        mistakes = []
        if self.starting.word == LATEST and self.starting.instant_ms is None:
            mistakes.append("startingOffsets: a batch cannot begin at 'latest'; nothing would be read")
        if _names_word(self.starting, LATEST):
            mistakes.append("startingOffsets: a batch cannot begin at 'latest' of a partition")
        if self.max_offsets_per_trigger is not None:
            mistakes.append("maxOffsetsPerTrigger: it is for streams; endingOffsets bounds a batch")
        mistakes += [f"{name}: it is for streams; a batch holds nothing" for name in _OF_STREAMS if name in self.given]
        mistakes += [
            f"{name}: it is for streams; a batch waits for nothing" for name in _TRIGGERS if name in self.given
        ]
        if self.view == LATEST_VALUES:
            told = [name for name in (*_BOUNDS, "minPartitions") if name in self.given]
            mistakes += [f"{name}: the latest values are read whole, a task for each partition" for name in told]
        if self.view == PENDING and any(self.ending.offsets) | any(self.starting.offsets):
            mistakes.append("startingOffsets, endingOffsets: pending messages are bounded by timestamps")
        _SOURCE.refuse(mistakes)

    def check_stream(self) -> None:
        """InvalidSetting when there is something that only a batch can do."""
        mistakes = []
        if self.given & _ENDINGS:
            mistakes.append(f"{', '.join(sorted(self.given & _ENDINGS))}: a stream has no end; that is for spark.read")
        if self.view != LOG:
            mistakes.append(f"view: a stream reads the log; {self.view!r} is for spark.read, as it stands at a moment")
        if "pushFilters" in self.given:
            mistakes.append("pushFilters: Spark pushes filters into batches only")
        most = self.max_offsets_per_trigger
        if most is not None and self.min_offsets_per_trigger > most:
            mistakes.append(f"minOffsetsPerTrigger: {self.min_offsets_per_trigger} is more than maxOffsetsPerTrigger")
        _SOURCE.refuse(mistakes)


DEFAULTS: Final = SourceOptions(topics=Topics())


def parse_options(options: Mapping[str, str]) -> SourceOptions:
    """The options of a read. InvalidSetting names every mistake."""
    texts, default = OptionTexts(options, _SOURCE), DEFAULTS
    found = SourceOptions(
        topics=_topics(texts),
        servers=texts.one(SERVERS, servers, default.servers),
        starting=_bound(texts, "starting", EARLIEST),
        ending=_bound(texts, "ending", LATEST),
        max_offsets_per_trigger=texts.one(
            "maxOffsetsPerTrigger", whole_number(OFFSETS_MAX), default.max_offsets_per_trigger
        ),
        min_offsets_per_trigger=texts.one(
            "minOffsetsPerTrigger", whole_number(OFFSETS_MAX), default.min_offsets_per_trigger
        ),
        max_trigger_delay_ms=texts.one(
            "maxTriggerDelay", duration_within(1, TRIGGER_DELAY_MOST_MS), default.max_trigger_delay_ms
        ),
        min_partitions=texts.one("minPartitions", whole_number(TASKS_MAX), default.min_partitions),
        fail_on_data_loss=texts.one("failOnDataLoss", truth, default.fail_on_data_loss),
        extra=_extra(texts),
        push_filters=texts.one("pushFilters", truth, default.push_filters),
        view=texts.one("view", one_of({view: view for view in VIEWS}), default.view),
        hold_name=texts.one("holdName", lambda text: check_name("hold", text), default.hold_name),
        hold_ttl_ms=texts.one("holdTtl", duration_within(FIXED.hold_least_ms, FIXED.hold_most_ms), default.hold_ttl_ms),
        who=credentials_of(texts),
        given=texts.names,
    )
    if _names_word(found.ending, EARLIEST):
        texts.mistakes.append("endingOffsets: nothing ends at 'earliest'")
    texts.mistakes += _not_read(found)
    texts.mistakes += _of_neither(found)
    _SOURCE.refuse(texts.mistakes)
    return found


def _extra(texts: OptionTexts) -> Extra:
    includes = [texts.one(name, truth, False) for name in _INCLUDES]
    only = texts.one("columns", _columns, ())
    if not only:
        return Extra(includes[0], includes[1], includes[2])
    told = [name for name in _INCLUDES if name in texts.names]
    if told:
        texts.mistakes.append(f"{', '.join(told)}: the option columns says already which there are")
    return Extra("headers" in only, not {"raw_headers", "ttl_ms"}.isdisjoint(only), _has_rank(only), only)


def _has_rank(only: tuple[str, ...]) -> bool:
    return not {"priority", "tenant"}.isdisjoint(only)


def _not_read(found: SourceOptions) -> list[str]:
    """Places that are named and not read: the one that was meant would be read from its beginning."""
    if found.topics == Topics():
        return []
    sides = (("starting", found.starting), ("ending", found.ending))
    named = [
        (f"{side}{what}", topic, partition)
        for side, bound in sides
        for what, by_topic in (("Offsets", bound.offsets), ("OffsetsByTimestamp", bound.instants_ms))
        for topic, places in by_topic.items()
        for partition in places
    ]
    return [
        f"{name}: topic {topic!r}, partition {partition} is not among what is read: {found.topics}"
        for name, topic, partition in named
        if not found.topics.wants(topic, partition)
    ][:1]


def _of_neither(found: SourceOptions) -> list[str]:
    """Mistakes of options that no stream and no batch has together. Of a batch or a stream alone Spark does not say
    which it is before it begins."""
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
        texts.mistakes.append(f"one of subscribe, subscribePattern and assign says what is read; {has}")
    return Topics(
        texts.one("subscribe", _names, ()),
        texts.one("subscribePattern", _pattern, None),
        texts.one("assign", _assigned, {}),
    )


def _bound(texts: OptionTexts, which: str, word: str) -> Bound:
    """`which`: starting or ending; `word`: what holds where nothing else is said."""
    names = (f"{which}Offsets", f"{which}Timestamp", f"{which}OffsetsByTimestamp")
    given = [name for name in names if name in texts.names]
    if len(given) > 1:
        texts.mistakes.append(f"{' and '.join(given)}: one of them is enough")
    found = texts.one(names[0], lambda text: _offsets(text, word), Bound(word))
    at_ms = texts.one(names[1], instant_ms, None)
    by_partition = texts.one(names[2], _instants, {})
    return Bound(word, None, {}, by_partition) if by_partition else found if at_ms is None else Bound(word, at_ms)


def _names_word(bound: Bound, word: str) -> bool:
    return any(place == word for places in bound.offsets.values() for place in places.values())


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
        found = json.loads(text, object_pairs_hook=_without_twins)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or not found:
        raise InvalidRequest(f"JSON like {form} is expected, not {shown(text)!r}")
    for topic in found:
        check_name("topic", topic)
    return found


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
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
    for topic, places in _json(text, '{"orders": {"0": 1893456000000}}').items():
        if not isinstance(places, dict):
            raise InvalidRequest(f"{topic}: instants by partition are expected, not {shown(places)!r}")
        named = found.setdefault(topic, {})
        for key, at in places.items():
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
    for topic, places in _json(text, '{"orders": {"0": "01J...26 characters"}}').items():
        if not isinstance(places, dict):
            raise InvalidRequest(f"{topic}: offsets by partition are expected, not {shown(places)!r}")
        offsets[topic] = {_partition(topic, key): _place(topic, key, place) for key, place in places.items()}
    return Bound(default, None, offsets)


def _place(topic: str, partition: str, place: object) -> str:
    if place in (EARLIEST, LATEST):
        return str(place)
    try:
        return offset_model.to_text(offset_model.from_text(place))  # type: ignore[arg-type]  # it refuses what is none
    except InvalidRequest as error:
        raise InvalidRequest(f"{topic}, partition {partition}: {error.message}") from None
