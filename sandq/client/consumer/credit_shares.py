"""How much each session of a subscription may hold.

    of one topic    all nodes have the same share, and each one message at least
    of several      who has nothing to give has room for one message, by which it shows that it has; the others share
                    the rest. Who holds more than its share gets nothing more, and what it has is not the others'.

So a few messages of one topic, or many, take all of the credit while nothing comes of other topics, and no topic keeps
room from the others that it does not use.
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
