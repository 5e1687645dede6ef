"""Tests of group lists: tens of thousands of rows fit one answer, and only a few lists are built at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, Final

import msgpack
import pytest
import trio
import trio.testing

from sandq.broker.broker import LISTS_AT_ONCE
from sandq.broker.event_loop import SLICE_WORK
from sandq.broker.reads.linearizable_reads import BOUNDLESS
from sandq.broker.requests import message_requests
from sandq.broker.requests.message_requests import ROW_WORK, ROWS_AT_ONCE, MessageRequests
from sandq.model.caller import NODE
from sandq.protocol.requests_admin import GroupList

PARTITIONS: Final = 50
GROUPS: Final = 1_000
"""Groups per partition: the maximum of a topic and of a node."""


class Broker:
    """A node that leads a topic with many groups, whose state is known at once."""

    def __init__(self, partitions: int = PARTITIONS, groups: int = GROUPS) -> None:
        self.listing = trio.Semaphore(LISTS_AT_ONCE)
        self.clock = SimpleNamespace(now_ms=lambda: 0)
        self.reads = self.catalog = self
        self._rows = [
            {"group": f"g{at}", "ready": 1, "leased": 2, "waiting": 3, "reason": None} for at in range(groups)
        ]
        status = SimpleNamespace(now_ms=0, messages=0, dead=0)
        replica = SimpleNamespace(queries=SimpleNamespace(group_rows=lambda: self._rows))
        self._led = [
            SimpleNamespace(
                partition=at, raft_group=SimpleNamespace(status=status, replica=replica), consumers=lambda name: 4
            )
            for at in range(partitions)
        ]
        self.asking = self.asking_most = 0
        self.may_answer = trio.Event()
        self.may_answer.set()

    def led(self, topic: str) -> Sequence[Any]:
        return self._led

    def partition(self, topic: str, partition: int) -> Any:
        return self._led[partition]

    async def ask(self, host: Any, question: Callable[[Any], Any], *, work: int) -> Any:
        """Answer a question about a replica once answers are allowed, and count concurrent questions."""
        self.asking += 1
        self.asking_most = max(self.asking_most, self.asking)
        try:
            await self.may_answer.wait()
            return question(host.replica)
        finally:
            self.asking -= 1


class Packed(trio.abc.Instrument):
    """Maximum number of rows that were packed in one round of the loop."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.most = self.rounds = self._rows = 0
        pack = message_requests._packed_groups

        def counted(rows: Sequence[dict[str, Any]], delivery: Any) -> bytes:
            self._rows += len(rows)
            self.most = max(self.most, self._rows)
            return pack(rows, delivery)

        monkeypatch.setattr(message_requests, "_packed_groups", counted)

    def before_io_wait(self, timeout: float) -> None:
        self.rounds += 1
        self._rows = 0


async def test_list_of_all_groups_is_packed_in_time_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, packed = Broker(), Packed(monkeypatch)
    queries = MessageRequests(broker, BOUNDLESS)  # type: ignore[arg-type]
    trio.lowlevel.add_instrument(packed)
    try:
        count, parts = await queries.groups(GroupList("t"), NODE)
    finally:
        trio.lowlevel.remove_instrument(packed)
    assert count == PARTITIONS * GROUPS
    assert packed.most <= SLICE_WORK // ROW_WORK + ROWS_AT_ONCE and packed.rounds > 100
    unpacker = msgpack.Unpacker()
    for part in parts:
        unpacker.feed(part)
    rows = list(unpacker)
    assert len(rows) == count
    assert rows[-1] == {
        "group": "g999",
        "ready": 1,
        "leased": 2,
        "waiting": 3,
        "reason": None,
        "lag": 6,
        "consumers": 4,
    }


async def test_few_lists_are_made_at_once_and_one_of_a_connection() -> None:
    broker = Broker(partitions=1, groups=1)
    broker.may_answer = trio.Event()
    clients = [MessageRequests(broker, BOUNDLESS) for _ in range(LISTS_AT_ONCE + 2)]  # type: ignore[arg-type]
    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(clients[0].groups, GroupList("t"), NODE)
        await trio.testing.wait_all_tasks_blocked()
        assert broker.asking == 1, "the requests of one connection run one after another"
        for client in clients[1:]:
            nursery.start_soon(client.groups, GroupList("t"), NODE)
        await trio.testing.wait_all_tasks_blocked()
        assert broker.asking == LISTS_AT_ONCE
        broker.may_answer.set()
    assert broker.asking_most == LISTS_AT_ONCE and not broker.asking
