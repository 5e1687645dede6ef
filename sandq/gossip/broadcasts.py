"""The messages that this member passes on to others, until each was sent often enough."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from sandq.gossip.packets import PART_BYTES

PARTS_MOST: Final = 100
"""Maximum number of messages in one packet."""
KEPT_MOST: Final = 4096
"""Maximum number of waiting messages. If there are more, the message that was sent most often is dropped; among equals,
the oldest.

No information is lost for good, since two members exchange their complete states from time to time.
"""
MISFITS_MOST: Final = 8
"""Maximum number of messages that do not fit into the rest of a packet before it is closed."""


class Broadcasts:
    """Messages by the name of their subject; a later message replaces an earlier one with the same name.

    Messages that were sent least often go first, and among these the newest.
    """

    def __init__(self) -> None:
        self._parts: dict[int, dict[str, bytes]] = {0: {}}
        """Number of times sent -> name -> encoded message."""
        self._times: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, name: str) -> bool:
        return name in self._times

    def put(self, name: str, message: bytes) -> None:
        """Pass on a message from now on."""
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

    def take(self, free_bytes: int, transmits: int) -> list[bytes]:
        """Return messages that fit into the free bytes of a packet, and count them as sent once more.

        A message is removed after it was sent `transmits` times.
        """
        if not self._times:
            return []
        taken: list[tuple[int, str, bytes]] = []
        misfits = 0
        for times, name, message in self._in_order():
            if free_bytes <= PART_BYTES or len(taken) == PARTS_MOST or misfits == MISFITS_MOST:
                break
            if len(message) + PART_BYTES <= free_bytes:
                free_bytes -= len(message) + PART_BYTES
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
