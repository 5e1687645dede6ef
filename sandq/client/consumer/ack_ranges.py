"""Encode the messages of an ACK or NACK compactly, even if they are not consecutive.

A *run* is `(number, count)`: the first offset as a number, and the count of consecutive offsets. Adjacent runs become
one bitmap if it is shorter than one range per run.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from sandq.model import offsets as offset_model
from sandq.protocol.requests import RANGE_MESSAGES

Run = tuple[int, int]

OFFSET_STEP: Final = 1 << 12  # distance between two consecutive offsets, as numbers
_PREFIX_BITS: Final = 32  # the bits above are equal for all offsets of one log entry and instant
_ROW_BYTES: Final = 22  # approximate size of one range
_GAP_MAX: Final = 8 * _ROW_BYTES
"""Maximum gap, in offsets, between two runs of one bitmap. A larger gap costs as much as a new range."""


def merged(runs: Iterable[Run]) -> list[Run]:
    """Return the runs in order, with adjacent runs merged."""
    found: list[Run] = []
    first, count = 0, 0
    for number, more in sorted(runs):
        if count and number == first + count * OFFSET_STEP:
            count += more
            continue
        if count:
            found.append((first, count))
        first, count = number, more
    if count:
        found.append((first, count))
    return found


def ranges_of(runs: Iterable[Run]) -> list[list[Any]]:
    """Return rows `[base, count | bitmap]` that name exactly these runs, each offset once."""
    rows: list[list[Any]] = []
    group: list[Run] = []
    for run in merged(runs):
        if group and not _near(group[0], group[-1], run):
            rows += _rows(group)
            group = []
        group.append(run)
    return rows + _rows(group) if group else rows


def _near(first: Run, last: Run, run: Run) -> bool:
    """Return whether a bitmap with the runs from `first` to `last` could include one more run."""
    if first[0] >> _PREFIX_BITS != run[0] >> _PREFIX_BITS or (run[0] - first[0]) % OFFSET_STEP:
        return False
    gap = (run[0] - last[0]) // OFFSET_STEP - last[1]
    return gap <= _GAP_MAX and (run[0] - first[0]) // OFFSET_STEP + run[1] <= RANGE_MESSAGES


def _rows(group: list[Run]) -> list[list[Any]]:
    base = group[0][0]
    span = (group[-1][0] - base) // OFFSET_STEP + group[-1][1]
    if len(group) == 1 or len(group) * _ROW_BYTES <= _ROW_BYTES + span // 8:
        return [[_offset(number), count] for number, count in group]
    bits = bytearray(b"0") * span
    for number, count in group:
        start = (number - base) // OFFSET_STEP
        bits[start : start + count] = b"1" * count
    bits.reverse()
    return [[_offset(base), int(bits, 2).to_bytes((span + 7) // 8, "little")]]


def _offset(number: int) -> bytes:
    return number.to_bytes(offset_model.OFFSET_BYTES, "big")
