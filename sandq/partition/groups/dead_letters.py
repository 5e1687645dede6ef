"""Dead messages: each in a row of its own, so that it keeps nothing else in the log.

Row: `[attempts, reason, error, dead_ms, id, created_ms, fields, history]`, and the lives before, of one that was
redriven (`lives`). Of one that is to go to a dead letter topic there are lives, be it none, and then where it stands in
the outbox, `[topic, partition, seq]`, or why it was refused there. Of one that an ack has sent and that was refused
there is `[topic, partition, when it was wanted (ms, 0: at once), 0]`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from sandq.model import offsets
from sandq.model.batch import Column
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
"""Why a message died: its last attempt was nacked, or ran out; its ttl passed; or a consumer said that it is dead."""
UNDELIVERABLE = "undeliverable"
"""A message that an ack of the group has sent was refused where it was to go."""
ROW_BYTES = 256
"""Of a row beside what its producer sent, about."""


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
    """Those before this one, which were ended by redrives."""
    forward: tuple[Target, int] | str | None = None
    """Where it stands in the outbox, if it is to go to a dead letter topic; or why it could not be sent there."""
    sent_to: tuple[Target, int] | None = None
    """Of one that an ack has sent: where it was to go, and when (ms; 0: at once)."""

    @property
    def size(self) -> int:
        """Return about how many bytes its row has."""
        return ROW_BYTES + sum([len(value) for value in self.fields.values() if isinstance(value, bytes)])

    def kept_row(self, redriven_ms: int | None = None) -> bytes:
        """The message as a group keeps it in a row of its own, once it was redriven: its ttl is over, and forgotten.
        `redriven_ms`: when that was, for what is remembered of this life; None: nothing is."""
        lives: Lives = ()
        if redriven_ms is not None:
            ended = self.attempts, self.reason, self.error, self.dead_ms, redriven_ms, self.history
            lives = with_ended(self.lives, *ended)
        return rows.kept_row(self.id, self.created_ms, self.fields, immortal=True, lives=lives)


class DeadFilter(NamedTuple):
    """Which dead letters are meant; what is None does not matter."""

    reason: str | None = None
    from_ms: int = 0
    until_ms: int = offsets.U48_MAX + 1
    """From when on, and before when, they died."""
    error: str | None = None
    """Part of their last error, letter by letter: what upper and lower case are differs from one Unicode to the next,
    and replicas do the same whatever they run on."""
    key_prefix: bytes | None = None

    def takes(self, message: DeadMessage) -> bool:
        """Return whether a dead letter is among them."""
        return (
            self.reason in (None, message.reason)
            and self.from_ms <= message.dead_ms < self.until_ms
            and (self.error is None or (message.error is not None and self.error in message.error))
            and (self.key_prefix is None or (message.fields.get(Column.KEY) or b"").startswith(self.key_prefix))
        )


class Death(NamedTuple):
    """What messages died of together."""

    reason: str
    attempts: int = 0
    error: str | None = None
    history: History = ()


EXPIRED_UNREAD = Death(EXPIRED)
"""No attempt was made."""


class DeadLetters:
    """Buries messages of groups, and counts them."""

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
        """Of all that was buried by this process: what a step adds to it bounds the step."""
        self._shared = shared
        self._groups = groups
        self._waiting = waiting
        self._kept = kept
        self._reader = reader
        self._outbox = outbox

    def bury(self, step: Step, group: Group, ranges: list[Range], kept: bool, death: Death) -> None:
        """Put messages into rows of dead messages. `kept`: they are in rows of the group's own until now."""
        messages = self._reader.messages(step.view, ranges, group.group_id if kept else None)
        count, size = put_rows(step, group.group_id, messages, death, self._forward_of(step, group))
        self._shared.note_copied(size, count)
        self._buried(step, group, ranges, count, size, kept, death)

    def bury_some(
        self, step: Step, group: Group, ranges: list[Range], kept: bool, death: Death, change: Change | None = None
    ) -> list[Range]:
        """Bury as many of the messages, in their order, as the entry's budget allows, and return these. `change`: what
        they have otherwise when they die."""
        forward = self._forward_of(step, group)
        count = size = 0
        for message in self._reader.messages(step.view, ranges, group.group_id if kept else None):
            if self._shared.is_budget_spent:
                break
            if change is not None:
                message = message._replace(fields=change.apply(message.fields))
            _, its_size = put_rows(step, group.group_id, [message], death, forward)
            self._shared.note_copied(its_size)
            count += 1
            size += its_size
        done = rows.first_of(ranges, count)
        if done:
            self._buried(step, group, done, count, size, kept, death)
        return done

    def _buried(
        self, step: Step, group: Group, ranges: list[Range], count: int, size: int, kept: bool, death: Death
    ) -> None:
        """So many messages were put into rows of dead messages."""
        group.dead[death.reason] += count
        self._count(death.reason, count)
        self.buried_bytes += size
        self._kept.finish(step, group, ranges, kept)
        self._groups.store(step, group)

    def _forward_of(self, step: Step, group: Group) -> Callable[[Message], tuple[int, int, int]] | None:
        return None if self._shared.dead_letter_topic is None else partial(self._forward, step, group)

    def _forward(self, step: Step, group: Group, message: Message) -> tuple[int, int, int]:
        """Have a message that dies sent to the dead letter topic. Where it stands in the outbox."""
        topic = self._shared.dead_letter_topic
        assert topic is not None
        target = topic.target(message.fields, self._outbox.partition)
        return *target, self._outbox.put(step, target, Letter(DEAD, group.group_id, message.offset), topic)

    def is_leaving(self, message: DeadMessage) -> bool:
        """Whether a dead message may have been sent to the dead letter topic: it is no more to be had here."""
        return isinstance(message.forward, tuple) and self._outbox.is_leaving(*message.forward)

    def withdraw(self, step: Step, message: DeadMessage) -> None:
        """A dead message goes another way, unless it may have been sent: its letter is taken back."""
        if isinstance(message.forward, tuple) and not self._outbox.is_leaving(*message.forward):
            self._outbox.remove(step, *message.forward)

    def may_send_again(self, messages: int, size: int) -> bool:
        """Whether so many messages that acks have sent, of so many bytes, may be sent once more now."""
        return self._outbox.has_room(messages, size)

    def send_again(self, step: Step, group: Group, message: DeadMessage) -> None:
        """Have a message that an ack has sent, and that was refused, sent once more."""
        assert message.sent_to is not None
        target, deliver_ms = message.sent_to
        self._outbox.put(step, target, Letter(MESSAGE, group.group_id, message.offset, deliver_ms, message.fields))

    def moved(self, step: Step, message: DeadMessage, offset: bytes) -> None:
        """A dead message has another place now: its letter says so."""
        if isinstance(message.forward, tuple):
            letter = self._outbox.find(*message.forward, step.view)
            if letter is not None:
                self._outbox.rewrite(step, *message.forward, letter._replace(offset=offset))

    def bury_expired(self, step: Step, group: Group, entry: Waiting) -> bool:
        """Bury what has expired of a waiting entry, as much as the entry's budget allows: what is left waits apart.
        Whether any had expired."""
        expired = self._waiting.remove_expired(step, group, entry)
        if expired:
            death = Death(EXPIRED, entry.attempt, entry.error, entry.history)
            done = self.bury_some(step, group, expired, entry.kept, death)
            left = rows.behind(expired, sum([one.length for one in done]))
            if left:
                self._waiting.add(step, group, entry.apart(left))
        return bool(expired)

    def _count(self, reason: str, count: int) -> None:
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
    group_id: int,
    messages: Iterable[Message],
    death: Death,
    forward: Callable[[Message], tuple[int, int, int]] | None = None,
) -> tuple[int, int]:
    """Put the rows of messages that died together. How many there were, and their bytes. `forward`: has a message sent
    to the dead letter topic, and returns where it stands in the outbox."""
    view, now_ms = step.view, step.now_ms
    count = size = 0
    reason, attempts, error, history = death
    for message in messages:
        fields = attempts, reason, error, now_ms, message.id, message.created_ms, message.fields, history
        if forward is not None:
            row = rows.pack(*fields, message.lives, forward(message))
        else:
            row = rows.pack(*fields, message.lives) if message.lives else rows.pack(*fields)
        view.put(rows.of_group(rows.DEAD, group_id, message.offset), row)
        count += 1
        size += len(row)
    return count, size


def load(key: bytes, row: bytes) -> DeadMessage:
    attempts, reason, error, dead_ms, message_id, created_ms, fields, history, *more = rows.unpack(row)
    lives, forward = rows.with_defaults(more, (), None)
    earlier = load_lives(lives)
    died = attempts, reason, error, dead_ms
    sent_to = None
    if isinstance(forward, list):
        topic, partition, number, *is_sent = forward
        place = Target(topic, partition), number
        forward, sent_to = (None, place) if is_sent else (place, None)
    return DeadMessage(key[5:], *died, message_id, created_ms, fields, load_history(history), earlier, forward, sent_to)


def undeliverable_row(letter: Letter, target: Target, error: str, now_ms: int) -> bytes:
    """The row of a message that an ack has sent, and that was refused."""
    died = 0, UNDELIVERABLE, error, now_ms, letter.offset, now_ms
    return rows.pack(*died, letter.fields, (), (), (*target, letter.deliver_ms, 0))


def note_refused(step: Step, group_id: int, offset: bytes, error: str) -> None:
    """Write into the row of a dead message why it was not taken where it was to go."""
    key = rows.of_group(rows.DEAD, group_id, offset)
    row = step.view.get(key)
    assert row is not None, "who was refused is there"
    *fields, _ = rows.unpack(row)
    step.view.put(key, rows.pack(*fields, error))


def find(group: Group, offset: bytes, view: View) -> DeadMessage | None:
    if not group.dead.total():
        return None
    key = rows.of_group(rows.DEAD, group.group_id, offset)
    row = view.get(key)
    return None if row is None else load(key, row)


def scan(
    group_id: int, after: bytes | None, limit: int, max_bytes: int, view: View, *, is_newest: bool = False
) -> list[DeadMessage]:
    """Return dead messages of a group in the order of their offsets, those above `after`.

    If `is_newest`, the highest offset comes first, and those below `after` are meant.
    """
    start, stop = rows.group_bounds(rows.DEAD, group_id)
    if after is not None and is_newest:
        stop = rows.of_group(rows.DEAD, group_id, after)
    elif after is not None:
        start = rows.after(rows.of_group(rows.DEAD, group_id, after))
    found = view.scan(start, stop, limit=limit, max_bytes=max_bytes, reverse=is_newest)
    return [load(key, row) for key, row in found]
