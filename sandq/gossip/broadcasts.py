"""What this member has to hand on to others, until it was handed on often enough."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sandq.gossip.packets import PART_BYTES

PARTS_MOST: Final = 100
"""Of one packet."""
KEPT_MOST: Final = 4096
"""Of what waits; beyond it, what was handed on most often gives way, of that the oldest. Two members tell each other
all of it anyway, when they compare."""
MISFITS_MOST: Final = 8
"""So many that do not fit any more are looked at for one packet."""


class Broadcasts:
    """Messages, each under the name of what it is about: a later one takes the place of an earlier one.

    Those handed on least often go first, of them the newest.
    """

    def __init__(self) -> None:
        self._parts: dict[int, dict[str, bytes]] = {0: {}}
        """Times handed on -> name -> encoded message."""
        self._times: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, name: str) -> bool:
        return name in self._times

    def put(self, name: str, message: bytes) -> None:
        """Hand on from now on."""
        times = self._times.pop(name, None)
        if times is not None:
            del self._parts[times][name]
        self._times[name] = 0
        self._parts[0][name] = message
        if len(self._times) > KEPT_MOST:
            self._drop()

    def _drop(self) -> None:
        most = max(times for times, parts in self._parts.items() if parts)
        name = next(iter(self._parts[most]))
        del self._parts[most][name], self._times[name]

    def take(self, room: int, transmits: int) -> list[bytes]:
        """Messages that fit into so many bytes of a packet, each handed on once more by this; at most `transmits`
        times."""
        if not self._times:
            return []
        taken: list[tuple[int, str, bytes]] = []
        misfits = 0
        for times, name, message in self._in_order():
            if room <= PART_BYTES or len(taken) == PARTS_MOST or misfits == MISFITS_MOST:
                break
            if len(message) + PART_BYTES <= room:
                room -= len(message) + PART_BYTES
                taken.append((times, name, message))
            else:
                misfits += 1
        for times, name, message in taken:
            del self._parts[times][name]
            if times + 1 >= transmits:
                del self._times[name]
            else:
                self._times[name] = times + 1
                self._parts.setdefault(times + 1, {})[name] = message
        return [message for _, _, message in taken]

    def _in_order(self) -> Iterator[tuple[int, str, bytes]]:
        for times in sorted(self._parts):
            parts = self._parts[times]
            for name in reversed(parts):
                yield times, name, parts[name]
