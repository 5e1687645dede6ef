"""Reads and leases returned single-message rows too late: after the batch rows between which they belong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import sandq
from sandq.node import run_node
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected, take, values
from tests.support.waiting import until_answer

EXPECTED = [b"0", b"own 1", b"2", b"own 3", b"4", b"own 5", b"6"]


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[sandq.Client]:
    async with run_node(small_config(tmp_path)) as node, connected(node) as client:
        await client.admin.create_topic("t")
        for number in range(7):
            if number % 2:
                await client.produce("t", b"own %d" % number, unique_key=f"u{number}")
            else:
                await client.produce("t", b"%d" % number)
        yield client


async def test_fetch_with_mixed_rows_is_in_order(api: sandq.Client) -> None:
    async def read() -> list[bytes]:
        return [message.value async for message in api.fetch("t", 0)]

    assert await until_answer(read, lambda found: len(found) == 7) == EXPECTED


async def test_delivery_with_mixed_rows_is_in_order(api: sandq.Client) -> None:
    async with api.subscribe("t", group="g", credit=100) as subscription:
        assert values(await take(subscription, 7)) == EXPECTED
