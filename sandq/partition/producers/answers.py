"""Replies to a producer's batches, in compact form, and how to restore them.

A reply is not stored, but computed again from two sources: the position and time at which the batch was stored, and the
batch itself, which the producer sends again. A checksum shows whether it is the same batch. If other messages have the
batch's unique keys, their ids cannot be computed, so they are stored in a row. PERSISTED: the layout of `Answer`.
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
WHOLE, EACH, EACH_BUT, UNKNOWN, WITH_TAKEN_KEYS, SKIPPED = range(6)
"""How a batch was stored.

WHOLE: one row. EACH: one row per message. EACH_BUT: one row per message; the answer row has the ids for messages that
were not stored. UNKNOWN: like EACH_BUT, but there are too many such ids to store. WITH_TAKEN_KEYS: like EACH_BUT, and
the answer row also has the outcomes of taken unique keys; if there are no ids and no outcomes, there is no answer row.
SKIPPED: an operator skipped the batch, and nothing is stored.
"""
WITH_ROW = (EACH_BUT, WITH_TAKEN_KEYS)
"""Values of `how` for which an answer row may exist."""
_LAYOUT = struct.Struct(">BQIQQI")
ANSWER_BYTES = _LAYOUT.size


class Answer(NamedTuple):
    """How and where a batch was stored: index of the Raft entry, position in the entry, stamp from which its delays
    count, and floor at that time."""

    how: int
    entry: int
    place: int
    now_ms: int
    floor_ms: int
    crc: int
    """Checksum of the batch, combined with the checksum of the previous batches."""

    def pack(self) -> bytes:
        """Return the stored bytes."""
        return _LAYOUT.pack(*self)


def unpack(data: bytes) -> Iterator[Answer]:
    """Yield packed answers, one after the other."""
    return map(Answer._make, _LAYOUT.iter_unpack(data))


def remember(
    step: Step, command: c.Append, stored: tuple[bytes, int] | Stored, partition: int, position: int
) -> Answer:
    """Return the answer to keep for a batch that was just stored. Put the ids that cannot be computed into a row.

    `position`: position of the batch's first message in the entry."""
    how = WHOLE
    if isinstance(stored, Stored):
        how = EACH
        if command.split:
            batch = Batch.parse(command.batch)
            others = _others(
                stored, placed_each(batch, step.index, position, partition, step.stamp_ms, step.floor_ms)[1]
            )
            detailed = None if stored.outcomes is None else _with_outcomes(others, stored.outcomes)
            kept: Sequence[Any] = others
            if len(others) > ANSWER_IDS:
                how = UNKNOWN
            elif detailed is not None and len(detailed) <= ANSWER_IDS:
                how, kept = WITH_TAKEN_KEYS, detailed
            elif others:
                how = EACH_BUT
            if kept and how in WITH_ROW:
                _, _, number = command.numbers
                step.view.put(rows.answer_key(command.producer_id, number), rows.pack(*kept))
    return Answer(how, step.index, position, step.stamp_ms, step.floor_ms, _crc(command))


def recall(answer: Answer, command: c.Append, partition: int, view: View) -> tuple[bytes, int] | Stored:
    """Return the first reply to a repeated batch. Raise Conflict if the batch differs from the stored one. Raise
    AlreadyStored if it is the same batch, but its reply was not kept."""
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
    for position, message_id, state, *outcome in rows.unpack(row) if row is not None else ():
        column[position] = message_id if message_id is not None else column[position]
        if state is not None:
            refused.append((position, state))
        if outcome:
            outcomes.append((position, outcome[0], outcome[1]))
    return Stored(b"".join(column), refused, outcomes if answer.how == WITH_TAKEN_KEYS else None)


def already_stored(command: c.Append) -> AlreadyStored:
    """Return the error for a repeated batch whose reply is no longer kept."""
    producer_id, epoch, number = command.numbers
    return AlreadyStored(
        f"batch {number} of producer {producer_id} in epoch {epoch} was stored before, and not again now; "
        "where its messages are is not known any more: look for them with LIST or FETCH"
    )


def _others(stored: Stored, own: list[bytes]) -> list[tuple[int, bytes, str | None]]:
    """Return (position, id, state if rejected) of the messages that were not stored because of another message."""
    states = dict(stored.refused)
    answered = [stored.offsets[at : at + 16] for at in range(0, len(stored.offsets), offsets.OFFSET_BYTES)]
    return [
        (at, message_id, states.get(at))
        for at, (message_id, offset) in enumerate(zip(answered, own, strict=True))
        if message_id != offset
    ]


def _with_outcomes(
    others: Sequence[tuple[int, bytes, str | None]], outcomes: Sequence[tuple[int, str, bytes | str]]
) -> list[tuple[Any, ...]]:
    """Return `others` combined with the outcomes: (position, id or None, state or None, outcome, its detail)."""
    found: dict[int, tuple[Any, ...]] = {other[0]: other for other in others}
    for at, outcome, detail in outcomes:
        found[at] = (*found.get(at, (at, None, None)), outcome, detail)
    return [found[at] for at in sorted(found)]


def _crc(command: c.Append) -> int:
    """Return the checksum of a batch, combined with those of the previous batches."""
    return _crc_with_chain(int.from_bytes(command.batch[4:8], "little"), command.sequence)


def _crc_with_chain(batch_crc: int, sequence: int) -> int:
    """Combine the CRC of a batch with the chain in its sequence number: a checksum of it and all batches before it."""
    return batch_crc ^ chain_of(sequence)


def skipped(step: Step, command: c.Skipped) -> Answer:
    """Return the answer to keep for a skipped batch."""
    crc = _crc_with_chain(command.batch_crc, command.sequence)
    return Answer(SKIPPED, step.index, step.position, step.now_ms, step.floor_ms, crc)
