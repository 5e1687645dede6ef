"""Describe the state of named limits, as the leader of their topic knows it."""

from __future__ import annotations

from typing import Any, Final

from sandq.broker.catalog import Catalog
from sandq.partition.limits.ledger import NEW, LedgerStatus

SHOWN_MOST: Final = 1000
"""Maximum number of members that are listed."""


def limit_rows(catalog: Catalog, topic: str, name: str | None) -> list[dict[str, Any]]:
    """Return one row per named limit in the partitions of a topic that this node leads. `name`: only this limit, with
    its members. Raise UnknownTopic."""
    rows = []
    for leader in catalog.topic(topic).led().values():
        limits = leader.raft_group.status.limits
        for limit, ledger in ({} if limits is None else limits.ledgers).items():
            if ledger.limit.is_named and name in (None, limit):
                more = {} if name is None else {"members": _members(catalog, ledger)}
                rows.append(_row(limit, ledger) | more)
    return rows


def _row(name: str, ledger: LedgerStatus) -> dict[str, Any]:
    """Return the state of a named limit."""
    limit, (given, units) = ledger.limit, ledger.given
    return {
        "limit": name,
        "given": None if limit.max_in_flight is None else given,
        "given_burst": None if limit.interval_us is None else units,
        "members": len(ledger.members),
        "unheard": len(ledger.unheard),
    }


def _members(catalog: Catalog, ledger: LedgerStatus) -> list[dict[str, Any]]:
    """Return the members of a named limit, at most `SHOWN_MOST`."""
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
            }
        )
    return found
