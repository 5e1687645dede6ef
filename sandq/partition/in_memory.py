"""Decides which entries can be applied quickly and without reading stored rows. A thread that must not wait for a disk
may apply such entries.

`applies` may return False for such an entry. The result only decides in which thread the entry is applied.
"""

from __future__ import annotations

from typing import Final

from sandq.model.batch_format import count_of, plain_bytes_of
from sandq.partition import commands as c
from sandq.partition.groups.group_state import GroupState
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.jobs.dead_retention import DeadRetention
from sandq.partition.log.counts import Counts
from sandq.partition.producers.producers import Producers
from sandq.partition.shared_state import SharedState

GROUPS: Final = 16
COMMANDS: Final = 64
ITEMS: Final = 64
"""Maximum number of messages or leases of a command."""
PLAIN_BYTES: Final = 64 << 10
"""Maximum size of a batch after decompression, in bytes."""


class InMemory:
    def __init__(
        self,
        shared: SharedState,
        groups: GroupTable,
        group_state: GroupState,
        counts: Counts,
        producers: Producers,
        dead_retention: DeadRetention,
    ) -> None:
        self._shared = shared
        self._groups = groups
        self._leases = group_state.leases
        self._waiting = group_state.waiting
        self._ttl = group_state.ttl
        self._counts = counts
        self._producers = producers
        self._dead_retention = dead_retention

    def applies(self, entry: c.Entry) -> bool:
        """Return whether everything needed to apply the commands of an entry, and to compute the status afterwards, is
        in memory."""
        groups = self._groups.by_id.values()
        return (
            len(groups) <= GROUPS
            and len(entry.commands) <= COMMANDS
            and self._counts.knows_until(entry.now_ms)
            and all([group.knows_next for group in groups])
            and self._dead_retention.knows_due
            and (
                not self._ttl.any_expires or all([group.ready is None or group.ready.knows_lowest for group in groups])
            )
            and not self._waiting.crowded  # the entry may spill messages
            and all([self._is_in_memory(command) for command in entry.commands])
            and not self._leases_what_it_appends(entry)
        )

    @staticmethod
    def _leases_what_it_appends(entry: c.Entry) -> bool:
        """Return whether an entry may lease messages that it appends itself: their rows are not in a look-ahead."""
        kinds = [type(command) for command in entry.commands]
        return c.Lease in kinds and c.Append in kinds

    def _is_in_memory(self, command: c.Command) -> bool:
        """Return whether a command needs no stored rows."""
        match command:
            case c.Append():
                batch = command.batch
                if command.split or count_of(batch) > ITEMS or plain_bytes_of(batch) > PLAIN_BYTES:
                    return False
                return not command.producer_id or not self._producers.is_repeated(command)
            case c.Ack():
                tokens = [token for token, _ in command.items]
                return len(tokens) <= ITEMS and all([self._is_acked_in_memory(token) for token in tokens])
            case c.Lease():
                return self._is_leased_in_memory(command)
        return False

    def _is_acked_in_memory(self, token: int) -> bool:
        """Return whether an ack of this lease needs no stored rows: no key order, and no rows of the group."""
        lease = self._leases.by_token.get(token)
        if lease is None:
            return True
        group = self._groups.by_id.get(lease.group_id)
        return not (lease.kept or self._shared.is_ordered or group is None or group.order.blocked)

    def _is_leased_in_memory(self, command: c.Lease) -> bool:
        """Return whether a lease grants only messages of the log whose rows are in the group's look-ahead, without any
        rule that may read rows: ranks, key order, limits, ttl, and messages that wait or were moved."""
        group = self._groups.find(command.group)
        if group is None or group.ready is not None or group.allowance is not None or group.gaps:
            return False
        if self._shared.is_ordered or self._shared.settings["ttl_ms"] is not None or group.order.blocked:
            return False
        retry_ms, reader = group.next_retry_ms, group.reader
        if retry_ms is not None and retry_ms <= command.horizon_ms:
            return False
        return reader.unsure_s is None and reader.has_at_hand(command.horizon_ms, ITEMS)
