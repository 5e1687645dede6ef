"""Which batches a partition takes, and which are stored message by message."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model.batch import Column, encode
from sandq.model.errors import InvalidRequest, InvalidTime, TooLarge
from sandq.model.limits import Limits
from sandq.model.partitioning import partition_for
from sandq.partition.produce_validation import Place, check_batch

NOW_MS = 1_800_000_000_000
TIMER = Place(0, 1, ordered=False)
ORDERED = Place(0, 1, ordered=True)
COMPACTED = Place(0, 1, ordered=False, compacted=True)
KEY = b"a"
OWNER = partition_for(KEY, 3)


def check(place: Place, *, limits: Limits = Limits(), **columns: Any) -> tuple[int, bool]:  # noqa: B008  # frozen
    cells = {Column.VALUE: [b"x"]} | {Column[name.upper()]: found for name, found in columns.items()}
    return tuple(check_batch(encode(cells), NOW_MS, limits, place))


@pytest.mark.parametrize(
    ("place", "columns", "split"),
    [
        (TIMER, {}, False),
        (TIMER, {"key": [KEY], "deliver_ms": [NOW_MS]}, False),
        (TIMER, {"ttl_ms": [1]}, True),
        (TIMER, {"unique_key": [KEY]}, True),
        (ORDERED, {}, False),
        (ORDERED, {"key": [KEY]}, True),
        (COMPACTED, {"key": [KEY]}, False),
        (COMPACTED, {"key": [KEY], "value": [None]}, False),
        (COMPACTED, {"key": [KEY], "expected_version": [b""]}, True),
        (COMPACTED._replace(partition=OWNER, initial_partitions=3), {"key": [KEY]}, False),
    ],
)
def test_batch_that_fits_is_split_when_the_log_keeps_its_messages_apart(
    place: Place, columns: dict[str, Any], split: bool
) -> None:
    assert check(place, **columns) == (1, split)


@pytest.mark.parametrize(
    ("place", "columns", "says"),
    [
        (TIMER, {"value": [None]}, "message 0 of the batch has no value"),
        (TIMER, {"priority": [1]}, "takes no priority with a message"),
        (TIMER, {"unique_key": [b""]}, "an empty unique key"),
        (TIMER, {"unique_key": [KEY], "key": [b"b"]}, "its key is another one than its unique key"),
        (TIMER._replace(partition=(OWNER + 1) % 3, initial_partitions=3), {"unique_key": [KEY]}, f"partition {OWNER}"),
        (COMPACTED, {}, "every message of a compacted topic has a key"),
        (COMPACTED, {"key": [b""]}, "has a key, of one byte at least"),
        (COMPACTED, {"key": [KEY], "deliver_ms": [NOW_MS]}, "takes no deliver_ms with a message of a compacted topic"),
        (COMPACTED, {"key": [KEY], "expected_version": [b"v"]}, "a version has 16 bytes"),
        (COMPACTED._replace(partition=(OWNER + 1) % 3, initial_partitions=3), {"key": [KEY]}, f"partition {OWNER}"),
    ],
)
def test_batch_that_does_not_fit_its_topic_is_refused(place: Place, columns: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        check(place, **columns)


@pytest.mark.parametrize("columns", [{"deliver_ms": [1_800_000_000]}, {"ttl_ms": [0]}])
def test_time_that_cannot_be_meant_is_refused(columns: dict[str, Any]) -> None:
    with pytest.raises(InvalidTime):
        check(TIMER, **columns)


def test_cell_above_its_limit_is_refused() -> None:
    with pytest.raises(TooLarge, match="message 0 of the batch: value has 1025 bytes"):
        check(TIMER, limits=Limits(message_bytes=1024), value=[b"x" * 1025])
