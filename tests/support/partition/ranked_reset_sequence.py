"""Run random commands on a ranked partition whose clock goes wrong and is set back.

The commands are those of `ResetSequence`; its producers also give each message a priority and a tenant."""

from __future__ import annotations

from typing import Any

from sandq.model.batch import Batch, Column, encode
from sandq.partition import commands as c
from sandq.partition.records.leases import Lease
from tests.support.partition.bench import Bench
from tests.support.partition.ranked_bench import RankedBench
from tests.support.partition.reset_sequence import ResetSequence

TENANTS = (b"a", b"b", b"a.x", None)


class RankedResetSequence(ResetSequence):
    def __init__(self, seed: int, kind: str) -> None:
        self.kind = kind
        self.ranks: dict[str, tuple[str, int]] = {}
        """Tenant and priority of each message, by its name."""
        self.promoted_until: dict[str, int] = {}
        super().__init__(seed)

    def make_bench(self, **settings: Any) -> Bench:
        settings.pop("max_in_flight_per_key", None)
        return RankedBench(self.kind, **settings)

    def apply(self, *commands: c.Command) -> Any:
        """Add priorities and tenants to appends before they are applied."""
        return super().apply(*[self._ranked(one) if isinstance(one, c.Append) else one for one in commands])

    def _ranked(self, command: c.Append) -> c.Append:
        batch = Batch.parse(command.batch)
        values = batch.bytes_column(Column.VALUE)
        assert values is not None
        cells: dict[int, Any] = {Column.VALUE: values}
        if (due := batch.int_column(Column.DELIVER_MS)) is not None:
            cells[Column.DELIVER_MS] = due
        if (unique := batch.bytes_column(Column.UNIQUE_KEY)) is not None:
            cells[Column.UNIQUE_KEY] = unique
        priorities = [self.random.choice([-1, 0, 3]) for _ in values]
        tenants = [self.random.choice(TENANTS) if self.kind == "fair" else None for _ in values]
        cells[Column.PRIORITY] = priorities
        if self.kind == "fair":
            cells[Column.TENANT] = tenants
        for value, priority, tenant in zip(values, priorities, tenants, strict=True):
            assert value is not None
            self.ranks[value.decode()] = (tenant or b"").decode(), priority
        data = encode(cells, relative=batch.relative)
        return c.Append(data, on_conflict=command.on_conflict, split=command.split)

    def due_until(self, group: str) -> int:
        """Messages that were promoted under a wrong clock stay in the ready queue until the clock is set back."""
        until = max(super().due_until(group), self.promoted_until.get(group, 0))
        self.promoted_until[group] = until
        return until

    def reset(self) -> int:
        self.promoted_until.clear()
        return super().reset()

    def lease(self, group: str | None = None, limit: int | None = None) -> list[Lease]:
        """Lease, and check that each tenant's messages of one lease command are in order."""
        group = group or self.random.choice(self.open)
        self.due_until(group)
        granted = super().lease(group, limit)
        last: dict[str, tuple[int, bytes]] = {}
        for lease in granted:
            for message in self.bench.messages(lease):
                tenant, priority = self.ranks[self._name(message)]
                here = priority, message.offset
                assert here > last.get(tenant, (-9, b""))
                last[tenant] = here
        return granted
