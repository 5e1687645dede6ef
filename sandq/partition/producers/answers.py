"""What a producer's batch was answered, kept small, and the same answer again.

An answer is not kept but made anew, from where and when the batch was placed and from the batch itself, which the
producer sends with its repetition (the checksum tells whether it is the same). Only ids of other messages, those that
had the batch's unique keys, do not follow from that: they are in a row of their own. PERSISTED: `Answer`'s layout.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from sandq.model import offsets
from sandq.model.batch import Batch, peek
from sandq.model.errors import AlreadyStored, Conflict
from sandq.model.limits import FIXED
from sandq.model.sequence import chain_of
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.skips import refusal
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.log.appends import Stored, moment_of, placed_each

ANSWER_IDS = FIXED.answer_ids
WHOLE, EACH, EACH_BUT, UNKNOWN, TOLD, SKIPPED = range(6)
"""The batch is one row; each message has a row; the same, but for ids in a row; the same, and these ids are too many
to be kept. TOLD: each has a row, but for ids in a row, which has what was told of
unique keys that were taken, too; without it there was nothing of both. SKIPPED: an operator skipped the batch, and
nothing of it is stored."""
WITH_ROW = (EACH_BUT, TOLD)
"""Those that may have one."""
_LAYOUT = struct.Struct(">BQIQQI")
ANSWER_BYTES = _LAYOUT.size


class Answer(NamedTuple):
    """How a batch was stored, and where it was placed: index of the Raft entry, place in it, what its delays counted
    from (the stamp), and the floor then."""

    how: int
    entry: int
    place: int
    now_ms: int
    floor_ms: int
    crc: int
    """The batch's own, and the chain of those before it."""

    def pack(self) -> bytes:
        return _LAYOUT.pack(*self)


def unpack(data: bytes) -> Iterator[Answer]:
    """Answers, one behind the other."""
    return map(Answer._make, _LAYOUT.iter_unpack(data))


def remember(
    step: Step, command: c.Append, stored: tuple[bytes, int] | Stored, partition: int, position: int
) -> Answer:
    """Return what to keep of the answer to a batch that was just stored, and put ids that do not follow from it into
    a row. `position` is that of the batch's first message."""
    how = WHOLE
    if isinstance(stored, Stored):
        how = EACH
        if command.split:
            batch = Batch.parse(command.batch)
            others = _others(
                stored, placed_each(batch, step.index, position, partition, step.stamp_ms, step.floor_ms)[1]
            )
            told = None if stored.outcomes is None else _with_told(others, stored.outcomes)
            kept: Sequence[Any] = others
            if len(others) > ANSWER_IDS:
                how = UNKNOWN
            elif told is not None and len(told) <= ANSWER_IDS:
                how, kept = TOLD, told
            elif others:
                how = EACH_BUT
            if kept and how in WITH_ROW:
                _, _, number = command.numbers
                step.view.put(rows.answer_key(command.producer_id, number), rows.pack(*kept))
    return Answer(how, step.index, position, step.stamp_ms, step.floor_ms, _crc(command))


def recall(answer: Answer, command: c.Append, partition: int, view: View) -> tuple[bytes, int] | Stored:
    """The answer that the same batch had. Raises Conflict when this is another batch, AlreadyStored when it is the
    same one and its answer was not kept."""
    producer_id, epoch, number = command.numbers
    if answer.crc != _crc(command):
        raise Conflict(
            f"producer {producer_id} stored another batch as number {number} of epoch {epoch}, or others before it; "
            "nothing was stored now. A producer id is of one producer, and a batch sent again is sent as it was"
        )
    if answer.how == SKIPPED:
        raise refusal()
    if answer.how == WHOLE:
        header = peek(command.batch)
        moment_ms = moment_of(header, answer.now_ms, answer.floor_ms)
        assert moment_ms is not None
        return offsets.pack(moment_ms, answer.entry, answer.place, partition), header.count
    if answer.how == UNKNOWN:
        raise already_stored(command)
    batch = Batch.parse(command.batch)
    _, column = placed_each(batch, answer.entry, answer.place, partition, answer.now_ms, answer.floor_ms)
    refused: list[tuple[int, str]] = []
    outcomes: list[tuple[int, str, bytes | str]] = []
    row = view.get(rows.answer_key(producer_id, number)) if answer.how in WITH_ROW else None
    assert row is not None or answer.how != EACH_BUT
    for position, message_id, state, *told in rows.unpack(row) if row is not None else ():
        column[position] = message_id if message_id is not None else column[position]
        if state is not None:
            refused.append((position, state))
        if told:
            outcomes.append((position, told[0], told[1]))
    return Stored(b"".join(column), refused, outcomes if answer.how == TOLD else None)


def already_stored(command: c.Append) -> AlreadyStored:
    """The error about a batch whose answer is not kept."""
    producer_id, epoch, number = command.numbers
    return AlreadyStored(
        f"batch {number} of producer {producer_id} in epoch {epoch} was stored before, and not again now; "
        "where its messages are is not known any more: look for them with LIST or FETCH"
    )


def _others(stored: Stored, own: list[bytes]) -> list[tuple[int, bytes, str | None]]:
    """(position, id, state when refused) of the messages that gave way to another one."""
    states = dict(stored.refused)
    answered = [stored.offsets[at : at + 16] for at in range(0, len(stored.offsets), offsets.OFFSET_BYTES)]
    return [
        (at, message_id, states.get(at))
        for at, (message_id, offset) in enumerate(zip(answered, own, strict=True))
        if message_id != offset
    ]


def _with_told(
    others: Sequence[tuple[int, bytes, str | None]], outcomes: Sequence[tuple[int, str, bytes | str]]
) -> list[tuple[Any, ...]]:
    """The same, and what was told of messages, behind the id and state of those that have one: (position, id or None,
    state or None, outcome, its detail)."""
    found: dict[int, tuple[Any, ...]] = {other[0]: other for other in others}
    for at, outcome, detail in outcomes:
        found[at] = (*found.get(at, (at, None, None)), outcome, detail)
    return [found[at] for at in sorted(found)]


def _crc(command: c.Append) -> int:
    return _chained(int.from_bytes(command.batch[4:8], "little"), command.sequence)


def _chained(batch_crc: int, sequence: int) -> int:
    return batch_crc ^ chain_of(sequence)


def skipped(step: Step, command: c.Skipped) -> Answer:
    """Return what to keep of the answer to a batch that was skipped."""
    crc = _chained(command.batch_crc, command.sequence)
    return Answer(SKIPPED, step.index, step.position, step.now_ms, step.floor_ms, crc)
