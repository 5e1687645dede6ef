"""The start of a watch, and its position in each partition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from sandq.client.positions import is_offset
from sandq.model import offsets as offset_model
from sandq.model.errors import InvalidRequest

NOW: Final = "now"
EARLIEST: Final = "earliest"

WatchStart = str | Mapping[int, str] | Mapping[str, str]
"""NOW, EARLIEST, a version, or the position of a watch: partition -> text."""

_SEPARATOR: Final = "."


class WatchPosition(NamedTuple):
    """A position in one partition: all changes up to `after` are known. `mark`: mark of the last reply; None at
    first."""

    after: bytes
    mark: bytes | None = None

    @property
    def text(self) -> str:
        """The version, with the mark appended if it is above the version. A lower mark has no effect."""
        text = offset_model.to_text(self.after)
        if self.mark is None or self.mark <= self.after:
            return text
        return f"{text}{_SEPARATOR}{offset_model.to_text(self.mark)}"

    @classmethod
    def of(cls, text: str) -> WatchPosition:
        """Parse the text of a position. Raises InvalidRequest."""
        if not isinstance(text, str):
            raise InvalidRequest(f"start: a position is text, not {type(text).__name__}")
        after, _, mark = text.partition(_SEPARATOR)
        try:
            return cls(offset_model.from_text(after), offset_model.from_text(mark) if mark else None)
        except InvalidRequest as error:
            raise InvalidRequest(f"start: {text[:80]!r} is no position of a watch: {error.message}") from None


_EARLIEST: Final = WatchPosition(offset_model.FIRST)


class Beginning:
    """The start that a caller gave, checked as far as possible before the partitions are known."""

    def __init__(self, start: WatchStart) -> None:
        self._version: bytes | None = None
        self._positions: dict[int, WatchPosition] | None = None
        self._is_now = start == NOW
        if isinstance(start, Mapping):
            self._positions = {_partition(number): WatchPosition.of(text) for number, text in start.items()}
        elif is_offset(start):
            self._version = offset_model.from_text(start)
        elif start not in (NOW, EARLIEST):
            raise InvalidRequest(
                f"start: {NOW!r}, {EARLIEST!r}, a version or a watch's position is expected, not {str(start)[:80]!r}"
            )

    def positions(self, watched: Sequence[int], partitions: int) -> dict[int, WatchPosition | None]:
        """Return the start position of each watched partition. None: now. `partitions`: number of partitions of the
        topic."""
        if self._positions is not None:
            return {**self._given(self._positions, watched, partitions)}
        if self._version is not None:
            return {partition: self._behind(self._version, partition, partitions) for partition in watched}
        return {partition: None if self._is_now else _EARLIEST for partition in watched}

    @staticmethod
    def _given(
        positions: Mapping[int, WatchPosition], watched: Sequence[int], partitions: int
    ) -> dict[int, WatchPosition]:
        foreign = [number for number in positions if number >= partitions]
        if foreign:
            raise InvalidRequest(f"start: the topic has partitions 0..{partitions - 1}, there is no {foreign[0]}")
        missing = [number for number in watched if number not in positions]
        if missing:
            raise InvalidRequest(f"start: it has no position of partition {missing[0]}")
        return {number: positions[number] for number in watched}

    @staticmethod
    def _behind(version: bytes, partition: int, partitions: int) -> WatchPosition:
        """Return the position after the version in its own partition. In another partition, the position at its
        time."""
        its_own = offset_model.unpack(version).partition
        if its_own >= partitions:
            raise InvalidRequest(f"start: the version is of partition {its_own}, the topic has {partitions}")
        if partition == its_own:
            return WatchPosition(version)
        return WatchPosition(offset_model.pack(offset_model.deliver_ms(version), 0, 0, partition))


def _partition(number: object) -> int:
    """Return the partition number of a key of the mapping, which is text if the mapping was saved as JSON."""
    if isinstance(number, str) and number.isascii() and number.isdecimal():
        number = int(number[:6])
    if type(number) is not int or not 0 <= number <= offset_model.PARTITION_MAX:
        raise InvalidRequest(f"start: the number of a partition is expected, not {str(number)[:80]!r}")
    return number
