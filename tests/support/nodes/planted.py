"""Plant faults into the state machines of nodes in this process: an entry that holds a marker cannot be applied."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch
from weakref import WeakSet

from sandq.broker.replication.replica import PartitionReplica
from sandq.node.running import Serving
from sandq.partition import commands as c
from sandq.partition.base.view import View

POISON = b"poison that no replica can apply"
STEPS = ("decode", "apply", "first", "last", "status", "drain")
"""Steps at which a fault may be raised.

"apply": before any change. "first": at the first write. "last": after the last write."""


class Planted(Exception):
    """The planted fault."""


class Plan:
    """The step and the nodes at which the fault is raised. A test may change it."""

    def __init__(
        self,
        step: str = "apply",
        nodes: Collection[Serving] | None = None,
        marker: bytes = POISON,
        *,
        is_lasting: bool = True,
    ) -> None:
        """`step`: one of `STEPS`.

        `nodes`: the nodes whose replicas fail; None for all. `is_lasting`: after the entry, every call of status (or
        drain) fails; otherwise only the first call fails."""
        self.is_lasting = is_lasting
        self.step = step
        self.marker = marker
        self._stores = None if nodes is None else [id(node.broker.node_log.stores) for node in nodes]
        self.raised = 0

    def raises(self, step: str) -> None:
        self.raised += 1
        raise Planted(f"planted at {step}")

    def hits(self, replica: PartitionReplica) -> bool:
        return self._stores is None or id(replica._rows._stores) in self._stores


@contextmanager
def planted(plan: Plan) -> Iterator[Plan]:
    """Let the entries that contain the plan's marker fail as the plan says."""
    apply, drain, status = PartitionReplica.apply, PartitionReplica.drain, PartitionReplica.status
    put, entry = View.put, PartitionReplica._entry
    struck: WeakSet[PartitionReplica] = WeakSet()
    """Replicas that have applied the marked entry, so that their status or drain fails."""
    current: list[PartitionReplica] = []

    def forget(replica: PartitionReplica) -> None:
        if not plan.is_lasting:
            struck.discard(replica)

    def planted_apply(self: PartitionReplica, index: int, command: bytes, wanted: bool, skip: Any = None) -> Any:
        if plan.marker not in command or not plan.hits(self):
            return apply(self, index, command, wanted, skip)
        current.append(self)
        try:
            if plan.step == "apply":
                self._entry(command)
                plan.raises("apply")
            results = apply(self, index, command, wanted, skip)
            if plan.step == "last":
                plan.raises("last")
            struck.add(self)
            return results
        finally:
            current.pop()

    def planted_put(self: View, key: bytes, value: bytes) -> None:
        put(self, key, value)
        if current and plan.step == "first":
            plan.raises("first")

    def planted_entry(self: PartitionReplica, command: bytes) -> c.Entry:
        if plan.step == "decode" and plan.marker in command and plan.hits(self):
            plan.raises("decode")
        return entry(self, command)

    def planted_drain(self: PartitionReplica) -> Any:
        if plan.step == "drain" and self in struck and self.failure is None:
            forget(self)
            plan.raises("drain")
        return drain(self)

    def planted_status(self: PartitionReplica) -> Any:
        if plan.step == "status" and self in struck and self.failure is None:
            forget(self)
            plan.raises("status")
        return status(self)

    with (
        patch.object(PartitionReplica, "apply", planted_apply),
        patch.object(PartitionReplica, "drain", planted_drain),
        patch.object(PartitionReplica, "status", planted_status),
        patch.object(View, "put", planted_put),
        patch.object(PartitionReplica, "_entry", planted_entry),
    ):
        yield plan
