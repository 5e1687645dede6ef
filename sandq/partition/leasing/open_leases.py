"""The leases that one grant opens: one for each kind of messages."""

from __future__ import annotations

from collections.abc import Callable

from sandq.partition.records.leases import Alike, Lease


class OpenLeases:
    """Finds the lease for each message of a grant. All messages of a lease are alike (`Lease.alike`).

    Tenants take turns, and their messages may have different numbers of attempts. If each change of kind began another
    lease, leases would have one or two messages, and cost more than these. So a message joins an earlier lease of its
    kind, unless a later lease already has a message of its tenant. Thus each tenant gets its messages in order. Only
    messages of different tenants may change places, within one grant.
    """

    def __init__(self, most: int, open_one: Callable[[], Lease]) -> None:
        """`most`: maximum number of leases, at least one. `open_one()` returns a new lease without messages."""
        self.leases: list[Lease] = []
        self._most = most
        self._open_one = open_one
        self._newest: dict[Alike, int] = {}
        """By kind: index of its newest lease."""
        self._last: dict[str, int] = {}
        """By tenant: index of the lease that has the tenant's last message."""

    @property
    def may_open(self) -> bool:
        """Whether one more lease may be opened."""
        return len(self.leases) < self._most

    def lease_for(self, tenant: str, alike: Alike) -> Lease | None:
        """Return the lease for the next message of a tenant, which the caller adds to it. None if the message needs one
        lease more than the grant may have."""
        at = self._newest.get(alike)
        if at is None or at < self._last.get(tenant, 0):
            if not self.may_open:
                return None
            at = self._newest[alike] = len(self.leases)
            self.leases.append(self._open_one())
            self.leases[at].adopt(alike)
        self._last[tenant] = at
        return self.leases[at]
