"""Run replicas in memory whose applier meets entries that it cannot apply: faults at any step, restarts, skips."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from sandq.broker.health.entry_skips import replacement_of
from sandq.broker.replication.applier import Applier, Apply, Published
from sandq.broker.replication.replica import PartitionReplica, Replica
from sandq.model.errors import Corruption
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.partition.base.digest import StateDigest, comparable
from sandq.partition.base.view import View
from sandq.raft import Skip
from sandq.storage.keys import store_prefix
from sandq.storage.stores import MemoryStores
from tests.support.partition.bench import ALL, T, batch_of

GROUP, OTHER = 7, 8
STORE, OTHER_STORE = 1, 2
SKIP_ID = b"an operator's id"


class Planted(MemoryError):
    """The planted fault. Other replicas may apply the same entry without a fault."""


class Fault:
    """A fault at one step of one entry."""

    def __init__(self, step: str, command: bytes, write: int = 0) -> None:
        """`step`: "decode", "write", "end", "status" or "drain". `write`: the write that fails, counted from 1."""
        self.step, self.command, self.write = step, command, write
        self.writes = 0
        """Number of writes of the entry so far."""
        self.is_on = True
        self._replica: PartitionReplica | None = None
        self._struck: PartitionReplica | None = None

    @contextmanager
    def planted(self) -> Iterator[Fault]:
        """Let replicas fail at the entry during the block, while `is_on` is set."""
        apply, entry = PartitionReplica.apply, PartitionReplica._entry
        status, drain = PartitionReplica.status, PartitionReplica.drain

        def planted_entry(replica: PartitionReplica, command: bytes) -> c.Entry:
            if self.is_on and self.step == "decode" and command == self.command:
                raise Corruption("planted at decode")
            return entry(replica, command)

        def planted_apply(replica: PartitionReplica, index: int, command: bytes, wanted: bool, skip: Any = None) -> Any:
            if not self.is_on or command != self.command:
                return apply(replica, index, command, wanted, skip)
            self._replica, self.writes = replica, 0
            try:
                results = apply(replica, index, command, wanted, skip)
            finally:
                self._replica = None
            if self.step == "end":
                raise Planted("end")
            self._struck = replica
            return results

        def planted_status(replica: PartitionReplica) -> Any:
            self._strike("status", replica)
            return status(replica)

        def planted_drain(replica: PartitionReplica) -> Any:
            self._strike("drain", replica)
            return drain(replica)

        with (
            patch.object(PartitionReplica, "_entry", planted_entry),
            patch.object(PartitionReplica, "apply", planted_apply),
            patch.object(PartitionReplica, "status", planted_status),
            patch.object(PartitionReplica, "drain", planted_drain),
            _writes_counted(self._wrote),
        ):
            yield self

    def _strike(self, step: str, replica: PartitionReplica) -> None:
        if self.is_on and self.step == step and replica is self._struck and replica.failure is None:
            self._struck = None
            raise Planted(step)

    def _wrote(self, view: View) -> None:
        if self._replica is not None and view is self._replica._view:
            self.writes += 1
            if self.step == "write" and self.writes == self.write:
                raise Planted(f"write {self.write}")


@contextmanager
def _writes_counted(wrote: Callable[[View], None]) -> Iterator[None]:
    """Call `wrote` after each write to any view."""
    with _counted("put", wrote), _counted("put_all", wrote), _counted("delete", wrote), _counted("delete_all", wrote):
        yield


@contextmanager
def _counted(name: str, wrote: Callable[[View], None]) -> Iterator[None]:
    write = getattr(View, name)

    def counting(view: View, *arguments: Any) -> None:
        write(view, *arguments)
        wrote(view)

    with patch.object(View, name, counting):
        yield


class ShutBed:
    """A partition and a second, healthy partition that use the real applier."""

    def __init__(self, kind: str, settings: Mapping[str, Any], stores: MemoryStores | None = None) -> None:
        self.stores = MemoryStores() if stores is None else stores
        self.kind, self.settings = kind, dict(settings)
        self.published: list[Published] = []
        self.applier = Applier(self.stores, self.published.append)
        self.replica = self.load()
        own = parse_settings({}).record()
        self.other = PartitionReplica(self.stores, OTHER_STORE, OTHER, 0, own, yield_now=self.applier.yield_now)

    def load(self) -> PartitionReplica:
        """Load the replica from its rows."""
        applier = self.applier
        self.replica = PartitionReplica(
            self.stores, STORE, GROUP, 0, self.settings, self.kind, yield_now=applier.yield_now
        )
        return self.replica

    def copied(self) -> ShutBed:
        """Return a bed over a copy of the rows, as after a restart."""
        stores = MemoryStores()
        stores.write(self.stores.scan(b"", b"\xff" * 40, limit=ALL, max_bytes=ALL))
        return ShutBed(self.kind, self.settings, stores)

    def task(self, index: int, command: bytes, skip: Skip | None = None) -> Apply:
        return Apply(GROUP, self.replica, index, command, True, skip)

    def other_task(self) -> Apply:
        """Return an entry of the other partition."""
        index = max(self.other.applied_index, 1) + 1
        entry = c.Entry(T, (c.Append(batch_of(["other"])),)).encode()
        return Apply(OTHER, self.other, index, entry, True)

    def run_log(self, log: Sequence[bytes], skip: Skip | None = None) -> None:
        """Apply the entries of a log that the rows do not contain yet. Then apply `skip`, if given."""
        applied = self.replica.applied_index
        for index, command in enumerate(log, 1):
            if index > applied:
                self.applier.run([self.task(index, command)])
        if skip is not None:
            self.applier.run([self.task(len(log) + 1, b"", skip)])
        self.applier.rest()

    def rows(self) -> Mapping[bytes, Any]:
        """Return the rows of the replica."""
        return comparable(self._stored())

    def digest(self) -> bytes:
        """Return the digest of the rows of the replica."""
        digest = StateDigest()
        digest.add(self._stored())
        return digest.value()

    def _stored(self) -> list[tuple[bytes, bytes]]:
        prefix = store_prefix(STORE)
        found = self.stores.scan(prefix, store_prefix(STORE + 1), limit=ALL, max_bytes=ALL)
        return [(key[len(prefix) :], value) for key, value in found]


def skipped(replica: Replica, command: bytes, positions: Sequence[int] | None) -> bytes:
    """Return the entry that replaces the entry that shut a replica, after an operator's SKIP."""
    assert replica.failure is not None
    return replacement_of(replica.failure.group, SKIP_ID, command, positions, replica.failure)[0]
