"""How many messages a consumer may hold beyond those that it works on, so that it need not wait for the next.

To ask for each message when it is wanted costs a round trip and an entry of the log for each. To hold many keeps them
from other consumers. So as many are held as are settled in a moment (`KEEP_S`): none where work is slow, many where it
is quick. What waits here all the same for `STALE_S`, because work has become slow meanwhile, is given back.
"""

from __future__ import annotations

import math
from typing import Final

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
