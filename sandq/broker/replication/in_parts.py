"""Go on with commands of which an entry did a part: it writes only so much of stored messages again."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any, Final, Protocol

from sandq.broker.replication.raft_group import Done
from sandq.model.errors import SandqError
from sandq.partition import commands as c
from sandq.partition.shared_state import NOT_YET

_NOT_YET_MOVED: Final = [NOT_YET, None]


class Host(Protocol):
    """Where commands are submitted: a `RaftGroup`."""

    def submit(
        self,
        command: Any,
        done: Done,
        *,
        size: int = 64,
        work: int | None = None,
        messages: int = 0,
        line: Hashable | None = None,
    ) -> None:
        """As `RaftGroup.submit`."""


def submit_in_parts(
    host: Host, command: c.Move | c.Nack, done: Done, *, size: int, work: int, line: Hashable | None
) -> None:
    """Submit a move or a nack, and again what was not done of it yet, until all of it is: then `done` gets the outcomes
    of all items, or the error that stopped it. Otherwise as `RaftGroup.submit`, also what it raises."""
    outcomes: list[Any] = [None] * len(command.items)

    def submit(left: list[int]) -> None:
        def part_done(result: Any) -> None:
            if isinstance(result, SandqError):
                done(result)
                return
            for at, outcome in zip(left, result, strict=True):
                outcomes[at] = outcome
            rest = [at for at in left if is_not_yet(outcomes[at])]
            if not rest:
                done(outcomes)
                return
            try:
                submit(rest)
            except SandqError as error:
                done(error)

        part = command if len(left) == len(outcomes) else replace(command, items=[command.items[at] for at in left])
        share = len(left) / max(len(outcomes), 1)
        messages = len(left) if isinstance(command, c.Move) else 0
        host.submit(part, part_done, size=int(size * share), work=int(work * share), messages=messages, line=line)

    submit([*range(len(outcomes))])


def is_not_yet(outcome: Any) -> bool:
    """Whether an item of a move or a nack is to be asked for again."""
    return outcome in (NOT_YET, _NOT_YET_MOVED)
