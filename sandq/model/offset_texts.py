"""Convert many offsets to text at once: 26 characters each, concatenated, as the data of an Arrow column.

`offsets.to_text` takes 1.6 us per offset, which would be most of the cost of reading a message. The functions of this
module run no Python code per message. A *run* is a range of consecutive offsets. Up to 256 consecutive texts differ in
two characters only, so their common parts are joined with a table of these characters. A column is split into groups of
five bits by arithmetic on one large integer.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

from sandq.model import offsets as offset_model

CHARS: Final = offset_model.TEXT_CHARS
_BYTES: Final = offset_model.OFFSET_BYTES
_BITS: Final = CHARS * 8

# The last two characters of a text are the low ten bits of the offset. The two characters before them are the next ten
# bits: 8 bits of the place, and the upper two bits of the partition.
_BLOCK: Final = 256
"""Number of consecutive places whose texts differ only in the two characters before the last two."""
_HEAD: Final = CHARS - 4
_MIDDLE: Final = slice(_HEAD, _HEAD + 2)
_PARTITION_BITS: Final = 12

_LANES: Final = 1024
"""Number of offsets that are combined into one integer. It is small enough for the cache, and the masks are made
once."""
_ALPHABET: Final = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ".ljust(256, b"?")
_STEPS: Final = (16, 8, 4, 2, 1)
"""Steps that move groups of five bits apart. The first moves the upper half of 32 groups, the second the upper half of
each 16, and so on."""


def texts_of_run(base: bytes, count: int) -> bytes:
    """Return the texts of `count` offsets: `base`, and each following place. Raise InvalidRequest if the last does not
    fit."""
    if count <= 0:
        return b""
    offset_model.shift(base, count - 1)  # checks both ends
    partition = int.from_bytes(base[-2:], "big") & offset_model.PARTITION_MAX
    middles = _middles(partition >> 10)
    parts = []
    done = 0
    while done < count:
        first = offset_model.shift(base, done)
        at = int.from_bytes(first[-4:], "big") >> _PARTITION_BITS & _BLOCK - 1
        stop = min(_BLOCK, at + count - done)
        text = offset_model.to_text(first).encode()
        head, tail = text[:_HEAD], text[-2:]
        parts += [head, (tail + head).join(middles[at:stop]), tail]
        done += stop - at
    return b"".join(parts)


def texts_of_column(column: bytes) -> bytes:
    """Return the texts of offsets of 16 bytes each, which need not be consecutive.

    Up to 1,024 offsets are one large integer. A few steps spread each offset into 26 bytes of five bits: see `_masks`.
    """
    parts = []
    for start in range(0, len(column), _BYTES * _LANES):
        part = column[start : start + _BYTES * _LANES]
        count = len(part) // _BYTES
        # Each lane has 26 bytes for the text, and the 16 bytes of an offset at its end. Filling them column by column
        # is 16 slice assignments instead of a loop over messages.
        lanes = bytearray(CHARS * count)
        for place in range(_BYTES):
            lanes[CHARS - _BYTES + place :: CHARS] = part[place::_BYTES]
        number = int.from_bytes(lanes, "big")
        # Group n of five bits, counted from the lowest, must move up by 3 * n bits. Then each group is in a byte of its
        # own, which becomes one character. Each step moves half of the groups by `step * 3` bits.
        for step, mask in zip(_STEPS, _masks(), strict=True):
            upper = number & mask
            number ^= upper ^ upper << step * 3
        parts.append(number.to_bytes(CHARS * count, "big").translate(_ALPHABET))
    return b"".join(parts)


def times_of_column(column: bytes) -> bytes:
    """Return the delivery times of offsets of 16 bytes each: int64, little-endian, epoch milliseconds."""
    times = bytearray(len(column) // _BYTES * 8)
    for place in range(6):
        times[place::8] = column[5 - place :: _BYTES]
    return bytes(times)


@lru_cache(maxsize=4)
def _middles(upper: int) -> list[bytes]:
    """Return the two varying characters of each place of a block. `upper`: the upper two bits of the partition."""
    return [
        offset_model.to_text(offset_model.pack(0, 0, place, upper << 10)).encode()[_MIDDLE] for place in range(_BLOCK)
    ]


@lru_cache(maxsize=1)
def _masks() -> list[int]:
    """Return for each step of `_STEPS` the bits that move, in every lane.

    For example, with 4 groups of 5 bits at 0, 5, 10, 15: the step of 2 moves groups 2 and 3 to 16 and 21, and the step
    of 1 moves groups 1 and 3 to 8 and 24. Then each group has a byte. 31 is the mask of one group.
    """
    masks = []
    for step in _STEPS:
        lane = 0
        for group in range(CHARS):
            if group & step:
                # Position of the group after the previous steps: groups that were moved are 8 bits apart, the rest 5
                # bits.
                moved = group & ~(2 * step - 1)
                lane |= 31 << moved * 8 + (group - moved) * 5
        masks.append(sum(lane << _BITS * number for number in range(_LANES)))
    return masks
