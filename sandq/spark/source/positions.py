"""The progress of a stream: a cursor for each partition, stored by Spark in its checkpoint as this JSON:

    {"version": 2, "cluster": "5f0c...", "hold": "spark-1f...", "names": {"7": "orders"},
     "topics": {"7": {"0": "01J..."}}}                                  topic number, partition, cursor

A cursor is the text of the first offset that was not read: the exclusive end of one range, and the start of the next.
Topics are identified by their number, which is never reused. So a topic that was deleted and created again is not
confused with the earlier topic. Numbers are unique only within a cluster, so the position contains the cluster's UUID.
Names are only for messages to people. The JSON is sorted, because Spark compares it as text.

If a partition's clock was set back, "clock_epochs" has the number of resets by topic number and partition. Cursors of
different epochs cannot be compared.

Checkpoints contain this format: raise VERSION when it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sandq.model import offsets as offset_model
from sandq.model.errors import InvalidRequest
from sandq.model.offsets import FIRST

VERSION: Final = 2


class TopicPartition(NamedTuple):
    """A partition, with the number of its topic."""

    number: int
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} of topic number {self.number}"


class Step(NamedTuple):
    """The range between two positions in one partition; `end` is exclusive; offsets of 16 bytes."""

    tp: TopicPartition
    start: bytes
    end: bytes


@dataclass(frozen=True)
class Positions:
    """Cursors (16 bytes) by partition. `hold` is the name of the hold on the messages that the stream has not read."""

    cursors: Mapping[TopicPartition, bytes]
    hold: str = ""
    clock_epochs: Mapping[TopicPartition, int] = field(default_factory=dict)
    """Number of clock resets of partitions when their cursors were stored; partitions without a reset are left out."""
    cluster: str = ""
    """UUID of the cluster; empty only in positions that are not stored."""
    names: Mapping[int, str] = field(default_factory=dict, compare=False)
    """Names of topics by their number; some may be missing."""

    def shown(self, tp: TopicPartition) -> str:
        """Return a partition as messages show it: with the topic's name, if it is known."""
        name = self.names.get(tp.number)
        return str(tp) if name is None else f"partition {tp.partition} of topic {name!r} (number {tp.number})"

    @classmethod
    def parse(cls, found: object) -> Positions:
        """Parse the result of `to_json`. Raises InvalidRequest if it is something else."""
        if not isinstance(found, dict) or not isinstance(found.get("topics"), dict):
            raise InvalidRequest(
                f'a position like {{"version": {VERSION}, "topics": ...}} is expected, not {str(found)[:100]}'
            )
        if found.get("version") != VERSION:
            raise InvalidRequest(
                f"the position is of version {str(found.get('version'))[:20]}, this sandq reads version {VERSION}: "
                "the checkpoint was written by a different version of sandq"
            )
        cluster, names = found.get("cluster"), found.get("names")
        if not isinstance(cluster, str) or not isinstance(names, dict):
            raise InvalidRequest("position: the UUID of a cluster, and names by topic number, are expected")
        hold = found.get("hold")
        if not isinstance(hold, str):
            raise InvalidRequest(f"position: {str(hold)[:40]!r} is no name of a hold")
        cursors = {}
        for number, by_partition in found["topics"].items():
            if not isinstance(by_partition, dict):
                raise InvalidRequest(f"position: cursors by partition are expected of topic {number!r}")
            for partition, text in by_partition.items():
                tp = TopicPartition(_number("topic number", number), _number("partition", partition))
                cursors[tp] = offset_model.from_text(text)
        noted = {_number("topic number", number): str(name) for number, name in names.items()}
        return cls(cursors, hold, _epochs(found.get("clock_epochs", {})), cluster, noted)

    def to_json(self) -> dict[str, Any]:
        """Return the position in JSON types; equal positions give the same JSON text."""
        topics: dict[str, dict[str, str]] = {}
        for tp in sorted(self.cursors):
            text = offset_model.to_text(self.cursors[tp])
            topics.setdefault(str(tp.number), {})[str(tp.partition)] = text
        names = {number: self.names[int(number)] for number in topics if int(number) in self.names}
        found: dict[str, Any] = {"version": VERSION, "hold": self.hold, "topics": topics}
        found |= {"cluster": self.cluster, "names": names}
        epochs: dict[str, dict[str, int]] = {}
        for tp, epoch in sorted(self.clock_epochs.items()):
            if epoch:
                epochs.setdefault(str(tp.number), {})[str(tp.partition)] = epoch
        return found | ({"clock_epochs": epochs} if epochs else {})

    def clock_epoch(self, tp: TopicPartition) -> int:
        """Return the number of resets of the partition's clock when its cursor was stored."""
        return self.clock_epochs.get(tp, 0)

    def __iter__(self) -> Iterator[TopicPartition]:
        return iter(sorted(self.cursors))


def lost(start: Positions, end: Positions) -> list[TopicPartition]:
    """Return the partitions that only `start` has: their topic was deleted, or the options no longer select it."""
    return sorted(start.cursors.keys() - end.cursors.keys())


def steps(
    start: Positions, end: Positions, first_of: Callable[[TopicPartition], bytes] = lambda tp: FIRST
) -> list[Step]:
    """Return the nonempty ranges between two positions, ordered by partition.

    A partition that is only in `end` is read from `first_of(partition)` on. Raises InvalidRequest if the start is after
    the end in a partition: then the checkpoint belongs to a different topic, or the data was set back. Reading on would
    return messages twice or miss some.
    """
    crossed = [tp for tp in start if tp in end.cursors and start.cursors[tp] > end.cursors[tp]]
    if crossed:
        first = crossed[0]
        more = f" (and {len(crossed) - 1} more)" if len(crossed) > 1 else ""
        raise InvalidRequest(
            f"{end.shown(first)}{more}: the start {offset_model.to_text(start.cursors[first])} is after the end "
            f"{offset_model.to_text(end.cursors[first])}"
        )
    found = []
    for tp in end:
        at = start.cursors.get(tp) or first_of(tp)
        if at < end.cursors[tp]:
            found.append(Step(tp, at, end.cursors[tp]))
    return found


def _epochs(found: object) -> dict[TopicPartition, int]:
    epochs: dict[TopicPartition, int] = {}
    for number, by_partition in found.items() if isinstance(found, dict) else [("", None)]:
        for partition, epoch in by_partition.items() if isinstance(by_partition, dict) else [("", None)]:
            if not isinstance(epoch, int):
                raise InvalidRequest(
                    f"position: clock epochs by topic and partition are expected, not {str(found)[:100]}"
                )
            epochs[TopicPartition(_number("topic number", number), _number("partition", partition))] = epoch
    return epochs


def _number(kind: str, text: object) -> int:
    if not (isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) <= 20):
        raise InvalidRequest(f"position: {str(text)[:40]!r} is no {kind}")
    return int(text)
