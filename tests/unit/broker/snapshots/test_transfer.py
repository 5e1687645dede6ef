"""Tests of snapshot transfers over connections that break at any frame, to receivers that crash at any step."""

from __future__ import annotations

import contextlib
import random
import re
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
import trio
import trio.testing

from sandq.broker.snapshots.intake import KEPT_S, RECEIVING_AT_ONCE, Intake
from sandq.broker.snapshots.transfer import (
    ACK,
    BURST_S,
    CHUNK,
    CHUNK_FRAME_BYTES,
    DONE,
    FAILED,
    KEY_BYTES,
    OFFER,
    REASON_CHARS,
    REFUSE,
    RESUME,
    SENDING_AT_ONCE,
    SILENCE_S,
    SMALL_FRAME_BYTES,
    WINDOW,
    Answer,
    Outlet,
    Throttle,
    Verdict,
    receive_snapshot,
    send_snapshot,
)
from sandq.model.errors import ConnectionLost, Corruption, ProtocolError, StorageFailed, TimedOut
from sandq.storage.keys import store_prefix, store_range
from sandq.storage.memory_files import MemoryFiles
from sandq.storage.pointers import Pointers, StorePointer
from sandq.storage.snapshot import CHUNK_BYTES_AT_MOST, META_BYTES, Chunk, Exporter, Importer, Meta
from sandq.storage.stores import MemoryStores, Row
from tests.support.documents import document

FROM = 5
GROUP = 7
ROWS: list[Row] = [(b"k%03d" % number, bytes([number]) * 90_000) for number in range(30)]
INSTALLED = Answer(Verdict.INSTALLED)


def meta(*, snapshot_id: bytes = bytes(16), group: int = GROUP, index: int = 41) -> Meta:
    return Meta(group, snapshot_id, index, 3, ("n1#1", "n2#4"), ("n3#9",), 1)


# A connection


class Wire:
    """Two ends in memory. The connection breaks after `frames` frames in both directions together. `late`: frames that
    were sent before still arrive."""

    def __init__(self, frames: int = 10**9, *, late: bool = True) -> None:
        self.frames = frames
        self.sent: list[tuple[Any, ...]] = []
        self._late = late
        one, two = trio.open_memory_channel[bytes](100), trio.open_memory_channel[bytes](100)
        self._channels = one, two
        self.left, self.right = End(self, one[0], two[1]), End(self, two[0], one[1])

    def use(self) -> None:
        if self.frames == 0:
            self.cut()
            raise ConnectionLost("the connection broke")
        self.frames -= 1

    def cut(self) -> None:
        self.frames = 0
        for sender, receiver in self._channels:
            sender.close()
            if not self._late:
                receiver.close()


class End:
    def __init__(
        self, wire: Wire, sender: trio.MemorySendChannel[bytes], receiver: trio.MemoryReceiveChannel[bytes]
    ) -> None:
        self._wire = wire
        self._sender = sender
        self._receiver = receiver
        self.limits: list[int] = []
        """The byte limits of the received frames."""

    async def send(self, obj: Any) -> None:
        self._wire.use()
        self._wire.sent.append(tuple(obj))
        await self._sender.send(msgpack.packb(obj))

    async def receive(self, limit: int = CHUNK_FRAME_BYTES) -> Any:
        self.limits.append(limit)
        try:
            return msgpack.unpackb(await self._receiver.receive(), use_list=False)
        except (trio.EndOfChannel, trio.ClosedResourceError) as error:
            raise ConnectionLost("the connection ended") from error


# A sender


class Source:
    """A node that sends its rows while its store changes."""

    def __init__(self, rows: list[Row] | None = None) -> None:
        self.stores = MemoryStores()
        self.rows = ROWS if rows is None else rows
        self.stores.write([(store_prefix(FROM) + key, value) for key, value in self.rows])
        self.exporter = Exporter(self.stores.snapshot(), FROM)
        self.asked: list[bytes | None] = []

    async def read(self, after: bytes | None) -> Chunk:
        self.asked.append(after)
        self.stores.write([(store_prefix(FROM) + b"k%03d" % len(self.asked), b"later")])
        await trio.lowlevel.checkpoint()
        return self.exporter.chunk(after)


# A receiver


class PowerLost(BaseException):
    """The receiver dies at this step."""


class Target:
    """A node that installs a snapshot. Each disk operation is a step, and the node dies at step `dies_at`."""

    def __init__(
        self, files: MemoryFiles | None = None, stores: MemoryStores | None = None, *, dies_at: int = 10**9
    ) -> None:
        self.files = files if files is not None else MemoryFiles()
        self.stores = stores if stores is not None else MemoryStores()
        self.pointers = Pointers.open(self.files)
        self.steps = 0
        self.dies_at = dies_at
        self.needed = True
        self.intake = Intake(self.begin, lambda meta: self.needed)
        self.begun: list[Meta] = []
        self.dropped: list[int] = []

    def step(self) -> None:
        self.steps += 1
        if self.steps > self.dies_at:
            raise PowerLost

    async def begin(self, meta: Meta) -> TargetSink | None:
        """Begin to receive a snapshot, unless the pointer is as new already."""
        pointer = self.pointers.get(meta.group)
        if pointer is not None and pointer.snapshot_index >= meta.index:
            return None
        self.begun.append(meta)
        self.step()
        (store,) = self.pointers.mint()
        return TargetSink(self, store)

    def installed(self, group: int = GROUP) -> list[Row] | None:
        pointer = self.pointers.get(group)
        if pointer is None:
            return None
        return [(key[4:], value) for key, value in self.stores.scan(*store_range(pointer.store))]

    def after_power_loss(self, rng: random.Random) -> Target:
        return Target(self.files.crash(rng), self.stores.crash(rng))


class TargetSink:
    def __init__(self, target: Target, store: int) -> None:
        self.importer = Importer(target.stores, store)
        self._target = target

    @property
    def position(self) -> bytes | None:
        return self.importer.position

    async def add(self, data: bytes) -> bool:
        self._target.step()
        last = self.importer.add(data)
        self._target.step()
        await trio.lowlevel.checkpoint()
        return last

    async def finish(self, meta: Meta) -> None:
        """Write the pointer to the received snapshot. Each step may fail."""
        target = self._target
        target.step()
        target.stores.flush()
        target.step()
        members = meta.voters, meta.learners
        pointer = StorePointer(meta.group, 4, self.importer.store, meta.index, meta.term, *members)
        target.pointers.update(put=[pointer])
        target.step()

    def drop(self) -> None:
        self._target.dropped.append(self.importer.store)


async def transfer(
    source: Source, target: Target, wire: Wire, what: Meta | None = None
) -> tuple[Answer | Exception, Answer | Exception]:
    """Run one connection. Return its outcome at the sender and at the receiver."""
    ends: dict[str, Answer | Exception] = {}

    async def run(name: str, talk: Callable[[], Any]) -> None:
        try:
            ends[name] = await talk()
        except ConnectionLost as error:
            ends[name] = error
            wire.cut()

    async with trio.open_nursery() as nursery:
        throttle = Throttle(1 << 40)
        nursery.start_soon(run, "left", lambda: send_snapshot(wire.left, what or meta(), source.read, throttle))
        nursery.start_soon(run, "right", lambda: target.intake.receive(wire.right))
    return ends["left"], ends["right"]


# The conversation


async def test_a_snapshot_arrives() -> None:
    source, target, wire = Source(), Target(), Wire()
    assert await transfer(source, target, wire) == (INSTALLED, INSTALLED)
    assert target.installed() == ROWS
    pointer = target.pointers.get(GROUP)
    assert pointer is not None and (pointer.snapshot_index, pointer.voters) == (41, ("n1#1", "n2#4"))
    kinds = [frame[0] for frame in wire.sent]
    chunks = kinds.count(CHUNK)
    assert chunks > WINDOW and kinds[:2] == [OFFER, RESUME] and kinds[-1] == DONE
    assert kinds.count(ACK) == chunks - 1 and kinds.count(DONE) == 1


async def test_an_empty_store_is_installed_too() -> None:
    target = Target()
    assert await transfer(Source([]), target, Wire()) == (INSTALLED, INSTALLED)
    assert target.installed() == []


async def test_chunks_in_flight_are_at_most_the_window(autojump_clock: trio.testing.MockClock) -> None:
    source, wire = Source(), Wire()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(send_snapshot, wire.left, meta(), source.read, Throttle(1 << 40))
        await wire.right.receive()
        await wire.right.send((RESUME, None))
        await trio.testing.wait_all_tasks_blocked()
        assert len(source.asked) == WINDOW
        await wire.right.send((ACK,))
        await trio.testing.wait_all_tasks_blocked()
        assert len(source.asked) == WINDOW + 1
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("late", [True, False])
async def test_transfer_broken_at_every_frame_is_completed(late: bool) -> None:
    """Each connection sends n frames and continues where the previous connection ended, until the snapshot is
    complete."""
    whole = Wire()
    await transfer(Source(), Target(), whole)
    for frames in range(1, len(whole.sent)):
        source, target = Source(), Target()
        for _ in range(len(ROWS)):
            left, _ = await transfer(source, target, Wire(frames, late=late))
            assert isinstance(left, ConnectionLost if target.installed() is None else Answer | ConnectionLost)
            assert target.installed() in (None, ROWS)
        # With fewer frames than an offer, its reply and a chunk, a connection makes no progress.
        assert target.installed() == (ROWS if frames > 2 else None), f"{frames} frames a connection"
        assert frames <= 2 or len(target.begun) == 1
        await transfer(source, target, Wire())
        assert target.installed() == ROWS and target.dropped == []


async def test_broken_transfer_continues_after_the_received_rows() -> None:
    source, target = Source(), Target()
    left, right = await transfer(source, target, Wire(20))
    assert isinstance(left, ConnectionLost) and isinstance(right, ConnectionLost)
    assert target.installed() is None
    source.asked.clear()
    wire = Wire()
    assert await transfer(source, target, wire) == (INSTALLED, INSTALLED)
    assert wire.sent[1][1] == source.asked[0] and source.asked[0] is not None
    assert target.installed() == ROWS and len(target.begun) == 1


async def test_different_snapshot_starts_from_the_beginning() -> None:
    target = Target()
    await transfer(Source(), target, Wire(20))
    newer = Source(ROWS[3:])
    what = meta(snapshot_id=b"another snapshot", index=50)
    assert await transfer(newer, target, Wire(), what) == (INSTALLED, INSTALLED)
    assert newer.asked[0] is None and target.installed() == ROWS[3:]
    assert target.dropped == [1] and len(target.begun) == 2


async def test_installed_snapshot_is_not_sent() -> None:
    source, target = Source(), Target()
    await transfer(source, target, Wire())
    wire = Wire()
    left, right = await transfer(source, target, wire)
    assert left == right and isinstance(left, Answer) and left.verdict is Verdict.HELD
    assert [frame[0] for frame in wire.sent] == [OFFER, REFUSE]


async def test_abandoned_transfer_is_dropped_after_a_while(autojump_clock: trio.testing.MockClock) -> None:
    target = Target()
    await transfer(Source(), target, Wire(20))
    await trio.sleep(KEPT_S - 1)
    target.intake.drop_stale()
    assert target.dropped == []
    await trio.sleep(2)
    target.intake.drop_stale()
    assert target.dropped == [1]
    await transfer(Source(), target, Wire())
    assert target.installed() == ROWS


async def test_snapshot_that_is_no_longer_needed_is_dropped_at_once() -> None:
    """The member got the rest from the log, because the leader changed."""
    target = Target()
    await transfer(Source(), target, Wire(20))
    target.needed = False
    target.intake.drop_stale()
    assert target.dropped == [1]


async def test_snapshot_in_transfer_is_not_dropped(autojump_clock: trio.testing.MockClock) -> None:
    target, wire = Target(), Wire()
    source = Source()

    async def read(after: bytes | None) -> Chunk:
        await trio.sleep(SILENCE_S / 2)
        target.needed = False
        target.intake.drop_stale()
        return await source.read(after)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(target.intake.receive, wire.right)
        assert await send_snapshot(wire.left, meta(), read, Throttle(1 << 40)) == INSTALLED
    assert target.dropped == []


async def test_a_group_that_goes_takes_its_unfinished_snapshot_along() -> None:
    source, target = Source(), Target()
    await transfer(source, target, Wire(20))
    target.intake.forget(GROUP)
    target.intake.forget(GROUP)
    assert target.dropped == [1]
    await transfer(source, target, Wire())
    assert target.installed() == ROWS and len(target.begun) == 2


async def test_a_group_that_goes_while_its_snapshot_comes_is_not_installed() -> None:
    source, target = Source(), Target()

    async def read(after: bytes | None) -> Chunk:
        if len(source.asked) == 6:
            target.intake.forget(GROUP)
        return await source.read(after)

    wire = Wire()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(target.intake.receive, wire.right)
        answer = await send_snapshot(wire.left, meta(), read, Throttle(1 << 40))
    assert answer.verdict is Verdict.FAILED and "was removed" in answer.reason
    assert target.installed() is None


# Failures at the receiver.


@pytest.mark.parametrize("error", [StorageFailed("the disk is full"), Corruption("damaged " + "x" * 5000)])
@pytest.mark.parametrize("step", ["begin", "add", "finish"])
async def test_failing_receiver_reports_its_error(
    error: StorageFailed, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = Source(), Target()

    async def fail(*arguments: object) -> bool:
        raise error

    if step == "begin":
        target.intake = Intake(fail)  # type: ignore[arg-type]
    else:
        monkeypatch.setattr(TargetSink, step, fail)
    left, right = await transfer(source, target, Wire())
    verdict = Verdict.REFUSED if step == "begin" else Verdict.FAILED
    assert left == Answer(verdict, error.message[:REASON_CHARS]) and right == Answer(verdict, error.message)
    assert target.installed() is None
    monkeypatch.undo()
    target.intake = Intake(target.begin) if step == "begin" else target.intake
    assert (await transfer(source, target, Wire()))[0] == INSTALLED
    assert target.installed() == ROWS


async def test_a_damaged_chunk_is_refused_and_sent_again() -> None:
    source, target = Source(), Target()

    async def damaged(after: bytes | None) -> Chunk:
        chunk = await source.read(after)
        if len(source.asked) != 5:
            return chunk
        return Chunk(chunk.data[:-1] + b"\0", chunk.position, chunk.last)

    wire = Wire()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(target.intake.receive, wire.right)
        answer = await send_snapshot(wire.left, meta(), damaged, Throttle(1 << 40))
    assert answer.verdict is Verdict.FAILED and "checksum" in answer.reason
    assert (await transfer(source, target, Wire()))[0] == INSTALLED
    assert target.installed() == ROWS and len(target.begun) == 1


async def test_a_receiver_that_dies_at_any_step_points_to_nothing_half_installed() -> None:
    """A newer state replaces an installed older state. After a power loss at any step the pointer is at a complete
    state, and the transfer can be repeated."""
    older, newer = ROWS[:10], ROWS[5:]
    counting = Target()
    await transfer(Source(newer), counting, Wire())
    outcomes = set()
    for dies_at in range(counting.steps + 1):
        for seed in range(3):
            target = Target()
            await transfer(Source(older), target, Wire(), meta(index=10))
            target.dies_at = target.steps + dies_at
            what = meta(snapshot_id=b"another snapshot", index=50)
            try:
                await transfer(Source(newer), target, Wire(), what)
            except BaseExceptionGroup as group:
                assert group.subgroup(PowerLost) is not None
            after = target.after_power_loss(random.Random(seed))
            pointer = after.pointers.get(GROUP)
            assert pointer is not None
            outcomes.add(pointer.snapshot_index)
            expected = {10: older, 50: newer}[pointer.snapshot_index]
            assert after.installed() == expected, f"died at step {dies_at}, seed {seed}"
            await transfer(Source(newer), after, Wire(), what)
            assert after.installed() == newer
    assert outcomes == {10, 50}


# Bad frames


@pytest.mark.parametrize(
    "frame",
    [
        None,
        5,
        "OFFER",
        (),
        (99,),
        ("1",),
        (True, meta().encode()),
        (CHUNK, b""),
        (OFFER,),
        (OFFER, "text"),
        (OFFER, b"x", 1),
        (OFFER, bytes(1 << 17)),
        {"1": b"x"},
    ],
)
async def test_a_frame_that_is_no_offer_ends_the_connection(frame: Any, autojump_clock: trio.testing.MockClock) -> None:
    wire, target = Wire(), Target()
    await wire.left._sender.send(msgpack.packb(frame))
    with pytest.raises(ProtocolError, match="a snapshot's connection"):
        await target.intake.receive(wire.right)
    assert target.begun == []


async def test_only_chunks_may_be_large() -> None:
    wire = Wire()
    await transfer(Source(), Target(), wire)
    first, *chunks = wire.right.limits
    assert first == SMALL_FRAME_BYTES >= META_BYTES + 16 and {*wire.left.limits} == {SMALL_FRAME_BYTES}
    assert {*chunks} == {CHUNK_FRAME_BYTES} and CHUNK_FRAME_BYTES >= CHUNK_BYTES_AT_MOST + 16


async def test_an_offer_that_cannot_be_read_is_refused() -> None:
    wire, target = Wire(), Target()
    await wire.left.send((OFFER, b"garbage"))
    answer = await target.intake.receive(wire.right)
    assert answer.verdict is Verdict.REFUSED and "description" in answer.reason and target.begun == []
    assert (await wire.left.receive())[:2] == (REFUSE, False)


@pytest.mark.parametrize("frame", [(ACK,), (CHUNK, 5), (CHUNK,), (OFFER, b""), b"", [CHUNK, b"", b""]])
async def test_a_frame_that_is_no_chunk_ends_the_connection_and_loses_nothing(
    frame: Any, autojump_clock: trio.testing.MockClock
) -> None:
    source, target = Source(), Target()
    await transfer(source, target, Wire(20))
    wire = Wire()
    await wire.left.send((OFFER, meta().encode()))
    await wire.left._sender.send(msgpack.packb(frame))
    with pytest.raises(ProtocolError, match="CHUNK"):
        await target.intake.receive(wire.right)
    assert (await transfer(source, target, Wire()))[0] == INSTALLED
    assert target.installed() == ROWS and len(target.begun) == 1


async def test_a_chunk_that_is_too_large_ends_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    wire, target = Wire(), Target()
    await wire.left.send((OFFER, meta().encode()))
    await wire.left.send((CHUNK, bytes(CHUNK_BYTES_AT_MOST + 1)))
    with pytest.raises(ProtocolError, match="CHUNK field 1"):
        await target.intake.receive(wire.right)


@pytest.mark.parametrize(
    "frames",
    [
        [(ACK,)],
        [(RESUME,)],
        [(RESUME, "key")],
        [(RESUME, bytes(KEY_BYTES + 1))],
        [(REFUSE, 1, "reason")],
        [(REFUSE, True, "x" * (REASON_CHARS + 1))],
        [(RESUME, None), (DONE,)],
        [(RESUME, None), (RESUME, None)],
        [(RESUME, None), (FAILED, b"reason")],
        [(RESUME, None), (ACK, 1)],
        [(RESUME, b"k028"), (ACK,)],  # only the last chunk is left, so its answer must be DONE
    ],
)
async def test_an_answer_that_is_none_ends_the_connection(
    frames: list[Any], autojump_clock: trio.testing.MockClock
) -> None:
    wire = Wire()
    for frame in frames:
        await wire.right.send(frame)
    with pytest.raises(ProtocolError, match="a snapshot's connection"):
        await send_snapshot(wire.left, meta(), Source().read, Throttle(1 << 40))


# Limits


async def test_requests_to_a_receiver_are_limited() -> None:
    target = Target()
    async with trio.open_nursery() as nursery:
        wires = [Wire() for _ in range(RECEIVING_AT_ONCE + 1)]
        for number, wire in enumerate(wires):
            nursery.start_soon(_receive_until_lost, target, wire)
            await wire.left.send((OFFER, meta(group=number).encode()))
            await trio.testing.wait_all_tasks_blocked()
        answers = [await wire.left.receive() for wire in wires]
        assert [answer[0] for answer in answers] == [RESUME] * RECEIVING_AT_ONCE + [REFUSE]
        assert answers[-1][1] is False and "offer it again" in answers[-1][2]
        wires[0].cut()
        await trio.testing.wait_all_tasks_blocked()
        same, another = Wire(), Wire()
        for wire, group in ((same, 1), (another, RECEIVING_AT_ONCE)):
            nursery.start_soon(_receive_until_lost, target, wire)
            await wire.left.send((OFFER, meta(group=group).encode()))
        refusal = await same.left.receive()
        assert refusal[0] == REFUSE and "a different connection" in refusal[2]
        assert (await another.left.receive())[0] == RESUME, "a slot must be free again"
        for wire in (*wires, same, another):
            wire.cut()


async def _receive_until_lost(target: Target, wire: Wire) -> None:
    with contextlib.suppress(ConnectionLost):
        await target.intake.receive(wire.right)


async def test_slots_of_a_sender_are_limited() -> None:
    outlet = Outlet(1 << 20)
    for _ in range(SENDING_AT_ONCE):
        outlet.slots.acquire_nowait()
    with pytest.raises(trio.WouldBlock):
        outlet.slots.acquire_nowait()


async def test_silence_ends_the_connection(autojump_clock: trio.testing.MockClock) -> None:
    began = trio.current_time()
    with pytest.raises(TimedOut, match="more than 60 s to send RESUME or REFUSE"):
        await send_snapshot(Wire().left, meta(), Source().read, Throttle(1 << 40))
    with pytest.raises(TimedOut, match="to send OFFER"):
        await receive_snapshot(Wire().right, Target().begin)
    assert trio.current_time() - began == pytest.approx(2 * SILENCE_S)
    stuck = Wire()
    stuck.left._sender = trio.open_memory_channel[bytes](0)[0]
    with pytest.raises(TimedOut, match="to accept OFFER"):
        await send_snapshot(stuck.left, meta(), Source().read, Throttle(1 << 40))


# The throttle


async def test_throttle_keeps_its_rate(autojump_clock: trio.testing.MockClock) -> None:
    throttle = Throttle(1000)
    began = trio.current_time()
    for _ in range(100):
        await throttle.take(100)
    # The last chunk begins when the first 99 are paid for, minus the burst.
    assert trio.current_time() - began == pytest.approx(9.9 - BURST_S)


async def test_throttle_is_shared_first_come_first_served(autojump_clock: trio.testing.MockClock) -> None:
    throttle = Throttle(1000)
    finished: list[tuple[str, float]] = []

    async def take(name: str, size: int) -> None:
        for _ in range(3):
            await throttle.take(size)
            finished.append((name, round(trio.current_time() - began, 3)))

    await throttle.take(1000)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take, "small", 100)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(take, "large", 1000)
    assert [name for name, _ in finished[:3]] == ["small", "large", "small"]
    assert finished[-1][1] == pytest.approx(1 - BURST_S + 0.3 + 2.0)


async def test_a_pause_saves_up_no_more_than_a_burst(autojump_clock: trio.testing.MockClock) -> None:
    throttle = Throttle(1000)
    await throttle.take(10_000)
    await trio.sleep(1000)
    began = trio.current_time()
    await throttle.take(1000)
    assert trio.current_time() == began, "one chunk may always go"
    await throttle.take(1)
    assert trio.current_time() - began == pytest.approx(1 - BURST_S)


async def test_a_transfer_is_throttled(autojump_clock: trio.testing.MockClock) -> None:
    source, target, wire = Source(), Target(), Wire()
    size = sum(len(value) for _, value in ROWS)
    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(target.intake.receive, wire.right)
        assert await send_snapshot(wire.left, meta(), source.read, Throttle(size // 10)) == INSTALLED
    assert 8 < trio.current_time() - began < 10.1


# The document


def test_limits_match_the_document() -> None:
    page = document("protocol")
    for name, kind in (
        ("OFFER", OFFER),
        ("RESUME", RESUME),
        ("REFUSE", REFUSE),
        ("CHUNK", CHUNK),
        ("ACK", ACK),
        ("DONE", DONE),
        ("FAILED", FAILED),
    ):
        assert re.search(rf"^\| `\[{kind}\b[^`]*\]` {name} \|", page, re.MULTILINE), name
    page = page.replace("\n", " ")
    assert f"at most {WINDOW} chunks without a reply are in transit" in page
    assert f"for more than {SILENCE_S:.0f} s for a frame" in page
    assert f"sends {SENDING_AT_ONCE} snapshots at a time and receives {RECEIVING_AT_ONCE}" in page
