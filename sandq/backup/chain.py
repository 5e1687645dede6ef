"""The chain of a backup and its increments (pure): their content, and the times that can be restored.

    window      rows of a partition (in the backup or in an increment), and all entries of its log after them
    increment   new entries of all partitions, then a summary of all windows so far and of the topics

Blocks of an increment, PERSISTED, see docs/backup.md: `E` and MessagePack `[topic, partition, first index, term of the
entry before, [term, command, ...]]`; the last block is `S` and MessagePack, the summary. Topics are identified by their
numbers, which a cluster never reuses. An empty command is an internal entry of Raft.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, Final

import msgpack

from sandq.backup.manifest import Manifest, PartitionPart
from sandq.model.errors import InvalidName, InvalidRequest
from sandq.model.limits import DEFAULT
from sandq.model.names import check_name

FOLDER: Final = "increments"
OF_MANIFEST: Final = -1
"""Value of a window's `base` if the backup itself has its rows."""
ENDED_MOST: Final = 10_000
"""Maximum number of ended windows, over all partitions; the oldest ones are forgotten."""
NUMBER_MOST: Final = 99_999_999
_ENTRIES, _SUMMARY = b"E", b"S"
_INDEX_MOST: Final = 1 << 63


def name_of(number: int) -> str:
    """Return the file name of an increment, relative to its backup's folder."""
    return f"{FOLDER}/{number:08}.sandq"


def number_of(file: str) -> int | None:
    """Return the number of the increment with this file name in `FOLDER`; None if it is not a file of an increment."""
    stem, _, suffix = file.partition(".")
    return int(stem) if suffix == "sandq" and len(stem) == 8 and stem.isascii() and stem.isdecimal() else None


def folder_of(number: int, topic: int, partition: int) -> str:
    """Return the folder of the rows of a partition in an increment, relative to its backup's folder."""
    return f"{FOLDER}/{number:08}/{topic}/{partition}"


@dataclass(frozen=True, slots=True)
class Entries:
    """Consecutive entries of a partition's log."""

    topic: int
    partition: int
    first: int
    """Index of the first entry."""
    term_before: int
    """Term of the entry before the first one."""
    entries: Sequence[Any]
    """Term and command, alternating."""

    @property
    def last(self) -> int:
        """The index of the last entry."""
        return self.first + len(self.entries) // 2 - 1

    def encode(self) -> bytes:
        """Return the block."""
        body = [self.topic, self.partition, self.first, self.term_before, self.entries]
        return _ENTRIES + bytes(msgpack.packb(body))

    def pairs(self) -> Iterable[tuple[int, int, bytes]]:
        """Yield index, term and command of each entry."""
        for at in range(0, len(self.entries), 2):
            yield self.first + at // 2, self.entries[at], self.entries[at + 1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A time span for which a partition can be restored, from one set of rows. Times in epoch milliseconds."""

    topic: int
    partition: int
    base: int
    """Number of the increment that has its rows; `OF_MANIFEST` if the backup has them."""
    base_index: int
    """Index of the last entry that is included in the rows."""
    base_ms: int
    """The partition's time at that entry."""
    index: int
    """Index of the last entry of the window."""
    term: int | None
    """Term of the entry at `index`; None if it is not known yet."""
    to_ms: int
    """Everything that was acknowledged up to this time is included."""
    last: int | None = None
    """Number of the increment in which the window ended; None if the window continues."""
    why: str | None = None
    """Why the window ended; None if it continues."""

    @classmethod
    def of(cls, row: Sequence[Any]) -> Window:
        """Build a window from its row in a summary, which has the fields in order."""
        return cls(**dict(zip([each.name for each in fields(cls)], row, strict=True)))

    @property
    def topic_partition(self) -> tuple[int, int]:
        """Topic and partition."""
        return self.topic, self.partition

    @property
    def first(self) -> int:
        """Number of the first increment that may have entries after the rows.

        Entries in the increment that has the rows were written before them, and may belong to a different history.
        """
        return self.base + 1

    def stands_in(self, number: int) -> bool:
        """Return whether this partition's entries in an increment belong to this window."""
        return self.first <= number and (self.last is None or number <= self.last)

    def has(self, at_ms: int) -> bool:
        """Return whether the partition can be restored as of this time."""
        return self.base_ms <= at_ms <= self.to_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic at the time when an increment was begun."""

    name: str
    number: int
    kind: str
    partitions: int
    initial_partitions: int
    replicas: int
    settings: Mapping[str, Any]
    owner: str | None
    created_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """The summary at the end of an increment, about itself and the chain up to it."""

    number: int
    previous: bytes
    """SHA-256 of the previous summary; empty for the first one."""
    time_ms: int
    """The cluster's time when the topics were listed."""
    begun_ms: int
    """Start of the increment, by the clock of the process that made it."""
    ended_ms: int
    """End of the increment, by the same clock."""
    version: str
    level: int
    """The cluster's feature level."""
    topics: tuple[Topic, ...] | None
    """None if the topics are those of the increment `topics_at`."""
    topics_at: int
    windows: tuple[Window, ...]
    bases: Mapping[tuple[int, int], PartitionPart]
    """The partitions whose rows this increment has."""
    warnings: tuple[str, ...] = ()

    def encode(self) -> bytes:
        """Return the block."""
        document = {
            **{name: getattr(self, name) for name in _PLAIN},
            "topics": None if self.topics is None else [asdict(topic) for topic in self.topics],
            "windows": [[getattr(window, name) for name in Window.__slots__] for window in self.windows],
            "bases": [[topic, asdict(part)] for (topic, _), part in self.bases.items()],
            "warnings": list(self.warnings),
        }
        return _SUMMARY + bytes(msgpack.packb(document))

    @property
    def reach_ms(self) -> int | None:
        """Time up to which every followed partition can be restored; None if no partition is followed."""
        return min([window.to_ms for window in self.windows if window.last is None], default=None)


_PLAIN: Final = ("number", "previous", "time_ms", "begun_ms", "ended_ms", "version", "level", "topics_at")


def digest_of(block: bytes) -> bytes:
    """Return the digest of a summary's block, for the next summary."""
    return hashlib.sha256(block).digest()


def decode(block: bytes) -> Entries | Summary:
    """Decode a block of an increment. Raises ValueError with the mistake."""
    kind, body = block[:1], memoryview(block)[1:]
    try:
        if kind == _ENTRIES:
            return _entries(msgpack.unpackb(body))
        if kind == _SUMMARY:
            return _summary(msgpack.unpackb(body, strict_map_key=False))
    except (KeyError, TypeError, AttributeError, msgpack.UnpackException, InvalidName) as error:
        raise ValueError(f"it has no valid content of an increment: {error!r:.200}") from None
    raise ValueError("it is neither entries nor a summary")


def is_summary(block: bytes) -> bool:
    """Return whether a block is the summary of its increment."""
    return block[:1] == _SUMMARY


def _entries(found: Any) -> Entries:
    topic, partition, first, term_before, entries = found
    _check_numbers(topic, partition, first, term_before)
    if type(entries) is not list or not entries or len(entries) % 2 or first < 1:
        raise ValueError("invalid entries")
    if any(type(term) is not int or term < 0 for term in entries[::2]) or set(map(type, entries[1::2])) != {bytes}:
        raise ValueError("an entry is a term and a command")
    return Entries(topic, partition, first, term_before, entries)


def _check_numbers(*numbers: Any) -> None:
    if any(type(number) is not int or not 0 <= number < _INDEX_MOST for number in numbers):
        raise ValueError(f"an invalid number among {numbers!r:.200}")


def _summary(found: Any) -> Summary:
    plain = {name: found[name] for name in _PLAIN}
    _check_numbers(*[plain[name] for name in ("number", "time_ms", "begun_ms", "ended_ms", "level")])
    if type(plain["previous"]) is not bytes or type(plain["version"]) is not str:
        raise ValueError("invalid version, or digest of the previous summary")
    if type(plain["topics_at"]) is not int or not OF_MANIFEST <= plain["topics_at"] <= plain["number"]:
        raise ValueError("invalid number of the increment with its topics")
    topics = None if found["topics"] is None else tuple(map(_topic, found["topics"]))
    if topics is not None and len({topic.name for topic in topics}) < len(topics):
        raise ValueError("two topics with the same name")
    windows = tuple(_window(Window.of(row), plain["number"]) for row in found["windows"])
    bases = {}
    for topic, document in found["bases"]:
        part = PartitionPart.of(document)
        part.check(folder_of(plain["number"], topic, part.partition))
        bases[topic, part.partition] = part
    return Summary(**plain, topics=topics, windows=windows, bases=bases, warnings=tuple(map(str, found["warnings"])))


def _topic(found: Mapping[str, Any]) -> Topic:
    topic = Topic(**found)
    check_name("topic", topic.name)
    _check_numbers(topic.number, topic.partitions, topic.initial_partitions, topic.replicas, topic.created_ms)
    # Partitions are checked one by one, so refuse a huge number from a damaged file.
    is_possible = 1 <= topic.partitions <= DEFAULT.partitions_per_topic
    if not is_possible or type(topic.kind) is not str or type(topic.settings) is not dict:
        raise ValueError(f"topic {topic.name} is invalid")
    return topic


def _window(window: Window, number: int) -> Window:
    _check_numbers(window.topic, window.partition, window.base_index, window.base_ms, window.index, window.to_ms)
    last = number if window.last is None else window.last
    if type(window.base) is not int or type(last) is not int or not OF_MANIFEST <= window.base <= last <= number:
        raise ValueError(f"a window of partition {window.partition} is invalid")
    if window.index < window.base_index or not (window.term is None or type(window.term) is int):
        raise ValueError(f"a window of partition {window.partition} is invalid")
    return window


# -- the beginning and the continuation of a chain ----------------------------------------------------------------


def topic_of(row: Mapping[str, Any]) -> Topic:
    """Return a topic from a node's row."""
    return Topic(**{name: row[name] for name in Topic.__slots__})


def topics_of(manifest: Manifest) -> tuple[Topic, ...]:
    """Return the topics of a backup."""
    return tuple(
        Topic(
            name=topic.name,
            number=topic.number,
            kind=topic.kind,
            partitions=len(topic.partitions),
            initial_partitions=topic.initial_partitions,
            replicas=topic.replicas,
            settings=topic.settings,
            owner=topic.owner,
            created_ms=0,
        )
        for topic in manifest.topics
    )


def windows_of(manifest: Manifest) -> tuple[Window, ...]:
    """Return the windows of a backup without increments."""
    return tuple(
        Window(
            topic=topic.number,
            partition=part.partition,
            base=OF_MANIFEST,
            base_index=part.index,
            base_ms=part.time_ms,
            index=part.index,
            term=None,
            to_ms=part.time_ms,
        )
        for topic in manifest.topics
        for part in topic.partitions
    )


def ended(window: Window, number: int, why: str) -> Window:
    """Return `window`, marked as ended in increment `number` for the reason `why`."""
    return replace(window, last=number, why=why)


def bounded(windows: Sequence[Window]) -> tuple[Window, ...]:
    """Drop the oldest ended windows, if there are too many."""
    over = sorted([window for window in windows if window.last is not None], key=lambda window: window.to_ms)
    forgotten = set(over[: max(0, len(over) - ENDED_MOST)])
    return tuple(window for window in windows if window not in forgotten)


class Continuity:
    """Checks that each increment continues where the previous one ended."""

    def __init__(self, manifest: Manifest) -> None:
        self._last = {window.topic_partition: (window.index, window.term) for window in windows_of(manifest)}
        """Index and term (None if not known) of the last entry of each partition."""
        self._number = 0
        self._previous = b""

    def check_entries(self, found: Entries) -> str | None:
        """Check that entries follow the last known entry of their partition. Return the problem, or None."""
        topic_partition = found.topic, found.partition
        shown = f"partition {found.partition} of topic {found.topic}"
        if topic_partition not in self._last:
            return f"there are entries of {shown}, and no rows"
        index, term = self._last[topic_partition]
        if found.first != index + 1:
            return f"entries {index + 1} to {found.first - 1} of {shown} are missing: {found.first} is the next one"
        if term not in (None, found.term_before):
            return f"entry {index} of {shown} was of term {term}, and is said to be of {found.term_before}"
        # `entries` is a flat list of (term, command) pairs: the term of the last entry is the second item from the end.
        self._last[topic_partition] = found.last, found.entries[-2]
        return None

    def check_end(self, summary: Summary, digest: bytes) -> str | None:
        """Check the end of an increment. Return the problem, or None."""
        if summary.number != self._number:
            return f"it is increment {summary.number}, and {self._number} is expected"
        if summary.previous != self._previous:
            return "it follows a different increment, or backup, than the one before it"
        going = {window.topic_partition: window for window in summary.windows if window.last is None}
        for topic_partition, window in going.items():
            shown = f"partition {window.partition} of topic {window.topic}"
            if window.base != summary.number:
                index, term = self._last.get(topic_partition, (None, None))
                if window.index != index or (window.term != term and term is not None):
                    return f"it says that {shown} is at entry {window.index}, and it is at {index}"
            elif topic_partition not in summary.bases or summary.bases[topic_partition].index != window.base_index:
                return f"it says that it has rows of {shown}, and it has none"
        self._last = {topic_partition: (window.index, window.term) for topic_partition, window in going.items()}
        self._number, self._previous = summary.number + 1, digest
        return None


# -- times ----------------------------------------------------------------------------------------------------------


def spans(topics: Sequence[Topic], windows: Iterable[Window]) -> list[tuple[int, int]]:
    """Return the time spans, in ascending order, for which all partitions of these topics can be restored.

    Topics and partitions do not limit the spans at times before they were created.
    """
    by_partition: dict[tuple[int, int], list[tuple[int, int]]] = {}
    begun: dict[tuple[int, int], tuple[int, int]] = {}
    """By partition: number of the increment that has its first rows, and the time of these rows."""
    for window in windows:
        by_partition.setdefault(window.topic_partition, []).append((window.base_ms, window.to_ms))
        begun[window.topic_partition] = min(
            (window.base, window.base_ms), begun.get(window.topic_partition, (window.base, window.base_ms))
        )
    first = min([base for found in by_partition.values() for base, _ in found], default=0)
    all_partitions = [(topic, partition) for topic in topics for partition in range(topic.partitions)]
    # Sweep over the starts and ends of the spans of all partitions: a time can be restored while all are covered.
    changes: list[tuple[int, int]] = []
    for topic, partition in all_partitions:
        found = list(by_partition.get((topic.number, partition), ()))
        if topic.created_ms > first:
            found.append((first, topic.created_ms))
        own, of_first = begun.get((topic.number, partition)), begun.get((topic.number, 0))
        # A partition that was added later does not limit the times before its first rows.
        if partition >= topic.initial_partitions and own and of_first and own[0] > of_first[0]:
            found.append((first, own[1] - 1))
        for start, stop in _united(found):
            changes += (start, 1), (stop + 1, -1)
    common: list[tuple[int, int]] = []
    covered, since = 0, 0
    for at, change in sorted(changes):
        was_whole = covered == len(all_partitions)
        covered += change
        if covered == len(all_partitions):
            since = at
        elif was_whole and at > since:
            common.append((since, at - 1))
    return _united(common)


def _united(found: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    united: list[tuple[int, int]] = []
    for start, stop in sorted([one for one in found if one[0] <= one[1]]):
        if united and start <= united[-1][1] + 1:
            united[-1] = united[-1][0], max(united[-1][1], stop)
        else:
            united.append((start, stop))
    return united


def choose(topics: Sequence[Topic], windows: Sequence[Window], at_ms: int | None) -> dict[tuple[int, int], Window]:
    """Choose the window to restore each partition from, as of a time; None for the latest possible time of each.

    Raises InvalidRequest with the partition and the nearest times that can be restored.
    """
    by_partition: dict[tuple[int, int], list[Window]] = {}
    for window in windows:
        by_partition.setdefault(window.topic_partition, []).append(window)
    chosen = {}
    for topic in topics:
        for partition in range(topic.partitions):
            there = by_partition.get((topic.number, partition), [])
            fitting = [window for window in there if at_ms is None or window.has(at_ms)]
            if not fitting:
                raise _not_there(topic, partition, there, at_ms, spans(topics, windows))
            chosen[topic.number, partition] = max(fitting, key=lambda window: (window.base_index, window.base))
    return chosen


def _not_there(
    topic: Topic, partition: int, there: Sequence[Window], at_ms: int | None, common: Sequence[tuple[int, int]]
) -> InvalidRequest:
    shown = f"partition {partition} of topic {topic.name!r}"
    if at_ms is None or not there:
        return InvalidRequest(f"nothing of {shown} is in this backup", topic=topic.name)
    before = max([stop for _, stop in common if stop < at_ms], default=None)
    after = min([start for start, _ in common if start > at_ms], default=None)
    nearest = " and ".join([shown_time(at) for at in (before, after) if at is not None])
    whys = [window.why for window in there if window.to_ms < at_ms and window.why is not None]
    why = f" ({whys[-1]})" if whys else ""
    can = (
        f"the nearest times that can be restored are {nearest}"
        if nearest
        else "there is no time for which all partitions are there"
    )
    return InvalidRequest(f"{shown} cannot be restored as of {shown_time(at_ms)}{why}: {can}", topic=topic.name)


def shown_time(at_ms: int) -> str:
    """Return a time in UTC as text, with milliseconds."""
    try:
        moment = datetime.fromtimestamp(at_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{at_ms} ms"
    return moment.isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"
