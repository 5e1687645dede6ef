"""Resubmit moves and nacks of which one entry did only a part.

One entry rewrites a limited number of bytes of stored messages. The rest of a command is submitted again until it is
done.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any, Final

from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.requests import Done
from sandq.model.errors import SandqError
from sandq.partition import commands as c
from sandq.partition.leasing.settlement import Part
from sandq.partition.records.claim import Outcome
from sandq.partition.shared_state import NOT_YET

LEAST_ITEMS: Final = 8
"""Minimum number of items to submit again at a time. The maximum is twice the number that the last entry has done.

Each entry looks up all of its items. If an entry does three of a thousand large items, resubmitting all of them would
cost half a million look-ups."""


def submit_in_parts(
    raft_group: RaftGroup, command: c.Move | c.Nack, done: Done, *, size: int, work: int, line: Hashable | None
) -> None:
    """Submit a move or a nack. Submit the unfinished items again until all are done.

    `done` gets the outcomes of all items, or the error that ended the command. The other arguments, and the errors
    raised, are those of `RaftGroup.submit`."""
    items: list[Any] = list(command.items)
    outcomes: list[Any] = [None] * len(items)
    lost: dict[int, list[Any]] = {}
    """Messages whose lease had ended, by position of their item, as reported by the finished parts of a nack."""

    def submit(left: list[int], behind: list[int]) -> None:
        """Submit the items at the positions `left`. `behind`: positions of the items to submit later."""

        def part_done(result: Any) -> None:
            """Merge the outcomes of one part, and submit the unfinished items, or call `done` if there are none."""
            if isinstance(result, SandqError):
                done(result)
                return
            for at, outcome in zip(left, result, strict=True):
                if isinstance(outcome, Part):
                    lost[at] = lost.get(at, []) + (outcome.lost or [])
                    items[at] = (items[at][0], outcome.left, *items[at][2:])
                    outcome = NOT_YET
                elif at in lost and not is_not_yet(outcome):
                    # The lease is gone: all that was left of the item is lost.
                    outcome = lost[at] + (items[at][1] if outcome == [] else outcome or []) or None
                outcomes[at] = outcome
            rest = [at for at in left if is_not_yet(outcomes[at])]
            most = max(2 * (len(left) - len(rest)), LEAST_ITEMS)
            rest += behind
            if not rest:
                done(outcomes)
                return
            try:
                submit(rest[:most], rest[most:])
            except SandqError as error:
                done(error)

        part = command if not lost and len(left) == len(items) else replace(command, items=[items[at] for at in left])
        share = len(left) / max(len(items), 1)
        messages = len(left) if isinstance(command, c.Move) else 0
        raft_group.submit(part, part_done, size=int(size * share), work=int(work * share), messages=messages, line=line)

    submit([*range(len(items))], [])


def is_not_yet(outcome: Any) -> bool:
    """Return whether an item of a move or a nack must be submitted again."""
    return outcome == NOT_YET or (isinstance(outcome, Outcome) and outcome.word == NOT_YET)
