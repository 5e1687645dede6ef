"""Single messages of one receive are stored as one batch, and each is answered as if it had come alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sandq.model import offsets
from sandq.model.batch import Batch, Column, encode
from sandq.model.errors import InvalidRequest, Overloaded, SandqError
from sandq.partition.log import Stored
from sandq.protocol.frames import Frame, FrameReader, Type, encode_error
from sandq.protocol.requests import Produce
from sandq.server.singles import SINGLE_BYTES, Done, Singles

BASE = offsets.pack(1000, 7, 3, 0)


class Broker:
    """Keeps what it is handed; `refuse` says which batches it refuses."""

    def __init__(self) -> None:
        self.given: list[tuple[Produce, Done]] = []
        self.answers: list[Frame] = []
        self.refused: dict[bytes, SandqError] = {}
        self.most_messages = 1000
        self.singles = Singles(self.produce, self.reply, self.refuse)

    def produce(self, asked: Produce, requests: int, done: Done) -> None:
        batch = Batch.parse(asked.batch)
        assert requests in (1, batch.count), "each waits for its answer"
        if batch.count > self.most_messages:
            raise Overloaded("too many at once")
        for value in batch.values():
            if value in self.refused:
                raise self.refused[value]
        self.given.append((asked, done))

    def reply(self, request_ids: Sequence[int], frames: bytes) -> None:
        self.answers += FrameReader().feed(frames)

    def refuse(self, request_id: int, error: SandqError) -> None:
        self.answers += FrameReader().feed(encode_error(request_id, error))

    def values(self) -> list[list[Any]]:
        """Of each batch that was taken."""
        return [list(Batch.parse(asked.batch).values()) for asked, _ in self.given]

    def codes(self) -> list[tuple[int, str]]:
        """Request id and what it was answered: an error's code, or nothing."""
        return [(frame[1], frame[2] if frame[0] == 255 else "") for frame in self.answers]


def single(number: int, value: bytes, *, topic: str = "t", partition: int = 0, **more: Any) -> Frame:
    columns: dict[int, Any] = {Column.VALUE: [value], **{Column[name.upper()]: [cell] for name, cell in more.items()}}
    return [int(Type.PRODUCE), number, topic, partition, 0, 0, 0, 0, encode(columns)]


@pytest.fixture
def broker() -> Broker:
    return Broker()


def test_what_came_together_is_stored_together_and_answered_one_by_one(broker: Broker) -> None:
    for number in range(1, 6):
        broker.singles.add(single(number, b"%d" % number))
    assert broker.given == []
    broker.singles.flush()
    assert broker.values() == [[b"1", b"2", b"3", b"4", b"5"]]
    broker.given[0][1]((BASE, 5))
    assert broker.answers == [[0, number, [offsets.shift(BASE, number - 1), 1], None] for number in range(1, 6)]


def test_one_alone_goes_as_it_came(broker: Broker) -> None:
    frame = single(9, b"x")
    broker.singles.add(frame)
    broker.singles.flush()
    broker.singles.flush()
    assert [asked for asked, _ in broker.given] == [Produce("t", 0, 0, 0, 0, 0, frame[8])]
    broker.given[0][1]((BASE, 1))
    assert broker.answers == [[0, 9, [BASE, 1], None]]


def test_only_what_is_for_the_same_place_goes_together_and_the_order_stays(broker: Broker) -> None:
    frames = [
        single(1, b"a"),
        single(2, b"b"),
        single(3, b"c", partition=1),
        single(4, b"d"),
        single(5, b"e", topic="u"),
        single(6, b"f", topic="u"),
    ]
    for frame in frames:
        broker.singles.add(frame)
    broker.singles.flush()
    assert broker.values() == [[b"a", b"b"], [b"c"], [b"d"], [b"e", b"f"]]


def test_an_idempotent_batch_and_a_large_one_stay_by_themselves(broker: Broker) -> None:
    numbered = single(2, b"b")
    numbered[4:7] = [77, 1, 1]
    large = single(3, bytes(SINGLE_BYTES))
    for frame in (single(1, b"a"), numbered, large, single(4, b"d")):
        broker.singles.add(frame)
    broker.singles.flush()
    assert [len(values) for values in broker.values()] == [1, 1, 1, 1]
    assert [asked.producer_id for asked, _ in broker.given] == [0, 77, 0, 0]
    assert [values[0][:1] for values in broker.values()] == [b"a", b"b", b"\0", b"d"]


def test_messages_that_are_more_than_a_value_go_one_by_one(broker: Broker) -> None:
    kinds: list[dict[str, Any]] = [{}, {"key": b"k"}, {"deliver_ms": 5}]
    for number, more in enumerate(kinds, 1):
        broker.singles.add(single(number, b"%d" % number, **more))
    broker.singles.flush()
    assert broker.values() == [[b"1"], [b"2"], [b"3"]]
    stored = Stored(BASE, [(0, "ready")])
    broker.given[2][1](stored)
    assert broker.answers == [[0, 3, BASE, [[0, "ready"]]]]


def test_the_answer_of_a_batch_that_was_stored_message_by_message_is_shared_out(broker: Broker) -> None:
    for number in range(1, 4):
        broker.singles.add(single(number, b"%d" % number))
    broker.singles.flush()
    column = offsets.run(BASE, 3)
    broker.given[0][1](Stored(b"".join(column), [(1, "ready")]))
    assert broker.answers == [[0, 1, column[0], None], [0, 2, column[1], [[0, "ready"]]], [0, 3, column[2], None]]


def test_whoever_is_refused_does_not_take_the_others_along(broker: Broker) -> None:
    broker.refused[b"2"] = InvalidRequest("bad")
    for number in range(1, 4):
        broker.singles.add(single(number, b"%d" % number))
    broker.singles.flush()
    assert broker.values() == [[b"1"], [b"3"]]
    assert broker.codes() == [(2, "INVALID")]


def test_a_batch_that_is_damaged_is_refused_alone(broker: Broker) -> None:
    damaged = single(2, b"b")
    damaged[8] = damaged[8][:-8] + b"\1" + damaged[8][-7:]
    for frame in (single(1, b"a"), damaged, single(3, b"c")):
        broker.singles.add(frame)
    broker.singles.flush()
    assert broker.values() == [[b"a"], [b"c"]]
    assert broker.codes() == [(2, "INVALID")]


def test_more_than_a_batch_may_have_goes_one_by_one(broker: Broker) -> None:
    broker.most_messages = 2
    for number in range(1, 4):
        broker.singles.add(single(number, b"%d" % number))
    broker.singles.flush()
    assert broker.values() == [[b"1"], [b"2"], [b"3"]]


def test_a_failure_is_everybodys(broker: Broker) -> None:
    for number in range(1, 4):
        broker.singles.add(single(number, b"%d" % number))
    broker.singles.flush()
    broker.given[0][1](Overloaded("no room"))
    assert broker.codes() == [(1, "OVERLOADED"), (2, "OVERLOADED"), (3, "OVERLOADED")]


@pytest.mark.parametrize("odd", [[3, 0.0], [3, False], [4, 0.0], [8, "text"], [2, b"t"], [7, False]])
def test_what_is_equal_and_of_another_type_is_refused(broker: Broker, odd: list[Any]) -> None:
    broker.singles.add(single(1, b"a"))
    frame = single(2, b"b")
    frame[odd[0]] = odd[1]
    with pytest.raises(InvalidRequest):
        broker.singles.add(frame)
    broker.singles.flush()
    assert broker.values() == [[b"a"]]


def test_a_field_too_many_is_refused(broker: Broker) -> None:
    broker.singles.add(single(1, b"a"))
    with pytest.raises(InvalidRequest):
        broker.singles.add([*single(2, b"b"), 0])
