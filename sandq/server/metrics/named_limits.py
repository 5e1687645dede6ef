"""Sum the use of named limits over the partitions that a node leads."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from sandq.partition.partition_status import Status
from sandq.server.metrics.text import Exposition


@dataclass(slots=True)
class _Use:
    """The use of a named limit on this node."""

    in_flight: int = 0
    used: int = 0
    is_waiting: bool = False
    is_paused: bool = False


def write_named_limits(statuses: Iterable[Status], now_ms: int, out: Exposition) -> None:
    """Write the samples of named limits."""
    uses: dict[str, _Use] = defaultdict(_Use)
    for status in statuses:
        if status.limits is None:
            continue
        for group, allowance in status.limits.allowances.items():
            if allowance.name is None:
                continue
            use = uses[allowance.name]
            use.used += allowance.used
            use.is_paused |= allowance.pause.until_ms > now_ms
            there = status.groups.get(group)
            if there is not None:
                use.in_flight += there.leased
                use.is_waiting |= there.limit is not None and any(there.limit.holds_up(now_ms))
        for limit, ledger in status.limits.ledgers.items():
            if ledger.limit.is_named and ledger.pause.until_ms > now_ms:
                uses[limit].is_paused = True
    for limit, use in sorted(uses.items()):
        labels = out.labels("sandq_limit_in_flight", limit)
        out.value("sandq_limit_in_flight", use.in_flight, labels)
        out.value("sandq_limit_units_used_total", use.used, labels)
        out.value("sandq_limit_waiting", use.is_waiting, labels)
        out.value("sandq_limit_paused", use.is_paused, labels)
