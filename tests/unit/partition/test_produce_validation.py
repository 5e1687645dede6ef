"""Tests of the batches that a partition accepts, and of the batches that are stored message by message."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model.batch import Column, encode, headers_pack
from sandq.model.batch_format import plain_bytes_of
from sandq.model.errors import InvalidRequest, InvalidTime, TooLarge
from sandq.model.limits import Limits
from sandq.model.partitioning import partition_for
from sandq.partition.produce_validation import (
    MUCH_TARGETS_BYTES,
    RATIO_FREE_BYTES,
    RATIO_MOST,
    BatchTarget,
    check_batch,
    is_much,
)
from tests.support.hostile_rows import HEADERS, NO_HEADERS

NOW_MS = 1_800_000_000_000
TIMER = BatchTarget(0, 1, ordered=False)
ORDERED = BatchTarget(0, 1, ordered=True)
COMPACTED = BatchTarget(0, 1, ordered=False, compacted=True)
PRIORITY = BatchTarget(0, 1, ordered=False, rank="priority")
FAIR = BatchTarget(0, 1, ordered=False, rank="fair")
KEY = b"a"
OWNER = partition_for(KEY, 3)
OTHER = next(b"%d" % number for number in range(99) if partition_for(b"%d" % number, 3) == (OWNER + 1) % 3)
"""Return a key that belongs to another partition."""
ELSEWHERE = BatchTarget((OWNER + 1) % 3, 3, ordered=False)
MANY = BatchTarget(partition_for(b"default", 3), 3, ordered=False, rank="fair")
ACME = BatchTarget(partition_for(b"acme.c", 3), 3, ordered=False, rank="fair")


def check(
    place: BatchTarget,
    *,
    limits: Limits = Limits(),  # noqa: B008  # frozen
    **columns: Any,
) -> tuple[int, bool]:
    """Check a batch of one message with these columns."""
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
        (PRIORITY, {"priority": [-(2**31)]}, False),
        (PRIORITY, {"priority": [2**31 - 1], "unique_key": [KEY], "key": [KEY]}, True),
        (FAIR, {"priority": [1], "tenant": [b"acme.mail"], "key": [KEY]}, False),
        (FAIR, {"unique_key": [KEY], "key": [b"b"]}, True),
        (TIMER, {"unique_key": [KEY], "key": [b"b"]}, True),
        (ELSEWHERE._replace(partition=OWNER), {"unique_key": [OTHER], "key": [KEY]}, True),
        (MANY, {}, False),
        (MANY, {"key": [KEY], "deliver_ms": [NOW_MS]}, False),
        (ACME, {"tenant": [b"acme.c"], "unique_key": [b"b"]}, True),
        (ACME, {"tenant": [b"acme.c"], "unique_key": [b"c"]}, True),
    ],
)
def test_batch_that_fits_is_split_when_the_log_keeps_its_messages_apart(
    place: BatchTarget, columns: dict[str, Any], split: bool
) -> None:
    assert check(place, **columns) == (1, split)


@pytest.mark.parametrize(
    ("place", "columns", "says"),
    [
        (TIMER, {"value": [None]}, "message 0 of the batch has no value"),
        (TIMER, {"priority": [1]}, "^priority: this is a timer topic; only priority or fair topics accept it$"),
        (TIMER, {"tenant": [b"a"]}, "^tenant: this is a timer topic; only fair topics accept it$"),
        (TIMER, {"ordering_hash": [1]}, "takes no ordering_hash with a message$"),
        (PRIORITY, {"tenant": [b"a"]}, "^tenant: this is a priority topic; only fair topics accept it$"),
        (PRIORITY, {"priority": [2**31]}, "^message 0 of the batch: priority 2147483648 is not within -2147483648 to"),
        (PRIORITY, {"priority": [-(2**31) - 1]}, "^message 0 of the batch: priority -2147483649 is not"),
        (PRIORITY, {"value": [None]}, "message 0 of the batch has no value"),
        (ELSEWHERE._replace(rank="priority"), {"unique_key": [KEY]}, f"partition {OWNER}"),
        (FAIR, {"tenant": [b""]}, "^message 0 of the batch: tenant: '' is not allowed; the rule: "),
        (FAIR, {"tenant": [b"a b"]}, "^message 0 of the batch: tenant: 'a b' is not allowed"),
        (FAIR, {"tenant": ["é".encode()]}, "^message 0 of the batch: tenant: "),
        (FAIR, {"tenant": [b"a" * 256]}, "^message 0 of the batch: tenant: "),
        (FAIR, {"priority": [2**31]}, "^message 0 of the batch: priority"),
        (FAIR, {"unique_key": [b""]}, "an empty unique key"),
        (ACME, {}, f"its tenant default belongs to partition {MANY.partition}, not {ACME.partition}"),
        (ACME, {"key": [KEY]}, "its tenant default belongs to partition"),
        (MANY, {"tenant": [b"acme.c"]}, f"its tenant acme.c belongs to partition {ACME.partition}, not"),
        (COMPACTED, {"key": [KEY], "priority": [1]}, "^priority: this is a compacted topic; "),
        (TIMER, {"unique_key": [b""]}, "an empty unique key"),
        (ELSEWHERE, {"unique_key": [KEY]}, f"its unique key belongs to partition {OWNER}, not {ELSEWHERE.partition}"),
        (ELSEWHERE, {"unique_key": [OTHER], "key": [KEY]}, f"its key belongs to partition {OWNER}, not"),
        (COMPACTED, {}, "every message of a compacted topic has a key"),
        (COMPACTED, {"key": [b""]}, "has a key, of one byte at least"),
        (COMPACTED, {"key": [KEY], "deliver_ms": [NOW_MS]}, "takes no deliver_ms with a message of a compacted topic"),
        (COMPACTED, {"key": [KEY], "expected_version": [b"v"]}, "a version has 16 bytes"),
        (COMPACTED._replace(partition=(OWNER + 1) % 3, initial_partitions=3), {"key": [KEY]}, f"partition {OWNER}"),
    ],
)
def test_batch_that_does_not_fit_its_topic_is_refused(place: BatchTarget, columns: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest, match=says):
        check(place, **columns)


@pytest.mark.parametrize("columns", [{"deliver_ms": [1_800_000_000]}, {"ttl_ms": [0]}])
def test_implausible_time_is_refused(columns: dict[str, Any]) -> None:
    with pytest.raises(InvalidTime):
        check(TIMER, **columns)


def test_cell_above_its_limit_is_refused() -> None:
    with pytest.raises(TooLarge, match="message 0 of the batch: value has 1025 bytes"):
        check(TIMER, limits=Limits(message_bytes=1024), value=[b"x" * 1025])


def test_error_names_the_wrong_message() -> None:
    """A message without a tenant has the default tenant, at any place in the batch."""
    values = [b"x"] * 3
    with pytest.raises(InvalidRequest, match=r"^message 2 of the batch: priority 2147483648"):
        check(PRIORITY, value=values, priority=[1, None, 2**31])
    with pytest.raises(InvalidRequest, match=r"^message 2 of the batch: tenant: 'a\.' is not allowed"):
        check(FAIR, value=values, tenant=[b"a", None, b"a."])
    with pytest.raises(InvalidRequest, match=r"^message 1 of the batch: its tenant default belongs to partition"):
        check(ACME, value=values, tenant=[b"acme.c", None, b"acme.c"])
    assert check(FAIR, value=values, tenant=[b"acme", None, b"b"]) == (3, False)


@pytest.mark.parametrize("place", [TIMER, ORDERED, COMPACTED, PRIORITY, FAIR])
@pytest.mark.parametrize("name", NO_HEADERS)
def test_headers_that_are_no_map_are_refused_with_their_position(place: BatchTarget, name: str) -> None:
    columns = {"value": [b"x"] * 3, "key": [KEY] * 3, "headers": [None, b"\x80", NO_HEADERS[name]]}
    with pytest.raises(InvalidRequest, match=r"^message 2 of the batch: headers: "):
        check(place, **columns)
    cells = {Column[name.upper()]: found for name, found in columns.items()}
    assert check_batch(encode(cells), NOW_MS, Limits(), place, is_checked=True).messages == 3


@pytest.mark.parametrize("name", HEADERS)
def test_headers_that_are_a_map_of_text_are_accepted(name: str) -> None:
    assert check(TIMER, headers=[HEADERS[name]]) == (1, False)


def test_a_body_that_grows_too_much_when_decompressed_is_refused() -> None:
    batch = encode({Column.VALUE: [b""] * 65_536, Column.TTL_MS: [10**9] * 65_536}, compress=True)
    assert len(batch) < 200 and plain_bytes_of(batch) > 700_000
    with pytest.raises(TooLarge, match=f"at most {RATIO_MOST} times its size") as refused:
        check_batch(batch, NOW_MS, Limits(), TIMER)
    assert refused.value.details["maximum"] == RATIO_FREE_BYTES
    small = encode({Column.VALUE: [b""] * 5000, Column.TTL_MS: [10**9] * 5000}, compress=True)
    assert plain_bytes_of(small) > RATIO_MOST * len(small)
    assert check_batch(small, NOW_MS, Limits(), TIMER).messages == 5000
    words = [b"order %d of customer %d" % (at * 7919, at % 97) for at in range(60_000)]
    assert check_batch(encode({Column.VALUE: words}, compress=True), NOW_MS, Limits(), TIMER).messages == 60_000


def test_a_batch_with_many_bytes_of_headers_takes_long_to_check() -> None:
    cell = headers_pack({"a": "x" * 60_000})
    few, many = [cell] + [None] * 9, [cell] * 10
    values = [b"v" * 50_000] * 10
    for compress in (False, True):
        assert is_much(encode({Column.VALUE: [b""] * 10, Column.HEADERS: many}, compress=compress))
    assert not is_much(encode({Column.VALUE: values, Column.HEADERS: few}))
    assert not is_much(encode({Column.VALUE: values}))
    with_targets = encode({Column.VALUE: values, Column.HEADERS: few})
    assert is_much(with_targets, MUCH_TARGETS_BYTES)
    assert not is_much(encode({Column.VALUE: values}), MUCH_TARGETS_BYTES)
    damaged = bytearray(encode({Column.VALUE: values, Column.HEADERS: many}))
    damaged[40] = 255
    assert not is_much(bytes(damaged)) and not is_much(bytes(damaged[:50])) and not is_much(b"")
