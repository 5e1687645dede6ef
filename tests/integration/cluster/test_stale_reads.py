"""Stale reads: any replica answers, also without a leader, and says how old its answer may be."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import trio

from sandq.partition.kv.key_table import Value
from sandq.protocol.frames import Type
from tests.support.nodes.raw_client import RawClient
from tests.support.nodes.three import NAMES, ThreeNodes, three_nodes
from tests.support.waiting import until_answer, until_holds


async def ask(nodes: ThreeNodes, name: str, kind: int, *fields: Any) -> list[Any]:
    client = await RawClient.connect(nodes.running[name].client_port)
    try:
        return await client.call(kind, "t", 0, *fields)
    finally:
        await trio.aclose_forcefully(client.stream)


def is_fresh(reply: list[Any]) -> bool:
    """Return whether the reply is at most a few heartbeats old. This holds unless a node stalls."""
    return bool(reply[0] == Type.REPLY and reply[2] < 5000)


def value_of(reply: list[Any]) -> bytes:
    assert reply[0] == Type.REPLY, reply
    return Value.load(reply[3][0]).value


async def node_that_does_not_lead(nodes: ThreeNodes) -> str | None:
    """Return a node that answers only stale reads, because it does not lead. None if two of three nodes may lead."""
    replies = {name: await ask(nodes, name, Type.KV_GET, False, [b"lamp"]) for name in NAMES}
    others = [name for name, reply in replies.items() if reply[2] == "NOT_LEADER"]
    return others[0] if len(others) == 2 else None


async def test_every_replica_answers_and_says_how_old_that_is(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes:
        await until_holds(lambda: all(len(n.broker.metadata.nodes) == 3 for n in nodes.running.values()))
        async with nodes.connect() as client:
            await client.admin.create_topic("t", kind="compacted", replicas=3)
            await client.kv("t").put(b"lamp", b"on")
        await nodes.until_even()
        for name in NAMES:
            reply = await until_answer(partial(ask, nodes, name, Type.KV_GET, True, [b"lamp"]), is_fresh)
            assert value_of(reply) == b"on"
            page = await until_answer(partial(ask, nodes, name, Type.KV_SCAN, True, b"", None, 10, 1000), is_fresh)
            assert page[3][0] == b"lamp"
        left = await until_answer(partial(node_that_does_not_lead, nodes), lambda name: name is not None)
        await nodes.stop(*[name for name in NAMES if name != left])
        stale = partial(ask, nodes, left, Type.KV_GET, True, [b"lamp"])
        reply = await stale()
        assert value_of(reply) == b"on"
        # The reply becomes older while there is no leader.
        older = await until_answer(stale, lambda later: later[0] != Type.REPLY or later[2] >= reply[2] + 250)
        assert value_of(older) == b"on"
