"""The state of all groups of a partition. Each part has one owner."""

from __future__ import annotations

from sandq.partition.base.expiring_rows import ExpiringRows
from sandq.partition.base.view import View
from sandq.partition.groups.dead_letters import DeadLetters
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.groups.kept_messages import KeptMessages
from sandq.partition.groups.lease_table import LeaseTable
from sandq.partition.groups.message_ttl import MessageTtl
from sandq.partition.groups.spilling import Spilling
from sandq.partition.groups.summaries import GroupSummaries
from sandq.partition.groups.unique_keys import UniqueKeys
from sandq.partition.groups.waiting_table import WaitingTable
from sandq.partition.outbox import Outbox
from sandq.partition.reader.pieces import MessageReader
from sandq.partition.shared_state import LogState, SharedState


class GroupState:
    """Creates and connects the parts. Code that changes groups uses the parts that it needs."""

    def __init__(
        self,
        shared: SharedState,
        groups: GroupTable,
        log_state: LogState,
        expiring_rows: ExpiringRows,
        unique: UniqueKeys,
        reader: MessageReader,
        outbox: Outbox,
    ) -> None:
        self.groups = groups
        self.outbox = outbox
        self.reader = reader
        self.ttl = MessageTtl(shared)
        self.summaries = GroupSummaries(shared, groups, self.ttl)
        self.leases = LeaseTable(shared, self.groups)
        self.waiting = WaitingTable(shared, self.groups, self.ttl)
        self.kept = KeptMessages(shared, self.groups, log_state, expiring_rows, unique)
        self.spilling = Spilling(shared, groups, self.waiting, self.kept, self.ttl, reader)
        self.dead = DeadLetters(shared, self.groups, self.waiting, self.kept, reader, outbox)
        self._shared = shared

    def load(self, view: View, *, placing: bool = False) -> None:
        """Load the groups and their messages. `placing`: a clock reset is placing messages again; it restores the order
        of keys at its end."""
        self.groups.load(view)
        self.leases.load(view)
        self.waiting.load(view)
        if self._shared.is_ordered and not placing:
            for group in self.groups.by_id.values():
                group.load_key_order(view)

    def next_expiry_ms(self, view: View) -> int | None:
        """Return when the first lease or message expires, in ms. None if none does."""
        times = (self.leases.next_deadline_ms(), self.summaries.next_expiry_ms(view))
        return min((at for at in times if at is not None), default=None)
