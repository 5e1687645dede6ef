"""A node that does not know a topic says that there is none only if the cluster has none."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import pytest
import trio

from sandq.broker.controller import metadata_changes
from sandq.protocol.frames import Type
from tests.support.nodes.raw_client import RawClient
from tests.support.nodes.three import NAMES, ThreeNodes, leading
from tests.support.waiting import until_answer


@asynccontextmanager
async def connected(nodes: ThreeNodes, name: str) -> AsyncIterator[RawClient]:
    raw = await RawClient.connect(nodes.client_ports[name])
    try:
        yield raw
    finally:
        await trio.aclose_forcefully(raw.stream)


@contextmanager
def hearing_nothing(nodes: ThreeNodes, name: str) -> Iterator[None]:
    """Delay all Raft messages to a node until the end of the block."""
    passes = nodes.running[name].broker.node_log.group_commit
    held: list[Any] = []
    receive = passes.receive
    passes.receive = lambda *frame: held.append(frame)  # type: ignore[method-assign]
    try:
        yield
    finally:
        passes.receive = receive  # type: ignore[method-assign]
        for frame in held:
            receive(*frame)


async def code_of(raw: RawClient, kind: int, *fields: Any) -> str:
    frame = await raw.call(kind, *fields)
    return str(frame[2]) if frame[0] == 255 else "ok"


async def test_node_with_old_metadata_does_not_reply_unknown_topic(
    nodes: ThreeNodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata_changes, "OTHERS_WAIT_S", 0.0)
    leader = (await leading(nodes)).broker.node_log.node_id
    slow = next(name for name in NAMES if name != leader)
    group = nodes.running[leader].broker.metadata.next_group
    asked = [(Type.METADATA, ["t"]), (Type.TOPIC_STATS, "t"), (Type.ACK, group, 0, [[1, None]])]
    async with connected(nodes, leader) as making, connected(nodes, slow) as asking:
        with hearing_nothing(nodes, slow):
            made = partial(code_of, making, Type.TOPIC_CREATE, "t", "timer", 1, 3, {})
            await until_answer(made, lambda code: code in ("ok", "TOPIC_EXISTS"))
            for request_id, (kind, *fields) in enumerate(asked, 100):
                await asking.send(kind, request_id, *fields)
            await asking.send(Type.PING, 200)
            answers = [await asking.receive()]
            while answers[-1][1] != 200:  # all requests were sent while the node received no Raft messages
                answers.append(await asking.receive())
        while len(answers) < 1 + len(asked):
            answers.append(await asking.receive())
        for frame in answers:
            assert frame[1] == 200 or frame[2] in ("UNAVAILABLE", "NOT_LEADER"), frame
        await until_answer(partial(code_of, asking, Type.METADATA, ["t"]), lambda code: code == "ok")


async def test_few_read_rounds_serve_all_requests_for_unknown_topics(nodes: ThreeNodes) -> None:
    leader = (await leading(nodes)).broker.node_log.node_id
    for name in NAMES:
        latest = nodes.running[name].broker.catalog._barrier
        rounds = []
        ask_leader = latest._ask_leader

        async def ask_leader_noting(round_: Any, ask: Any = ask_leader, rounds: list[Any] = rounds) -> None:
            rounds.append(round_)
            await ask(round_)

        latest._ask_leader = ask_leader_noting  # type: ignore[method-assign]
        async with connected(nodes, name) as raw:

            async def ask(rounds: list[Any] = rounds, raw: RawClient = raw) -> set[str]:
                rounds.clear()
                for request_id in range(100, 150):
                    await raw.send(Type.METADATA, request_id, ["nothing"])
                return {(await raw.receive())[2] for _ in range(100, 150)}

            # There may be no leader now: then all get an error that asks them to retry.
            await until_answer(ask, lambda codes: codes == {"UNKNOWN_TOPIC"})
            lost = partial(code_of, raw, Type.ACK, 1 << 40, 0, [[1, None]])
            await until_answer(lost, lambda code: code == "LEASE_LOST")
        assert 1 <= len(rounds) <= 10, f"{name}, led by {leader}"


async def test_isolated_node_replies_unavailable_for_unknown_topic(nodes: ThreeNodes) -> None:
    leader = (await leading(nodes)).broker.node_log.node_id
    await nodes.stop(*[name for name in NAMES if name != leader])
    async with connected(nodes, leader) as raw:
        assert await code_of(raw, Type.METADATA, ["nothing"]) == "UNAVAILABLE"
