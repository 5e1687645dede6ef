"""Compute how far ahead requests schedule messages, to enforce the quota `max_delay_ms`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from sandq.model.batch import Batch, Column, plain_single
from sandq.model.errors import QuotaExceeded, SandqError
from sandq.model.quotas import Quota
from sandq.model.times import format_duration
from sandq.protocol.frames import Frame, Type

DELAYING: Final = frozenset({Type.MOVE, Type.ACK_THEN, Type.SCHEDULE_PUT, Type.JOB_START})
"""Requests other than PRODUCE that set the delivery times of messages."""


def check_delay(principal: str, quota: Quota, delay_ms: int) -> None:
    """Raise QuotaExceeded if a delay is longer than the quota allows."""
    most = quota.max_delay_ms
    if most is None or delay_ms <= most:
        return
    refusal = QuotaExceeded(
        f"a message due in {format_duration(delay_ms)}: {principal} may send none beyond {format_duration(most)} "
        "(max_delay_ms)",
        quota="max_delay_ms",
        maximum=most,
        principal=principal,
    )
    refusal.retriable = False  # a retry of the same request would fail, too
    raise refusal


class Ahead(NamedTuple):
    """How far ahead a batch sends messages."""

    delay_ms: int
    """The longest delay."""
    messages: int | None
    """Number of messages that are not due yet. None if all messages are due."""


AT_ONCE: Final = Ahead(0, None)


def ahead_of_batch(raw: bytes, now_ms: int) -> Ahead:
    """Return how far ahead a batch sends messages. Invalid bytes count as 0: another check rejects them."""
    if plain_single(raw) is not None:
        return AT_ONCE
    try:
        batch = Batch.parse(raw)
    except SandqError:
        return AT_ONCE
    if Column.DELIVER_MS not in batch.columns:
        return AT_ONCE
    origin_ms = 0 if batch.relative else now_ms
    delay_ms = batch.max_deliver_ms - origin_ms
    if delay_ms <= 0:
        return AT_ONCE
    times_ms = batch.int_column(Column.DELIVER_MS) or ()
    return Ahead(delay_ms, sum([at_ms is not None and at_ms > origin_ms for at_ms in times_ms]))


def delay_of_request(frame: Frame, now_ms: int) -> int:
    """Return how far ahead a request of `DELAYING` sends messages, in ms.

    The frame is not validated yet. Malformed fields are ignored here: the parser of the request rejects them."""
    return max(_delays(frame, now_ms), default=0)


def _delays(frame: Frame, now_ms: int) -> Iterator[int]:
    """Yield how far ahead a request sends messages, in ms: each delay, or each time minus `now_ms`.

    The frame is not validated, so each type is checked here."""
    fields = frame[2:]
    if frame[0] == Type.JOB_START:
        arguments = fields[4] if len(fields) > 4 and type(fields[4]) is dict else {}
        for name, origin_ms in (("to_ms", now_ms), ("shift_ms", 0)):
            if type(arguments.get(name)) is int:
                yield arguments[name] - origin_ms
        return
    position = {Type.MOVE: 2, Type.SCHEDULE_PUT: 2, Type.ACK_THEN: 4}[Type(frame[0])]
    for row in fields[position] if len(fields) > position and type(fields[position]) is list else ():
        if type(row) is not list or len(row) < 3:
            continue
        if frame[0] == Type.SCHEDULE_PUT:
            yield _first_delay(row[2], now_ms)
        elif type(row[1]) is int:
            yield row[1] - (0 if row[2] is True else now_ms)


def _first_delay(settings: Any, now_ms: int) -> int:
    """Return the time until a schedule first fires, in ms. Only its start and its interval are taken into account."""
    fields = settings if type(settings) is dict else {}
    start_ms, every_ms = fields.get("start_ms"), fields.get("every_ms")
    return start_ms - now_ms if type(start_ms) is int else every_ms if type(every_ms) is int else 0
