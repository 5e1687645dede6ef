"""How far a stream has come: a cursor for each partition, as the JSON that Spark keeps in its checkpoint.

    {"version": 2, "cluster": "5f0c...", "hold": "spark-1f...", "names": {"7": "orders"},
     "topics": {"7": {"0": "01J..."}}}                                  topic number, partition, cursor

A cursor is the text of the first offset that was not read: it is where a range ends (without it), and the next one
begins (with it). Topics go by their number, which is never reused, so a topic that was deleted and made again is not
mistaken for the one that was read; numbers are a cluster's own, and so the position names that, by its UUID. Names are
for people. The JSON is sorted: Spark compares it as text. Once a partition's clock was set back, "clock_epochs" says
how often, likewise by topic number and partition; cursors of two epochs are not compared.

Checkpoints hold it: VERSION is raised when it changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from sandq.model import offsets as offset_model
from sandq.model.errors import InvalidRequest
from sandq.model.offsets import FIRST

VERSION: Final = 2


class Place(NamedTuple):
    """A partition of a topic, by the topic's number."""

    number: int
    partition: int

    def __str__(self) -> str:
        return f"partition {self.partition} of topic number {self.number}"


class Step(NamedTuple):
    """What is between two positions in one partition: from `start` on, without `end`; 16 bytes each."""

    place: Place
    start: bytes
    end: bytes


@dataclass(frozen=True)
class Positions:
    """Cursors (16 bytes) by partition. `hold`: the name under which the stream holds what it has yet to read."""

    cursors: Mapping[Place, bytes]
    hold: str = ""
    clock_epochs: Mapping[Place, int] = field(default_factory=dict)
    """How often the clocks of partitions were set back when their cursors were noted; those left out never were."""
    cluster: str = ""
    """The UUID of the cluster whose topics these are; empty only where there are none."""
    names: Mapping[int, str] = field(default_factory=dict, compare=False)
    """Of topics, by number, as far as they are noted."""

    def shown(self, place: Place) -> str:
        """Return a partition as people know it."""
        name = self.names.get(place.number)
        return str(place) if name is None else f"partition {place.partition} of topic {name!r} (number {place.number})"

    @classmethod
    def parse(cls, found: object) -> Positions:
        """From what `to_json` gave; InvalidRequest unless it is that."""
        if not isinstance(found, dict) or not isinstance(found.get("topics"), dict):
            raise InvalidRequest(
                f'a position like {{"version": {VERSION}, "topics": ...}} is expected, not {str(found)[:100]}'
            )
        if found.get("version") != VERSION:
            raise InvalidRequest(
                f"the position is of version {str(found.get('version'))[:20]}, this sandq reads version {VERSION}: "
                "the checkpoint was written by another one"
            )
        cluster, names = found.get("cluster"), found.get("names")
        if not isinstance(cluster, str) or not isinstance(names, dict):
            raise InvalidRequest("position: the UUID of a cluster, and names by topic number, are expected")
        hold = found.get("hold")
        if not isinstance(hold, str):
            raise InvalidRequest(f"position: {str(hold)[:40]!r} is no name of a hold")
        cursors = {}
        for number, partitions in found["topics"].items():
            if not isinstance(partitions, dict):
                raise InvalidRequest(f"position: cursors by partition are expected of topic {number!r}")
            for partition, text in partitions.items():
                place = Place(_number("topic number", number), _number("partition", partition))
                cursors[place] = offset_model.from_text(text)
        noted = {_number("topic number", number): str(name) for number, name in names.items()}
        return cls(cursors, hold, _epochs(found.get("clock_epochs", {})), cluster, noted)

    def to_json(self) -> dict[str, Any]:
        """What may be written as JSON; positions that are equal give the same text."""
        topics: dict[str, dict[str, str]] = {}
        for place in sorted(self.cursors):
            text = offset_model.to_text(self.cursors[place])
            topics.setdefault(str(place.number), {})[str(place.partition)] = text
        names = {number: self.names[int(number)] for number in topics if int(number) in self.names}
        found: dict[str, Any] = {"version": VERSION, "hold": self.hold, "topics": topics}
        found |= {"cluster": self.cluster, "names": names}
        epochs: dict[str, dict[str, int]] = {}
        for place, epoch in sorted(self.clock_epochs.items()):
            if epoch:
                epochs.setdefault(str(place.number), {})[str(place.partition)] = epoch
        return found | ({"clock_epochs": epochs} if epochs else {})

    def clock_epoch(self, place: Place) -> int:
        """How often a partition's clock was set back when its cursor was noted."""
        return self.clock_epochs.get(place, 0)

    def __iter__(self) -> Iterator[Place]:
        return iter(sorted(self.cursors))


def lost(start: Positions, end: Positions) -> list[Place]:
    """Partitions that only the earlier one has: their topic was deleted, or is not asked for any more."""
    return sorted(start.cursors.keys() - end.cursors.keys())


def steps(start: Positions, end: Positions, first_of: Callable[[Place], bytes] = lambda place: FIRST) -> list[Step]:
    """What is to be read from one position to the other, where that is something, in the order of partitions.

    A partition that was added is read from `first_of` it on. InvalidRequest names the partitions in which the
    start lies behind the end: the checkpoint is of another topic, or the data went back, and reading on would give
    messages twice or leave some out.
    """
    crossed = [place for place in start if place in end.cursors and start.cursors[place] > end.cursors[place]]
    if crossed:
        first = crossed[0]
        more = f" (and {len(crossed) - 1} more)" if len(crossed) > 1 else ""
        raise InvalidRequest(
            f"{end.shown(first)}{more}: the start {offset_model.to_text(start.cursors[first])} lies behind the end "
            f"{offset_model.to_text(end.cursors[first])}"
        )
    found = []
    for place in end:
        at = start.cursors.get(place) or first_of(place)
        if at < end.cursors[place]:
            found.append(Step(place, at, end.cursors[place]))
    return found


def _epochs(found: object) -> dict[Place, int]:
    epochs: dict[Place, int] = {}
    for number, partitions in found.items() if isinstance(found, dict) else [("", None)]:
        for partition, epoch in partitions.items() if isinstance(partitions, dict) else [("", None)]:
            if not isinstance(epoch, int):
                raise InvalidRequest(
                    f"position: clock epochs by topic and partition are expected, not {str(found)[:100]}"
                )
            epochs[Place(_number("topic number", number), _number("partition", partition))] = epoch
    return epochs


def _number(what: str, text: object) -> int:
    if not (isinstance(text, str) and text.isascii() and text.isdecimal() and len(text) <= 20):
        raise InvalidRequest(f"position: {str(text)[:40]!r} is no {what}")
    return int(text)
