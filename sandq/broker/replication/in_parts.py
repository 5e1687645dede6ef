"""Submit a large move or nack in several parts, one after the other.

One entry rewrites a limited number of bytes of stored messages. If an entry did only a part of a command, the rest of
the command is submitted again.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from functools import partial
from typing import Any, Final

from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.requests import Done
from sandq.model.errors import SandqError
from sandq.partition import commands as c
from sandq.partition.leasing.settlement import Part
from sandq.partition.records.claim import Outcome
from sandq.partition.shared_state import NOT_YET

LEAST_ITEMS: Final = 8
"""Number of items that one entry may always contain. If the last entry has finished n items, the next may contain 2 n.

Each entry looks up all of its items, finished or not. If an entry can finish three of a thousand large items,
submitting all unfinished items each time would cost 170,000 look-ups."""


def submit_in_parts(
    raft_group: RaftGroup, command: c.Move | c.Nack, done: Done, *, size: int, work: int, line: Hashable | None
) -> None:
    """Submit a move or a nack. Submit its unfinished items again until all items are done.

    `done` gets the outcomes of all items, or the error that ended the command. See `RaftGroup.submit` for the other
    arguments and the errors raised."""
    parts = _Parts(raft_group, command, done, size=size, work=work, line=line)
    parts.submit([*range(len(parts.items))], [])


class _Parts:
    """A move or a nack whose items are done in several entries.

    An object, and no functions that call each other: these would be a reference cycle, which keeps the items in memory
    until a full garbage collection.
    """

    def __init__(
        self,
        raft_group: RaftGroup,
        command: c.Move | c.Nack,
        done: Done,
        *,
        size: int,
        work: int,
        line: Hashable | None,
    ) -> None:
        self.items: list[Any] = list(command.items)
        self._raft_group = raft_group
        self._command = command
        self._done = done
        self._size, self._work, self._line = size, work, line
        self._outcomes: list[Any] = [None] * len(self.items)
        self._lost: dict[int, list[Any]] = {}
        """By position of an item of a nack: its messages whose lease had ended, as reported by the finished parts."""

    def submit(self, left: list[int], behind: list[int]) -> None:
        """Submit the items at the positions `left`. `behind`: positions of the items to submit later."""
        is_whole = not self._lost and len(left) == len(self.items)
        part = self._command if is_whole else replace(self._command, items=[self.items[at] for at in left])
        # A part costs in proportion to the number of its items.
        share = len(left) / max(len(self.items), 1)
        self._raft_group.submit(
            part,
            partial(self._part_done, left, behind),
            size=int(self._size * share),
            work=int(self._work * share),
            messages=len(left) if isinstance(self._command, c.Move) else 0,
            line=self._line,
        )

    def _part_done(self, left: list[int], behind: list[int], result: Any) -> None:
        """Merge the outcomes of one part, and submit the unfinished items, or call `done` if there are none."""
        if isinstance(result, SandqError):
            self._done(result)
            return
        lost, items, outcomes = self._lost, self.items, self._outcomes
        for at, outcome in zip(left, result, strict=True):
            if isinstance(outcome, Part):
                # The entry did only a part of this item: keep only the ranges of messages that are left.
                lost[at] = lost.get(at, []) + (outcome.lost or [])
                items[at] = (items[at][0], outcome.left, *items[at][2:])
                outcome = NOT_YET
            elif at in lost and not is_not_yet(outcome):
                # This is the last part of the item. The outcome `[]` means that the lease has ended: add all remaining
                # messages to the lost ones.
                outcome = lost[at] + (items[at][1] if outcome == [] else outcome or []) or None
            outcomes[at] = outcome
        rest = [at for at in left if is_not_yet(outcomes[at])]
        next_count = max(2 * (len(left) - len(rest)), LEAST_ITEMS)
        rest += behind
        if not rest:
            self._done(outcomes)
            return
        try:
            self.submit(rest[:next_count], rest[next_count:])
        except SandqError as error:
            self._done(error)


def is_not_yet(outcome: Any) -> bool:
    """Return whether an item of a move or a nack with this outcome must be submitted again."""
    return outcome == NOT_YET or (isinstance(outcome, Outcome) and outcome.word == NOT_YET)
