"""A client changes the cluster through a leader that loses its leadership; the client still gets the result."""

from __future__ import annotations

from functools import partial

import trio

from sandq.protocol.frames import Type
from tests.integration.cluster.test_unknown_topics import code_of, connected, hearing_nothing
from tests.support.nodes.three import NAMES, ThreeNodes, leading
from tests.support.waiting import PATIENCE_S, until_answer, until_holds


async def test_a_topic_that_the_next_leader_has_is_there(nodes: ThreeNodes) -> None:
    leader = (await leading(nodes)).broker.node_log.node_id
    others = [nodes.running[name] for name in NAMES if name != leader]
    async with connected(nodes, leader) as raw:
        with hearing_nothing(nodes, leader):
            await raw.send(Type.TOPIC_CREATE, 100, "t", "timer", 1, 3, {})
            await until_holds(lambda: any(other.broker.metadata_host.ready for other in others))
            await until_holds(lambda: not nodes.running[leader].broker.metadata_host.group.is_leader)
        with trio.fail_after(PATIENCE_S):
            answer = await raw.receive()
        assert answer[:2] == [Type.REPLY, 100], answer
        await until_answer(partial(code_of, raw, Type.METADATA, ["t"]), lambda code: code == "ok")


async def test_pending_change_is_refused_with_not_leader(nodes: ThreeNodes) -> None:
    """The request had no effect, so the client must ask the next leader."""
    leader = (await leading(nodes)).broker.node_log.node_id
    async with connected(nodes, leader) as first, connected(nodes, leader) as second:
        with hearing_nothing(nodes, leader):
            await first.send(Type.TOPIC_CREATE, 100, "t", "timer", 1, 3, {})
            await first.call(Type.PING)
            with trio.fail_after(PATIENCE_S):
                await second.send(Type.TOPIC_CREATE, 101, "u", "timer", 1, 3, {})
                answer = await second.receive()
            assert answer[:3] == [Type.ERROR, 101, "NOT_LEADER"], answer
        with trio.fail_after(PATIENCE_S):
            assert (await first.receive())[:2] == [Type.REPLY, 100]
