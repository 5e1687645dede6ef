"""Feature levels: what nodes of different versions may write and say while both are in one cluster.

A level is a number. Each version of sandq knows a range of them (`KNOWN`); the metadata holds the level that the
cluster is at, at first 1. What a new version adds to entries, rows or frames between nodes belongs to a new level: no
node proposes, stores or sends it before the cluster has come to that level, and it comes there when every registered
node knows it. It never goes back, so that what was stored can be read by every node that is let in.

=====  =======  ===========================================================
level  since    what it adds
=====  =======  ===========================================================
1      v0.2.0   everything that v0.2.0 has
2      v0.3.0   RAISE_LEVEL, by which partitions come to newer rules (ADR 19)
3      v0.3.0   TAKE_DIGEST and DIGEST, by which replicas are compared (ADR 21)
4      v0.3.0   CLOCK_RESET, by which a partition's time is set back (ADR 24)
5      v0.3.0   log rows of several messages that are due at one moment to come (ADR 29)
6      v0.3.0   PAUSE_GROUP, by which a group gets nothing until it is resumed
7      v0.3.0   topics of the kinds priority and fair; `max_in_flight_per_key` of timer topics and their groups
8      v0.3.0   schedules, messages that recur; limits of groups over all partitions (ADR 31)
9      v0.3.0   rows that say another priority, in place (ADR 33)
10     v0.3.0   unique keys of fair topics by tenant (ADR 34)
11     v0.3.0   ends that a worker chooses; jobs reach what waits for another attempt; dead letters by id, error and key
12     v0.3.0   updates of pending messages; an outbox; limits of topics; consumers that come back after a restart
13     v0.3.0   what an entry writes again; topics made when used; request rates; partition keys; groups that are pushed
14     v0.3.0   limits inside a partition that hold within a lease and for tenants
15     v0.3.0   identities with rights and quotas, and roles
16     v0.3.0   topics that are restored from a backup
17     v0.3.0   logs that are read for backups, and LOG_PINNED, by which all replicas keep them (ADR 45)
18     v0.3.0   SKIP, by which an operator leaves out an entry that cannot be applied (ADR 46); groups with unfinished
                messages are kept, jitter is per message, retries of overwritten keys are skipped; unique keys are
                unique within keys (ADR 48)
=====  =======  ===========================================================
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Levels(NamedTuple):
    """A range of feature levels, both ends of it included."""

    lowest: int
    highest: int

    def __contains__(self, level: object) -> bool:
        return isinstance(level, int) and self.lowest <= level <= self.highest

    def __str__(self) -> str:
        return f"{self.lowest}" if self.lowest == self.highest else f"{self.lowest} to {self.highest}"


FIRST_LEVEL: Final = 1
"""The level of a new cluster, and of data in which none is written."""
KNOWN: Final = Levels(lowest=1, highest=18)
"""What this version knows."""
RANKED_LEVEL: Final = 7
"""From which on there are topics of the kinds priority and fair."""
SCHEDULES_LEVEL: Final = 8
"""From which on topics have schedules."""
GROUP_LIMIT_LEVEL: Final = 8
"""From which on groups may have limits."""
ENDS_LEVEL: Final = 11
"""From which on consumers may give messages up, and snooze them."""
CONSUMER_EPOCHS_LEVEL: Final = 12
"""From which on consumers have epochs, and reclaim their leases."""
TOPIC_LIMITS_LEVEL: Final = 12
"""From which on topics may have limits of their own."""
OUTBOX_LEVEL: Final = 12
"""From which on partitions send messages to one another: dead letter topics, and acks that send messages."""
AUTO_CREATE_LEVEL: Final = 13
"""From which on topics are made when they are used."""
REQUEST_RATE_LEVEL: Final = 13
"""From which on topics may have `max_request_rate`."""
PARTITION_KEY_LEVEL: Final = 13
"""From which on compacted topics may have a `partition_delimiter`."""
PUSH_LEVEL: Final = 13
"""From which on groups may be pushed to URLs."""
IDENTITIES_LEVEL: Final = 15
"""From which on the cluster knows identities and roles."""
RESTORE_LEVEL: Final = 16
"""From which on topics are restored from backups."""
LOG_READS_LEVEL: Final = 17
"""From which on logs of partitions are read for backups."""
SKIP_LEVEL: Final = 18
"""First level at which an entry that cannot be applied may be skipped."""
KEY_LIMIT_LEVEL: Final = 7
"""From which on topics and groups may have `max_in_flight_per_key`."""
