"""Tests of the messages that a stream may have in flight."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from sandq.client import Held
from sandq.server.http.in_flight import InFlight, OpenStreams

LEASE_S = 10.0
Clock = trio.testing.MockClock


class Message:
    def __init__(self, token: str, offset: str) -> None:
        self.lease_token = token
        self.offset = offset


class Bed:
    """A stream that may have three messages in flight: two of the lease "a" and one of the lease "b"."""

    def __init__(self) -> None:
        self.streams = OpenStreams()
        self.one = InFlight(self.streams, "t", 3)
        for token, offset in (("a", "1"), ("a", "2"), ("b", "3")):
            self.add(token, offset)

    def add(self, token: str, offset: str) -> None:
        message: Any = Message(token, offset)
        self.one.add(message, LEASE_S)


async def test_settled_messages_free_a_slot(autojump_clock: Clock) -> None:
    bed = Bed()
    assert bed.one.free == 0
    bed.streams.settled("t", [("a", "1"), ("a", "1"), ("a", "none"), ("c", None)])
    assert bed.one.free == 1 and sorted(bed.one) == [Held("a", "2"), Held("b", "3")]
    bed.streams.settled("t", [("a", None), ("b", "3")])
    assert bed.one.free == 3 and bed.streams.by_token == {}


async def test_settlement_of_another_topic_frees_nothing(autojump_clock: Clock) -> None:
    bed = Bed()
    bed.streams.settled("other", [("a", None), ("b", "3")])
    assert bed.one.free == 0 and len(bed.streams.by_token) == 2


async def test_waiting_stream_continues_when_a_slot_is_free(autojump_clock: Clock) -> None:
    bed = Bed()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bed.one.until_free)
        await trio.testing.wait_all_tasks_blocked()
        bed.streams.settled("t", [("b", None)])
    assert trio.current_time() < 1


async def test_ended_leases_free_a_slot(autojump_clock: Clock) -> None:
    bed = Bed()
    began_s = trio.current_time()
    bed.streams.extended("a", 6 * LEASE_S)
    await bed.one.until_free()
    assert trio.current_time() - began_s == pytest.approx(LEASE_S)
    assert bed.one.free == 1
    bed.add("b", "4")
    bed.streams.settled("t", [("b", "4")])
    bed.add("d", "5")
    await bed.one.until_free()
    assert trio.current_time() - began_s == pytest.approx(2 * LEASE_S), (
        "the lease of message 5 has ended, but the extended lease has not"
    )


async def test_ended_stream_leaves_no_messages(autojump_clock: Clock) -> None:
    bed = Bed()
    bed.one.close()
    assert list(bed.one) == [] and bed.streams.by_token == {}
