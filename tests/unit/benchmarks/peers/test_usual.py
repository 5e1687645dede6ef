"""The loads over each peer's usual Python client, with clients that only count."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from benchmarks.peers import usual
from benchmarks.peers.peer import PeerError
from benchmarks.peers.registry import PEERS


class Counting(usual.Usual):
    """A client that counts its calls. `busy`: number of concurrent sends."""

    def __init__(self) -> None:
        self.sent = self.taken = self.busy = self.most = 0
        self.is_open = True

    async def producers(self, count: int) -> list[usual.Produce]:
        """Return producers that count their messages, and how many work at the same time."""

        async def produce(text: bytes) -> object:
            self.busy += 1
            self.most = max(self.most, self.busy)
            await asyncio.sleep(0)
            self.busy -= 1
            self.sent += 1
            return None

        return [produce] * count

    async def consume(self, messages: int, workers: int) -> None:
        self.taken += messages

    @contextlib.asynccontextmanager
    async def open(self, port: int) -> AsyncIterator[usual.Usual]:
        yield self
        self.is_open = False


@pytest.mark.parametrize("tasks", [1, 16])
def test_each_task_sends_one_after_the_other(tasks: int) -> None:
    client = Counting()
    before, driven = asyncio.run(usual.lock_step(client.open, 1, tasks, 160, 60))
    assert (before, len(driven.answer_s), client.sent) == (tasks, 160, tasks + 160)
    assert client.most == tasks and not client.is_open


def test_after_its_time_nothing_more_is_sent() -> None:
    client = Counting()
    before, driven = asyncio.run(usual.lock_step(client.open, 1, 4, 1000, 0))
    assert client.sent == before + len(driven.answer_s) < 1000


def test_take_all_consumes_every_message() -> None:
    client = Counting()
    assert asyncio.run(usual.take_all(client.open, 1, 7, 1)) >= 0
    assert client.taken == 7


def test_workers_share_messages() -> None:
    assert usual.shares(10, 3) == [4, 3, 3] and usual.shares(2, 3) == [1, 1, 0]


@pytest.mark.parametrize("peer", PEERS)
def test_each_peer_has_one(peer: str) -> None:
    assert callable(usual.opened_by(peer))


def test_missing_peer_is_reported() -> None:
    with pytest.raises(PeerError, match="its Python client nowhere is not installed: make bench-peers installs it"):
        usual._package("sandq_nowhere", "nowhere")
