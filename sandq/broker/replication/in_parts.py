"""Go on with commands of which an entry did a part: it writes only so much of stored messages again."""

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
"""That are submitted again at a time, and twice as many as the last entry did: each is looked up in each entry that it
is in, and a thousand large ones, of which an entry does three, would be half a million times."""


def submit_in_parts(
    raft_group: RaftGroup, command: c.Move | c.Nack, done: Done, *, size: int, work: int, line: Hashable | None
) -> None:
    """Submit a move or a nack, and again what was not done of it yet, until all of it is: then `done` gets the outcomes
    of all items, or the error that stopped it. Otherwise as `RaftGroup.submit`, also what it raises."""
    items: list[Any] = list(command.items)
    outcomes: list[Any] = [None] * len(items)
    lost: dict[int, list[Any]] = {}
    """By item: of what those parts of a nack that were done already have lost the lease."""

    def submit(left: list[int], behind: list[int]) -> None:
        """`behind`: what is to be submitted after these."""

        def part_done(result: Any) -> None:
            if isinstance(result, SandqError):
                done(result)
                return
            for at, outcome in zip(left, result, strict=True):
                if isinstance(outcome, Part):
                    lost[at] = lost.get(at, []) + (outcome.lost or [])
                    items[at] = (items[at][0], outcome.left, *items[at][2:])
                    outcome = NOT_YET
                elif at in lost and not is_not_yet(outcome):
                    # Of a lease that is gone all is lost that was left of the item.
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
    """Whether an item of a move or a nack is to be asked for again."""
    return outcome == NOT_YET or (isinstance(outcome, Outcome) and outcome.word == NOT_YET)
