"""What a batch must be like to be taken."""

from __future__ import annotations

from sandq.model import offsets
from sandq.model.batch import Batch, Column, plain_single
from sandq.model.errors import InvalidRequest, InvalidTime, TooLarge
from sandq.model.limits import Limits
from sandq.model.times import LEAST_INSTANT_MS

TAKEN = frozenset({Column.VALUE, Column.KEY, Column.HEADERS, Column.DELIVER_MS})
"""Columns that a timer topic does something with. A column it would ignore is refused."""


def check_batch(raw: bytes, now_ms: int, limits: Limits) -> int:
    """How many messages it has, when it can be stored as it is. Raises InvalidRequest, TooLarge, InvalidTime."""
    value_bytes = plain_single(raw)
    if value_bytes is not None and value_bytes <= limits.message_bytes:
        return 1
    if len(raw) > limits.batch_bytes:
        raise TooLarge(f"a batch of {len(raw)} bytes; at most {limits.batch_bytes} are taken: send it in parts")
    batch = Batch.parse(raw, max_bytes=limits.batch_bytes)
    if batch.count > limits.batch_messages:
        raise TooLarge(f"a batch of {batch.count} messages; at most {limits.batch_messages} are taken")
    ignored = [column for column in batch.columns if column not in TAKEN]
    if ignored:
        names = ", ".join(Column(c).name.lower() if c in Column.__members__.values() else str(c) for c in ignored)
        raise InvalidRequest(f"this version takes no {names} with a message")
    _check_sizes(batch, limits)
    _check_times(batch, now_ms)
    return batch.count


def _check_sizes(batch: Batch, limits: Limits) -> None:
    for column, most in (
        (Column.VALUE, limits.message_bytes),
        (Column.KEY, limits.key_bytes),
        (Column.HEADERS, limits.headers_bytes),
    ):
        if column not in batch.columns:
            continue
        # Only a column that is larger as a whole can hold a cell that is too large.
        if len(batch.buffers(column)[2]) > most:
            for position, cell in enumerate(batch.bytes_column(column) or ()):
                if cell is not None and len(cell) > most:
                    raise TooLarge(
                        f"message {position} of the batch: {column.name.lower()} has {len(cell)} bytes, "
                        f"at most {most} are taken"
                    )


def _check_times(batch: Batch, now_ms: int) -> None:
    if Column.DELIVER_MS not in batch.columns:
        return
    if batch.relative:
        if now_ms + batch.max_deliver_ms > offsets.U48_MAX:
            raise InvalidTime(f"a delay of {batch.max_deliver_ms} ms ends after the last instant there is")
        return
    if batch.max_deliver_ms > offsets.U48_MAX:
        raise InvalidTime(f"delivery time {batch.max_deliver_ms} lies after the last instant, {offsets.U48_MAX}")
    if batch.min_deliver_ms >= LEAST_INSTANT_MS:
        return
    for position, at_ms in enumerate(batch.int_column(Column.DELIVER_MS) or ()):
        if at_ms and at_ms < LEAST_INSTANT_MS:
            raise InvalidTime(
                f"message {position} of the batch: delivery time {at_ms} looks like seconds; milliseconds are wanted"
            )
