"""Sends the outbox: begins batches, and ends them when the other partition has replied.

A dead message is copied when it enters a batch. From then on, changes of the message do not change the batch. Until
then, the message can be redriven and purged like any other dead message. Its row is deleted once the other partition
has stored it. If the other partition rejects a message for good, it stays dead, with the reason. If some letter of a
batch is rejected, the batch is halved until that letter is alone.
"""

from __future__ import annotations

from typing import Any, Final

from sandq.model import offsets
from sandq.model.batch import Column, headers_pack, headers_unpack
from sandq.model.errors import InvalidRequest
from sandq.model.limits import FIXED
from sandq.model.outbox import (
    DEAD_AT_HEADER,
    DEAD_ATTEMPTS_HEADER,
    DEAD_CREATED_HEADER,
    DEAD_ERROR_HEADER,
    DEAD_GROUP_HEADER,
    DEAD_HEADERS_HEADER,
    DEAD_ID_HEADER,
    DEAD_PARTITION_HEADER,
    DEAD_PRIORITY_HEADER,
    DEAD_REASON_HEADER,
    DEAD_TENANT_HEADER,
    DEAD_TOPIC_HEADER,
    DEAD_UNIQUE_KEY_HEADER,
    Target,
    takes_priority,
    takes_tenant,
)
from sandq.partition import commands as c
from sandq.partition.base.rows import Fields
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.groups import dead_letters
from sandq.partition.groups.dead_letters import DeadMessage
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_state import GroupState
from sandq.partition.outbox import DEAD, MESSAGE, Letter, Outbox
from sandq.partition.shared_state import SharedState

SENT: Final = "sent"
REFUSED: Final = "refused"
CUT: Final = "cut"
"""The batch was rejected. A smaller batch, or one with another epoch, is sent next."""
STALE: Final = "stale"
"""This batch does not, or no longer, exist."""
PASSED_MOST: Final = 2048
"""Maximum number of withdrawn letters that one entry skips."""
_NO_LIMIT: Final = 1 << 30


class Forwarding:
    def __init__(self, shared: SharedState, group_state: GroupState, outbox: Outbox) -> None:
        self._shared = shared
        self._groups = group_state.groups
        self._kept = group_state.kept
        self._outbox = outbox

    def settle(self, step: Step) -> None:
        """Begin a batch for each queue that has rows but no batch."""
        for target in sorted(self._outbox.restless):
            self._begin(step, target)

    def apply(self, step: Step, command: c.OutboxSent | c.OutboxRefused) -> str:
        """End a batch, or change how it is sent. Return the outcome."""
        target = Target(command.topic, command.partition)
        batch = self._outbox.batch_of(target)
        if batch is None or batch.epoch != command.epoch:
            return STALE
        letters = self._outbox.batch_letters(target, step.view)
        if isinstance(command, c.OutboxRefused):
            if command.error is None:
                # The target refused only the epoch. It will accept the same batch under a new epoch.
                self._outbox.begin(step, target, batch.last_seq, batch.size)
                return CUT
            if len(letters) > 1:
                # One of the letters was rejected, and none was stored. Send half of them under a new epoch. A delayed
                # copy of the whole batch is then rejected, or, if it is stored first, the half is rejected.
                half = letters[: len(letters) // 2]
                self._outbox.begin(step, target, half[-1][0], len(half))
                return CUT
        for seq, letter in letters:
            self._outbox.remove(step, target, seq)
            if isinstance(command, c.OutboxSent):
                self._sent(step, target, seq, letter)
            else:
                self._refused(step, target, seq, letter, command.error or "")
        self._outbox.end(step, target)
        return SENT if isinstance(command, c.OutboxSent) else REFUSED

    # -- outcomes of letters --------------------------------------------------------------------------------------

    def _sent(self, step: Step, target: Target, seq: int, letter: Letter) -> None:
        """Note that another partition has stored a letter: delete the dead message that the letter copied, if any."""
        self._shared.totals.forwarded += 1
        found = self._dead_of(target, seq, letter, step.view)
        if found is None:
            return
        group, message = found
        dead_letters.delete_row(step, group, message)
        group.dead[message.reason] -= 1
        self._kept.expire_move(step, message.offset, message.id)
        self._groups.store(step, group)

    def _refused(self, step: Step, target: Target, seq: int, letter: Letter, error: str) -> None:
        """Note that another partition has rejected a letter for good: its message is dead in this partition, with the
        reason."""
        self._shared.totals.undeliverable += 1
        error = error[: FIXED.error_chars]
        if letter.kind == MESSAGE:
            # If the group was deleted meanwhile, there is no list of dead messages that could contain the message.
            if (group := self._groups.by_id.get(letter.group_id)) is not None:
                dead_letters.put_undeliverable(step, group, letter, target, error)
                group.dead[dead_letters.UNDELIVERABLE] += 1
                self._groups.store(step, group)
            return
        found = self._dead_of(target, seq, letter, step.view)
        if found is not None:
            group, message = found
            dead_letters.note_refused(step, group, message, error)
            self._groups.store(step, group)

    def _dead_of(self, target: Target, seq: int, letter: Letter, view: View) -> tuple[Group, DeadMessage] | None:
        """Return (group, dead message) of a letter. None if the message was deleted with its group or by a seek, or if
        it was redriven and has died again."""
        group = self._groups.by_id.get(letter.group_id)
        if group is None or letter.kind != DEAD:
            return None
        message = dead_letters.find(group, letter.offset, view)
        return None if message is None or message.forward != (target, seq) else (group, message)

    # -- batches --------------------------------------------------------------------------------------------------

    def _begin(self, step: Step, target: Target) -> None:
        """Begin a batch of the first letters of a queue. If very many letters were withdrawn, the batch is empty."""
        view = step.view
        last_seq = count = size = passed = 0
        while not count and passed < PASSED_MOST:
            letters = self._outbox.letters(target, view)
            if not letters:
                self._outbox.drop(target)
                return
            for seq, letter in letters:
                if size >= FIXED.outbox_batch_bytes:
                    break
                whole = self._whole(target, seq, letter, view)
                if whole is None:
                    self._outbox.remove(step, target, seq)
                    last_seq, passed = seq, passed + 1
                    continue
                if whole is not letter:
                    self._outbox.rewrite(step, target, seq, whole)
                last_seq, count, size = seq, count + 1, size + whole.size
        self._outbox.begin(step, target, last_seq, count)

    def _whole(self, target: Target, seq: int, letter: Letter, view: View) -> Letter | None:
        """Return a letter with all fields to send. None if its dead message no longer exists."""
        if letter.kind != DEAD:
            return letter
        found = self._dead_of(target, seq, letter, view)
        if found is None:
            return None
        if letter.fields:
            return letter  # the letter was in a batch that was halved
        group, message = found
        sent = forwarded(group, message, *self._outbox.ends(target), self._outbox.partition)
        return letter._replace(fields=sent)


def forwarded(group: Group, message: DeadMessage, kind: str, source: str, partition: int) -> Fields:
    """Return a dead message as it is sent to a topic of this kind: its value and key, with headers that contain its
    origin and the reason of its death. Left out are the ttl, which has ended, the unique key, which may be taken in the
    target, and the retry rules, because the target has its own. `source`, `partition`: topic and partition in which the
    message died."""
    fields = message.fields
    sent: Fields = {column: fields[column] for column in (Column.VALUE, Column.KEY) if column in fields}
    headers: dict[str, Any] = {}
    cell = fields.get(Column.HEADERS)
    try:
        headers = headers_unpack(cell)
        headers_pack(headers, max_bytes=_NO_LIMIT)
    except InvalidRequest:
        headers = {DEAD_HEADERS_HEADER: cell}  # headers in a client's own format
    headers |= {
        DEAD_TOPIC_HEADER: source,
        DEAD_PARTITION_HEADER: partition,
        DEAD_ID_HEADER: offsets.to_text(message.id),
        DEAD_GROUP_HEADER: group.name,
        DEAD_REASON_HEADER: message.reason,
        DEAD_ERROR_HEADER: message.error,
        DEAD_ATTEMPTS_HEADER: message.attempts,
        DEAD_AT_HEADER: message.dead_ms,
        DEAD_CREATED_HEADER: message.created_ms,
    }
    unique_key = fields.get(Column.UNIQUE_KEY)
    if isinstance(unique_key, bytes):
        headers[DEAD_UNIQUE_KEY_HEADER] = _text_or_bytes(unique_key)
    for column, header, is_taken in (
        (Column.PRIORITY, DEAD_PRIORITY_HEADER, takes_priority(kind)),
        (Column.TENANT, DEAD_TENANT_HEADER, takes_tenant(kind)),
    ):
        if column not in fields:
            continue
        if is_taken:
            sent[column] = fields[column]
        else:
            cell = fields[column]
            headers[header] = cell.decode("utf-8", "replace") if isinstance(cell, bytes) else cell
    return sent | {Column.HEADERS: headers_pack(headers, max_bytes=_NO_LIMIT)}


def _text_or_bytes(data: bytes) -> str | bytes:
    """Return the text that bytes encode in UTF-8. If they are not UTF-8, return the bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
