"""Send snapshots from one simulated node to another in steps, as `snapshots.py` does in threads."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from sandq.broker.replication.log_pin import LogPin
from sandq.broker.snapshots.snapshots import needing
from sandq.model.errors import SandqError, StorageFailed, Unavailable
from sandq.model.members import incarnation_of, node_of
from sandq.storage.files import may_have_happened
from sandq.storage.pointers import StorePointer
from sandq.storage.snapshot import SNAPSHOT_ID_BYTES, Exporter, Importer, Meta
from tests.support.simulation.cluster_node import ClusterNode

Connected = Callable[[str, str], bool]
WAITS = 50
"""Number of steps without a connection after which a snapshot is given up."""


class Transfer:
    """The transfer of one snapshot."""

    def __init__(
        self, source: ClusterNode, target: ClusterNode, connected: Connected, rng: random.Random, pin_bytes: int
    ) -> None:
        self.source, self.target = source, target
        self.installed = self.is_outrun = False
        self._pin_bytes = pin_bytes
        self._installing = False
        """Set once the complete snapshot has arrived."""
        self._is_unsure = False
        self._connected = connected
        self._rng = rng
        self._steps = self._send()

    def step(self) -> bool:
        """Run one step. Return whether further steps follow. Raises Crashed if the target crashes."""
        if self.is_outrun and not self._installing:
            self._steps.close()
            return False
        try:
            next(self._steps)
        except StopIteration:
            return False
        except SandqError:
            return False  # the snapshot is started again
        return True

    def gone(self, node: ClusterNode) -> bool:
        """Note that a node has ended its life. Return whether the transfer ends, too."""
        if node is self.target or (node is self.source and not self._installing):
            self._steps.close()
            return True
        return False

    def _outrun(self) -> None:
        self.is_outrun = True

    def _send(self) -> Iterator[None]:
        source, member = self.source, self.target.host.group.member
        rows, index = source.node_log.view(source.host)
        try:
            yield
            journal, pointer = source.host.group.journal, source.node_log.pointers.get(source.host.number)
            term = journal.term_at(index)
            if term is None or pointer is None:
                return
            voters, learners = journal.members_at(index)
            snapshot_id = self._rng.randbytes(SNAPSHOT_ID_BYTES)
            meta = Meta(source.host.number, snapshot_id, index, term, voters, learners, 0)
            source.host.pins[member] = LogPin(index, self._pin_bytes, self._outrun)
            yield from self._receive(Meta.decode(meta.encode()), Exporter(rows, pointer.store))
        finally:
            source.host.pins.pop(member, None)
            rows.close()

    def _receive(self, meta: Meta, exporter: Exporter) -> Iterator[None]:
        node_log, host = self.target.node_log, self.target.host
        if host.status.applied_index >= meta.index:
            return
        number = node_log.pointers.mint()[0]
        node_log.filling.add(number)
        try:
            importer = Importer(node_log.stores, number)
            last = False
            while not last:
                yield from self._reconnect()
                last = importer.add(exporter.chunk(importer.position).data)
                yield
            node_log.stores.flush()
            yield
            yield from self._install(meta, number)
        finally:
            if not self._is_unsure:
                node_log.filling.discard(number)

    def _install(self, meta: Meta, number: int) -> Iterator[None]:
        target = self.target
        node_log, host = target.node_log, target.host
        self._installing = True
        while target.records is not None:
            yield
        node_log.suspend(host, meta.index)
        loaded = host.replica, host.status
        member = host.group.member
        try:
            yield
            # Finish the tasks for the old state before the new state replaces it.
            target.run([target.tasks.popleft() for _ in range(len(target.tasks))])
            new = node_log.load(host.number, number)
            yield
            pointer = StorePointer(
                host.number, incarnation_of(member), number, meta.index, meta.term, meta.voters, meta.learners
            )
            node_log.pointers.update(put=[pointer])
            yield
            loaded = new
            self.installed = True
        except StorageFailed as error:
            self.installed = False
            if may_have_happened(error):
                self._is_unsure = True
                node_log.fail(error)
                return
        while target.records is not None:
            yield
        node_log.reopen(host, *loaded)

    def _reconnect(self) -> Iterator[None]:
        for _ in range(WAITS):
            if self._connected(self.source.name, self.target.name):
                return
            yield
        raise Unavailable("nobody answers")


def begin(
    source: ClusterNode, nodes: dict[str, ClusterNode], connected: Connected, rng: random.Random, pin_bytes: int
) -> list[Transfer]:
    """Start a transfer to each reachable member that needs a snapshot.

    `pin_bytes`: bytes of the log after the snapshot that the sender keeps during the transfer."""
    targets = [nodes.get(node_of(member)) for member in needing(source.host)]
    return [
        Transfer(source, target, connected, rng, pin_bytes)
        for target in targets
        if target is not None and connected(source.name, target.name)
    ]
