"""How many messages a subscription holds, and which part of them each session may hold.

Shares of sessions of one topic: all nodes have the same, and each one message at least. Of several topics: a session
that has nothing to give has a credit of one message, by which it shows that it has; the others share the rest. A
session that holds more than its share gets nothing more, and what it has is not the others'. So a few messages of one
topic, or many, take all of the credit while nothing comes of other topics, and no topic keeps credit from the others
that it does not use.

`Prefetch`: to ask for each message when it is wanted costs a round trip and an entry of the log for each. To hold many
keeps them from other consumers. So as many are held as are settled in a moment (`KEEP_S`): none where work is slow,
many where it is quick. What waits here all the same for `STALE_S`, because work has become slow meanwhile, is given
back.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

BUSY_S: Final = 0.25
"""A session that holds nothing counts as busy for so long after its last message."""


def equal_share(credit: int, sessions: int) -> int:
    """What each of so many sessions of one topic may hold."""
    return math.ceil(credit / max(1, sessions))


def shares(credit: int, held: Sequence[int | None]) -> list[int]:
    """What each session of several topics may hold. `held`: what each of them holds now; None: it is not busy."""
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
    """Whether some session holds more than it may: the others get that once it is settled."""
    return any(count is not None and count > target for count, target in zip(held, targets, strict=True))


KEEP_S: Final = 0.02
"""A message is to wait here for so long at most."""
STALE_S: Final = 0.25
"""One that waited for so long is another consumer's, if there is one."""
MOST: Final = 1000
"""However quick the work is."""
_WINDOW_S: Final = 0.005
"""The rate is looked at so often at most."""


class Prefetch:
    """`settled` is told of each message; `extra` is how many more than those worked on may be held now."""

    def __init__(self) -> None:
        self.extra = 0
        self._count = 0
        self._since_s = -math.inf

    def settled(self, count: int, now_s: float) -> bool:
        """So many messages more were settled; whether `extra` is another number now."""
        self._count += count
        passed_s = now_s - self._since_s
        if passed_s < _WINDOW_S:
            return False
        # What is settled in one window is what came in one lease, or nothing: it falls by half at most at a time.
        extra = min(max(int(self._count / passed_s * KEEP_S), self.extra // 2), MOST)
        self._count, self._since_s = 0, now_s
        changed = extra != self.extra
        self.extra = extra
        return changed

    def stop(self) -> None:
        """Nothing is settled any more: begin anew."""
        self.extra = self._count = 0
        self._since_s = -math.inf
