"""What is sent from the outbox, and what becomes of it: batches are opened, and end when the other partition has said
what it did with them.

A dead letter is copied when it comes into a batch: whatever is done to it then, what is sent stays the same. Until then
it is redriven and purged as any other. Its row goes once it was stored. One that is refused for good stays dead, and
says why. A batch of which some letter is refused is cut in halves until that is known.
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
from sandq.partition.base import rows
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
"""It was refused, and a smaller batch, or one with another number, is to be sent next."""
STALE: Final = "stale"
"""There is no such batch (any more)."""
PASSED_MOST: Final = 2048
"""Letters that were withdrawn, and are passed over in one entry."""
_NO_LIMIT: Final = 1 << 30


class Forwarding:
    def __init__(self, shared: SharedState, group_state: GroupState, outbox: Outbox) -> None:
        self._shared = shared
        self._groups = group_state.groups
        self._kept = group_state.kept
        self._outbox = outbox

    def settle(self, step: Step) -> None:
        """Make a batch of each line that has rows and none."""
        for target in sorted(self._outbox.restless):
            self._begin(step, target)

    def apply(self, step: Step, command: c.OutboxSent | c.OutboxRefused) -> str:
        """End a batch, or send it otherwise. What became of it."""
        target = Target(command.topic, command.partition)
        batch = self._outbox.batch_of(target)
        if batch is None or batch.epoch != command.epoch:
            return STALE
        letters = self._outbox.batch_letters(target, step.view)
        if isinstance(command, c.OutboxRefused):
            if command.error is None:
                self._outbox.begin(step, target, batch.last_seq, batch.size)
                return CUT
            if len(letters) > 1:
                # One of them is refused, and none was stored. Under a number of its own: a copy of the whole batch that
                # was held up somewhere is refused then, or was stored before this one is.
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

    # -- what becomes of letters ----------------------------------------------------------------------------------

    def _sent(self, step: Step, target: Target, seq: int, letter: Letter) -> None:
        self._shared.totals.forwarded += 1
        found = self._dead_of(target, seq, letter, step.view)
        if found is None:
            return
        group, message = found
        step.view.delete(rows.of_group(rows.DEAD, group.group_id, message.offset))
        group.dead[message.reason] -= 1
        self._kept.expire_move(step, message.offset, message.id)
        self._groups.store(step, group)

    def _refused(self, step: Step, target: Target, seq: int, letter: Letter, error: str) -> None:
        self._shared.totals.undeliverable += 1
        error = error[: FIXED.error_chars]
        if letter.kind == MESSAGE:
            # One whose group was deleted since has nobody who could see it any more.
            if (group := self._groups.by_id.get(letter.group_id)) is not None:
                row = dead_letters.undeliverable_row(letter, target, error, step.now_ms)
                step.view.put(rows.of_group(rows.DEAD, group.group_id, letter.offset), row)
                group.dead[dead_letters.UNDELIVERABLE] += 1
                self._groups.store(step, group)
            return
        found = self._dead_of(target, seq, letter, step.view)
        if found is not None:
            group, message = found
            dead_letters.note_refused(step, group.group_id, message.offset, error)

    def _dead_of(self, target: Target, seq: int, letter: Letter, view: View) -> tuple[Group, DeadMessage] | None:
        """The dead letter that a letter is about, and its group; None: it was dropped with its group, or by a seek, or
        has died anew since."""
        group = self._groups.by_id.get(letter.group_id)
        if group is None or letter.kind != DEAD:
            return None
        message = dead_letters.find(group, letter.offset, view)
        return None if message is None or message.forward != (target, seq) else (group, message)

    # -- batches --------------------------------------------------------------------------------------------------

    def _begin(self, step: Step, target: Target) -> None:
        """Make a batch of the first letters of a line; of none, when very many were withdrawn."""
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
        """A letter with all that is sent of it; None: there is nothing to be sent any more."""
        if letter.kind != DEAD:
            return letter
        found = self._dead_of(target, seq, letter, view)
        if found is None:
            return None
        if letter.fields:
            return letter  # it was in a batch that was cut
        group, message = found
        sent = forwarded(group, message, *self._outbox.ends(target), self._outbox.partition)
        return letter._replace(fields=sent)


def forwarded(group: Group, message: DeadMessage, kind: str, source: str, partition: int) -> Fields:
    """Return a dead letter as it is sent to a topic of this kind: its value and key, and headers that say where it
    comes from and why it is dead. Its ttl is over, and its unique key may be taken there. `source`, `partition`: where
    it died."""
    fields = message.fields
    sent: Fields = {column: fields[column] for column in (Column.VALUE, Column.KEY) if column in fields}
    headers: dict[str, Any] = {}
    cell = fields.get(Column.HEADERS)
    try:
        headers = headers_unpack(cell)
        headers_pack(headers, max_bytes=_NO_LIMIT)
    except InvalidRequest:
        headers = {DEAD_HEADERS_HEADER: cell}  # of a client that has headers of its own kind
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
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data
