"""Run a partition of a priority or fair topic in memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sandq.model.batch import Column, encode
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.log.appends import Stored
from sandq.partition.ready import queue_keys
from tests.support.partition.bench import Bench, T


class RankedBench(Bench):
    """A partition whose messages have a priority and, in a fair topic, a tenant."""

    def __init__(self, kind: str = "priority", **settings: Any) -> None:
        self.kind = kind
        super().__init__(**settings)

    def add(
        self,
        *values: str,
        priority: int | Sequence[int | None] | None = None,
        tenant: str | Sequence[str | None] | None = None,
        at: int = 0,
        due: Sequence[int] | None = None,
        **columns: Sequence[Any],
    ) -> list[bytes]:
        """Store messages in one batch and return their offsets.

        A single priority or tenant applies to all of them."""
        cells: dict[int, Any] = {Column.VALUE: [value.encode() for value in values]}
        if due is not None:
            cells[Column.DELIVER_MS] = [T + ms for ms in due]
        if priority is not None:
            cells[Column.PRIORITY] = [priority] * len(values) if isinstance(priority, int) else list(priority)
        if tenant is not None:
            names = [tenant] * len(values) if isinstance(tenant, str) else tenant
            cells[Column.TENANT] = [None if name is None else name.encode() for name in names]
        if "ttl" in columns:
            cells[Column.TTL_MS] = columns["ttl"]
        if "unique" in columns:
            cells[Column.UNIQUE_KEY] = [None if key is None else key.encode() for key in columns["unique"]]
        if "attempts" in columns:
            cells[Column.MAX_ATTEMPTS] = columns["attempts"]
        if "costs" in columns:
            cells[Column.COST] = columns["costs"]
        split = bool(columns)
        made = self.apply(at, c.Append(encode(cells), split=split))[0]
        if isinstance(made, Stored):
            return [made.offsets[start : start + 16] for start in range(0, len(made.offsets), 16)]
        base, count = made
        return [(int.from_bytes(base, "big") + (place << 12)).to_bytes(16, "big") for place in range(count)]

    def take(self, limit: int = 1, at: int = 0, group: str = "g", consumer: str = "c") -> list[str]:
        """Lease and ack up to `limit` messages; return their values in the order of delivery."""
        leases = self.lease(limit, at=at, group=group, consumer=consumer)
        values = self.values(leases)
        for lease in leases:
            assert self.ack(lease.token, at=at) is None
        return values

    def state_of(self, offset: bytes, group: str = "g") -> str:
        found = self.machine.groups.named(group)
        ready = found.ready
        assert ready is not None
        key = queue_keys.of_message(ready.rank, self.view, offset)
        if key is not None and found.holder_of(offset, self.view) is None and ready.holds(key, offset, self.view):
            return "ready"
        in_log = self.machine.log.find(offset, self.view)
        is_out = found.holder_of(offset, self.view) is None and (in_log is None or in_log.offset != offset)
        if is_out and self.view.get(rows.TOMBSTONE + offset) is not None:
            return "gone"
        return super().state_of(offset, group)
