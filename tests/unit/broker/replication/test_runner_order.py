"""Tests of the order of applied entries: it is the order of the log, whatever else happens meanwhile."""

from __future__ import annotations

from typing import Any

from sandq.broker.replication.inbox import Inbox
from sandq.broker.replication.runner import Runner


class Thread:
    """The apply thread: it lets the loop run one entry, and meanwhile the sync of the next pass is heard of."""

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
    """It was after it: an entry of the next pass was applied before the last ones of this pass, and these were lost."""
    runner, order = object.__new__(Runner), []
    runner._inbox = Inbox()
    runner._apply = Thread(runner._inbox, order)  # type: ignore[assignment]
    runner._submit(["1", "2", "3"])  # type: ignore[list-item]
    assert order == ["1 here", "2", "3", "what the next pass brings"]
    runner._inbox.close()
