"""Deleting a topic during other requests for it ended the node, left half a topic, or pinned the log."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from sandq.node import run_node
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.raw_client import RawClient
from tests.support.nodes.small_node import small_config


async def still_works(node: Serving) -> None:
    client = await RawClient.connect(node.client_port)
    async with client.stream:
        assert (await client.create("other"))[0] == 0
        assert (await client.produce(b"m", topic="other"))[0] == 0
        assert (await client.call(Type.TOPIC_DELETE, "other"))[0] == 0


@pytest.mark.parametrize("what", ["produce", "ack", "lease"])
async def test_topic_deletion_during_request_leaves_node_working(tmp_path: Path, what: str) -> None:
    hand = HandClock()
    async with run_node(small_config(tmp_path), clock=hand.guarded()) as node:
        client, other = [await RawClient.connect(node.client_port) for _ in range(2)]
        async with client.stream, other.stream:
            await client.create(lease="10m")
            await client.produce(*[b"m"] * 10)
            if what == "produce":
                for number in range(200):
                    await client.send(Type.PRODUCE, number, "t", 0, 0, 0, 0, 0, _batch())
            else:
                await client.subscribe(credit=5)
                pushed = await client.push()
                if what == "ack":
                    await client.ack(pushed)
            assert (await other.call(Type.TOPIC_DELETE, "t"))[0] == 0
            # Let the former timers of the topic pass: those of the trim and of the end of the lease.
            for seconds in (1, 601):
                hand.forward(seconds)
                await trio.testing.wait_all_tasks_blocked()
            await still_works(node)


@pytest.mark.parametrize("kind", [Type.TOPIC_DELETE, Type.TOPIC_CREATE])
async def test_topic_change_with_lost_client_leaves_no_half_topic(tmp_path: Path, kind: Type) -> None:
    async with run_node(small_config(tmp_path)) as node:
        for attempt in range(0, 20, 2):
            client = await RawClient.connect(node.client_port)
            if kind is Type.TOPIC_DELETE:
                assert (await client.create())[0] == 0
                await client.send(Type.TOPIC_DELETE, 99, "t")
            else:
                await client.send(Type.TOPIC_CREATE, 99, "t", "timer", 1, 1, {})
            await trio.sleep(0.0002 * attempt)
            await trio.aclose_forcefully(client.stream)
            after = await RawClient.connect(node.client_port)
            async with after.stream:
                # With any outcome of the request, the topic must exist completely or not at all.
                answer = await after.call(Type.TOPIC_CREATE, "t", "timer", 1, 1, {})
                assert answer[0] == 0 or answer[2] == "TOPIC_EXISTS"
                assert (await after.produce(b"m"))[0] == 0
                assert (await after.call(Type.TOPIC_DELETE, "t"))[0] == 0


async def test_topic_deletion_releases_log_segments(tmp_path: Path) -> None:
    config = small_config(tmp_path, STORAGE__SEGMENT_BYTES="65536", STORAGE__CHECKPOINT_BYTES="65536")
    async with run_node(config) as node:
        client = await RawClient.connect(node.client_port)
        async with client.stream:
            await client.create("t")
            await client.create("u")
            await client.produce(b"m")
    async with run_node(config) as node:
        client = await RawClient.connect(node.client_port)
        async with client.stream:
            await client.call(Type.TOPIC_DELETE, "t")
            for _ in range(40):
                await client.produce(b"x" * 30_000, topic="u")
            # The stop of the node makes a checkpoint.
    assert len(list((tmp_path / "data" / "wal").iterdir())) <= 4


def _batch() -> bytes:
    from sandq.model.batch import encode

    return encode({1: [b"x" * 1000]})
