"""Another process fills the disk to its last byte. The node reports that, and continues once bytes are free."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

import sandq
from sandq.errors import NotFound, SandqError
from tests.support.processes import disks
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S, until_answer, until_holds

DISK_MIB = 64
MESSAGES, FEW = 500, 10


def test_full_disk_with_freed_space_continues(make_node: Callable[..., NodeProcess], tmp_path: Path) -> None:
    if not disks.can_be_made(tmp_path / "probe"):
        pytest.skip("a disk of one's own takes a privilege that is missing here (unshare, mount)")
    disk = tmp_path / "disk"
    node = make_node(
        launcher=disks.on_a_small_disk(disk, DISK_MIB),
        SANDQ_NODE__DATA_DIR=str(disk / "data"),
        SANDQ_STORAGE__SEGMENT_BYTES="1MiB",
        SANDQ_STORAGE__RESERVE_BYTES="4MiB",
    )
    node.start()

    async def scenario() -> None:
        async with sandq.connect(node.address, timeout=PATIENCE_S) as client:
            await client.admin.create_topic("t", partitions=1)
            stored = [await client.produce("t", b"%d" % number, delay="1h") for number in range(MESSAGES)]
            ballast = node.root / (disk / "ballast").relative_to("/")
            cancels = Cancels(client, stored)
            await cancels.run(FEW)  # the stores may meet the full disk before any of the others is acknowledged
            await trio.to_thread.run_sync(disks.fill, ballast)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(cancels.run)
                info = await until_answer(client.admin.cluster, lambda info: info["storage_failed"])
                assert "No space left" in info["storage_failed"]
                ballast.unlink()
                await until_holds(lambda: node.output().count('"event": "ready"') > 1)
                nursery.cancel_scope.cancel()
            new = await until_answer(lambda: client.produce("t", b"new", delay="1h"))
            assert FEW <= len(cancels.done) < MESSAGES, "the cancels must meet the full disk"
            kept = {new, *stored} - cancels.tried
            assert await exist(client, kept) == kept and await exist(client, cancels.done) == set()

    trio.run(scenario)
    assert node.stop() == 0, node.output()


class Cancels:
    """Cancels messages of topic "t" in order. `tried`: ids of all attempts; `done`: ids of acknowledged cancels."""

    def __init__(self, client: sandq.Client, ids: list[str]) -> None:
        self._client = client
        self._ids = ids
        self.tried: set[str] = set()
        self.done: set[str] = set()

    async def run(self, most: int = MESSAGES) -> None:
        """Cancel up to `most` messages, until one cancel is not acknowledged."""
        for id in self._ids[len(self.tried) :][:most]:
            self.tried.add(id)
            with contextlib.suppress(SandqError):
                await self._client.messages("t").cancel(id)
                self.done.add(id)
            if self.tried != self.done:
                return


async def exist(client: sandq.Client, ids: set[str]) -> set[str]:
    """Return those of the given ids whose messages exist in topic "t"."""
    there = set()
    for id in ids:
        with contextlib.suppress(NotFound):
            there.add((await client.messages("t").get(id)).id)
    return there
