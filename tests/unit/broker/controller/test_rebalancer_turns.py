"""A node that leads thousands of partitions checks them in turns and hands over only a few at once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio

from sandq.broker.controller import rebalancer
from sandq.broker.controller.rebalancer import LEADERS_AT_ONCE, LED_S, SLICE_GROUPS, Rebalancer
from sandq.metadata.records import Partition
from sandq.raft import Members
from tests.support.nodes.fake_links import FakeLinks

GROUPS = 20 * SLICE_GROUPS


def node(lead: str) -> Rebalancer:
    """A node that leads many groups of two members. `lead` is the planned leader of all groups."""
    order = (lead, "b#1" if lead == "a#1" else "a#1")
    wanted = Partition(1, order, order, (), 2, 2)
    group = SimpleNamespace(term=1, is_changing=False, member="a#1", has_caught_up=lambda member: True)
    hosts = {
        number: SimpleNamespace(number=number, group=group, works=True, members=Members(order))
        for number in range(GROUPS)
    }
    view = SimpleNamespace(partition=lambda number: wanted, nodes={})
    catalog: Any = SimpleNamespace(view=view, led_here=[*hosts])
    node_log: Any = SimpleNamespace(hosts=hosts, failed=None)
    health: Any = SimpleNamespace(may_lead=lambda node: True)
    shut_replicas: Any = SimpleNamespace(is_shut=lambda group, node: False)
    reports: Any = SimpleNamespace(report_settled=lambda reports: None)
    return Rebalancer(
        node_log,
        catalog,
        links=FakeLinks("b", own="a"),
        health=health,
        shut_replicas=shut_replicas,
        reports=reports,
    )


async def test_rebalancer_yields_while_it_plans(autojump_clock: trio.abc.Clock) -> None:
    looking, turns = node("a#1"), 0
    async with trio.open_nursery() as nursery:

        async def other() -> None:
            nonlocal turns
            while True:
                await trio.lowlevel.checkpoint()
                turns += 1

        nursery.start_soon(other)
        await looking._check(nursery)
        nursery.cancel_scope.cancel()
    assert turns >= 2 * (GROUPS // SLICE_GROUPS)


async def test_a_few_are_handed_over_at_once(autojump_clock: trio.abc.Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    most, given = 0, 0

    async def hand_over(hosts: Any, to: set[str], within_s: float) -> list[Any]:
        nonlocal most, given
        given += 1
        most = max(most, looking._transferring)
        await trio.sleep(0.1)
        return []

    monkeypatch.setattr(rebalancer, "hand_over", hand_over)
    looking = node("b#1")
    async with trio.open_nursery() as nursery:
        await looking._check(nursery)
        await trio.sleep(LED_S)
        for _ in range(3):
            await looking._check(nursery)
            await trio.sleep(1)
    assert (most, given, looking._transferring) == (LEADERS_AT_ONCE, 3 * LEADERS_AT_ONCE, 0)
