"""While a seek makes dead messages of a group ready again, their producer cannot change them.

Otherwise the seek would deliver the dead letters in their place."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.partition import commands as c
from sandq.partition.records.claim import CANCELLED, DEAD, MOVED, TOO_LATE
from tests.support.partition.bench import Bench, T, by_id

HOUR_MS = 3_600_000


@pytest.fixture
def seeking(bench: Bench) -> tuple[Bench, bytes]:
    """A group with a dead message, which was put back before the message. The seek is not finished."""
    bench.open("g")
    message_id = bench.put("a")
    bench.reject(bench.one(at=1).token, at=1)
    assert len(bench.dead()) == 1
    bench.apply(2, c.Seek("g", "earliest"))
    return bench, message_id


def delivered(bench: Bench, at: int) -> list[str]:
    """Finish the seek, redrive all dead messages, and lease and ack everything that is due."""
    bench.trim(at)
    bench.job("redrive", at=at)
    found = []
    while leases := bench.lease(at=at):
        found += bench.values(leases)
        for lease in leases:
            bench.ack(lease.token, at=at)
    return found


def test_message_cannot_be_cancelled_before_the_seek_is_done(seeking: tuple[Bench, bytes]) -> None:
    bench, message_id = seeking
    assert bench.cancel(message_id, at=3) == (TOO_LATE, DEAD)
    bench.trim(4)
    assert bench.cancel(message_id, at=5).word == CANCELLED
    assert delivered(bench, HOUR_MS) == []


def test_message_cannot_be_moved_before_the_seek_is_done(seeking: tuple[Bench, bytes]) -> None:
    bench, message_id = seeking
    assert bench.move(message_id, HOUR_MS, at=3) == (TOO_LATE, DEAD)
    bench.trim(4)
    assert bench.move(message_id, HOUR_MS, at=5).word == MOVED
    assert delivered(bench, HOUR_MS - 1) == []
    assert delivered(bench, HOUR_MS) == ["a"]


@pytest.mark.parametrize("kind, arguments, expected", [("cancel", {}, []), ("move", {"to_ms": T + HOUR_MS}, ["a"])])
def test_job_changes_the_message_once_the_seek_is_done(
    seeking: tuple[Bench, bytes], kind: str, arguments: dict[str, Any], expected: list[str]
) -> None:
    bench, _ = seeking
    bench.start_job(kind, at=3, until_ms=T + 1000, **arguments)
    assert delivered(bench, 2 * HOUR_MS) == expected


def test_unfinished_seek_of_one_group_concerns_the_message_of_all_groups(seeking: tuple[Bench, bytes]) -> None:
    bench, message_id = seeking
    bench.open("other", at=3)
    (outcome,) = bench.apply(3, c.Cancel([by_id(message_id)]))[0]
    assert outcome == (TOO_LATE, DEAD)
