"""Describe the state of named limits, as the leader of their topic knows it."""

from __future__ import annotations

from typing import Any, Final

from sandq.broker.catalog import Catalog
from sandq.broker.delivery.limit_shares import LimitShares
from sandq.model.pauses import FOREVER
from sandq.partition.limits.ledger import NEW, LedgerStatus, Member

SHOWN_MOST: Final = 1000
"""Maximum number of members that are listed."""


def limit_rows(
    catalog: Catalog, shares: LimitShares, topic: str, *, name: str | None, now_ms: int
) -> list[dict[str, Any]]:
    """Return one row per named limit in the partitions of a topic that this node leads. `name`: only this limit, with
    its members. Raise UnknownTopic."""
    rows = []
    for leader in catalog.topic(topic).led().values():
        limits = leader.raft_group.status.limits
        for limit, ledger in ({} if limits is None else limits.ledgers).items():
            if ledger.limit.is_named and name in (None, limit):
                unpaused = shares.unpaused(leader, limit)
                more = {} if name is None else {"members": _members(catalog, ledger, set(unpaused))}
                rows.append(_row(limit, ledger, now_ms) | {"unpaused": len(unpaused)} | more)
    return rows


def _row(name: str, ledger: LedgerStatus, now_ms: int) -> dict[str, Any]:
    """Return the state of a named limit."""
    is_paused = ledger.pause.until_ms > now_ms
    limit, (given, units) = ledger.limit, ledger.given
    return {
        "limit": name,
        "given": None if limit.max_in_flight is None else given,
        "given_burst": None if limit.interval_us is None else units,
        "members": len(ledger.members),
        "unheard": len(ledger.unheard),
        "paused": is_paused,
        "paused_until_ms": ledger.pause.until_ms if is_paused and ledger.pause.until_ms != FOREVER else None,
        "paused_by": ledger.pause.by if is_paused else None,
    }


def _members(catalog: Catalog, ledger: LedgerStatus, unpaused: set[Member]) -> list[dict[str, Any]]:
    """Return the members of a named limit, at most `SHOWN_MOST`. `unpaused`: those that have not confirmed its pause,
    or the end of its pause."""
    found, unheard = [], set(ledger.unheard)
    for number, member in list(ledger.members.items())[:SHOWN_MOST]:
        topic, partition = catalog.view.partition_of_group.get(member.raft_group, (None, None))
        share = ledger.shares.get(number, NEW)
        found.append(
            {
                "topic": topic,
                "partition": partition,
                "group": member.group,
                "given": share.held,
                "given_burst": share.held_units,
                "unheard": number in unheard,
                "unpaused": member in unpaused,
            }
        )
    return found
