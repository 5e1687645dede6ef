"""Tests of embedded brokers whose disk fails or hangs, or that end by a bug: calls raise, and the program lives."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

import sandq
from sandq.embed import node_thread
from sandq.errors import ClosedError, ConnectionLost, DataDirInUse, SandqError, StartupError, StorageFailed
from sandq.model.config import NodeConfig
from sandq.node import run_node
from sandq.node.running import Serving
from sandq.storage.files import RealFiles, failed
from tests.support.nodes.three import three_nodes
from tests.support.storage.faulty_files import FaultyFiles, Plan
from tests.support.waiting import PATIENCE_S

TOPIC = "t"


@pytest.fixture
def plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plan:
    """Let embedded brokers run on a disk that fails as the plan says."""
    plan = Plan()
    files = FaultyFiles(RealFiles(tmp_path), plan)
    monkeypatch.setattr(node_thread, "run_node", partial(run_node, files=files))
    return plan


def no_space(name: str) -> None:
    raise failed("sync", name, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))


def broken(name: str) -> None:
    raise failed("sync", name, OSError(errno.EIO, os.strerror(errno.EIO)))


def test_calls_raise_if_the_disk_fails(tmp_path: Path, plan: Plan) -> None:
    with sandq.sync.embedded(tmp_path, delivery_timeout="1s") as client:
        client.admin.create_topic(TOPIC)
        client.produce(TOPIC, b"one")
        plan.on_sync = broken
        with pytest.raises(StorageFailed, match="cannot sync"):
            client.produce(TOPIC, b"two")
        assert len(list(client.messages(TOPIC).list())) == 1  # reads still work


def test_full_disk_at_the_start_is_named(tmp_path: Path, plan: Plan) -> None:
    plan.on_sync = no_space
    with pytest.raises(StorageFailed, match="No space left on device"):
        sandq.sync.embedded(tmp_path)
    plan.on_sync = lambda name: None
    sandq.sync.embedded(tmp_path).close()


@pytest.fixture
def hanging(plan: Plan) -> Iterator[threading.Event]:
    """An event that is set once a sync hangs. It hangs until the end of the test."""
    begun, goes_on = threading.Event(), threading.Event()

    def hang(name: str) -> None:
        begun.set()
        goes_on.wait(PATIENCE_S)

    plan.on_sync = hang
    plan.on_sync, begun.hang = (lambda name: None), hang  # type: ignore[attr-defined]
    yield begun
    goes_on.set()


def test_directory_stays_locked_if_the_disk_hangs(
    tmp_path: Path, plan: Plan, hanging: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandq.node.replication.CLOSE_S", 0.1)
    config = tmp_path / "node.yaml"
    config.write_text("shutdown_grace: 100ms\n")
    client = sandq.sync.embedded(tmp_path, config=config, timeout="1s")
    client.admin.create_topic(TOPIC)
    plan.on_sync = hanging.hang
    with pytest.raises(SandqError):
        client.produce(TOPIC, b"one", timeout="200ms")
    assert hanging.is_set()
    client.close()
    with pytest.raises(DataDirInUse, match=f"this process \\(pid {os.getpid()}\\)"):
        RealFiles(tmp_path).lock("lock")


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_calls_raise_if_the_broker_ends_by_a_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    ends = threading.Event()

    @asynccontextmanager
    async def ending(config: NodeConfig, **options: Any) -> AsyncIterator[Serving]:
        async with run_node(config, **options) as serving, anyio.create_task_group() as tasks:

            async def end() -> None:
                await anyio.to_thread.run_sync(ends.wait)
                raise RuntimeError("a bug")

            tasks.start_soon(end)
            yield serving

    monkeypatch.setattr(node_thread, "run_node", ending)

    async def main() -> None:
        async with sandq.embedded(tmp_path) as client:
            await client.admin.create_topic(TOPIC)
            async with client.subscribe(TOPIC, group="g") as subscription:
                ends.set()
                with pytest.raises(ClosedError, match="the embedded broker has ended: RuntimeError"):
                    async for _ in subscription:
                        pass
            with pytest.raises(ClosedError, match="the embedded broker has ended: RuntimeError"):
                await client.produce(TOPIC, b"one")

    with pytest.raises(ClosedError, match="the embedded broker has ended"):
        anyio.run(main, backend=backend)
    RealFiles(tmp_path).lock("lock").close()


@pytest.mark.parametrize("share", [False, True])
async def test_connection_to_a_shared_directory_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, share: bool
) -> None:
    calls: list[str] = []

    @asynccontextmanager
    async def connect(server: str, **options: Any) -> AsyncIterator[sandq.Client]:
        calls.append(server)
        if len(calls) == 1:
            raise ConnectionLost("its process has ended")
        async with sandq.connect(server, **options) as client:
            yield client

    monkeypatch.setattr("sandq.embed.asynchronous.connect", connect)
    if share:
        async with sandq.embedded(tmp_path, share=True) as client:
            await client.admin.create_topic(TOPIC)
    else:
        with pytest.raises(ConnectionLost):
            async with sandq.embedded(tmp_path):
                pass
    assert calls == [f"unix:{tmp_path}/socket"] * (2 if share else 1)
    RealFiles(tmp_path).lock("lock").close()


async def test_directory_of_a_cluster_of_several_nodes_is_refused(tmp_path: Path) -> None:
    async with three_nodes(tmp_path) as nodes:
        async with nodes.connect() as client:
            await client.admin.create_topic(TOPIC, replicas=3)
        await nodes.until_even(TOPIC)
        await nodes.stop("node1", "node2", "node3")
        with pytest.raises(StartupError, match=r"cluster with other nodes \(node2, node3\): start it with"):
            async with sandq.embedded(nodes.data_dir("node1")):
                pass
        RealFiles(nodes.data_dir("node1")).lock("lock").close()
        await nodes.start()  # the refusal has changed nothing
        async with nodes.connect() as client:
            await client.produce(TOPIC, b"one")
