"""The paused tenants of one group. The pause of a tenant includes the tenants below its name: of `acme.eu` for
`acme`."""

from __future__ import annotations

from collections.abc import Iterator


class TenantPauses:
    """Ends of pauses, by tenant. Their rows belong to `groups.part_pauses`."""

    def __init__(self) -> None:
        self.ends: dict[str, int] = {}
        """End of the pause in ms, by tenant. `FOREVER`: until it is resumed."""

    def until_ms(self, tenant: str, now_ms: int) -> int | None:
        """Return when the last pause of a tenant ends, in ms. None if it is not paused."""
        if not self.ends:
            return None
        until_ms = max([self.ends.get(name, 0) for name in _names_above(tenant)], default=0)
        return until_ms if until_ms > now_ms else None


def _names_above(tenant: str) -> Iterator[str]:
    """Yield the name of a tenant, and the names of the tenants above it."""
    while tenant:
        yield tenant
        tenant = tenant.rpartition(".")[0]
