"""Tests of the HTTP process of a node: its start, notifications, supervision and end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from sandq.model.limits import DEFAULT
from sandq.server.http.launch import HttpPort
from sandq.server.http.node_link import LINE_BYTES, PUSH_S, STARTING, Begin, encode
from sandq.server.http.supervisor import (
    BACK_OFF_FIRST_S,
    BACK_OFF_MOST_S,
    FAILED_STARTS,
    FAULT,
    SILENT_S,
    START_S,
    STEADY_S,
    STOP_S,
    Supervisor,
)
from sandq.server.metrics.http_requests import HttpProcess
from sandq.server.quota_meters import QuotaMeters

BEGIN = Begin(
    version="1.0",
    node="n1",
    servers=("127.0.0.1:1",),
    names=("q.example",),
    origins=(),
    limits=DEFAULT,
    listeners=(7,),
    log_format="json",
    log_level="info",
    gateway_secret="ab" * 32,
)
REPORT = {
    "requests": {"counts": [["GET", "/healthz", "200", 2]], "durations": []},
    "identities": [["token:a", 3, 40, 1]],
    "held_bytes": 5,
}
Messages = list[tuple[dict[str, Any], bytes]]
Clock = trio.testing.MockClock


class Process:
    """A scripted process for a supervisor: a test sends its messages and ends it."""

    pid = 1

    def __init__(self) -> None:
        self.began_s = trio.current_time()
        self.stdin, self.stdout = trio.testing.MemorySendStream(), trio.testing.MemoryReceiveStream()
        self.returncode: int | None = None
        self.ended = trio.Event()

    async def wait(self) -> int:
        await self.ended.wait()
        assert self.returncode is not None
        return self.returncode

    def kill(self) -> None:
        self.end(-9)

    def end(self, code: int = 0) -> None:
        self.returncode = code
        self.ended.set()

    def say(self, message: dict[str, Any]) -> None:
        self.stdout.put_data(encode(message))

    async def take_messages(self) -> Messages:
        """Return the messages that the process got since the last call, each with its attached bytes."""
        data, told = bytes(await self.stdin.get_data()), []
        while data:
            line, _, data = data.partition(b"\n")
            size = json.loads(line).get("body", 0)
            told.append((json.loads(line), data[:size]))
            data = data[size:]
        return told


class Node:
    stands_still: str | None = None
    has_fault = False

    def failure(self) -> str | None:
        assert not self.has_fault
        return None

    def stalled(self) -> str | None:
        return self.stands_still

    def ready(self) -> str | None:
        return "no leader"

    async def metrics(self, accept: str) -> tuple[bytes, str]:
        assert not self.has_fault
        return b"metrics\nfor " + accept.encode(), "text/plain"


class Bed:
    """A supervisor of scripted processes. `fails`: number of processes that cannot be started."""

    def __init__(self) -> None:
        self.node = Node()
        self.status = HttpProcess()
        self.quotas = QuotaMeters()
        self.processes: list[Process] = []
        self.tried_s: list[float] = []
        self.fails = 0
        self.secret = bytes.fromhex(BEGIN.gateway_secret)
        self.port: HttpPort
        self.supervisor: Supervisor
        self._launched = trio.Event()

    @property
    def restarts(self) -> int:
        return self.status.restarts.total()

    async def _launch(self, descriptors: Sequence[int]) -> Process:
        """Start a process, or fail as often as asked to."""
        self.tried_s.append(trio.current_time())
        if self.fails:
            self.fails -= 1
            raise OSError(11, "too many processes")
        self.processes.append(Process())
        self._launched.set()
        self._launched = trio.Event()
        return self.processes[-1]

    async def process(self, number: int = 0) -> Process:
        while len(self.processes) <= number:
            await self._launched.wait()
        await trio.testing.wait_all_tasks_blocked()
        return self.processes[number]

    async def set_up(self) -> None:
        """Listen on a real socket. No process is started yet."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        self.port = HttpPort("127.0.0.1", listeners, self._launch)
        self.supervisor = Supervisor(
            begin=BEGIN, port=self.port, status=self.status, quotas=self.quotas, gateway_secret=lambda: self.secret
        )

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        await self.set_up()
        async with trio.open_nursery() as nursery:
            await nursery.start(self.supervisor.run)
            async with self.supervisor.reporting(self.node):
                yield

    def stop_with(self, process: Process) -> Callable[[], Any]:
        """Return a function that stops the supervisor, while the process ends as requested."""

        async def obey() -> None:
            while not any("stop" in message for message, _ in await process.take_messages()):
                pass
            process.end()

        return obey


async def test_process_gets_its_settings_and_regular_node_states(autojump_clock: Clock) -> None:
    bed = Bed()
    async with trio.open_nursery() as nursery, bed.serving():
        process = await bed.process()
        (begin, _), *healths = await process.take_messages()
        orders = Begin.of(json.loads(json.dumps(begin["begin"])))
        assert orders == replace(BEGIN, listeners=bed.port.descriptors) and len(orders.listeners) == 1
        assert [health["health"][2] for health, _ in healths] == [STARTING, "no leader"]
        bed.node.stands_still = "the disk hangs"
        began_s = trio.current_time()
        assert await process.take_messages() == [({"health": [None, "the disk hangs", "no leader"]}, b"")]
        assert trio.current_time() - began_s == pytest.approx(PUSH_S)
        bed.secret = b"another secret, as long"
        assert (await process.take_messages())[0] == ({"gateway_secret": bed.secret.hex()}, b"")
        nursery.start_soon(bed.stop_with(process))
    assert process.returncode == 0 and bed.restarts == 0


async def test_restarted_process_gets_the_current_secret(autojump_clock: Clock) -> None:
    bed = Bed()
    async with trio.open_nursery() as nursery, bed.serving():
        bed.secret = b"another secret, as long"
        (await bed.process(0)).end(1)
        process = await bed.process(1)
        ((begin, _), *_) = await process.take_messages()
        assert begin["begin"]["gateway_secret"] == bed.secret.hex()
        nursery.start_soon(bed.stop_with(process))


async def test_ended_process_is_restarted_with_backoff(autojump_clock: Clock) -> None:
    bed = Bed()
    async with trio.open_nursery() as nursery, bed.serving():
        for number in range(9):
            (await bed.process(number)).end(1)
        waits = [after - before for before, after in zip(bed.tried_s, bed.tried_s[1:], strict=False)]
        assert waits == pytest.approx([BACK_OFF_FIRST_S * 2**n for n in range(6)] + [BACK_OFF_MOST_S] * 2)
        process = await bed.process(9)
        for _ in range(4):
            await trio.sleep(STEADY_S / 4)
            process.say({"report": REPORT})
        await trio.testing.wait_all_tasks_blocked()
        process.end(1)
        ended_s = trio.current_time()
        process = await bed.process(10)
        assert process.began_s - ended_s == pytest.approx(BACK_OFF_FIRST_S)
        assert bed.restarts == 10
        nursery.start_soon(bed.stop_with(process))


async def test_hung_process_is_killed_and_replaced(autojump_clock: Clock) -> None:
    bed = Bed()
    async with trio.open_nursery() as nursery, bed.serving():
        silent = await bed.process()
        await silent.ended.wait()
        assert trio.current_time() - silent.began_s == pytest.approx(START_S, abs=PUSH_S)
        hangs = await bed.process(1)
        await trio.sleep(START_S - 1)
        hangs.say({"report": REPORT})
        said_s = trio.current_time()
        await hangs.ended.wait()
        assert trio.current_time() - said_s == pytest.approx(SILENT_S, abs=PUSH_S)
        assert (silent.returncode, hangs.returncode) == (-9, -9)
        nursery.start_soon(bed.stop_with(await bed.process(2)))


async def test_failed_start_is_retried(autojump_clock: Clock) -> None:
    bed = Bed()
    bed.fails = 2
    async with trio.open_nursery() as nursery, bed.serving():
        nursery.start_soon(bed.stop_with(await bed.process()))
    assert len(bed.tried_s) == 3


async def test_counts_of_processes_are_summed_and_held_bytes_are_of_the_last(autojump_clock: Clock) -> None:
    bed = Bed()
    async with trio.open_nursery() as nursery, bed.serving():
        for number in range(2):
            process = await bed.process(number)
            process.say({"serves": True})
            process.say({"report": REPORT})
            await trio.testing.wait_all_tasks_blocked()
            assert bed.status.held_bytes == 5
            process.end(1)
            await trio.testing.wait_all_tasks_blocked()
            assert bed.status.held_bytes == 0
        nursery.start_soon(bed.stop_with(await bed.process(2)))
    assert bed.status.requests.take()["counts"] == [["GET", "/healthz", "200", 4]]
    assert bed.quotas.take_counts() == [["token:a", 6, 80, 2]]


async def test_supervisor_requests_and_gets_metrics(autojump_clock: Clock) -> None:
    bed = Bed()
    async with trio.open_nursery() as nursery, bed.serving():
        process = await bed.process()
        await process.take_messages()
        process.say({"metrics": 3, "accept": "all"})
        (answer,) = await process.take_messages()
        assert answer == ({"metrics": 3, "content_type": "text/plain", "body": 15}, b"metrics\nfor all")
        nursery.start_soon(bed.stop_with(process))


async def test_fault_in_a_report_ends_neither_process(autojump_clock: Clock) -> None:
    bed = Bed()
    bed.node.has_fault = True
    async with trio.open_nursery() as nursery, bed.serving():
        process = await bed.process()
        assert (await process.take_messages())[-1][0] == {"health": [None, FAULT, FAULT]}
        process.say({"metrics": 1, "accept": ""})
        assert [message for message, _ in await process.take_messages()] == [{"health": [None, FAULT, FAULT]}]
        nursery.start_soon(bed.stop_with(process))
    assert process.returncode == 0


@pytest.mark.parametrize(
    "said",
    [
        b"nonsense\n",
        b'{"report": 1}\n',
        b'{"report": {"requests": {"counts": [[1]]}}}\n',
        b'{"report": {"requests": {"counts": [], "durations": []}, "identities": [], "held_bytes": "many"}}\n',
        b"[" * 200_000 + b"\n",
        b"x" * (LINE_BYTES + 1),
    ],
    ids=["no JSON", "no report", "no counts", "no number", "too deep", "no end"],
)
async def test_process_with_invalid_output_is_killed(autojump_clock: Clock, said: bytes) -> None:
    bed = Bed()
    async with trio.open_nursery() as nursery, bed.serving():
        process = await bed.process()
        process.stdout.put_data(said)
        await process.ended.wait()
        nursery.start_soon(bed.stop_with(await bed.process(1)))
    assert process.returncode == -9


@pytest.mark.parametrize("is_deaf", [False, True])
async def test_process_that_does_not_stop_in_time_is_killed(autojump_clock: Clock, is_deaf: bool) -> None:
    bed = Bed()
    async with bed.serving():
        process = await bed.process()
        if is_deaf:
            process.stdin.send_all_hook = trio.sleep_forever
            await trio.sleep(2 * PUSH_S)
        told_s = trio.current_time()
    assert process.returncode == -9
    assert trio.current_time() - told_s == pytest.approx(STOP_S)


async def test_process_is_not_restarted_during_stop(autojump_clock: Clock) -> None:
    bed = Bed()
    async with bed.serving():
        (await bed.process()).end(1)
        await trio.testing.wait_all_tasks_blocked()
    assert len(bed.processes) == 1 and bed.restarts == 0


async def test_process_is_killed_when_the_node_fails(autojump_clock: Clock) -> None:
    bed = Bed()
    await bed.set_up()
    async with trio.open_nursery() as nursery:
        await nursery.start(bed.supervisor.run)
        process = await bed.process()
        nursery.cancel_scope.cancel()
    assert process.returncode == -9
    await bed.port.end()


async def test_process_that_was_launched_early_is_the_first_one(autojump_clock: Clock) -> None:
    bed = Bed()
    await bed.set_up()
    await bed.port.launch_early()
    (early,) = bed.processes
    async with trio.open_nursery() as nursery:
        await nursery.start(bed.supervisor.run)
        assert "begin" in (await early.take_messages())[0][0] and bed.processes == [early]
        nursery.cancel_scope.cancel()
    await bed.port.end()


async def test_unused_process_is_killed_with_the_port(autojump_clock: Clock) -> None:
    bed = Bed()
    await bed.set_up()
    await bed.port.launch_early()
    await bed.port.end()
    assert bed.processes[0].returncode == -9 and not bed.port.descriptors


async def test_failed_starts_close_the_port_until_the_next_attempt(autojump_clock: Clock) -> None:
    """Clients are refused meanwhile, and the node reports the reason. The first process that serves ends this state."""
    bed = Bed()
    async with trio.open_nursery() as nursery, bed.serving():
        address = bed.port.address
        for number in range(FAILED_STARTS):
            process = await bed.process(number)
            assert bed.port.descriptors and (number == 0) == (bed.status.down is None)
            process.end(4)
            await trio.testing.wait_all_tasks_blocked()
        assert bed.port.descriptors == () and bed.status.down == "exit code 4"
        with pytest.raises(OSError):
            await trio.open_tcp_stream(*address)
        process = await bed.process(FAILED_STARTS)
        assert bed.port.address == address and len(bed.port.descriptors) == 1
        assert (await process.take_messages())[0][0]["begin"]["listeners"] == list(bed.port.descriptors)
        process.say({"serves": True})
        await trio.testing.wait_all_tasks_blocked()
        assert bed.status.down is None and bed.status.restarts == {"ended": FAILED_STARTS}
        nursery.start_soon(bed.stop_with(process))


async def test_port_that_another_process_took_is_a_failed_start(autojump_clock: Clock) -> None:
    bed = Bed()
    async with trio.open_nursery() as nursery, bed.serving():
        for number in range(FAILED_STARTS):
            (await bed.process(number)).end(1)
        await trio.testing.wait_all_tasks_blocked()
        (taken,) = await trio.open_tcp_listeners(bed.port.address.port, host="127.0.0.1")
        await trio.sleep(3 * BACK_OFF_MOST_S)
        assert bed.status.restarts["not_started"] > 0
        assert "in use by another process" in (bed.status.down or "")
        await taken.aclose()
        nursery.start_soon(bed.stop_with(await bed.process(FAILED_STARTS)))


async def test_stall_of_the_node_does_not_count_as_silence(autojump_clock: Clock) -> None:
    """A node that recovers its storage for minutes sends nothing, so the process has no requests to answer."""
    bed = Bed()
    async with trio.open_nursery() as nursery, bed.serving():
        process = await bed.process()
        process.say({"report": REPORT})
        await trio.testing.wait_all_tasks_blocked()
        autojump_clock.jump(10 * START_S)
        await trio.sleep(SILENT_S / 2)
        assert process.returncode is None
        nursery.start_soon(bed.stop_with(process))


def test_gateway_secret_is_not_shown() -> None:
    assert BEGIN.gateway_secret not in repr(BEGIN)
