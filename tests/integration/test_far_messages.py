"""Messages more than ten years ahead are refused as mistakes about the unit. Each is refused alone, and the error names
the unit."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import sandq
from sandq.errors import InvalidRequest, InvalidTime
from sandq.model.times import format_instant
from sandq.node import run_node
from sandq.node.running import Serving
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected

DAY_MS = 86_400_000
TEN_YEARS_MS = 3660 * DAY_MS


async def test_a_number_of_another_unit_is_refused(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    for delay in (2_000_000_000, "2000000000", 4e9):
        with pytest.raises(InvalidTime, match="a bare number is seconds"):
            await api.produce("t", b"x", delay=delay)
    with pytest.raises(InvalidTime, match="looks like nanoseconds; epoch milliseconds are expected"):
        await api.produce("t", b"x", deliver_at=1_800_000_000_000_000_000)
    with pytest.raises(InvalidTime, match="looks like microseconds"):
        await api.messages("t").move("0" * 26, deliver_at=1_800_000_000_000_000)
    for kept in (timedelta(days=4000), "4000d"):
        with pytest.raises(InvalidTime, match=r"delay: 4000d is more than 3660 days, .*limits\.delay_days") as caught:
            await api.produce("t", b"x", delay=kept)
        assert caught.value.details == {"limit": "delay_days", "maximum": 3660}


async def test_delay_ms(api: sandq.Client, node: Serving) -> None:
    await api.admin.create_topic("t")
    before_ms = node.broker.clock.now_ms()
    offset = await api.produce("t", b"x", delay_ms=3_600_000)
    assert before_ms <= sandq.offset_time_ms(offset) - 3_600_000 <= node.broker.clock.now_ms()
    async with api.producer("t") as producer:
        many = await producer.send_many([{"value": b"y", "delay_ms": 3_600_000}, b"z"], delay_ms=7_200_000)
        first, second = map(sandq.offset_time_ms, await many)
        assert first - before_ms < 7_200_000 <= second - before_ms
        for wrong in (-1, 1.5, True, "5", 2**48):
            with pytest.raises(InvalidTime, match="delay_ms: a whole number of milliseconds"):
                await producer.send(b"x", delay_ms=wrong)  # type: ignore[arg-type]
        for other in ({"delay": 1}, {"deliver_at": "2030-01-01T00:00:00Z"}):
            with pytest.raises(InvalidRequest, match="one of them, not both"):
                await producer.send(b"x", delay_ms=1, **other)  # type: ignore[arg-type]


async def test_far_instant_is_refused_alone(api: sandq.Client, node: Serving) -> None:
    await api.admin.create_topic("t")
    now_ms = node.broker.clock.now_ms()
    near = now_ms + TEN_YEARS_MS - DAY_MS
    async with api.producer("t") as producer:
        fine = [await producer.send(b"fine", deliver_at=format_instant(near)) for _ in range(3)]
        far = await producer.send(b"far", deliver_at=datetime(2090, 1, 1, tzinfo=UTC))
        fine.append(await producer.send(b"fine", deliver_at=format_instant(near)))
        with pytest.raises(InvalidTime, match=r"a message due in \d+d: at most 3660 days .*limits\.delay_days"):
            await far
        assert [sandq.offset_time_ms(await receipt) for receipt in fine] == [near] * 4


async def test_moves_are_held_to_it(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    messages = api.messages("t")
    one = await api.produce("t", b"x", delay="1h")
    for where in ({"delay": "4000d"}, {"deliver_at": "2090-01-01T00:00:00Z"}):
        with pytest.raises(InvalidTime, match="at most 3660 days"):
            await messages.move(one, **where)  # type: ignore[arg-type]
    assert (await messages.get(one)).moves == 0
    await messages.move(one, delay="3000d")
    for many in ({"to": "2090-01-01T00:00:00Z"}, {"shift": "4000d"}):
        with pytest.raises(InvalidTime, match="at most 3660 days"):
            await messages.move_all(**many)  # type: ignore[arg-type]
    assert await messages.move_all(shift="-1d") == (1, 1, 0)


async def test_message_beyond_the_delay_limit_is_refused_alone(tmp_path: Path) -> None:
    async with run_node(small_config(tmp_path, LIMITS__DELAY_DAYS="30")) as serving, connected(serving) as api:
        await api.admin.create_topic("t")
        now_ms = serving.broker.clock.now_ms()
        async with api.producer("t") as producer:
            fine = await producer.send(b"fine", deliver_at=format_instant(now_ms + DAY_MS))
            far = await producer.send(b"far", deliver_at=format_instant(now_ms + 60 * DAY_MS))
            with pytest.raises(InvalidTime, match="at most 30 days"):
                await far
            await fine


async def test_limit_of_delay_is_announced_by_the_node(tmp_path: Path) -> None:
    async with run_node(small_config(tmp_path, LIMITS__DELAY_DAYS="100000")) as serving, connected(serving) as api:
        await api.admin.create_topic("t")
        assert api.limits["delay_days"] == 100_000
        for time in ({"delay": "50000d"}, {"deliver_at": "2201-01-01T00:00:00Z"}):
            await api.produce("t", b"x", **time)  # type: ignore[arg-type]
        with pytest.raises(InvalidTime, match="more than 100000 days"):
            await api.produce("t", b"x", delay="100001d")
