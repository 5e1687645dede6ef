"""Consuming: whole leases, an ack for each message, and the client's own subscription."""

from __future__ import annotations

import time

import anyio

import sandq
from benchmarks.process import Where, cpu_s, running
from benchmarks.produce import PARTITIONS, TOPIC, batch_of, frames_of
from benchmarks.result import Goal, Result
from benchmarks.wire import Flow, Wire, drive
from sandq.model import offsets
from sandq.model.batch import peek
from sandq.protocol.frames import Frame, Type
from sandq.protocol.replies import Deliver
from sandq.protocol.requests import Ack, Credit, Subscribe

GROUP = "g"
CREDIT = 10_000
BATCH = 1000
GOAL = Goal(300_000, "msg/s")
SUBSCRIPTION = 1_000_000
_REPLY = 0


def fill(wire: Wire, messages: int) -> None:
    """Messages that are due, in batches."""
    wire.create_topic(TOPIC, PARTITIONS, lease="60s")
    for partition in range(PARTITIONS):
        count = messages // BATCH // PARTITIONS
        drive([Flow(wire, frames_of([batch_of(BATCH)] * count, partition), 8)])
    wire.socket.setblocking(True)


def subscribe(wire: Wire, credit: int = CREDIT) -> None:
    """Ask for messages; the answer comes among them."""
    request = Subscribe(SUBSCRIPTION, TOPIC, GROUP, "benchmarks-1", credit, 60_000, "earliest", [])
    wire.socket.sendall(request.frame(1))


def offsets_of(delivery: Deliver, count: int) -> list[bytes]:
    """Of each message of a delivery."""
    if len(delivery.offsets) == offsets.OFFSET_BYTES:
        return offsets.run(delivery.offsets, count)
    return [delivery.offsets[at : at + offsets.OFFSET_BYTES] for at in range(0, len(delivery.offsets), 16)]


def settle(frame: Frame, request_id: int, each: bool) -> tuple[bytes, int]:
    """What acks a delivery and gives its credit back, and how many messages it had.

    `each`: every message is named by itself. Otherwise one range, which is what the client makes of the acks of
    single messages that were handled together.
    """
    delivery = Deliver.parse(frame)
    column = offsets_of(delivery, peek(delivery.batch).count)
    live = delivery.live or [[0, len(column)]]
    count = sum(length for _, length in live)
    if each or len(delivery.offsets) > offsets.OFFSET_BYTES:
        what = [[offset, 1] for first, length in live for offset in column[first : first + length]]
    else:
        what = [[column[first], length] for first, length in live]
    ack = Ack(delivery.group_number, delivery.partition, [[delivery.token, what]])
    return ack.frame(request_id) + Credit(SUBSCRIPTION, count).frame(), count


def consume(where: Where, quick: bool, *, each: bool) -> Result:
    """Everything of a topic that is due, one connection, until the last ack is confirmed."""
    messages = 40_000 if quick else 1_000_000
    name = "consume_each" if each else "consume"
    with running(where, name) as node:
        assert node.pid is not None
        wire = Wire(node.port)
        fill(wire, messages)
        before_s, began = cpu_s(node.pid), time.perf_counter()
        subscribe(wire)
        got = acks = confirmed = 0
        while got < messages or confirmed < acks:
            out = []
            for frame in wire.receive():
                if frame[0] == Type.DELIVER:
                    acks += 1
                    answer, count = settle(frame, acks + 1, each)
                    out.append(answer)
                    got += count
                elif frame[1] != 1:  # 1: the answer to SUBSCRIBE
                    assert frame[2] == [None], f"an ack was refused: {frame}"
                    confirmed += 1
            if out:
                wire.socket.sendall(b"".join(out))
        seconds, used_s = time.perf_counter() - began, cpu_s(node.pid) - before_s
        wire.close()
    what = "an ack for each message" if each else "acks gathered into a range, as the client sends them"
    result = Result(name, f"batches of {BATCH}, {what}", "raw", messages, messages / seconds, "msg/s", GOAL)
    result.cpu_us = used_s * 1e6 / messages
    return result


def consume_client(where: Where, quick: bool, *, batches: bool = False) -> Result:
    """`async for message` and `message.ack()`, or whole batches, one client: what a Python program gets."""
    messages = 20_000 if quick else 300_000
    name = "consume_client_batches" if batches else "consume_client"
    with running(where, name) as node:
        pid = node.pid
        assert pid is not None
        wire = Wire(node.port)
        fill(wire, messages)
        wire.close()

        async def run() -> tuple[float, float]:
            async with sandq.connect(node.address) as client:
                before_s, began = cpu_s(pid), time.perf_counter()
                async with client.subscribe(TOPIC, group=GROUP, credit=CREDIT) as subscription:
                    left = messages
                    if batches:
                        async for batch in subscription.batches():
                            left -= len(batch)
                            batch.ack()
                            if not left:
                                break
                    else:
                        async for message in subscription:
                            message.ack()
                            left -= 1
                            if not left:
                                break
                return time.perf_counter() - began, cpu_s(pid) - before_s

        seconds, used_s = anyio.run(run, backend="trio")
    what = "async for batch in subscription.batches(): batch.ack()" if batches else "async for message: message.ack()"
    result = Result(name, f"{what}, one client", "client", messages, messages / seconds, "msg/s")
    result.cpu_us = used_s * 1e6 / messages
    return result
