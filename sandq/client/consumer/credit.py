"""Decide how many messages a subscription may hold, and share that number among its sessions.

One topic: all sessions get the same share, at least one message each. Several topics: an idle session has a credit of
one message, so that its node can show that there are messages. The busy sessions share the rest. A session that holds
more than its share gets nothing more, and its held messages reduce the credit of the others. So one busy topic can use
all of the credit while the others are idle, and no topic reserves credit that it does not use.

`Prefetch` decides how many messages to hold in addition to those being processed. Leasing each message on demand costs
a round trip and a log entry per message; holding many messages keeps them from other consumers. So the client holds as
many as it settles within `KEEP_S`: none if processing is slow, many if it is quick. If processing becomes slow,
messages that waited for `STALE_S` are given back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

BUSY_S: Final = 0.25
"""How long a session that holds nothing counts as busy after its last message, in seconds."""


def equal_share(credit: int, sessions: int) -> int:
    """Return how many messages each of the sessions of one topic may hold."""
    return math.ceil(credit / max(1, sessions))


def shares(credit: int, held: Sequence[int | None]) -> list[int]:
    """Return how many messages each session of several topics may hold.

    `held`: number of messages that each session holds now; None if the session is idle.
    """
    if credit <= 0:
        return [0] * len(held)
    busy = [count for count in held if count is not None]
    share = max(1, credit // max(1, len(busy)))
    beyond = [count for count in busy if count > share]
    others = len(busy) - len(beyond)
    each, more = divmod(max(0, credit - sum(beyond)), max(1, others))
    targets: list[int] = []
    for count in held:
        if count is None:
            targets.append(1)
        elif count > share:
            targets.append(share)
        else:
            targets.append(max(1, each + (more > 0)))
            more -= 1
    return targets


def is_crowded(held: Sequence[int | None], targets: Sequence[int]) -> bool:
    """Return whether any session holds more than its share. Other sessions get this credit once the messages are
    settled."""
    return any(count is not None and count > target for count, target in zip(held, targets, strict=True))


KEEP_S: Final = 0.02
"""Time that a message should wait in the client before it is processed, in seconds."""
STALE_S: Final = 0.25
"""Time that a message may wait before it is given back, so that other consumers can get it, in seconds."""
MOST: Final = 1000
"""Maximum number of messages held in addition to those being processed."""
_WINDOW_S: Final = 0.005
"""Minimum interval between two measurements of the rate, in seconds."""


class Prefetch:
    """Computes `extra` from the rate of settled messages: how many messages may be held in addition to those being
    processed."""

    def __init__(self) -> None:
        self.extra = 0
        self._count = 0
        self._since_s = -math.inf

    def settled(self, count: int, now_s: float) -> bool:
        """Count settled messages; return whether `extra` changed."""
        self._count += count
        passed_s = now_s - self._since_s
        if passed_s < _WINDOW_S:
            return False
        # A window may contain one whole lease or nothing. So `extra` is at most halved per window.
        extra = min(max(int(self._count / passed_s * KEEP_S), self.extra // 2), MOST)
        self._count, self._since_s = 0, now_s
        changed = extra != self.extra
        self.extra = extra
        return changed

    def stop(self) -> None:
        """Reset: no messages are being settled."""
        self.extra = self._count = 0
        self._since_s = -math.inf
