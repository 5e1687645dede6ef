"""Tests of a node that stops while a snapshot read hangs on the disk: the read does not delay the stop."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import trio
from trio.testing import wait_all_tasks_blocked

from sandq.broker.replication.log_pin import LogPin
from sandq.broker.snapshots.snapshots import Snapshots

NOTHING: Any = None


class Rows:
    """Rows that a read is using: closing them is an error."""

    def close(self) -> None:
        raise AssertionError("it is held by what reads")


class HungRunner:
    """A node whose maintenance thread hangs."""

    def __init__(self) -> None:
        self.rows = Rows()
        self.handed: list[Callable[[], None]] = []

    async def ask(self, call: Callable[[], Any]) -> Any:
        return self.rows, 7

    async def on_maintenance(self, call: Callable[[], Any]) -> Any:
        await trio.sleep_forever()

    def hand_to_maintenance(self, call: Callable[[], None]) -> None:
        self.handed.append(call)


def bed() -> tuple[Snapshots, HungRunner, Any]:
    """Return snapshots whose reads hang, their runner, and a host."""
    runner: Any = HungRunner()
    members = SimpleNamespace(voters=("a#1", "b#1"), learners=())
    journal = SimpleNamespace(term_at=lambda index: 1, members_at=lambda index: members)
    host = SimpleNamespace(
        number=1, status=SimpleNamespace(applied_index=7), group=SimpleNamespace(journal=journal), sending={}
    )
    node_log: Any = SimpleNamespace(
        view=lambda host: NOTHING,
        pointers={1: SimpleNamespace(store=1)},
        memory=SimpleNamespace(measure=lambda *account: None),
    )
    return Snapshots(node_log, runner, 1 << 20, NOTHING, NOTHING), runner, host


async def test_stop_while_the_snapshot_is_measured() -> None:
    snapshots, runner, host = bed()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(snapshots._send_to, host, "b#1", LogPin(7, 1, lambda: None), trio.CancelScope(), 1)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert runner.handed == [runner.rows.close]


async def test_stop_while_the_snapshot_is_sent(monkeypatch: Any) -> None:
    snapshots, runner, host = bed()
    view = SimpleNamespace(rows=runner.rows, meta=SimpleNamespace(index=7, total_bytes=100))

    async def viewed(host: Any) -> Any:
        return view

    async def offer(*_: Any) -> Any:
        await runner.on_maintenance(lambda: None)

    monkeypatch.setattr(snapshots, "_view", viewed)
    monkeypatch.setattr(snapshots, "_offer", offer)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(snapshots._send_to, host, "b#1", LogPin(7, 1, lambda: None), trio.CancelScope(), 1)
        await wait_all_tasks_blocked()
        assert host.sending.keys() == {"b#1"}
        nursery.cancel_scope.cancel()
    assert runner.handed == [runner.rows.close] and not host.sending
