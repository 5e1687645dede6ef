"""Tests that small batches of one receive are stored together, and that each batch gets its own answer."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import google_crc32c
import pytest
import trio

from sandq.broker.replication.requests import Done
from sandq.model import offsets
from sandq.model.batch import Batch, Column, encode
from sandq.model.caller import NODE, Caller
from sandq.model.errors import InvalidRequest, Overloaded, SandqError
from sandq.partition.log.appends import Stored
from sandq.partition.produce_validation import Checked, is_much
from sandq.protocol.frames import Frame, FrameReader, LargeFrame, Type, encode_error
from sandq.protocol.requests import Produce
from sandq.server.produce_coalescer import SMALL_BYTES, TOGETHER, ProduceCoalescer

BASE = offsets.pack(1000, 7, 3, 0)


class Connection:
    """A connection that records answers."""

    def __init__(self) -> None:
        self.answers: list[Frame] = []
        self.caller = NODE
        self.time_slice = SimpleNamespace(left=0)
        self.held = 0

    def reply_each(self, request_ids: Sequence[int], frames: bytes) -> None:
        self.answers += FrameReader().feed(frames)

    def refuse(self, request_id: int, error: SandqError) -> None:
        self.answers += FrameReader().feed(encode_error(request_id, error))

    def hold_request(self, size: int) -> None:
        self.held += size


class Checks:
    """Checks that accept every batch."""

    def admits(self, requests: int) -> bool:
        return True

    def check_rate(self, topic: str, requests: int = 1) -> None: ...

    def needs_delay(self, topic: str) -> bool:
        return False

    def count_produce(self, request: Produce, requests: int, known: Any = None) -> None: ...


class Broker:
    """A broker that records its batches. `refused`: batch -> error for refused batches."""

    def __init__(self) -> None:
        self.given: list[tuple[Produce, Done]] = []
        self.refused: dict[bytes, SandqError] = {}
        self.requests: list[int] = []
        """Number of requests that wait for the reply to each accepted or refused batch."""
        self.most_messages = 1000
        self.large = 0
        self.connection = Connection()
        broker: Any = self
        connection: Any = self.connection
        checks: Any = Checks()
        self.gathering = ProduceCoalescer(broker, connection, checks)

    def is_large(self, asked: Produce) -> bool:
        return is_much(asked.batch)

    async def check_large(self, asked: Produce, caller: Caller) -> None:
        await trio.lowlevel.checkpoint()
        self.large += 1

    def produce(
        self, asked: Produce, caller: Caller, done: Done, *, requests: int = 1, checked: Checked | None = None
    ) -> None:
        """Take a batch, or refuse it if it is too large or has a value that is refused."""
        batch = Batch.parse(asked.batch)
        self.requests.append(requests)
        if batch.count > self.most_messages:
            raise Overloaded("too many at once")
        for value in batch.values():
            if value in self.refused:
                raise self.refused[value]
        self.given.append((asked, done))

    @property
    def answers(self) -> list[Frame]:
        return self.connection.answers

    @property
    def spent(self) -> int:
        return -self.connection.time_slice.left

    def values(self) -> list[list[Any]]:
        """Return the values of each accepted batch."""
        return [list(Batch.parse(asked.batch).values()) for asked, _ in self.given]

    def codes(self) -> list[tuple[int, str]]:
        """Return the request id of each reply, and its error code, or nothing."""
        return [(frame[1], frame[2] if frame[0] == 255 else "") for frame in self.answers]


def single(number: int, value: bytes, *, topic: str = "t", partition: int = 0, **more: Any) -> Frame:
    columns: dict[int, Any] = {Column.VALUE: [value], **{Column[name.upper()]: [cell] for name, cell in more.items()}}
    return [int(Type.PRODUCE), number, topic, partition, 0, 0, 0, 0, encode(columns)]


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_batches_of_one_receive_are_stored_together_and_answered_separately(broker: Broker) -> None:
    for number in range(1, 6):
        broker.gathering.add(single(number, b"%d" % number))
    assert broker.given == []
    broker.gathering.flush()
    assert broker.values() == [[b"1", b"2", b"3", b"4", b"5"]]
    assert broker.requests == [5], "each request waits for its answer"
    broker.given[0][1]((BASE, 5))
    assert broker.answers == [[0, number, [offsets.shift(BASE, number - 1), 1], None] for number in range(1, 6)]


def test_single_batch_is_stored_unchanged(broker: Broker) -> None:
    frame = single(9, b"x")
    broker.gathering.add(frame)
    broker.gathering.flush()
    broker.gathering.flush()
    assert [asked for asked, _ in broker.given] == [Produce("t", 0, 0, 0, 0, 0, frame[8])]
    broker.given[0][1]((BASE, 1))
    assert broker.answers == [[0, 9, [BASE, 1], None]]


def test_each_partition_has_its_batch_and_the_order_in_it_stays(broker: Broker) -> None:
    frames = [
        single(1, b"a"),
        single(2, b"b", partition=1),
        single(3, b"c"),
        single(4, b"d", topic="u"),
        single(5, b"e", partition=1),
        single(6, b"f"),
    ]
    for frame in frames:
        broker.gathering.add(frame)
    broker.gathering.flush()
    assert broker.values() == [[b"a", b"c", b"f"], [b"b", b"e"], [b"d"]]
    for (asked, done), count in zip(broker.given, (3, 2, 1), strict=True):
        done((offsets.pack(1000, 7, 3, asked.partition), count))
    assert sorted(frame[1] for frame in broker.answers) == [1, 2, 3, 4, 5, 6]
    assert [0, 5, [offsets.pack(1000, 7, 4, 1), 1], None] in broker.answers


def test_batch_with_other_conflict_rule_is_stored_separately_in_order(broker: Broker) -> None:
    other = single(2, b"b")
    other[7] = 1
    for frame in (single(1, b"a"), other, single(3, b"c")):
        broker.gathering.add(frame)
    broker.gathering.flush()
    assert broker.values() == [[b"a"], [b"b"], [b"c"]]
    assert [asked.on_conflict for asked, _ in broker.given] == [0, 1, 0]


def test_idempotent_and_large_batches_are_stored_alone(broker: Broker) -> None:
    numbered = single(2, b"b")
    numbered[4:7] = [77, 1, 1]
    large = single(3, bytes(SMALL_BYTES))
    for frame in (single(1, b"a"), numbered, large, single(4, b"d")):
        broker.gathering.add(frame)
    broker.gathering.flush()
    assert [len(values) for values in broker.values()] == [1, 1, 1, 1]
    assert [asked.producer_id for asked, _ in broker.given] == [0, 77, 0, 0]
    assert [values[0][:1] for values in broker.values()] == [b"a", b"b", b"\0", b"d"]


def test_joined_messages_keep_their_fields(broker: Broker) -> None:
    kinds: list[dict[str, Any]] = [{}, {"key": b"k"}, {"deliver_ms": 5}, {"ttl_ms": 9, "headers": b"\x80"}]
    for number, more in enumerate(kinds, 1):
        broker.gathering.add(single(number, b"%d" % number, **more))
    broker.gathering.flush()
    ((asked, done),) = broker.given
    batch = Batch.parse(asked.batch)
    assert batch.values() == [b"1", b"2", b"3", b"4"]
    assert batch.bytes_column(Column.KEY) == [None, b"k", None, None]
    assert batch.bytes_column(Column.HEADERS) == [None, None, None, b"\x80"]
    assert batch.int_column(Column.DELIVER_MS) == [None, None, 5, None]
    assert batch.int_column(Column.TTL_MS) == [None, None, None, 9]
    column = offsets.run(BASE, 4)
    done(Stored(b"".join(column), [(2, "ready")]))
    assert broker.answers[2] == [0, 3, column[2], [[0, "ready"]]]
    assert [answer[3] for answer in broker.answers] == [None, None, [[0, "ready"]], None]


def many(number: int, *values: bytes, relative: bool = False, **more: Sequence[Any]) -> Frame:
    frame = single(number, b"")
    columns = {Column.VALUE: values, **{Column[name.upper()]: cells for name, cells in more.items()}}
    frame[8] = encode(columns, relative=relative)
    return frame


def test_small_batches_are_merged_and_each_gets_its_own_reply(broker: Broker) -> None:
    frames = [many(1, b"a", b"b"), many(2, b"c"), many(3, b"d", b"e", b"f", key=[None, b"k", None])]
    for frame in frames:
        broker.gathering.add(frame)
    broker.gathering.flush()
    assert broker.values() == [[b"a", b"b", b"c", b"d", b"e", b"f"]]
    assert broker.requests == [3]
    broker.given[0][1]((BASE, 6))
    starts = [offsets.shift(BASE, start) for start in (0, 2, 3)]
    assert broker.answers == [[0, 1, [starts[0], 2], None], [0, 2, [starts[1], 1], None], [0, 3, [starts[2], 3], None]]
    broker.answers.clear()
    column = offsets.run(BASE, 6)
    broker.given[0][1](Stored(b"".join(column), [(1, "ready"), (4, "delayed"), (5, "ready")]))
    assert broker.answers == [
        [0, 1, b"".join(column[:2]), [[1, "ready"]]],
        [0, 2, column[2], None],
        [0, 3, b"".join(column[3:]), [[1, "delayed"], [2, "ready"]]],
    ]


def test_delays_and_instants_are_not_mixed(broker: Broker) -> None:
    for frame in (
        many(1, b"a", relative=True, deliver_ms=[5]),
        many(2, b"b", relative=True, deliver_ms=[6]),
        many(3, b"c", deliver_ms=[7]),
        many(4, b"d", relative=True, deliver_ms=[8]),
    ):
        broker.gathering.add(frame)
    broker.gathering.flush()
    batches = [Batch.parse(asked.batch) for asked, _ in broker.given]
    assert [batch.relative for batch in batches] == [True, False, True]
    assert [batch.int_column(Column.DELIVER_MS) for batch in batches] == [[5, 6], [7], [8]]


def test_batch_with_unknown_column_is_stored_alone(broker: Broker) -> None:
    strange = single(2, b"b")
    strange[8] = encode({Column.VALUE: [b"b"], 99: [7]})
    for frame in (single(1, b"a"), strange, single(3, b"c")):
        broker.gathering.add(frame)
    broker.gathering.flush()
    assert broker.values() == [[b"a"], [b"b"], [b"c"]]
    assert broker.given[1][0].batch == strange[8]


def test_a_column_that_holds_nothing_is_not_lost_where_it_would_be_refused(broker: Broker) -> None:
    frames = [single(1, b"a", priority=5), single(2, b"b", priority=6)]
    empty = [with_nulls(frame) for frame in frames]
    for frame in empty:
        broker.gathering.add(frame)
    broker.gathering.flush()
    assert [asked.batch for asked, _ in broker.given] == [frame[8] for frame in empty]


def with_nulls(frame: Frame) -> Frame:
    """Return the frame with a null in its last number column, which `encode` would leave out."""
    raw = bytearray(frame[8])
    directory = len(raw) - 8 - 8  # the validity has eight bytes and comes before the number
    raw[directory + 8 :] = bytes(16)
    entry = 40 + 8 + 8
    raw[entry + 3] = 1
    raw[entry + 4 : entry + 8] = (16).to_bytes(4, "little")
    raw[16:20] = len(raw).to_bytes(4, "little")
    raw[20:24] = (len(raw) - 40).to_bytes(4, "little")
    raw[4:8] = google_crc32c.value(bytes(raw[8:])).to_bytes(4, "little")
    assert Batch.parse(bytes(raw)).int_column(Column.PRIORITY) == [None]
    return [*frame[:8], bytes(raw)]


def test_compressed_batch_is_stored_alone(broker: Broker) -> None:
    packed = single(2, b"")
    packed[8] = encode({Column.VALUE: [b"b" * 2000]}, compress=True)
    for frame in (single(1, b"a"), packed, single(3, b"c")):
        broker.gathering.add(frame)
    broker.gathering.flush()
    assert [len(asked.batch) for asked, _ in broker.given][1] == len(packed[8])
    assert [values[0][:1] for values in broker.values()] == [b"a", b"b", b"c"]


def test_reply_of_batch_stored_by_message_is_split(broker: Broker) -> None:
    for number in range(1, 4):
        broker.gathering.add(single(number, b"%d" % number))
    broker.gathering.flush()
    column = offsets.run(BASE, 3)
    broker.given[0][1](Stored(b"".join(column), [(1, "ready")]))
    assert broker.answers == [[0, 1, column[0], None], [0, 2, column[1], [[0, "ready"]]], [0, 3, column[2], None]]


def test_refused_batch_does_not_fail_the_others(broker: Broker) -> None:
    broker.refused[b"2"] = InvalidRequest("bad")
    for number in range(1, 4):
        broker.gathering.add(single(number, b"%d" % number))
    broker.gathering.flush()
    assert broker.values() == [[b"1"], [b"3"]]
    assert broker.codes() == [(2, "INVALID")]


def test_a_batch_that_is_damaged_is_refused_alone(broker: Broker) -> None:
    damaged = single(2, b"b")
    damaged[8] = damaged[8][:-8] + b"\1" + damaged[8][-7:]
    for frame in (single(1, b"a"), damaged, single(3, b"c")):
        broker.gathering.add(frame)
    broker.gathering.flush()
    assert broker.values() == [[b"a"], [b"c"]]
    assert broker.codes() == [(2, "INVALID")]


def test_more_than_a_batch_may_have_goes_one_by_one(broker: Broker) -> None:
    broker.most_messages = 2
    for number in range(1, 4):
        broker.gathering.add(single(number, b"%d" % number))
    broker.gathering.flush()
    assert broker.values() == [[b"1"], [b"2"], [b"3"]]


def test_a_failure_is_everybodys(broker: Broker) -> None:
    for number in range(1, 4):
        broker.gathering.add(single(number, b"%d" % number))
    broker.gathering.flush()
    broker.given[0][1](Overloaded("no room"))
    assert broker.codes() == [(1, "OVERLOADED"), (2, "OVERLOADED"), (3, "OVERLOADED")]


@pytest.mark.parametrize("odd", [[3, 0.0], [3, False], [4, 0.0], [8, "text"], [2, b"t"], [7, False]])
def test_equal_value_of_another_type_is_refused(broker: Broker, odd: list[Any]) -> None:
    broker.gathering.add(single(1, b"a"))
    frame = single(2, b"b")
    frame[odd[0]] = odd[1]
    with pytest.raises(InvalidRequest):
        broker.gathering.add(frame)
    broker.gathering.flush()
    assert broker.values() == [[b"a"]]


def test_a_field_too_many_is_refused(broker: Broker) -> None:
    broker.gathering.add(single(1, b"a"))
    with pytest.raises(InvalidRequest):
        broker.gathering.add([*single(2, b"b"), 0])


async def test_slow_check_is_awaited_and_keeps_its_position(broker: Broker) -> None:
    broker.most_messages = 10_000
    many = [b"x"] * 5000
    large = [int(Type.PRODUCE), 2, "t", 0, 0, 0, 0, 0, encode({Column.VALUE: many})]
    assert broker.gathering.add(single(1, b"before")) is None
    rest = broker.gathering.add(large)
    assert rest is not None and broker.values() == [[b"before"]], "the earlier batch was proposed"
    await rest
    broker.gathering.add(single(3, b"behind"))
    broker.gathering.flush()
    assert broker.values() == [[b"before"], many, [b"behind"]] and broker.large == 1


def test_work_beyond_that_of_a_frame_is_reported(broker: Broker) -> None:
    broker.gathering.add(single(1, b"plain"))
    assert broker.spent == 0
    broker.gathering.add(single(2, b"with a key", key=b"k"))
    with_key = broker.spent
    assert with_key > 0
    broker.gathering.add(single(3, bytes(1 << 20)))
    assert broker.spent - with_key > 100


def test_requests_like_those_that_have_gathered_are_taken_in_at_once(broker: Broker) -> None:
    in_flight: dict[int, str] = {}
    frames = [single(number, b"%d" % number, partition=number % 2) for number in range(1, 9)]
    assert broker.gathering.gather(frames, 0, 8, in_flight, "mark") == 0, "the first of each partition is checked"
    for frame in frames[:2]:
        assert broker.gathering.add(frame) is None
    assert broker.gathering.gather(frames, 2, 4, in_flight, "mark") == 4, "the requested number"
    assert broker.gathering.gather(frames, 6, 100, in_flight, "mark") == 2
    assert in_flight == dict.fromkeys(range(3, 9), "mark")
    broker.gathering.flush()
    assert broker.values() == [[b"1", b"3", b"5", b"7"], [b"2", b"4", b"6", b"8"]]
    for asked, done in broker.given:
        done((offsets.pack(1000, 7, asked.partition, 0), 4))
    assert sorted(broker.codes()) == [(number, "") for number in range(1, 9)]


@pytest.mark.parametrize(
    "other",
    [
        single(5, b"v", topic="other"),
        single(5, b"v", partition=1),
        single(5, b"v", key=b"k"),
        single(5, b"v" * SMALL_BYTES),
        single(2, b"v"),
        [int(Type.PRODUCE), 5, "t", 0, 7, 0, 0, 0, encode({Column.VALUE: [b"v"]})],
        [int(Type.PRODUCE), 5, "t", 0, 0, 0, 0, 0, "text"],
        [int(Type.PRODUCE), 5, "t", 0],
        [int(Type.ACK), 5, "t", 0, 0, 0, 0, 0, encode({Column.VALUE: [b"v"]})],
        LargeFrame(memoryview(bytes(100)), 100),
    ],
    ids=lambda frame: str(frame)[:40],
)
def test_other_frames_are_not_gathered(broker: Broker, other: Any) -> None:
    """Other frames are handled one by one, after the gathered frames."""
    in_flight = {2: "mark"}
    broker.gathering.add(single(1, b"1"))
    assert broker.gathering.gather([single(3, b"3"), other, single(4, b"4")], 0, 9, in_flight, "mark") == 1
    assert [*in_flight] == [2, 3]
    broker.gathering.flush()
    assert broker.values() == [[b"1", b"3"]]


def test_merged_requests_are_limited(broker: Broker) -> None:
    """If the merged batch is refused, all its requests are checked and answered in one step."""
    frames = [single(number, b"v") for number in range(2 * TOGETHER + 5)]
    at, in_flight = 0, dict[int, str]()
    while at < len(frames):
        taken = broker.gathering.gather(frames, at, 10_000, in_flight, "mark")
        if not taken:
            assert broker.gathering.add(frames[at]) is None
        at += taken or 1
    broker.gathering.flush()
    assert [len(values) for values in broker.values()] == [TOGETHER, TOGETHER, 5]
