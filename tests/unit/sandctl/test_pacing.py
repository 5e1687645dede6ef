"""Tests of pacing, and of produce with --count and --rate."""

from __future__ import annotations

import json
import time
from typing import Any

import anyio
import pytest

from sandctl.output.measurement import Measured, Samples
from sandctl.pacing import TICK_S, Pacer
from sandq.model.errors import StorageFailed
from sandq.protocol.frames import Type
from tests.support.client.fake_server import FakeServer


class Time:
    """A clock that advances only during sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        assert seconds > 0
        self.now += seconds


def sent(rate: float, count: int, *, slip: bool, stalls: dict[int, float] | None = None) -> list[tuple[float, float]]:
    """Pairs (planned, sent) of each message, in seconds after the first message."""
    clock = Time()
    pacer = Pacer(rate, slip=slip, clock=clock, sleep=clock.sleep)
    found = []

    async def run() -> None:
        for at in range(count):
            meant = await pacer.wait()
            found.append((meant - 100.0, clock.now - 100.0))
            clock.now += (stalls or {}).get(at, 0.0)

    anyio.run(run)
    return found


@pytest.mark.parametrize("rate", [0.5, 3, 100, 1000, 33_333])
def test_messages_are_sent_at_their_planned_times(rate: float) -> None:
    for at, (meant, when) in enumerate(sent(rate, 500, slip=True)):
        assert meant == pytest.approx(at / rate)
        assert -1e-6 <= when - meant <= TICK_S + 1e-6, "never early, and at most one tick late"


def bursts(found: list[tuple[float, float]]) -> int:
    """Return the maximum number of messages that were sent within a tick."""
    times = [when for _, when in found]
    return max(sum(1 for other in times if 0 <= other - when < TICK_S - 1e-6) for when in times)


def test_after_a_stall_it_goes_on_at_the_same_pace() -> None:
    found = sent(1000, 600, slip=True, stalls={100: 0.3})
    assert bursts(found) <= 1000 * TICK_S * 2 + 1
    assert found[-1][1] == pytest.approx(0.599 + 0.3, abs=0.03), "later by the stall, give or take a tick"


def test_pacing_catches_up_and_reports_planned_times() -> None:
    found = sent(1000, 600, slip=False, stalls={100: 0.3})
    assert [meant for meant, _ in found] == pytest.approx([at / 1000 for at in range(600)])
    assert bursts(found) > 250 and found[-1][1] == pytest.approx(0.599, abs=0.02)


def test_a_batch_takes_the_time_of_all_its_messages() -> None:
    clock = Time()
    pacer = Pacer(100, slip=False, clock=clock, sleep=clock.sleep)

    async def run() -> list[float]:
        return [await pacer.wait(50) - 100 for _ in range(4)]

    assert anyio.run(run) == pytest.approx([0, 0.5, 1.0, 1.5])


def values(server: FakeServer) -> list[bytes]:
    return [row.value for row in server.stored["t", 0]]


def test_produce_a_message_many_times(ctl: Any, server: FakeServer) -> None:
    result = ctl("produce", "t", "tick", "--count", "300", "--key", "k")
    assert result.exit_code == 0 and len(set(result.stdout.split())) == 300
    assert values(server) == [b"tick"] * 300 and result.stderr == ""
    assert len(json.loads(ctl("produce", "t", "tick", "--count", "3", "-o", "json").stdout)) == 3
    assert ctl("produce", "t", "--file", "-", "--count", "2", input=b"x\ny").exit_code == 0
    assert values(server)[-2:] == [b"x\ny"] * 2


def test_produce_at_a_rate(ctl: Any, server: FakeServer) -> None:
    began = time.monotonic()
    assert ctl("produce", "t", "tick", "--count", "6", "--rate", "20").exit_code == 0
    assert time.monotonic() - began >= 0.25, "the first message at once, five more at 20 per second"
    began = time.monotonic()
    assert ctl("produce", "t", "--lines", "--rate", "20", input=b"a\nb\nc\n").exit_code == 0
    assert time.monotonic() - began >= 0.1 and values(server)[-3:] == [b"a", b"b", b"c"]


def test_first_of_several_refused_messages_is_named(ctl: Any, server: FakeServer) -> None:
    server.script[Type.PRODUCE] += [StorageFailed("disk full")] * 2  # both messages may come in one batch or in two
    result = ctl("produce", "t", "x", "--count", "2", "-o", "json")
    assert result.exit_code == 1 and "message 1: disk full; 1 more failed; 0 messages sent" in result.stderr
    assert json.loads(result.stdout) == []


@pytest.mark.parametrize(
    "args",
    [
        ["x", "--count", "0"],
        ["x", "--count", "many"],
        ["x", "--count", "-5"],
        ["--count", "3"],
        ["--lines", "--count", "3"],
        ["--jsonl", "--count", "3"],
        ["x", "--count", "3", "--unique-key", "k"],
        ["x", "--rate", "5"],
        ["x", "--count", "3", "--rate", "0"],
        ["x", "--count", "3", "--rate", "nan"],
        ["x", "--count", "3", "--rate", "inf"],
        ["x", "--count", "3", "--rate", "-1"],
        ["x", "--count", "3", "--rate", "fast"],
    ],
    ids=" ".join,
)
def test_wrong_usage(ctl: Any, server: FakeServer, args: list[str]) -> None:
    result = ctl("produce", "t", *args)
    assert result.exit_code == 2 and result.stderr and server.produced == []


def test_measurement_reports_percentiles_and_counts() -> None:
    samples = Samples()
    assert samples.record() == {} and samples.below_zero() == 0
    for us in range(-2, 98):
        samples.add(us * 1000)
    assert samples.record(signed=True) == {"least_ms": -2, "p50_ms": 47, "p99_ms": 96, "max_ms": 97}
    assert (samples.below_zero(), len(samples)) == (2, 100)
    one = Samples()
    one.add(5, 3)
    assert len(one) == 3 and one.record() == {"p50_ms": 0.005, "p99_ms": 0.005, "max_ms": 0.005}
    measured = Measured("lateness", "t", 100, 10)
    assert list(measured.lines()) == ["lateness: 0 of 10 messages of 100 bytes in 0.00 s"]
    assert measured.record()["rate"] is None and json.dumps(measured.record())
