"""Tests that entries are applied in the order of the log, even if syncs finish meanwhile."""

from __future__ import annotations

from typing import Any

from sandq.broker.replication.inbox import Inbox
from sandq.broker.replication.runner import Runner


class Thread:
    """An apply thread that lets the loop run one entry. Meanwhile the sync of the next pass is reported."""

    def __init__(self, inbox: Inbox, order: list[str]) -> None:
        self._inbox = inbox
        self._order = order

    def run_here(self, tasks: list[Any]) -> int:
        self._inbox.put(self._order.append, "what the next pass brings")
        self._order.append(f"{tasks[0]} here")
        return 1

    def submit(self, task: Any) -> None:
        self._order.append(task)


async def test_unapplied_entries_are_submitted_before_the_next_sync() -> None:
    """Once they were submitted later. Then an entry of the next pass was applied first, and entries were lost."""
    runner, order = object.__new__(Runner), []
    runner._inbox = Inbox()
    runner._apply = Thread(runner._inbox, order)  # type: ignore[assignment]
    runner._submit(["1", "2", "3"])  # type: ignore[list-item]
    assert order == ["1 here", "2", "3", "what the next pass brings"]
    runner._inbox.close()
