"""Tests of the leaders that nodes report to each other."""

from __future__ import annotations

from typing import Any

import trio.testing

from sandq.broker.peers.routes import Routes
from sandq.protocol.peer import PeerFrame
from tests.support.nodes.fake_links import FakeLinks


def routes() -> tuple[Routes, list[Any]]:
    links = FakeLinks("n2", "n3")
    return Routes("n1", links), links.sent


def test_own_leaderships_are_sent_to_all_and_to_new_peers() -> None:
    table, told = routes()
    table.led(7, 3, True)
    table.led(8, 1, True)
    table.led(8, 1, False)
    table.led(9, 1, False)  # the node never led the group, so it reports nothing
    said = [[(7, 3, True)], [(8, 1, True)], [(8, 1, False)]]
    assert told == [(node, PeerFrame.ROUTES, routes) for routes in said for node in ("n2", "n3")]
    told.clear()
    table.up("n2")
    assert told == [("n2", PeerFrame.ROUTES, [(7, 3, True)])]
    assert (table.leader(7), table.leader(8)) == ("n1", None)


def test_leader_of_the_latest_term_wins() -> None:
    table, _ = routes()
    table.heard("n2", [(7, 5, True)])
    table.heard("n3", [(7, 4, True)])
    assert table.leader(7) == "n2"
    table.heard("n3", [(7, 6, True)])
    assert table.leader(7) == "n3"
    table.heard("n2", [(7, 5, False)])
    assert table.leader(7) == "n3", "a deposed leader reports late"


def test_a_node_that_goes_leads_nothing() -> None:
    table, _ = routes()
    table.heard("n2", [(7, 5, True), (8, 5, True)])
    table.heard("n3", [(8, 6, True)])
    table.down("n2")
    assert (table.leader(7), table.leader(8)) == (None, "n3")


def test_garbage_is_dropped() -> None:
    table, _ = routes()
    table.heard("n2", [(7, 5), "x", (7, "5", True), (8, 1, True)])
    assert (table.leader(7), table.leader(8)) == (None, "n2")


async def test_waiter_continues_when_all_partitions_have_leaders(autojump_clock: trio.testing.MockClock) -> None:
    table, _ = routes()
    seen: list[float] = []

    async def wait() -> None:
        await table.until_led([7, 8])
        seen.append(trio.current_time())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.sleep(1)
        table.heard("n2", [(7, 5, True)])
        await trio.sleep(1)
        table.led(8, 1, True)
    assert seen == [trio.current_time()]
