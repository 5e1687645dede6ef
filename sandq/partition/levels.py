"""The levels from which on a partition goes by newer rules (ADR 19).

`apply` compares `SharedState.level` with these and with nothing else. Each goes, with its branches, when the lowest
level that this version knows (`features.KNOWN`) has risen to it.
"""

from __future__ import annotations

from typing import Final

OWNERSHIP: Final = 2
"""A unique key is taken until every group has passed its message, and a replacement that comes too late is refused.
What waits for another attempt is its producer's to cancel and to move. What its key blocks for long is copied aside. A
step of trimming reads 8 MiB."""
CLOCK_RESET: Final = 4
"""Delays count from the entry's own stamp. What is placed later than it should be, because the floor is ahead of the
stamp, says when it is wanted, and what waits says when it was made to: a `ClockReset` goes by that."""
KEY_LIMIT: Final = 7
"""Topics and groups may have `max_in_flight_per_key`. What is applied goes by the settings, not by the level."""
GROUP_LIMIT: Final = 8
"""Groups may have limits over all partitions. What is applied goes by the settings, not by the level."""
RANKED: Final = 7
"""There are topics whose messages have priorities, and tenants that share: their partitions are never below it."""
IN_PLACE: Final = 9
"""Another priority leaves a pending message at its place, among those of that priority; before, it was moved behind
them."""
SCOPED_KEYS: Final = 10
"""A unique key of a fair topic is its tenant's: other tenants may have the same."""
RANKED_WAITING: Final = 10
"""Another priority of a message that waits for another attempt is written into the log, too: for a group that is put
back, or begins at the earliest."""
CROWDING: Final = 10
"""A tenant of which very much waits for another attempt gets nothing new, and the others do."""
DEAD_LIVES: Final = 11
"""What a message went through before it was redriven stays with it, in a row of its group and when it dies again. Dead
letters are redriven and purged by their ids."""
RANKED_APART: Final = 10
"""A payload that is kept apart stays where it is when its message gets another priority, which only its log row has."""
SWEPT_BYTES: Final = 10
"""Of a batch of which some were taken out, a sweep takes off all bytes that are left; some stayed counted before."""
BY_UNIQUE_KEY: Final = 11
"""Jobs choose pending messages by the beginning of their unique keys, and dead letters by error and key, too."""
RANKED_BY_JOBS: Final = 11
"""A job that changes priorities reaches what waits for another attempt, too."""
ENDS: Final = 11
"""A nack may end messages, and give them back without counting the attempt. What is applied goes by the command."""
UPDATES: Final = 12
"""Pending messages get other values and headers, by moves that say so. What became of a unique key that was taken is
told and kept with a producer's answers, and a message may be replaced only while it is pending. What is applied goes by
the command, but for what is told."""
CONSUMER_EPOCHS: Final = 12
"""Consumers have epochs: a lease says which, and a later one reclaims it. What is applied goes by the command."""
OUTBOX: Final = 12
"""Partitions send messages to one another. What is applied goes by the settings and the command; who is a partition
among producers goes by the level, too."""
BUDGET: Final = 13
"""An entry writes only so much of stored messages again (`FIXED.entry_copied_bytes`): what comes behind in moves,
updates and nacks is answered with NOT_YET, and changes nothing."""
SWEPT_MESSAGES: Final = 13
"""A step of a sweep is bounded by messages, too: a row may be a batch of 65,536 that are compressed."""
SENT: Final = 13
"""A lease remembers which of its messages were acked by acks that sent messages: such an ack behind another one, which
sent nothing, is refused."""
RECLAIMS: Final = 13
"""A lease counts how often its consumer came back to it; in the end that uses an attempt
(`FIXED.lease_reclaims`)."""
SCHEDULES: Final = 8
"""Partitions have schedules. What is applied goes by the command, not by the level."""
ONE_MOMENT: Final = 5
"""A batch of `log.message_log.WHOLE_MESSAGES` and more that are all wanted at one moment to come is one log row, as one
that is due at once is; when half of it was taken out before that moment, the rest gets rows of its own."""
SLICES: Final = 14
"""The budget of an entry holds within a lease, too, and within what waits: what is left of it is done by the next
entry."""
CROWDED_FLIGHT: Final = 14
"""Of a tenant half of what may wait for another attempt is in flight and waits at most, also while nothing of it waits:
all that is in flight may come to wait at once."""
OUTBOX_ROOM: Final = 14
"""What is redriven into the outbox has its bounds, as what acks send: the rest waits until there is room."""
QUEUE_BYTES: Final = 14
"""What may have something ready in a group is bounded by the bytes that it takes in memory, too: names may be long."""
RESTORE: Final = 16
"""Partitions are made of the rows of a backup. What is applied goes by the command and the settings."""
JITTER: Final = 18
"""Messages that fail together each have a jitter of their own."""
OVERLAP: Final = 18
"""Triggered runs of a schedule hold up its occurrences, as the last occurrence does."""
SUPERSEDED: Final = 18
"""A group does not receive a write of a compacted topic again after a later write of its key."""
UNFINISHED: Final = 18
"""A group that has yet to finish messages it received does not go after `group_ttl`: it expires, and keeps these."""
BEGUN: Final = 18
"""A lease that ends unsettled uses an attempt of the messages that its consumer had begun, and spares the others."""
DEAD_UNIQUE_KEY: Final = 18
"""A dead letter that is sent to another topic has its unique key in a header."""
UNIQUE_IN_KEY: Final = 18
"""A unique key of a message with a key is unique within that key (ADR 48)."""
RESTORE_CHECKS: Final = 18
"""At the end of a restore rows that name others are checked: these must be there."""
