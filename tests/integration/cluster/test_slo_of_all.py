"""The lateness report combines all nodes: each node measures its deliveries by its own clock."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandq.broker.clock.guarded_clock import GuardedClock
from tests.support.nodes.three import NAMES, three_nodes
from tests.support.waiting import until_answer

pytestmark = pytest.mark.usefixtures("node_time")


async def test_nodes_are_summed_up_and_a_clock_or_a_node_that_is_wrong_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with three_nodes(tmp_path) as nodes, nodes.connect() as client:
        await client.admin.create_topic("t", partitions=3, replicas=3)
        for partition in range(3):
            await client.produce("t", b"x", partition=partition)
        async with client.subscribe("t", group="g") as messages:
            for _ in range(3):
                await (await anext(messages)).ack()
        found = await until_answer(client.admin.slo, lambda found: not found.missing)
        assert found.deliveries == sum(row["deliveries"] for row in found.nodes) == 3
        assert {row["node"] for row in found.nodes} == {*NAMES} and found.early == 0
        assert [row["topic"] for row in found.topics] == ["t"]

        with monkeypatch.context() as patch:
            patch.setattr(GuardedClock, "reason", property(lambda clock: "wall"))
            patch.setattr(GuardedClock, "alarm", property(lambda clock: True))
            doubted = await client.admin.slo()
        assert not doubted.is_proven
        assert sum("is not trusted" in doubt for doubt in doubted.doubts) == 3

        gone = NAMES[2]
        await nodes.stop(gone)
        others = await until_answer(client.admin.slo, lambda found: found.missing)
        assert others.missing.keys() == {gone} and not others.is_proven
        assert any(doubt.startswith(f"{gone} did not report") for doubt in others.doubts)
