"""What the requests that one receive brought take, about, before they are looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sandq.protocol.frames import Frame, LargeFrame, Type

RECEIVE_BYTES = 65_536
"""Of one receive: more at once would keep other connections waiting."""
REQUEST_BYTES = 512
"""What a request that is worked on takes, about, beside the bytes of its frame ..."""
PARSED_COPIES = 8
"""... which take so many times as much as what they say, but for batches: an item of a few bytes is an object."""
_PRODUCE: Final = int(Type.PRODUCE)


def sizes(frames: Sequence[Frame | LargeFrame], came_bytes: int) -> tuple[int, int, int]:
    """What each PRODUCE and each other request takes of those that one receive completed, about, and all of them.

    Each is taken to have as many bytes as the others: to measure them would cost small ones more than it is worth. But
    for a first one none has more than one receive.
    """
    if not frames:
        return 0, 0, 0
    each_bytes = came_bytes // len(frames)
    produces = [one[0] if type(one) is list else one.kind for one in frames].count(_PRODUCE)  # type: ignore[union-attr]
    parsed_bytes = min(each_bytes, RECEIVE_BYTES) if produces else each_bytes
    produce_bytes, other_bytes = each_bytes + REQUEST_BYTES, parsed_bytes * PARSED_COPIES + REQUEST_BYTES
    return produce_bytes, other_bytes, produces * produce_bytes + (len(frames) - produces) * other_bytes
