"""The subscriptions of one group in a partition, and when its next lease is requested."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from sandq.broker.clock.timers import Timer
from sandq.broker.leader.subscription import Subscription
from sandq.partition.group_status import GroupStatus

MOST_REST_MS: Final = 1000
"""Maximum time in ms for which leases take no spilled retries after a lease with retries."""


class GroupPump:
    """The state with which `PartitionLeader` delivers messages of one group in one partition."""

    def __init__(self) -> None:
        self.consumers: dict[str, Subscription] = {}
        """Subscriptions by consumer."""
        self.queue: OrderedDict[Subscription, None] = OrderedDict()
        """Subscriptions that may have free credit. The subscription to serve next is first.

        Subscriptions outside the queue are not visited. A subscription returns to the queue when its credit may be
        free again (`PartitionLeader._credit_freed`)."""
        self.busy = False
        """True while a lease command is in progress. There is at most one."""
        self.asked_ms = 0
        """Wall-clock time of the last lease request, in ms."""
        self.is_scheduled = False
        """True if the first message of the last lease was scheduled: it was stored before it was due."""
        self.has_new = False
        """True if the last lease was requested with a message in the log that was due when it was produced."""
        self.was_filled = False
        """True if the last lease granted as many messages as were requested. More messages may be due then."""
        self.recalls = True
        """Whether the last lease was allowed to take spilled retries."""
        self.rest_ms = 0
        """Time in ms before which leases take no spilled retries."""
        self.along_ms: int | None = None
        """Time in ms from which the next lease may be requested along with other requests. None if the group does not
        wait for other requests."""
        self.scheduled_ms: int | None = None
        """Due time in ms of the scheduled message that was last seen as the group's next message (`_is_scheduled`)."""
        self.scheduled_head_ms: int | None = None
        """The same for the group's next message of the log (`_is_new`)."""
        self.timer_ms: int | None = None
        self.timer: Timer | None = None
        """Timer that fires at `timer_ms`. Cancel it with `sleep_no_more`."""
        self.free_since_ms: int | None = None
        """Time in ms since which consumers have had free credit, so that each message could be leased once it is due.

        None if no consumer has free credit, or if something else blocks the group."""
        self.asked_free_since_ms: int | None = None
        """Value of `free_since_ms` when the lease in progress was requested."""
        self.window = 1
        """Maximum number of messages in a lease for a single consumer, or for credit that partitions share.

        A fixed minimum is always allowed (`PartitionLeader._grants`, `PartitionLeader._share`).

        After each full lease, the window doubles. Otherwise it shrinks to the number of granted messages (slow start).
        So partitions with few ready messages do not reserve credit that other partitions could use."""

    def rest(self, now_ms: int) -> None:
        """Record that the last lease took retries. For as long as it took, the next leases take no spilled retries.

        So retries get half of the time at most, and new messages find the node idle more often (ADR 54)."""
        self.rest_ms = now_ms + min(now_ms - self.asked_ms, MOST_REST_MS)

    def is_resting(self, now_ms: int) -> bool:
        """Return whether leases take no spilled retries now. A rest that would take longer than `MOST_REST_MS` began
        before the clock was set back, and is over."""
        return 0 < self.rest_ms - now_ms <= MOST_REST_MS

    def free_ms(self, group: GroupStatus, now_ms: int) -> int:
        """Return the time in ms from which the next lease may be requested. If only retries are due, this is not before
        they may be taken."""
        head_ms = group.head_ms
        if not self.is_resting(now_ms) or (head_ms is not None and head_ms <= now_ms):
            return group.not_before_ms
        return max(group.not_before_ms, self.rest_ms if head_ms is None else min(self.rest_ms, head_ms))

    def sleep_no_more(self) -> None:
        """Cancel the timer."""
        if self.timer is not None:
            self.timer.cancel()
        self.timer = self.timer_ms = None
