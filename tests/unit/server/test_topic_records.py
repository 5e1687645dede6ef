"""Tests that a topic is encoded once until metadata or a leader changes, and that encoding yields."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
import trio

from sandq.broker.event_loop import SLICE_WORK, TimeSlice
from sandq.broker.peers.routes import Routes
from sandq.metadata.records import Partition, Topic
from sandq.server import topic_records
from sandq.server.topic_records import TopicRecords
from tests.support.nodes.fake_links import FakeLinks


def topic(name: str = "t", partitions: int = 2) -> Topic:
    """Return the record of a topic."""
    placed = tuple([Partition(number + 1, ("a#1",), ("a#1", "b#2")) for number in range(partitions)])
    return Topic(
        name=name,
        number=7,
        kind="timer",
        initial_partitions=partitions,
        replicas=2,
        settings={"max_attempts": 3},
        created_ms=0,
        partitions=placed,
        first_settings={},
    )


@pytest.fixture
def routes() -> Routes:
    return Routes("a", FakeLinks(own="a"))


class Counted(TopicRecords):
    made = 0

    async def _encode(self, record: Topic, time_slice: TimeSlice) -> bytes:
        self.made += 1
        return await super()._encode(record, time_slice)


async def reported(records: TopicRecords, record: Topic) -> Any:
    return msgpack.unpackb(await records.encoded(record, TimeSlice()))


async def test_record_is_encoded_again_after_a_change(routes: Routes) -> None:
    records, record = Counted(routes), topic()
    first = await reported(records, record)
    assert first == {
        "name": "t",
        "number": 7,
        "kind": "timer",
        "partitions": [[0, 1, None, ["a", "b"], False], [1, 2, None, ["a", "b"], False]],
        "initial_partitions": 2,
        "replicas": 2,
        "settings": {"max_attempts": 3},
    }
    assert await reported(records, record) == first and records.made == 1
    changes = [
        (lambda: routes.led(1, 1, True), ["a", None]),
        (lambda: routes.heard("b", [(2, 1, True)]), ["a", "b"]),
        (lambda: routes.down("b"), ["a", None]),
        (lambda: routes.led(1, 1, False), [None, None]),
    ]
    for number, (change, leaders) in enumerate(changes):
        change()
        for _ in range(2):
            assert [row[2] for row in (await reported(records, record))["partitions"]] == leaders
        assert records.made == 2 + number
    assert len((await reported(records, topic(partitions=3)))["partitions"]) == 3


async def test_large_record_is_built_in_time_slices(routes: Routes) -> None:
    ended = 0

    class Counting(TimeSlice):
        async def end(self) -> None:
            nonlocal ended
            ended += 1
            await super().end()

    await TopicRecords(routes).encoded(topic(partitions=4096), Counting())
    assert ended == 4096 // SLICE_WORK


async def test_leader_changed_meanwhile_is_sent_the_next_time(routes: Routes) -> None:
    records, record = TopicRecords(routes), topic(partitions=2 * SLICE_WORK)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reported, records, record)
        await trio.lowlevel.checkpoint()
        routes.led(1, 1, True)
    assert (await reported(records, record))["partitions"][0][2] == "a"


async def test_cached_bytes_are_limited(routes: Routes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_records, "KEPT_BYTES", 5_000)
    records = Counted(routes)
    all_of_them = [topic(f"t{number}", 20) for number in range(30)]
    for record in all_of_them:
        await reported(records, record)
        assert records._kept_bytes == sum(len(kept.encoded) for kept in records._kept.values()) <= 5_000
    assert 1 < len(records._kept) < 30
    await reported(records, all_of_them[-1])
    assert records.made == 30
