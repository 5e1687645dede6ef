"""Stop nodes in this process at a chosen point of their code, to simulate a crash in the middle of a step.

The disk of a halted node holds what a crash would leave: nothing is handed over, flushed or sealed."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import trio

from sandq.broker.controller.rebalancer import Rebalancer
from sandq.broker.controller.reconciler import Reconciler
from sandq.broker.controller.reports import Reports
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import METADATA_GROUP
from sandq.broker.replication.runner import Runner
from sandq.broker.replication.store_compaction import StoreSweeper
from sandq.broker.snapshots.snapshots import _Store
from sandq.metadata.records import Topic
from sandq.model.members import node_of


def _always(*args: Any) -> bool:
    return True


@dataclass(frozen=True)
class Point:
    """A call at which a node halts: of a method, or of a function whose first argument identifies the node.

    `when` selects calls by their arguments. If the function is not a coroutine function, the call is skipped instead,
    and the node continues until it is stopped."""

    owner: Any
    name: str
    when: Callable[..., bool] = _always
    after: bool = False

    def watch(self, monkeypatch: pytest.MonkeyPatch) -> Halt:
        """Install the halt. Call it before nodes are started, because they keep references to methods."""
        halt, original = Halt(), getattr(self.owner, self.name)

        async def stands(*args: Any, **named: Any) -> Any:
            is_here = halt.wanted and self.when(*args)
            if is_here and not self.after:
                await halt.at(_node(args[0]))
            result = await original(*args, **named)
            if is_here and self.after:
                await halt.at(_node(args[0]))
            return result

        def left_out(*args: Any) -> Any:
            if halt.wanted and self.when(*args) and halt.holds(_node(args[0])):
                return None
            return original(*args)

        is_waiting = inspect.iscoroutinefunction(original)
        monkeypatch.setattr(self.owner, self.name, stands if is_waiting else left_out)
        return halt


class Halt:
    """Stops the first node that reaches the point after `wanted` is set."""

    def __init__(self) -> None:
        self.wanted = False
        self.node: str | None = None
        self.reached = trio.Event()

    def holds(self, node: str) -> bool:
        if self.node is None:
            self.node = node
            self.reached.set()
        return self.node == node

    async def at(self, node: str) -> None:
        if self.wanted and self.holds(node):
            await trio.sleep_forever()


def _node(part: RaftGroup | Runner | Reconciler | Rebalancer | Reports | StoreSweeper | _Store) -> str:
    """Return the node that owns this part."""
    if isinstance(part, RaftGroup):
        return node_of(part.group.member)
    return part.node_log.node_id if isinstance(part, Runner) else part._node_log.node_id


# -- conditions on the arguments --------------------------------------------------------------------------------------


def some(kind: type) -> Callable[..., bool]:
    """Match a group of metadata commands that contains this type."""
    return lambda metadata, commands: any(isinstance(command, kind) for command in commands)


def installs(following: Reconciler, topics: Sequence[Topic], index: int) -> bool:
    """Return whether a replica of a partition is assigned to this node and has no pointer yet."""
    pointers, node = following._node_log.pointers, following._node_log.node_id
    wanted = [part for topic in topics for part in topic.partitions if part.wanted_on(node)]
    return any(pointers.get(part.group) is None for part in wanted)


def removes(following: Reconciler, groups: list[int], index: int) -> bool:
    return bool(groups)


def adds_learner(host: RaftGroup, step: Any) -> bool:
    return host.number != METADATA_GROUP and len(step.learners) > len(host.members.learners)


def promotes(host: RaftGroup, step: Any) -> bool:
    return host.number != METADATA_GROUP and len(step.voters) > len(host.members.voters)


def drops(host: RaftGroup, step: Any) -> bool:
    return host.number != METADATA_GROUP and len(step.voters) < len(host.members.voters)


def leaves(mover: Rebalancer, led: Any, node: str) -> bool:
    """Return whether the leader must leave the group, and so transfers its leadership."""
    return led.host.group.member not in led.wanted.members


def learns(entries: int) -> Callable[..., bool]:
    """Match when some replica has more than `entries` entries of the log and does not vote yet."""

    def check(runner: Runner) -> bool:
        for number, host in runner.node_log.hosts.items():
            pointer = runner.node_log.pointers.get(number)
            begins = pointer is not None and host.group.member in pointer.learners
            is_voter = host.group.member in host.members.voters
            if number != METADATA_GROUP and begins and not is_voter and host.group.journal.last_index > entries:
                return True
        return False

    return check


def of_partition(store: _Store, *args: Any) -> bool:
    return store._host.number != METADATA_GROUP


def calls(name: str) -> Callable[..., bool]:
    """Match a job that calls this method of the engine, in a thread or between commit batches."""
    return lambda runner, call: getattr(getattr(call, "func", None), "__name__", "") == name
