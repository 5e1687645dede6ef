"""Tests of the progress of a stream: each message is in one micro-batch, in all circumstances."""

from __future__ import annotations

import json
import logging
import random
from typing import Any

import pytest

from sandq.errors import HistoryGone, InvalidRequest
from sandq.model import offsets
from sandq.model.names import COMPACTED, RANKED, TIMER
from sandq.spark.source.options import parse_options
from sandq.spark.source.planning import Task
from sandq.spark.source.positions import Positions, TopicPartition
from sandq.spark.source.streams import BEGINNING, Stream
from tests.support.spark.fake_brokers import MS, FakeBrokers, FakeLog, at, instant


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def brokers() -> FakeBrokers:
    brokers = FakeBrokers()
    brokers.add("t", 2)
    brokers.closed_ms = 1000
    return brokers


def stream(brokers: FakeBrokers, clock: Clock | None = None, **options: Any) -> Stream:
    texts = {"subscribe": "t", **{name: str(value) for name, value in options.items()}}
    if "subscribePattern" in texts:
        del texts["subscribe"]
    found = parse_options(texts)
    found.check_stream()
    return Stream(found, brokers, clock or Clock())


def rows_of(brokers: FakeBrokers, tasks: list[Task]) -> list[tuple[int, bytes]]:
    """Return (topic number, offset) of each message."""
    logs = {topic.number: topic.logs for topic in brokers.topics.values()}
    return [
        (task.number, row)
        for task in tasks
        for row in logs[task.number][task.partition].rows
        if task.start <= row < task.end
    ]


def cursors(positions: Positions) -> list[bytes]:
    return [positions.cursors[tp] for tp in positions]


def test_stream_begins_at_the_given_position(brokers: FakeBrokers) -> None:
    assert cursors(stream(brokers).initial()) == [BEGINNING, BEGINNING]
    assert cursors(stream(brokers, startingOffsets="latest").initial()) == [instant(1000), instant(1000)]
    assert cursors(stream(brokers, startingTimestamp=MS + 5).initial()) == [instant(5), instant(5)]
    named = f'{{"t": {{"1": "{offsets.to_text(at(7, 0, 1))}"}}}}'
    assert cursors(stream(brokers, startingOffsets=named).initial()) == [BEGINNING, at(7, 0, 1)]
    brokers.append("t", 10, 5)
    brokers.trim("t", at(10, 3))
    assert cursors(stream(brokers).initial()) == [at(10, 3), BEGINNING]


@pytest.mark.parametrize("seed", range(6))
def test_every_message_is_in_one_batch(brokers: FakeBrokers, seed: int) -> None:
    """Messages are produced, partitions and topics are added, and the stream restarts from its checkpoint."""
    rng = random.Random(seed)
    limit = rng.choice([None, 1, 7, 100])
    brokers.step = rng.choice([3, 1000])
    options = {"subscribePattern": "t.*", "minPartitions": rng.choice([1, 5])}
    reader = stream(brokers, **options)
    brokers.append("t", 10, 100)
    position = reader.initial()
    got: list[tuple[int, bytes]] = []
    added, rounds = 100, 0
    while rounds < 30 or position != reader.latest(position, None):
        rounds += 1
        if rounds < 25:
            name = rng.choice(sorted(brokers.topics))
            count = rng.randrange(40)
            brokers.append(
                name, brokers.closed_ms + rng.randrange(50), count, rng.randrange(len(brokers.topics[name].logs))
            )
            added += count
            if rounds == 9:
                brokers.add("t-new", 1)
        elif rounds == 25:
            brokers.closed_ms += 50
        if rng.random() < 0.5 and rounds < 25:
            brokers.closed_ms += rng.randrange(50)
        if rng.random() < 0.2:
            reader = stream(brokers, **options)
        position = Positions.parse(position.to_json())
        end = reader.latest(position, limit)
        tasks = reader.tasks(position, end)
        assert tasks == stream(brokers, **options).tasks(position, end), "the same again"
        rows = rows_of(brokers, tasks)
        instants = {offsets.deliver_ms(row) for _, row in rows}
        assert limit is None or len(rows) <= limit or len(instants) == 1, "messages of one due time stay together"
        got += rows
        position = end
        assert rounds < 2000
    assert len(got) == len(set(got)) == added


def test_messages_of_one_instant_stay_in_one_micro_batch(brokers: FakeBrokers) -> None:
    brokers.append("t", 10, 900, 0)
    brokers.append("t", 10, 100, 1)
    brokers.append("t", 11, 5, 1)
    reader = stream(brokers)
    start = reader.initial()
    middle = reader.latest(start, 100)
    assert cursors(middle) == [instant(11), instant(11)]
    assert len(rows_of(brokers, reader.tasks(start, middle))) == 1000
    assert len(rows_of(brokers, reader.tasks(middle, reader.latest(middle, 100)))) == 5


@pytest.mark.parametrize("step", [7, 1000])
def test_partitions_are_cut_at_the_same_time(brokers: FakeBrokers, step: int) -> None:
    """One partition has messages over the whole time, the other only in the last tenth.

    With cuts by share of the messages, the watermark of the second would drop most of the first.
    """
    brokers.step = step
    for ms in range(1000):
        brokers.append("t", ms, 2, 0)
    for ms in range(900, 1000):
        brokers.append("t", ms, 2, 1)
    reader, limit = stream(brokers), 600
    start = reader.initial()
    got, sizes = 0, []
    while got < 2_200:
        end = reader.latest(start, limit)
        rows = rows_of(brokers, reader.tasks(start, end))
        assert len(set(cursors(end))) == 1 and rows, "event time rises equally in all partitions"
        sizes.append(len(rows))
        got += len(rows)
        start = end
    assert got == 2_200
    assert max(sizes) <= limit and min(sizes[:-1]) >= 0.9 * limit, sizes


def test_micro_batch_ends_at_the_slowest_closed_time(brokers: FakeBrokers) -> None:
    """A partition may still get messages before its closed time. They must not be older than messages that were read
    already."""
    for ms in range(0, 1000, 10):
        brokers.append("t", ms, 10, 0)
    brokers.topics["t"].logs[1].behind_ms = 700
    reader = stream(brokers)
    start = reader.initial()
    assert cursors(reader.latest(start, 999)) == [instant(300), instant(300)]


def test_an_idle_stream_idles(brokers: FakeBrokers) -> None:
    brokers.append("t", 10, 3)
    reader = stream(brokers, holdName="mine", holdTtl="10s")
    start = reader.initial()
    end = reader.latest(start, None)
    assert len(rows_of(brokers, reader.tasks(start, end))) == 3
    held = brokers.held
    brokers.closed_ms = 5000
    assert reader.latest(end, None) == end == reader.latest(end, 10), "Spark makes no micro-batch in this case"
    brokers.append("t", 4000)
    after = reader.latest(end, None)
    assert len(rows_of(brokers, reader.tasks(end, after))) == 1 and cursors(after) == [instant(5000)] * 2
    assert brokers.held == held


def test_a_checkpoint_of_another_cluster_is_refused(brokers: FakeBrokers) -> None:
    """Another topic has the same number in the other cluster. Its older messages would be skipped silently."""
    brokers.append("t", 10, 3)
    start = stream(brokers).initial()
    end = stream(brokers).latest(start, None)
    brokers.cluster = "another cluster"
    for ask in (
        lambda reader: reader.latest(end, None),
        lambda reader: reader.tasks(start, end),
    ):
        with pytest.raises(InvalidRequest, match=r"from cluster the cluster, and this is cluster another cluster"):
            ask(stream(brokers))


def test_hold_of_idle_stream_is_renewed(brokers: FakeBrokers) -> None:
    clock = Clock()
    reader = stream(brokers, clock, holdName="mine", holdTtl="10s")
    start = reader.initial()
    end = reader.latest(start, None)
    reader.tasks(start, end)
    held = brokers.held
    for _ in range(10):
        clock.now += 1
        assert reader.latest(end, None) == end
    assert brokers.held == held + 10


def test_a_micro_batch_waits_until_it_is_worth_one(brokers: FakeBrokers) -> None:
    clock = Clock()
    reader = stream(brokers, clock, minOffsetsPerTrigger=10, maxTriggerDelay="1m")
    start = reader.initial()
    end = reader.latest(start, None)
    reader.tasks(start, end)
    brokers.append("t", 1001, 9)
    brokers.closed_ms = 2000
    clock.now += 59
    assert reader.latest(end, None) == end
    brokers.append("t", 1002, 1, 1)
    after = reader.latest(end, None)
    assert len(rows_of(brokers, reader.tasks(end, after))) == 10
    brokers.append("t", 2001, 1)
    brokers.closed_ms = 3000
    clock.now += 59
    assert reader.latest(after, None) == after
    clock.now += 1
    assert reader.latest(after, None) != after, "the stream has waited long enough"


def test_a_stream_that_is_to_end_waits_for_nothing(brokers: FakeBrokers) -> None:
    brokers.append("t", 10, 3)
    reader = stream(brokers, minOffsetsPerTrigger=10)
    start = reader.latest(reader.initial(), None)
    reader.tasks(start, start)
    brokers.append("t", 1001, 3)
    brokers.closed_ms = 2000
    assert reader.latest(start, None) == start
    reader.set_target()
    assert reader.latest(start, None) != start


def test_available_now_stream_ends_at_its_target(brokers: FakeBrokers) -> None:
    brokers.append("t", 10, 10)
    reader = stream(brokers, subscribePattern="t.*")
    start = reader.initial()
    reader.set_target()
    brokers.append("t", 1000, 10)
    brokers.closed_ms = 2000
    brokers.add("t2")
    middle = reader.latest(start, 4)
    end = reader.latest(middle, 100)
    assert len(rows_of(brokers, reader.tasks(start, middle) + reader.tasks(middle, end))) == 10
    assert reader.latest(end, 100) == end and end.cursors.keys() == start.cursors.keys()


def test_a_start_ahead_of_now(brokers: FakeBrokers) -> None:
    brokers.append("t", 10, 5)
    reader = stream(brokers, startingTimestamp=MS + 1500)
    start = reader.initial()
    assert reader.latest(start, None) == start
    brokers.append("t", 1400, 5)
    brokers.append("t", 1600, 3)
    brokers.closed_ms = 2000
    assert len(rows_of(brokers, reader.tasks(start, reader.latest(start, None)))) == 3


def test_a_topic_that_was_deleted_and_made_again(brokers: FakeBrokers, caplog: pytest.LogCaptureFixture) -> None:
    brokers.append("t", 10, 5)
    start = stream(brokers).latest(stream(brokers).initial(), None)
    brokers.add("t", 1)
    brokers.append("t", 20, 3)
    with pytest.raises(HistoryGone, match=r"partition 0 of topic 't' \(number 1\) \(and 1 more\).*failOnDataLoss"):
        stream(brokers).latest(start, None)
    reader = stream(brokers, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING, "sandq.spark"):
        end = reader.latest(start, None)
    assert "the rest is read" in caplog.text
    assert len(rows_of(brokers, reader.tasks(start, end))) == 3


def test_a_topic_that_is_deleted_between_planning_and_reading(brokers: FakeBrokers) -> None:
    brokers.append("t", 10, 5)
    reader = stream(brokers, subscribePattern="t.*")
    start = reader.initial()
    end = reader.latest(start, None)
    del brokers.topics["t"]
    with pytest.raises(HistoryGone, match="does not exist any more"):
        reader.tasks(start, end)
    assert stream(brokers, subscribePattern="t.*", failOnDataLoss="false").tasks(start, end) == []


def test_a_topic_that_is_left_out_for_a_while_is_not_read_again(brokers: FakeBrokers) -> None:
    brokers.add("b")
    brokers.append("t", 10, 5)
    brokers.append("b", 10, 3)
    both = stream(brokers, subscribe="t,b")
    first = both.latest(both.initial(), None)
    less = stream(brokers, failOnDataLoss="false").latest(first, None)
    brokers.append("b", 1100, 2)
    brokers.closed_ms = 2000
    again = both.latest(less, None)
    assert len(rows_of(brokers, both.tasks(less, again))) == 2


def test_added_partition_is_read_from_its_beginning(brokers: FakeBrokers) -> None:
    reader = stream(brokers)
    start = reader.initial()
    brokers.topics["t"].logs.append(FakeLog())
    brokers.append("t", 10, 5, 2)
    (task,) = reader.tasks(start, reader.latest(start, None))[-1:]
    assert (task.partition, task.start) == (2, BEGINNING), "the position is a claim: a read finds the trimmed messages"
    # Messages trimmed from a topic that was not read before are no loss.
    brokers.add("new")
    brokers.append("new", 10, 5)
    pattern = stream(brokers, subscribePattern=".*")
    (task,) = pattern.tasks(start, pattern.latest(start, None))[-1:]
    assert (task.topic, task.start) == ("new", offsets.FIRST)


def test_unread_messages_are_held(brokers: FakeBrokers) -> None:
    clock = Clock()
    reader = stream(brokers, clock, holdName="mine", holdTtl="100s")
    brokers.append("t", 10, 5)
    start = reader.initial()
    end = reader.latest(start, None)
    assert not brokers.held, "the name of the hold is not stored yet"
    reader.tasks(start, end)
    assert brokers.holds["mine", 0] < BEGINNING
    assert brokers.held == 1
    clock.now = 11
    reader.latest(start, None)
    assert brokers.held == 2, "the hold is renewed while a batch takes long"
    reader.committed(end)
    row = int.from_bytes(brokers.holds["mine", 0], "big") >> 12
    assert row + 1 == int.from_bytes(instant(1000), "big") >> 12
    assert offsets.unpack(brokers.holds["mine", 1]).partition == 1
    # A new stream continues with the hold before it reads.
    brokers.holds.clear()
    stream(brokers, holdName="mine").latest(end, None)
    assert ("mine", 0) in brokers.holds


@pytest.mark.parametrize("kind", [TIMER, *RANKED])
def test_holds_are_set_for_all_trimmed_topic_kinds(brokers: FakeBrokers, kind: str) -> None:
    brokers.topics["t"].kind = kind
    brokers.add("kv", 3, COMPACTED)
    reader = stream(brokers, holdName="mine", subscribePattern=".*")
    start = reader.initial()
    reader.tasks(start, reader.latest(start, None))
    assert sorted(brokers.holds) == [("mine", partition) for partition in range(len(brokers.topics["t"].logs))]


def test_a_stream_that_finds_nothing_has_a_first_batch(brokers: FakeBrokers) -> None:
    """The hold must exist before the first message. Until then Spark stores nothing."""
    reader = stream(brokers)
    start = reader.initial()
    end = reader.latest(start, None)
    assert end != start
    reader.tasks(start, end)
    assert {name for name, _ in brokers.holds} == {end.hold}
    assert max(brokers.holds.values()) < BEGINNING


def test_partitions_that_are_added_are_held_at_once(brokers: FakeBrokers) -> None:
    reader = stream(brokers, holdName="mine", subscribePattern="t.*")
    start = reader.latest(reader.initial(), None)
    reader.tasks(start, start)
    brokers.add("t2", 3)
    reader.latest(start, None)
    assert ("mine", 2) in brokers.holds


def test_without_a_hold(brokers: FakeBrokers, caplog: pytest.LogCaptureFixture) -> None:
    def begin(**options: str) -> None:
        reader = stream(brokers, **options)
        start = reader.initial()
        reader.tasks(start, reader.latest(start, None))

    begin(holdName="none")
    assert not brokers.held
    brokers.refuses_holds = True
    begin()
    assert "unread messages are not held: too many holds" in caplog.text
    brokers.add("kv", 1, "compacted")
    brokers.refuses_holds = False
    begin(subscribe="kv")
    assert not brokers.held, "a compacted topic is not trimmed"


def test_each_stream_has_a_hold_of_its_own(brokers: FakeBrokers) -> None:
    """For example, two queries over one DataFrame."""
    brokers.append("t", 10, 5)
    names = set()
    for _ in range(2):
        reader = stream(brokers)
        start = reader.initial()
        end = reader.latest(start, None)
        reader.tasks(start, end)
        names.add(end.hold)
        # Spark stores the name, so the next run continues with the same name.
        kept = Positions.parse(json.loads(json.dumps(end.to_json())))
        stream(brokers).latest(kept, None)
        assert (kept, {name for name, _ in brokers.holds}) == (end, names)
    assert len(names) == 2


def test_a_first_batch_that_fails_again_and_again_leaves_one_hold(brokers: FakeBrokers) -> None:
    """Spark stores the end of the batch, and asks for the beginning each time."""
    brokers.append("t", 10, 5)
    reader = stream(brokers)
    start = reader.initial()
    end = reader.latest(start, None)
    assert not brokers.holds
    reader.tasks(start, end)
    before = brokers.holds[end.hold, 0]
    for _ in range(3):
        brokers.holds.clear()
        again = stream(brokers)
        again.tasks(again.initial(), end)
        assert brokers.holds[end.hold, 0] == before
        assert {name for name, _ in brokers.holds} == {end.hold}


def test_a_first_batch_all_of_which_was_trimmed(brokers: FakeBrokers) -> None:
    """The first batch failed. Its hold expired before the next attempt."""
    brokers.append("t", 10, 5)
    reader = stream(brokers)
    end = reader.latest(reader.initial(), None)
    brokers.closed_ms = 5000
    brokers.append("t", 2000, 5)
    brokers.trim("t", instant(2001))
    again = stream(brokers)
    with pytest.raises(HistoryGone, match="all of the first micro-batch was trimmed"):
        again.tasks(again.initial(), end)
    lossy = stream(brokers, failOnDataLoss="false")
    assert [task.partition for task in lossy.tasks(lossy.initial(), end)] == [1]
    (task,) = lossy.tasks(end, lossy.latest(end, None))[:1]
    assert task.start == end.cursors[TopicPartition(1, 0)], "the next batch reports further trimmed messages"
    other = Positions({tp: instant(1) for tp in end}, end.hold, cluster=brokers.cluster)
    with pytest.raises(InvalidRequest, match="is after the end"):
        stream(brokers).tasks(end, other)


def test_stream_from_before_a_clock_reset_raises_history_gone(brokers: FakeBrokers) -> None:
    brokers.append("t", 10)
    found = stream(brokers)
    end = Positions.parse(found.latest(found.initial(), None).to_json())
    assert "clock_epochs" not in end.to_json()
    brokers.topics["t"].logs[1].clock_epoch = 1
    for ask in (lambda: found.latest(end, None), lambda: stream(brokers).tasks(end, end)):
        with pytest.raises(HistoryGone, match=r"topic 't', partition 1: its clock was set back.* new checkpoint"):
            ask()


def test_stream_of_the_present_epoch_goes_on_after_a_restart(brokers: FakeBrokers) -> None:
    brokers.topics["t"].logs[1].clock_epoch = 2
    brokers.append("t", 10, 3, 1)
    begun = stream(brokers)
    start = begun.initial()
    end = Positions.parse(json.loads(json.dumps(begun.latest(start, None).to_json())))
    assert end.clock_epochs == {TopicPartition(1, 1): 2}
    tasks = stream(brokers).tasks(start, end)
    assert [task.clock_epoch for task in tasks] == [0, 2]
    assert stream(brokers).latest(end, None) == end


def test_clock_that_was_set_back_is_a_warning_without_fail_on_data_loss(brokers: FakeBrokers) -> None:
    found = stream(brokers, failOnDataLoss=False)
    end = found.latest(found.initial(), None)
    brokers.topics["t"].logs[0].clock_epoch = 1
    again = found.latest(end, None)
    assert again.clock_epochs == {TopicPartition(1, 0): 1}
    assert found.latest(again, None) == again


def test_position_with_clock_epochs_that_are_none_is_refused() -> None:
    for epochs in (3, {"1": 3}, {"1": {"0": "x"}}, {"1": {"x": 1}}):
        with pytest.raises(InvalidRequest, match="position"):
            Positions.parse(Positions({}).to_json() | {"clock_epochs": epochs})


def test_progress_reports_the_lag_per_partition(brokers: FakeBrokers, caplog: pytest.LogCaptureFixture) -> None:
    for ms in range(0, 1000, 10):
        brokers.append("t", ms, 3, 0)
    brokers.append("t", 900, 5, 1)
    reader = stream(brokers, minOffsetsPerTrigger=10)
    assert reader.report() is None
    with caplog.at_level(logging.INFO, "sandq.spark"):
        end = reader.latest(reader.initial(), 150)
    read = len(rows_of(brokers, reader.tasks(reader.initial(), end)))
    cut_ms = offsets.deliver_ms(cursors(end)[0]) - MS
    told = json.loads(json.dumps(reader.report()))
    assert told["lag"] == {
        "t": {
            "0": {"messages": 300 - read, "behind_ms": 1000 - cut_ms},
            "1": {"messages": 5, "behind_ms": 1000 - cut_ms},
        }
    }
    assert told["source"] == "sandq at 127.0.0.1:7170: t" and told["names"] == {"1": "t"}
    assert cursors(Positions.parse(told)) == [instant(1000), instant(1000)], (
        "the position up to which the log is closed"
    )
    assert caplog.messages == [
        f"sandq at 127.0.0.1:7170: t: a micro-batch of about {read} messages of 2 partitions; {305 - read} more are "
        f"closed, up to {1000 - cut_ms} ms later, the most in partition 0 of topic 't' (number 1)"
    ]
    end = reader.latest(end, None)
    nothing = {"messages": 0, "behind_ms": 0}
    assert (reader.report() or {})["lag"] == {"t": {"0": nothing, "1": nothing}}
    brokers.append("t", 1100, 4, 1)
    brokers.closed_ms = 1200
    assert reader.latest(end, None) == end, "the stream waits for more messages"
    assert (reader.report() or {})["lag"] == {"t": {"0": nothing, "1": {"messages": 4, "behind_ms": 200}}}


def test_description_of_stream(brokers: FakeBrokers) -> None:
    named = parse_options({"assign": '{"t": [1, 0]}', "sandq.bootstrap.servers": "a:1,b"})
    assert Stream(named, brokers).description == "sandq at a:1,b: t [0, 1]"
    assert stream(brokers, subscribePattern="t.*").description.endswith(": topics like t.*")
