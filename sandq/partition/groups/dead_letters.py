"""Dead messages, and expired messages, which become dead or are dropped. Each dead message has a row of its own, so
that the log need not be kept for it.

Row: `[attempts, reason, error, dead_ms, id, created_ms, fields, history]`, then the earlier lives of a message that was
redriven (`records.lives`). In a topic with a dead letter topic, the row always has the list of lives, which may be
empty. After the lives comes the message's position in the outbox, `[topic, partition, seq]`, or the reason why the dead
letter topic rejected it. If an ack has sent the message, and its target rejected it, `[topic, partition, requested time
(ms, 0: immediately), 0]` comes instead.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.model.dead_letter_settings import DROP, expiry_rule
from sandq.model.outbox import Target
from sandq.partition.base import rows
from sandq.partition.base.rows import Fields, Range
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.groups.kept_messages import KeptMessages
from sandq.partition.groups.renewal import Change
from sandq.partition.groups.waiting_table import WaitingTable
from sandq.partition.outbox import DEAD, MESSAGE, Letter, Outbox
from sandq.partition.reader.pieces import Message, MessageReader
from sandq.partition.records.leases import History, Waiting, load_history
from sandq.partition.records.lives import Lives, load_lives, with_ended
from sandq.partition.shared_state import SharedState

NACKED, LEASE_EXPIRED, EXPIRED, REJECTED = "nacked", "lease_expired", "expired", "rejected"
"""Reasons why a message died: its last attempt was nacked, or its lease expired; its ttl passed; a consumer rejected
it."""
UNDELIVERABLE = "undeliverable"
"""Reason of a message that an ack of the group has sent, and that its target rejected."""
ROW_BYTES = 256
"""Approximate size of a row, in bytes, without the producer's fields."""


class DeadMessage(NamedTuple):
    offset: bytes
    attempts: int
    reason: str
    error: str | None
    dead_ms: int
    id: bytes
    created_ms: int
    fields: Fields
    history: History
    lives: Lives = ()
    """Earlier lives of the message. A redrive began each next life."""
    forward: tuple[Target, int] | str | None = None
    """Position in the outbox, if the message goes to a dead letter topic. A string: the reason why that topic rejected
    it."""
    sent_to: tuple[Target, int] | None = None
    """For a message that an ack sent, and that its target rejected: (target, requested time in ms; 0: immediately)."""

    @property
    def size(self) -> int:
        """Approximate size of its row, in bytes."""
        return ROW_BYTES + sum([len(value) for value in self.fields.values() if isinstance(value, bytes)])

    @property
    def is_waiting_to_be_sent(self) -> bool:
        """Whether the message is in the outbox, for its dead letter topic. If so, it has no row in the index."""
        return isinstance(self.forward, tuple)

    def kept_row(self, redriven_ms: int | None = None) -> bytes:
        """Return the row in which a group keeps the message after a redrive. The message no longer expires.
        `redriven_ms`: time of the redrive, stored as the end of this life; None: do not store this life."""
        lives: Lives = ()
        if redriven_ms is not None:
            ended = self.attempts, self.reason, self.error, self.dead_ms, redriven_ms, self.history
            lives = with_ended(self.lives, *ended)
        return rows.kept_row(self.id, self.created_ms, self.fields, immortal=True, lives=lives)


class DeadFilter(NamedTuple):
    """Selects dead messages. A field of None selects all messages."""

    reason: str | None = None
    from_ms: int = 0
    until_ms: int = offsets.U48_MAX + 1
    """The message died at or after `from_ms`, and before `until_ms`."""
    error: str | None = None
    """Part of the last error. The comparison is case-sensitive: ignoring case depends on the Unicode version, and
    replicas must agree on all machines."""
    key_prefix: bytes | None = None

    def takes(self, message: DeadMessage) -> bool:
        """Return whether a dead message is selected."""
        return (
            self.reason in (None, message.reason)
            and self.from_ms <= message.dead_ms < self.until_ms
            and (self.error is None or (message.error is not None and self.error in message.error))
            and (self.key_prefix is None or (message.fields.get(Column.KEY) or b"").startswith(self.key_prefix))
        )


class Death(NamedTuple):
    """The cause of death of several messages."""

    reason: str
    attempts: int = 0
    error: str | None = None
    history: History = ()


EXPIRED_UNREAD = Death(EXPIRED)
"""A message that expired before its first attempt."""


class DeadLetters:
    """Makes messages of groups dead, and counts them."""

    def __init__(
        self,
        shared: SharedState,
        groups: GroupTable,
        waiting: WaitingTable,
        kept: KeptMessages,
        reader: MessageReader,
        outbox: Outbox,
    ) -> None:
        self.buried_bytes = 0
        """Total bytes of rows put by this process. The caller of a step uses the increase to limit the step."""
        self.ended = 0
        """Number of messages that became dead or were dropped in this process. The caller of a step uses the
        increase."""
        self._shared = shared
        self._groups = groups
        self._waiting = waiting
        self._kept = kept
        self._reader = reader
        self._outbox = outbox

    def bury(self, step: Step, group: Group, ranges: list[Range], kept: bool, death: Death) -> None:
        """Make messages dead, and put their rows. `kept`: the messages were in rows of the group until now."""
        messages = self._reader.messages(step.view, ranges, group.group_id if kept else None)
        count, size = put_rows(step, group, messages, death, self._forward_of(step, group))
        self._shared.note_copied(size, count)
        self._buried(step, group, ranges, count, size, kept, death)

    def bury_some(
        self, step: Step, group: Group, ranges: list[Range], kept: bool, death: Death, change: Change | None = None
    ) -> list[Range]:
        """Make as many messages dead as the budget of the entry allows, in their order, and return them. `change`:
        change to apply to the messages."""
        forward = self._forward_of(step, group)
        count = size = 0
        for message in self._reader.messages(step.view, ranges, group.group_id if kept else None):
            if self._shared.is_budget_spent:
                break
            if change is not None:
                message = message._replace(fields=change.apply(message.fields))
            _, its_size = put_rows(step, group, [message], death, forward)
            self._shared.note_copied(its_size)
            count += 1
            size += its_size
        done = rows.first_of(ranges, count)
        if done:
            self._buried(step, group, done, count, size, kept, death)
        return done

    def expire(self, step: Step, group: Group, ranges: list[Range], kept: bool) -> None:
        """End messages that expired before their first attempt, by the group's `on_expiry`. `kept`: as in `bury`."""
        if self._drops_expired(group):
            self._drop(step, group, ranges, kept)
        else:
            self.bury(step, group, ranges, kept, EXPIRED_UNREAD)

    def _drops_expired(self, group: Group) -> bool:
        """Return whether the group drops expired messages."""
        return expiry_rule(self._shared.settings, group.settings) == DROP

    def _drop(self, step: Step, group: Group, ranges: list[Range], kept: bool) -> None:
        """Drop messages: the group is done with them as with acked messages, and counts them."""
        count = sum([one.length for one in ranges])
        # A message of the log costs a look at its row. A row of the group, or an ordered key, costs that per message.
        self._shared.note_copied(0, count if kept or self._shared.is_ordered else len(ranges))
        group.dropped += count
        self._shared.settled += count
        self.ended += count
        self._kept.finish(step, group, ranges, kept)
        self._groups.store(step, group)

    def _buried(
        self, step: Step, group: Group, ranges: list[Range], count: int, size: int, kept: bool, death: Death
    ) -> None:
        """Update the numbers for messages that were put into rows of dead messages."""
        group.dead[death.reason] += count
        self._count(death.reason, count)
        self.buried_bytes += size
        self.ended += count
        self._kept.finish(step, group, ranges, kept)
        self._groups.store(step, group)

    def _forward_of(self, step: Step, group: Group) -> Callable[[Message], tuple[int, int, int]] | None:
        """Return a function that puts a dead message into the outbox; None if there is no dead letter topic."""
        return None if self._shared.dead_letter_topic is None else partial(self._forward, step, group)

    def _forward(self, step: Step, group: Group, message: Message) -> tuple[int, int, int]:
        """Put a message that dies into the outbox, for the dead letter topic. Return its position there."""
        topic = self._shared.dead_letter_topic
        assert topic is not None
        target = topic.target(message.fields, self._outbox.partition)
        return *target, self._outbox.put(step, target, Letter(DEAD, group.group_id, message.offset), topic)

    def is_leaving(self, message: DeadMessage) -> bool:
        """Return whether a dead message may have been sent to the dead letter topic. If so, this partition no longer
        owns it."""
        return isinstance(message.forward, tuple) and self._outbox.is_leaving(*message.forward)

    def withdraw(self, step: Step, message: DeadMessage) -> None:
        """Remove a dead message from the outbox, unless it may have been sent. Afterwards, a command may redrive or
        purge the message."""
        if isinstance(message.forward, tuple) and not self._outbox.is_leaving(*message.forward):
            self._outbox.remove(step, *message.forward)

    def may_send_again(self, messages: int, size: int) -> bool:
        """Return whether this many messages that acks have sent, with this many bytes, fit into the outbox again."""
        return self._outbox.has_capacity(messages, size)

    def send_again(self, step: Step, group: Group, message: DeadMessage) -> None:
        """Put a message that an ack has sent, and that was rejected, into the outbox again."""
        assert message.sent_to is not None
        target, deliver_ms = message.sent_to
        self._outbox.put(step, target, Letter(MESSAGE, group.group_id, message.offset, deliver_ms, message.fields))

    def moved(self, step: Step, message: DeadMessage, offset: bytes) -> None:
        """Update the outbox after the offset of a dead message has changed."""
        if isinstance(message.forward, tuple):
            letter = self._outbox.find(*message.forward, step.view)
            if letter is not None:
                self._outbox.rewrite(step, *message.forward, letter._replace(offset=offset))

    def end_expired(self, step: Step, group: Group, entry: Waiting) -> bool:
        """End the expired messages of a waiting entry, by the group's `on_expiry`. If the budget of the log entry does
        not suffice, the rest waits in a new entry. Return whether any message had expired."""
        expired = self._waiting.remove_expired(step, group, entry)
        if expired:
            if self._drops_expired(group):
                is_cheap = not entry.kept and not self._shared.is_ordered
                done = expired if is_cheap else rows.first_of(expired, self._shared.budget_messages)
                self._drop(step, group, done, entry.kept)
            else:
                death = Death(EXPIRED, entry.attempt, entry.error, entry.history)
                done = self.bury_some(step, group, expired, entry.kept, death)
            left = rows.behind(expired, sum([one.length for one in done]))
            if left:
                self._waiting.add(step, group, entry.apart(left))
        return bool(expired)

    def _count(self, reason: str, count: int) -> None:
        """Count dead messages in the metrics of the partition."""
        totals = self._shared.totals
        if reason == EXPIRED:
            totals.dead_expired += count
        elif reason == NACKED:
            totals.dead_nacked += count
        elif reason == REJECTED:
            totals.dead_rejected += count
        else:
            totals.dead_lease_expired += count


def put_rows(
    step: Step,
    group: Group,
    messages: Iterable[Message],
    death: Death,
    forward: Callable[[Message], tuple[int, int, int]] | None = None,
) -> tuple[int, int]:
    """Put the rows of messages that died together. Return (number of rows, bytes). `forward`: puts a message into the
    outbox, for the dead letter topic, and returns its position there."""
    view, now_ms = step.view, step.now_ms
    count = size = 0
    reason, attempts, error, history = death
    for message in messages:
        fields = attempts, reason, error, now_ms, message.id, message.created_ms, message.fields, history
        if forward is not None:
            row = rows.pack(*fields, message.lives, forward(message))
        else:
            row = rows.pack(*fields, message.lives) if message.lives else rows.pack(*fields)
            group.deaths.put(view, now_ms, message.offset)
        view.put(rows.of_group(rows.DEAD, group.group_id, message.offset), row)
        count += 1
        size += len(row)
    return count, size


def load(key: bytes, row: bytes) -> DeadMessage:
    """Return the dead message in a row."""
    attempts, reason, error, dead_ms, message_id, created_ms, fields, history, *more = rows.unpack(row)
    lives, forward = rows.with_defaults(more, (), None)
    earlier = load_lives(lives)
    died = attempts, reason, error, dead_ms
    sent_to = None
    if isinstance(forward, list):
        topic, partition, number, *is_sent = forward
        # `number`: the time of `sent_to`, or the position of `forward`.
        target_and_number = Target(topic, partition), number
        forward, sent_to = (None, target_and_number) if is_sent else (target_and_number, None)
    return DeadMessage(key[5:], *died, message_id, created_ms, fields, load_history(history), earlier, forward, sent_to)


def put_undeliverable(step: Step, group: Group, letter: Letter, target: Target, error: str) -> None:
    """Put the row of a message that an ack has sent, and that was rejected."""
    died = 0, UNDELIVERABLE, error, step.now_ms, letter.offset, step.now_ms
    row = rows.pack(*died, letter.fields, (), (), (*target, letter.deliver_ms, 0))
    step.view.put(rows.of_group(rows.DEAD, group.group_id, letter.offset), row)
    group.deaths.put(step.view, step.now_ms, letter.offset)


def note_refused(step: Step, group: Group, message: DeadMessage, error: str) -> None:
    """Store in the row of a dead message why the target topic rejected it. From now on, the message may be removed."""
    key = rows.of_group(rows.DEAD, group.group_id, message.offset)
    row = step.view.get(key)
    assert row is not None, "a rejected message has a row"
    *fields, _ = rows.unpack(row)
    step.view.put(key, rows.pack(*fields, error))
    group.deaths.put(step.view, message.dead_ms, message.offset)


def delete_row(step: Step, group: Group, message: DeadMessage) -> None:
    """Delete the row of a dead message, and its index row. The caller updates the counts."""
    step.view.delete(rows.of_group(rows.DEAD, group.group_id, message.offset))
    if not message.is_waiting_to_be_sent:
        group.deaths.delete(step.view, message.dead_ms, message.offset)


def find(group: Group, offset: bytes, view: View) -> DeadMessage | None:
    """Return the dead message of a group at an offset; None if there is none."""
    if not group.dead.total():
        return None
    key = rows.of_group(rows.DEAD, group.group_id, offset)
    row = view.get(key)
    return None if row is None else load(key, row)


def scan(
    group_id: int, after: bytes | None, limit: int, max_bytes: int, view: View, *, is_newest: bool = False
) -> list[DeadMessage]:
    """Return the dead messages of a group above `after`, in the order of their offsets.

    If `is_newest`, return the messages below `after`, the highest offset first.
    """
    start, stop = rows.group_bounds(rows.DEAD, group_id)
    if after is not None and is_newest:
        stop = rows.of_group(rows.DEAD, group_id, after)
    elif after is not None:
        start = rows.after(rows.of_group(rows.DEAD, group_id, after))
    found = view.scan(start, stop, limit=limit, max_bytes=max_bytes, reverse=is_newest)
    return [load(key, row) for key, row in found]
