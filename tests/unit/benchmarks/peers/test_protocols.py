"""Tests of each peer's protocol: replies are counted correctly wherever the stream is cut, and errors raise."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from benchmarks.peers import beanstalkd, nats, postgres, rabbitmq, redis, sandq_node
from benchmarks.peers.loop import Flow, drain, drive, value
from benchmarks.peers.peer import Consumer, Lines, Link, PeerError
from sandq.model.piece import LeasedPieces, Piece
from sandq.protocol.frames import encode_frame
from sandq.protocol.replies import encode_deliver
from sandq.protocol.requests import Ack, Credit

VALUE = value()


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Return a socket pair: the client's end and the server's end."""
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def bare(kind: type[Link] | type[Consumer], **attributes: object) -> object:
    """Return a link or consumer that is not connected."""
    made = kind.__new__(kind)
    for name, found in attributes.items():
        setattr(made, name, found)
    return made


def sandq_link() -> Link:
    return bare(sandq_node.SandqLink, _kept=b"")  # type: ignore[return-value]


def text_link(kind: type[Link]) -> Callable[[], Link]:
    return lambda: bare(kind, _lines=Lines())  # type: ignore[return-value, no-any-return]


def rabbit_link() -> Link:
    return bare(rabbitmq.RabbitLink, _frames=rabbitmq.Frames(), _below=0, _above=set())  # type: ignore[return-value]


def postgres_link() -> Link:
    return bare(postgres.PostgresLink, _messages=postgres.Messages())  # type: ignore[return-value]


def confirm(tag: int, multiple: bool = False) -> bytes:
    return rabbitmq.method((60, 80), struct.pack(">QB", tag, multiple))


def puback(number: int) -> bytes:
    body = b'{"stream":"bench","seq":%d}' % number
    return b"MSG acks.1 3 %d\r\n%s\r\n" % (len(body), body)


def committed(rows: int) -> bytes:
    done = b"INSERT 0 %d\0" % rows
    return postgres.message(b"2", b"") + postgres.message(b"C", done) + postgres.message(b"Z", b"I")


STREAMS = {
    "sandq": (sandq_link, b"".join(encode_frame(0, number, [bytes(16), 100], None) for number in range(9)), 9),
    "nats": (text_link(nats.NatsLink), puback(1) + b"PING\r\n" + puback(2) + puback(30), 3),
    "redis stream": (text_link(redis.StreamLink), b"$15\r\n1526919030474-0\r\n$15\r\n1526919030474-1\r\n", 2),
    "redis delayed": (text_link(redis.DelayedLink), b":100\r\n:100\r\n:7\r\n", 3),
    "beanstalkd": (text_link(beanstalkd.BeanstalkdLink), b"INSERTED 1\r\nINSERTED 23\r\nINSERTED 4\r\n", 3),
    "rabbitmq": (rabbit_link, confirm(2) + confirm(1) + confirm(5, True) + confirm(7), 6),
    "postgres": (postgres_link, committed(1) + committed(100) + committed(1), 3),
}
ERRORS = {
    "sandq": (sandq_link, encode_frame(255, 4, "INVALID", "no", False, {})),
    "nats": (text_link(nats.NatsLink), b'MSG acks.1 3 43\r\n{"error":{"code":503},"stream":"bench","seq":0}\r\n'),
    "nats server": (text_link(nats.NatsLink), b"-ERR 'Maximum Payload Violation'\r\n"),
    "redis": (text_link(redis.StreamLink), b"$15\r\n1526919030474-0\r\n-OOM command not allowed\r\n"),
    "redis first": (text_link(redis.DelayedLink), b"-MISCONF no\r\n"),
    "beanstalkd": (text_link(beanstalkd.BeanstalkdLink), b"INSERTED 1\r\nOUT_OF_MEMORY\r\n"),
    "beanstalkd buried": (text_link(beanstalkd.BeanstalkdLink), b"BURIED 1\r\n"),
    "rabbitmq": (rabbit_link, rabbitmq.method((60, 120), struct.pack(">QB", 1, 0))),
    "rabbitmq garbage": (rabbit_link, rabbitmq.method((60, 80), bytes(9))[:-1] + b"x"),
    "postgres": (postgres_link, postgres.message(b"E", b"SERROR\0Mduplicate key\0\0")),
}


@pytest.mark.parametrize("name", STREAMS)
def test_answers_are_counted_wherever_the_stream_is_cut(name: str) -> None:
    make, stream, answers = STREAMS[name]
    assert make().count(stream) == answers
    one_by_one = make()
    assert sum(one_by_one.count(stream[at : at + 1]) for at in range(len(stream))) == answers
    for cut in range(len(stream)):
        link = make()
        assert link.count(stream[:cut]) + link.count(stream[cut:]) == answers, f"cut at {cut}"
        # The last answer counts only when it is complete.
        assert make().count(stream[:cut]) < answers, f"counted before its end, at {cut}"


@pytest.mark.parametrize("name", ERRORS)
def test_an_answer_that_is_an_error_raises(name: str) -> None:
    make, stream = ERRORS[name]
    with pytest.raises(PeerError):
        make().count(stream)


def test_postgres_counts_commits_and_not_statements() -> None:
    link = postgres_link()
    assert link.count(postgres.message(b"C", b"INSERT 0 1\0")) == 0
    assert link.count(postgres.message(b"Z", b"I")) == 1


# ------------------------------------------------------------------------------------------------------------ requests


def test_requests_bring_every_value() -> None:
    values, dues_ms = (
        [value(1_700_000_000_000 + at, at) for at in range(3)],
        [1_700_000_000_000 + at for at in range(3)],
    )
    assert redis.command(b"PING", b"") == b"*2\r\n$4\r\nPING\r\n$0\r\n\r\n"
    link = text_link(redis.DelayedLink)()
    assert link.request(1, values, dues_ms).startswith(b"*8\r\n$4\r\nZADD\r\n")
    assert beanstalkd.put(b"abc", 5) == b"put 0 5 600 3\r\nabc\r\n"
    assert postgres.insert(2, False) == "INSERT INTO bench (value) VALUES ($1), ($2)"
    assert postgres.insert(2, True) == "INSERT INTO bench (due, value) VALUES ($1, $2), ($3, $4)"
    sandq = bare(sandq_node.SandqLink, _partition=0)
    for made in (link, rabbit_link(), postgres_link(), sandq, text_link(beanstalkd.BeanstalkdLink)()):
        request = made.request(1, values, dues_ms)  # type: ignore[attr-defined]
        assert all(one in request for one in values)


def test_delays_are_rounded_up_to_whole_seconds() -> None:
    link = text_link(beanstalkd.BeanstalkdLink)()
    now_s = time.time()
    assert link.request(1, [VALUE], [int(now_s * 1000) + 1500]).startswith(b"put 0 2 ")


# ----------------------------------------------------------------------------------------------------------- consumers


def consume(consumer: Consumer, stream: bytes, step: int) -> bytes:
    """Return all that the consumer sends if the stream arrives in pieces of `step` bytes."""
    return b"".join(consumer.receive(stream[at : at + step]) for at in range(0, len(stream), step))


def nats_consumer() -> Consumer:
    return bare(nats.NatsConsumer, _kept=b"", done=0)  # type: ignore[return-value]


@pytest.mark.parametrize("step", [1, 7, 150, 10_000])
def test_nats_acks_each_message(step: int) -> None:
    stream = b"PING\r\n" + b"".join(b"MSG bench.0 2 $JS.ACK.%d 100\r\n%s\r\n" % (at, VALUE) for at in range(5))
    consumer = nats_consumer()
    answer = consume(consumer, stream, step)
    assert consumer.done == 5
    acks = [line for line in answer.split(b"PUB ") if line.startswith(b"$JS.ACK")]
    assert acks[0].startswith(b"$JS.ACK.0 4\r\n+ACK\r\n") and len(acks) == 5
    assert b"PONG\r\n" in answer


@pytest.mark.parametrize("step", [1, 60, 10_000])
def test_redis_acks_a_read_and_reads_on(pair: tuple[socket.socket, socket.socket], step: int) -> None:
    entry = b"*2\r\n$3\r\n%d-0\r\n*2\r\n$1\r\nv\r\n$100\r\n" + VALUE + b"\r\n"
    stream = b"*1\r\n*2\r\n$5\r\nbench\r\n*2\r\n" + b"".join(entry % at for at in (7, 8)) + b":2\r\n"
    consumer = redis.StreamConsumer(pair[0], 2, 1000)
    assert consumer.start().count(b"XREADGROUP") == 1  # there is no second read's worth
    answer = consume(consumer, stream, step)
    assert answer == redis.command(b"XACK", redis.STREAM, redis.GROUP, b"7-0", b"8-0")
    assert consumer.done == 2


def test_redis_reads_one_after_the_other(pair: tuple[socket.socket, socket.socket]) -> None:
    entry = b"*1\r\n*2\r\n$5\r\nbench\r\n*2\r\n*2\r\n$3\r\n7-0\r\n*2\r\n$1\r\nv\r\n$100\r\n" + VALUE + b"\r\n"
    consumer = redis.StreamConsumer(pair[0], 2, 1)
    read = consumer.start()
    assert read.count(b"XREADGROUP") == 1 and b"COUNT\r\n$1\r\n1\r\n" in read
    assert consumer.receive(entry) == redis.command(b"XACK", redis.STREAM, redis.GROUP, b"7-0") + read


@pytest.mark.parametrize("step", [1, 60, 10_000])
def test_redis_consumer_polls_for_due_messages(pair: tuple[socket.socket, socket.socket], step: int) -> None:
    consumer = redis.DelayedConsumer(pair[0], 1000)
    poll = consumer.start()
    assert consume(consumer, b"*0\r\n", step) == poll
    assert consumer.idle and not consumer.done
    assert consume(consumer, b"*2\r\n" + (b"$100\r\n%s\r\n" % VALUE) * 2, step) == poll
    assert consumer.done == 2 and not consumer.idle


@pytest.mark.parametrize("step", [1, 60, 10_000])
def test_beanstalkd_deletes_each_job_and_reserves_no_more_than_there_are(step: int) -> None:
    attributes = {"_window": 2, "_unreserved": 1, "_kept": b"", "done": 0}
    # type: ignore[assignment]
    consumer: beanstalkd.BeanstalkdConsumer = bare(beanstalkd.BeanstalkdConsumer, **attributes)
    jobs = [b"RESERVED %d 100\r\n%s\r\n" % (at, VALUE) for at in range(3)]
    assert consumer.start() == b"reserve\r\n" * 2
    answer = consume(consumer, jobs[0] + jobs[1] + b"DELETED\r\n" + jobs[2] + b"DELETED\r\nDELETED\r\n", step)
    assert answer == b"delete 0\r\nreserve\r\ndelete 1\r\ndelete 2\r\n"
    assert consumer.done == 3
    with pytest.raises(PeerError):
        consumer.receive(b"NOT_FOUND\r\n")


@pytest.mark.parametrize("step", [1, 60, 10_000])
def test_rabbitmq_acks_each_delivery_tag(step: int) -> None:
    # type: ignore[assignment]
    consumer: rabbitmq.RabbitConsumer = bare(rabbitmq.RabbitConsumer, _frames=rabbitmq.Frames(), _tags=[], done=0)
    stream = rabbitmq.method((60, 21), rabbitmq.short("c"))
    for tag in (1, 2):
        stream += rabbitmq.method((60, 60), b"\1c" + struct.pack(">QB", tag, 0) + b"\0\5bench")
        stream += rabbitmq.frame(rabbitmq.HEADER, 1, bytes(14)) + rabbitmq.frame(rabbitmq.BODY, 1, VALUE)
    assert consume(consumer, stream, step) == confirm(1) + confirm(2)
    assert consumer.done == 2


@pytest.mark.parametrize("step", [1, 60, 10_000])
def test_postgres_takes_until_nothing_is_left(pair: tuple[socket.socket, socket.socket], step: int) -> None:
    consumer = postgres.PostgresConsumer(pair[0])
    row = postgres.message(b"D", struct.pack(">HI", 1, len(VALUE)) + VALUE)
    ready = postgres.message(b"Z", b"I")
    assert consume(consumer, row * 2 + postgres.message(b"C", b"DELETE 2\0") + ready, step) == consumer.start()
    assert consumer.done == 2 and not consumer.idle
    assert consume(consumer, postgres.message(b"C", b"DELETE 0\0") + ready, step) == consumer.start()
    assert consumer.idle
    assert "ORDER BY id FOR UPDATE SKIP LOCKED LIMIT 7)" in postgres.take(False, 7)


def test_sandq_names_every_message_in_its_ack() -> None:
    attributes = {"_reader": sandq_node.FrameReader(), "_requests": 1, "_unanswered": {}, "done": 0}
    consumer: sandq_node.SandqConsumer = bare(sandq_node.SandqConsumer, **attributes)  # type: ignore[assignment]
    batch = sandq_node.encode({sandq_node.Column.VALUE: [VALUE] * 3})
    base = sandq_node.offsets.pack(1_700_000_000_000, 5, 0, 2)
    now_ms = 1_700_000_000_000
    lease = LeasedPieces(4, 2, 77, 1, now_ms + 60_000, [Piece(base, None, now_ms, None, batch)])
    (stream,) = encode_deliver(1_000_000, lease)
    column = sandq_node.offsets.run(base, 3)
    expected = Ack(4, 2, [[77, [[offset, 1] for offset in column]]]).frame(2) + Credit(1_000_000, 3).frame()
    assert consumer.receive(stream) == expected
    assert consumer.done == 0  # not before the ack is answered
    consumer.receive(encode_frame(0, 2, [None]))
    assert consumer.done == 3
    with pytest.raises(PeerError):
        consumer.receive(encode_frame(255, 3, "INVALID", "no", False, {}))


# ---------------------------------------------------------------------------------------------------------------- loop


class Echo(Link):
    """A protocol in which each line is an answer, so an echo server is enough."""

    def request(self, number: int, values: object, dues_ms: object) -> bytes:
        return b"%d\n" % number

    def count(self, data: bytes) -> int:
        if b"!" in data:
            raise PeerError("refused")
        return data.count(b"\n")


def test_a_flow_keeps_to_its_window(pair: tuple[socket.socket, socket.socket]) -> None:
    flow = Flow(Echo(pair[0]), [b"a\n", b"b\n"], 5, 2)
    pair[0].setblocking(False)
    flow.send_next()
    flow.send_next()
    assert pair[1].recv(100) == b"a\nb\n" and flow.sent == 2
    flow.answers = 1
    flow.send_next()
    assert pair[1].recv(100) == b"a\n"
    flow.answers = 5
    flow.send_next()
    assert flow.sent == 5 and flow.through


@contextlib.contextmanager
def echoing(server: socket.socket) -> Iterator[None]:
    """Echo all received bytes at the server's end until the client disconnects."""

    def echo() -> None:
        while data := server.recv(1000):
            server.sendall(data)

    thread = threading.Thread(target=echo)
    thread.start()
    yield
    thread.join()


def test_drive_ends_when_everything_is_answered(pair: tuple[socket.socket, socket.socket]) -> None:
    link = Echo(pair[0])
    with echoing(pair[1]):
        driven = drive([Flow(link, [b"x\n", b"y\n"], 50, 1)])
        flow = Flow(link, [b"x\n"], 1_000_000, 3)
        drive([flow], seconds=0.0)  # the time is over, but open requests are still answered
        link.socket.shutdown(socket.SHUT_WR)
    assert driven.seconds > 0 and len(driven.answer_s) == 50
    assert flow.sent == flow.answers < 1_000_000


@pytest.mark.parametrize(("answer", "error"), [(b"!\n", "refused"), (b"1\n2\n", "2 answers to 1 requests")])
def test_drive_raises_when_answers_are_wrong(
    pair: tuple[socket.socket, socket.socket], answer: bytes, error: str
) -> None:
    pair[1].sendall(answer)
    with pytest.raises(PeerError, match=error):
        drive([Flow(Echo(pair[0]), [b"x\n"], 9, 1)])


def test_drive_raises_when_the_server_goes(pair: tuple[socket.socket, socket.socket]) -> None:
    pair[1].shutdown(socket.SHUT_WR)
    with pytest.raises(PeerError, match="closed"):
        drive([Flow(Echo(pair[0]), [b"x\n"], 1, 1)])


def test_drain_measures_the_lateness_of_each_message(pair: tuple[socket.socket, socket.socket]) -> None:
    consumer = redis.DelayedConsumer(pair[0], 1000)
    due_ms = 1_700_000_000_000
    late_ms: list[float] = []
    pair[1].sendall(b"*2\r\n" + b"".join(b"$100\r\n%s\r\n" % value(due_ms + at, at) for at in range(2)))
    drain(consumer, 2, late_ms)
    assert len(late_ms) == 2 and late_ms[0] - late_ms[1] == pytest.approx(1)
