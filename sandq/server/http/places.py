"""Places for what may be many at once: so many in all, and three quarters of them for one address.

So one client alone never takes what others need. Who is behind a proxy has the proxy's address.
"""

from __future__ import annotations

from collections import Counter


class Places:
    """`limit`: in all."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.share = limit - limit // 4
        """Of one address."""
        self.used = 0
        self._by_address: Counter[str] = Counter()

    def has_share(self, address: str) -> bool:
        """Whether an address has not all that one address may have."""
        return self._by_address[address] < self.share

    def take(self, address: str) -> bool:
        """Take a place, if there is one."""
        if self.used >= self.limit or not self.has_share(address):
            return False
        self.add(address)
        return True

    def add(self, address: str) -> None:
        """Take a place in any case."""
        self.used += 1
        self._by_address[address] += 1

    def give(self, address: str) -> None:
        """Give a place back that was taken."""
        self.used -= 1
        self._by_address[address] -= 1
        if not self._by_address[address]:
            del self._by_address[address]
