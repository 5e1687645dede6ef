"""Describes the limits of a group: why a message waits for them, and their state."""

from __future__ import annotations

from typing import Any

from sandq.model.health import PAUSED_LIMIT
from sandq.model.names import LIMITS_TOPIC
from sandq.model.pauses import pause_text
from sandq.model.times import format_duration
from sandq.partition.groups.group import Group
from sandq.partition.limits.allowance import Allowance
from sandq.partition.limits.ledger import LedgerStatus


def limit_reason(group: Group, now_ms: int) -> str | None:
    """Return why the limits of a group hold up ready messages. None if they do not."""
    allowance = group.allowance
    if allowance is None:
        return None
    limit = allowance.limit
    owner = "of the group" if limit.name is None else limit.name
    if allowance.is_paused(now_ms):
        return f"{PAUSED_LIMIT}{limit.name} is {pause_text(allowance.pause.until_ms)}, by {allowance.pause.by}"
    if allowance.is_waiting and limit.name is not None:
        return f"it waits for the limit {owner}: topic {LIMITS_TOPIC} has not given this partition a share yet"
    if allowance.is_waiting:
        return "it waits for the limits of the group: not every partition has said yet what it has in flight"
    if not group.has_capacity:
        most = f"{group.in_flight} of {limit.max_in_flight} in flight"
        if allowance.in_flight != limit.max_in_flight:
            here = f"{group.in_flight} in flight here, where {allowance.in_flight} of {limit.max_in_flight} may be"
            most = f"{here} at present"
        return f"it waits for the limit {owner}: {most}"
    free_ms, rate = allowance.free_ms(now_ms * 1000), limit.shown()["rate"]
    needed, of_owner = "", owner if limit.name is None else f"of the limit {owner}"
    if limit.unit is not None:
        rate = f"{rate} {limit.unit}"
        units = allowance.available_units(now_ms * 1000)
        needed = f"the next message needs {allowance.needed} and {units} are available, "
    if free_ms is None:
        return f"it waits for the rate {of_owner}, {rate}: {needed}at present other partitions have it"
    if free_ms > now_ms:
        return f"it waits for the rate {of_owner}, {rate}: {needed}free in {format_duration(free_ms - now_ms)}"
    return None


def limit_row(group: Group, allowance: Allowance, ledger: LedgerStatus | None) -> dict[str, Any]:
    """Return the state of a group's limits in a partition: `allowed` to this partition, and, in the home partition,
    `given` to all others."""
    limit = allowance.limit
    row = limit.shown()
    row["allowed"] = None if limit.max_in_flight is None else allowance.in_flight
    row["allowed_burst"] = None if limit.interval_us is None else allowance.part.units
    if ledger is not None and (ledger.shares or ledger.unheard):
        given, units = ledger.given
        row["given"] = None if limit.max_in_flight is None else given
        row["given_burst"] = None if limit.interval_us is None else units
        row["unheard"] = list(ledger.unheard)
    return row
