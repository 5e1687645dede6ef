"""Consuming over a raw connection."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count

from benchmarks.load.produce import NUMBER_BYTES
from benchmarks.load.work import Done, Ready
from benchmarks.process import cpu_s
from benchmarks.produce import PARTITIONS, TOPIC, batch_of, frames_of
from benchmarks.result import ACKED, INTENDED, Latency, LoadResult
from benchmarks.wire import Flow, Wire, drive
from sandq.model import offsets
from sandq.model.batch import Batch, peek
from sandq.protocol.frames import Type
from sandq.protocol.replies import Deliver
from sandq.protocol.requests import Ack, Credit, Nack, Subscribe

GROUP = "g"
CREDIT = 10_000
SUBSCRIPTION = 1_000_000
_SUBSCRIBED = 1
"""Request number of the subscription; acks have higher numbers."""
_LEASE_MS = 60_000
_PARTS = 10

Clock = Callable[[], float]
Seen = Callable[[float, Deliver], None]
"""Called with a delivery and the time at which it was received."""


def fill(wire: Wire, messages: int, size: int, partitions: int) -> None:
    """Store `messages` messages that are due at once, in batches of `size`."""
    for partition in range(partitions):
        batches = [batch_of(size)] * (messages // size // partitions)
        drive([Flow(wire, frames_of(batches, partition), max(8, 640 // size))])
    wire.socket.setblocking(True)


def subscribe(wire: Wire) -> None:
    """Subscribe to the topic. The response arrives among the deliveries."""
    request = Subscribe(SUBSCRIPTION, TOPIC, GROUP, "benchmarks-1", CREDIT, _LEASE_MS, "earliest", [])
    wire.socket.sendall(request.frame(_SUBSCRIBED))


def offsets_of(delivery: Deliver, messages: int) -> list[bytes]:
    """Return the offset of each message of a delivery."""
    if len(delivery.offsets) == offsets.OFFSET_BYTES:
        return offsets.run(delivery.offsets, messages)
    width = offsets.OFFSET_BYTES
    return [delivery.offsets[at : at + width] for at in range(0, len(delivery.offsets), width)]


def settle(delivery: Deliver, request_id: int, each: bool) -> tuple[bytes, int]:
    """Return the frames that ack a delivery and return its credit, and its number of messages.

    `each`: acks every message separately. Otherwise one range, which the client builds from the acks of messages that
    were handled together.
    """
    column = offsets_of(delivery, peek(delivery.batch).count)
    live = delivery.live or [[0, len(column)]]
    messages = sum(length for _, length in live)
    if each or len(delivery.offsets) > offsets.OFFSET_BYTES:
        what = [[offset, 1] for first, length in live for offset in column[first : first + length]]
    else:
        what = [[column[first], length] for first, length in live]
    ack = Ack(delivery.group_number, delivery.partition, [[delivery.token, what]])
    return ack.frame(request_id) + Credit(SUBSCRIPTION, messages).frame(), messages


def take(
    wire: Wire, messages: int, *, each: bool, seen: Seen | None = None, clock: Clock = time.perf_counter
) -> list[float]:
    """Receive and ack messages until every ack is confirmed; return the seconds from each ack to its confirmation."""
    ids = count(_SUBSCRIBED + 1)
    acked_s: dict[int, float] = {}
    taken_s: list[float] = []
    got = 0
    while got < messages or acked_s:
        frames, now_s = wire.receive(), clock()
        out, sent = [], []
        for frame in frames:
            if frame[0] == Type.DELIVER:
                delivery = Deliver.parse(frame)
                if seen is not None:
                    seen(now_s, delivery)
                sent.append(next(ids))
                answer, here = settle(delivery, sent[-1], each)
                out.append(answer)
                got += here
            elif frame[1] != _SUBSCRIBED:
                assert frame[2] == [None], f"an ack was refused: {frame}"
                taken_s.append(now_s - acked_s.pop(frame[1]))
        if out:
            acked_s |= dict.fromkeys(sent, clock())
            wire.socket.sendall(b"".join(out))
    return taken_s


def consume(port: int, messages: int, size: int, each: bool) -> Ready:
    """Consume all due messages of a topic."""
    wire = Wire(port)
    fill(wire, messages, size, PARTITIONS)

    def run(began_s: float) -> Done:
        subscribe(wire)
        taken_s = take(wire, messages, each=each)
        return Done(LoadResult(messages, time.perf_counter() - began_s), partial(Latency.of, ACKED, taken_s))

    return Ready(run)


def nack(port: int, messages: int, size: int) -> Ready:
    """Receive messages that are due at once in one partition, and nack each message by itself, until the last nack is
    confirmed."""
    wire = Wire(port)
    fill(wire, messages, size, 1)

    def run(began_s: float) -> Done:
        subscribe(wire)
        ids, open_nacks, got = count(_SUBSCRIBED + 1), dict[int, int](), 0
        while got < messages or open_nacks:
            out = []
            for frame in wire.receive():
                if frame[0] == Type.DELIVER:
                    delivery = Deliver.parse(frame)
                    found, number = offsets_of(delivery, peek(delivery.batch).count), next(ids)
                    open_nacks[number] = len(found)
                    items = [[delivery.token, [[offset, 1]], None, "down"] for offset in found]
                    request = Nack(delivery.group_number, delivery.partition, items)
                    out.append(request.frame(number))
                    got += len(found)
                elif frame[1] != _SUBSCRIBED:
                    assert not any(frame[2]), f"a nack was refused: {frame}"
                    out.append(Credit(SUBSCRIPTION, open_nacks.pop(frame[1])).frame())
            if out:
                wire.socket.sendall(b"".join(out))
        return Done(LoadResult(messages, time.perf_counter() - began_s))

    return Ready(run)


def trimming(port: int, pid: int, messages: int, size: int) -> Ready:
    """Consume one partition, like `consume`. The details are the node's CPU time at each tenth."""
    wire = Wire(port)
    fill(wire, messages, size, 1)

    def run(began_s: float) -> Done:
        marks, got = {"mark 0": cpu_s(pid)}, 0

        def seen(now_s: float, delivery: Deliver) -> None:
            nonlocal got
            got += peek(delivery.batch).count
            if got >= len(marks) * messages // _PARTS:
                marks[f"mark {len(marks)}"] = cpu_s(pid)

        subscribe(wire)
        taken_s = take(wire, messages, each=False, seen=seen)
        result = LoadResult(messages, time.perf_counter() - began_s, details=marks)
        return Done(result, partial(Latency.of, ACKED, taken_s))

    return Ready(run)


def paced(port: int, messages: int, size: int, per_s: int) -> Ready:
    """Receive messages that another process sends at a rate, in numbered batches (see `produce.paced`). Times each
    message from the planned send of its batch."""
    wire = Wire(port)
    subscribe(wire)
    while not any(frame[1] == _SUBSCRIBED for frame in wire.receive()):
        pass

    def run(began_s: float) -> Done:
        came: list[tuple[float, bytes]] = []
        taken_s = take(
            wire, messages, each=True, seen=lambda now_s, delivery: came.append((now_s - began_s, delivery.batch))
        )
        seconds = time.perf_counter() - began_s

        def late_s() -> Iterator[float]:
            for after_s, batch in came:
                for value in Batch.parse(batch).values():
                    yield after_s - int.from_bytes((value or b"")[:NUMBER_BYTES], "big") * size / per_s

        result = LoadResult(messages, seconds)
        acks = Latency.of(ACKED, taken_s)
        assert acks is not None
        result.details = {"ack p50 ms": acks.at(0.5), "ack p99 ms": acks.at(0.99)}
        return Done(result, lambda: Latency.of(INTENDED, late_s()))

    return Ready(run)
