"""The clock of a node was a day ahead and is right again: the clocks of its partitions are reset."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandq.model.errors import Conflict, InvalidRequest
from sandq.node import run_node
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected, with_topic
from tests.support.waiting import until_answer

DAY_S = 86_400


async def test_partition_is_set_back_and_delivers_again(tmp_path: Path, hand: HandClock) -> None:
    off_s = [float(DAY_S)]
    clock = hand.guarded(lambda: off_s[0])
    async with run_node(small_config(tmp_path), clock=clock) as node, connected(node) as api, with_topic(api):
        await api.produce("t", b"ahead")
        (early,) = await api.leases("t", "g").take()
        off_s[0] = 0.0
        with pytest.raises(Conflict, match="in alarm"):
            await api.admin.reset_clock("t", 0)
        await api.admin.clock(accept=True)
        await api.produce("t", b"now")
        await api.produce("t", b"later", delay="1h")
        assert await api.leases("t", "g").take() == []
        (row,) = await api.admin.stats("t")
        assert (row["ahead_ms"] > 23 * 3_600_000, row["clock_epoch"], row["clock_reset"]) == (True, 0, None)
        assert (await api.admin.cluster())["floors_ahead"] == 1

        begun = await api.admin.reset_clock("t", 0)
        assert (begun["outcome"], begun["clock_epoch"]) == ("begun", 1)
        taken = await until_answer(lambda: api.leases("t", "g").take(10), lambda found: len(found) == 2)
        assert [(message.value, message.attempt) for message in taken] == [(b"ahead", 1), (b"now", 1)]
        assert await api.leases("t", "g").ack([early]) == [early.held]
        assert await api.leases("t", "g").ack(taken) == []
        hand.forward(3601)
        (later,) = await api.leases("t", "g").take()
        assert later.value == b"later"

        assert (await api.admin.reset_clock("t", 0))["outcome"] == "not_ahead"
        (row,) = await api.admin.stats("t")
        assert (row["clock_epoch"], row["clock_reset"], row["ahead_ms"] < 1000) == (1, None, True)
        assert (await api.admin.cluster())["floors_ahead"] == 0
        assert (await api.measure("t", 0)).clock_epoch == 1


async def test_compacted_topic_is_not_set_back(tmp_path: Path, hand: HandClock) -> None:
    async with (
        run_node(small_config(tmp_path), clock=hand.guarded()) as node,
        connected(node) as api,
        with_topic(api, kind="compacted"),
    ):
        with pytest.raises(InvalidRequest, match="compacted"):
            await api.admin.reset_clock("t", 0)
