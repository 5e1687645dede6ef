"""Acks that send messages. One entry contains the ack and the messages, so the node applies both or neither.
Messages to the same partition are stored immediately, all others go through the outbox.

If such an ack is repeated because its reply was lost, its message is acked already, and nothing is sent again. If an
ack that sent nothing has acked the message, the new ack is rejected: otherwise the caller would think that its messages
were sent.
"""

from __future__ import annotations

from collections.abc import Sequence

from sandq.model import offsets
from sandq.model.errors import Conflict, Overloaded
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
        messages."""
        lost, is_fresh = self._settlement.outcome(command.token, command.what)
        if lost is not None or not is_fresh:  # nothing to ack: the lease was lost, or the ack is repeated
            if lost is None and command.messages:
                self._check_repeated(command)
            return [lost]
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
        return self._settlement.ack_sending(step, command.token, command.what)

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
                f"partitions (limits {messages_most} and {bytes_most}): nothing was acked; ack again in a moment"
            )
