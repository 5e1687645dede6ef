"""Acks that send messages, and nacks that send messages if their messages are dead.

One entry contains the ack and the messages to send, so the node applies both or neither. Messages to the same partition
are stored immediately, all others go through the outbox.

If such an ack is repeated because its reply was lost, its message is acked already, and nothing is sent again. If an
ack that sent nothing has acked the message, the new ack is rejected: otherwise the caller would think that its messages
were sent. A repeated nack that made its message dead sends nothing again, either.
"""

from __future__ import annotations

from collections.abc import Sequence

from sandq.model import offsets
from sandq.model.errors import Conflict, InvalidRequest, Overloaded
from sandq.model.limits import FIXED
from sandq.model.outbox import Target
from sandq.partition import commands as c
from sandq.partition.base.step import Step
from sandq.partition.leasing.settlement import LeaseSettlement, Lost
from sandq.partition.log.appends import Appends
from sandq.partition.outbox import MESSAGE, Letter, Outbox
from sandq.partition.shared_state import SharedState


class SendingAcks:
    def __init__(self, shared: SharedState, settlement: LeaseSettlement, appends: Appends, outbox: Outbox) -> None:
        self._shared = shared
        self._settlement = settlement
        self._appends = appends
        self._outbox = outbox

    def apply(self, step: Step, command: c.AckThen) -> list[Lost]:
        """Ack and send, unless the lease of any of the messages was lost. Return the lost messages, as for an `Ack` of
        one item. Raise Overloaded if the outbox is full. Raise Conflict if acks that sent nothing have acked all
        messages.

        With an `end`: nack one message, and send if it is dead. Raise InvalidRequest for several messages."""
        token, what, end = command.token, command.what, command.end
        if end is not None and not c.is_one(what):
            raise InvalidRequest("a nack that sends messages names one message by its offset")
        lost, is_fresh = self._settlement.outcome(token, what, is_ack=end is None)
        if lost is not None or not is_fresh:  # nothing to ack: the lease was lost, or the ack is repeated
            if lost is None and command.messages:
                self._check_repeated(command)
            return [lost]
        nack = None if end is None else c.NackItem(token, what, command.delay_ms, command.error, end=end)
        if nack is None:
            self._send(step, command)
            return self._settlement.ack_sending(step, token, what)
        if self._settlement.makes_dead(nack):
            self._check_budget()
            self._send(step, command)
            self._settlement.note_sending(token, what)
        self._settlement.nack(step, [nack])
        return [None]

    def _check_budget(self) -> None:
        """Raise Overloaded if earlier commands of the entry have spent its budget: the message would not die in this
        entry."""
        if self._shared.is_budget_spent:
            raise Overloaded(
                "the entry has written too many messages again: nothing was settled; try again in a moment"
            )

    def _send(self, step: Step, command: c.AckThen) -> None:
        """Store the messages of a command, or put them into the outbox. Raise Overloaded, and change nothing, if the
        outbox has no capacity."""
        messages = [c.SentMessage(*message) for message in command.messages]
        self._check_outbox([message for message in messages if message.topic is not None])
        group_id = self._settlement.group_of(command.token)
        for topic, partition, at_ms, is_delay, fields in messages:
            if is_delay and at_ms is not None:
                at_ms += step.stamp_ms
            if topic is None:
                wanted_ms = step.stamp_ms if at_ms is None else at_ms
                self._appends.store(step, fields, wanted_ms)
            else:
                assert partition is not None, "a message to another topic names its partition"
                deliver_ms = 0 if at_ms is None else min(at_ms, offsets.U48_MAX)
                message_id = offsets.pack(step.floor_ms, step.index, step.next_position(), self._appends.partition)
                letter = Letter(MESSAGE, group_id, message_id, deliver_ms, fields)
                self._outbox.put(step, Target(topic, partition), letter)

    def _check_repeated(self, command: c.AckThen) -> None:
        """Raise Conflict unless `command`, whose messages are all acked already, repeats an ack that sent messages."""
        if not self._settlement.has_sent(command.token, command.what):
            raise Conflict(
                "it was acked before, by an ack that sent nothing, and nothing is sent now: ack it once, with what is "
                "to be sent"
            )

    def _check_outbox(self, messages: Sequence[c.SentMessage]) -> None:
        """Raise Overloaded if the outbox has no capacity for these messages."""
        size = sum([Letter(MESSAGE, 0, b"", 0, message.fields).size for message in messages])
        messages_most, bytes_most = FIXED.outbox_messages, FIXED.outbox_bytes
        outbox = self._outbox
        if not outbox.has_capacity(len(messages), size):
            raise Overloaded(
                f"{outbox.ack_messages} messages of {outbox.ack_bytes} bytes that acks have sent wait for other "
                f"partitions (limits {messages_most} and {bytes_most}): nothing was settled; try again in a moment"
            )
