"""Sum the use of named limits over the partitions that a node leads."""

from __future__ import annotations

from collections.abc import Iterable

from sandq.partition.partition_status import Status
from sandq.server.metrics.text import Exposition


def write_named_limits(statuses: Iterable[Status], now_ms: int, out: Exposition) -> None:
    """Write the samples of named limits."""
    found: dict[str, tuple[int, int, bool]] = {}
    for status in statuses:
        for group, allowance in () if status.limits is None else status.limits.allowances.items():
            if allowance.name is None:
                continue
            in_flight, used, is_waiting = found.get(allowance.name, (0, 0, False))
            there = status.groups.get(group)
            if there is not None:
                in_flight += there.leased
                is_waiting |= there.limit is not None and any(there.limit.holds_up(now_ms))
            found[allowance.name] = in_flight, used + allowance.used, is_waiting
    for limit, (in_flight, used, is_waiting) in sorted(found.items()):
        labels = out.labels("sandq_limit_in_flight", limit)
        out.value("sandq_limit_in_flight", in_flight, labels)
        out.value("sandq_limit_units_used_total", used, labels)
        out.value("sandq_limit_waiting", is_waiting, labels)
