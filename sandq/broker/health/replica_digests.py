"""Compare the stored rows of a partition's replicas, and report replicas that differ.

Replicas apply the same entries, so they must have the same rows. But a bit of memory may flip, or a version may have a
bug. So the leader of each partition appends an entry (TAKE_DIGEST). Each replica that applies this entry computes a
digest of its rows. Partitions are compared one after the other, at the same limited rate as the checks of the disk.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import NoneType
from typing import Any, Final

import trio

from sandq.broker.catalog import Catalog
from sandq.broker.health.shut_replicas import ShutReplicas
from sandq.broker.peers.links import PeerLinks
from sandq.broker.replication.applier import DigestView
from sandq.broker.replication.fair_queue import BEHIND
from sandq.broker.replication.node_log import NodeLog
from sandq.model.errors import SandqError
from sandq.model.logger import get_logger
from sandq.model.members import node_of
from sandq.partition import commands as c
from sandq.partition.base.digest import DIGEST_BYTES, StateDigest
from sandq.protocol.peer import PeerFrame
from sandq.storage.keys import STORE_PREFIX_BYTES, store_range

log = get_logger("sandq.health")

ROUND_S: Final = 86_400.0
"""Pause in s between two rounds over all partitions that this node leads."""
FIRST_S: Final = 60.0
"""Pause in s between the start and the first round."""
ANSWER_S: Final = 3600.0
"""Time limit in s for answers. The limit is long, because each node reads all rows of its replica at a bounded rate."""
CHECK_S: Final = 1.0
"""Interval in s at which a comparison checks whether it can end."""
VIEWS_MOST: Final = 4
"""Maximum number of views that wait to be read. Further views are refused.

A view is a snapshot of a replica's rows, opened for one TAKE_DIGEST entry. While a view is open, the space of deleted
rows cannot be reclaimed."""
REFUSED_MOST: Final = 64
"""Maximum number of refused views that wait to be closed."""
STEP_ROWS: Final = 2048
STEP_BYTES: Final = 1 << 20
_BODY: Final = ([int, int, int, bytes], [int, int, int, NoneType])


@dataclass(slots=True)
class _Comparison:
    """The answers about one partition, by node."""

    group: int
    nodes: frozenset[str]
    """Nodes that have a replica of the group."""
    answers: dict[str, tuple[int, bytes | None]] = field(default_factory=dict)
    """By node: (Raft index of the TAKE_DIGEST entry, digest). The digest is None if the node could not compute it."""
    changed: trio.Event = field(default_factory=trio.Event)


class ReplicaDigests:
    """Compares the replicas of the groups that this node leads, and computes digests for other leaders."""

    def __init__(
        self,
        node_log: NodeLog,
        catalog: Catalog,
        links: PeerLinks,
        shut_replicas: ShutReplicas,
        bytes_per_s: int,
    ) -> None:
        """`bytes_per_s`: rate of reading. 0: read nothing, and request no digests. `shut_replicas`: a shut replica does
        not answer, so comparisons do not wait for it."""
        self._shut_replicas = shut_replicas
        self._node_log = node_log
        self._catalog = catalog
        self._links = links
        self._bytes_per_s = bytes_per_s
        self._open: dict[int, _Comparison] = {}
        """Comparisons in progress, by the number in their TAKE_DIGEST entry."""
        self._different: dict[int, tuple[str, ...]] = {}
        self._give, self._take = trio.open_memory_channel[DigestView](VIEWS_MOST)
        self._refuse, self._refused = trio.open_memory_channel[DigestView](REFUSED_MOST)
        self.compared = 0
        """Number of comparisons in which all replicas answered and were equal."""

    @property
    def different(self) -> Mapping[int, tuple[str, ...]]:
        """By group that this node leads: the nodes whose replicas differ from the majority.

        If there is no majority, the result has all nodes that answered. Groups with equal replicas are left out."""
        led = self._catalog.led_here
        return {group: nodes for group, nodes in sorted(self._different.items()) if group in led}

    async def run(self) -> None:
        """Compare all groups that this node leads, round after round. Compute digests for other leaders. Run until
        cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._digest_all)
            nursery.start_soon(self._refuse_all)
            await trio.sleep(FIRST_S)
            while self._bytes_per_s:
                for group in list(self._catalog.led_here):
                    await self.compare(group)
                await trio.sleep(ROUND_S)

    # -- requesting side ------------------------------------------------------------------------------------------

    async def compare(self, group: int) -> bool | None:
        """Compare the replicas of a group that this node leads.

        Return whether the replicas that answered are equal; None if fewer than two answered, or if the comparison
        failed."""
        host = self._node_log.hosts.get(group)
        if host is None:
            return None
        nodes = frozenset(map(node_of, (*host.members.voters, *host.members.learners)))
        if len(nodes) < 2:
            return None
        number = secrets.randbits(63)
        comparison = self._open[number] = _Comparison(group, nodes)
        try:
            await host.call(c.TakeDigest(number), BEHIND)
            with trio.move_on_after(ANSWER_S):
                while host.ready and self._awaits(comparison):
                    with trio.move_on_after(CHECK_S):
                        await comparison.changed.wait()
                    comparison.changed = trio.Event()
        except SandqError as error:
            log.info("replicas were not compared", group=group, error=error.message)
            return None
        finally:
            del self._open[number]
        return self._judge(comparison)

    def _awaits(self, comparison: _Comparison) -> bool:
        """Return whether any reachable node whose replica is not shut has not answered yet."""
        linked, shut = self._links.reachable(), self._shut_replicas
        asked = [node for node in comparison.nodes & linked if not shut.is_shut(comparison.group, node)]
        return any(node not in comparison.answers for node in asked)

    def _judge(self, comparison: _Comparison) -> bool | None:
        """Compare the answers. Record and log the nodes that differ from the majority. For the return value, see
        `compare`."""
        found = {node: answer for node, answer in comparison.answers.items() if answer[1] is not None}
        if len(found) < 2:
            return None
        ((most, count),) = Counter(found.values()).most_common(1)
        group, nodes = comparison.group, comparison.nodes
        if count == len(found):
            if len(found) == len(nodes):
                self.compared += 1
                if self._different.pop(group, None) is not None:
                    log.info("the replicas of a partition are the same again", **self._names(group))
            return True
        is_known = 2 * count > len(nodes)
        differing = tuple(sorted(node for node in found if not is_known or found[node] != most))
        self._different[group] = differing
        remedy = (
            "sandctl cluster rebuild TOPIC PARTITION NODE"
            if is_known
            else "there is no majority, so it is unknown which replica is right"
        )
        log.error("the replicas of a partition differ", nodes=list(differing), remedy=remedy, **self._names(group))
        return False

    def _names(self, group: int) -> dict[str, Any]:
        """Return a group's topic and partition, for the log."""
        topic, partition = self._catalog.view.partition_of_group.get(group, (None, None))
        return {"topic": topic, "partition": partition, "group": group}

    def on_frame(self, node: str, body: Any) -> bool:
        """Handle a digest from another node. Return whether the frame is well-formed."""
        if not isinstance(body, tuple) or [type(part) for part in body] not in _BODY:
            return False
        group, number, index, digest = body
        if digest is not None and len(digest) != DIGEST_BYTES:
            return False
        self._heard(node, group, number, index, digest)
        return True

    def _heard(self, node: str, group: int, number: int, index: int, digest: bytes | None) -> None:
        """Record the digest of a node in its comparison. If that comparison has ended, ignore the digest."""
        comparison = self._open.get(number)
        if comparison is not None and comparison.group == group and node in comparison.nodes:
            comparison.answers[node] = index, digest
            comparison.changed.set()

    # -- answering side -------------------------------------------------------------------------------------------

    def on_view(self, view: DigestView) -> None:
        """Queue a view for its digest. If digests are off or the queue is full, refuse the view."""
        try:
            if self._bytes_per_s:
                self._give.send_nowait(view)
                return
        except trio.WouldBlock:
            pass
        self._answer(view, None)
        try:
            self._refuse.send_nowait(view)
        except trio.WouldBlock:
            # Close the view here. Closing needs LevelDB's lock, but does not block. The apply thread had the lock a
            # moment ago, so no operation on a hanging disk holds it.
            view.rows.close()

    async def _refuse_all(self) -> None:
        """Close the views whose digests were refused, until cancelled."""
        async for view in self._refused:
            await _close(view)

    def _answer(self, view: DigestView, digest: bytes | None) -> None:
        """Send a digest to the leader of the group. None: this node cannot compute the digest."""
        host = self._node_log.hosts.get(view.group)
        leader = None if host is None else host.leader
        if leader == self._node_log.node_id:
            self._heard(leader, view.group, view.number, view.index, digest)
        elif leader is not None:
            self._links.send(leader, PeerFrame.DIGEST, (view.group, view.number, view.index, digest))

    async def _digest_all(self) -> None:
        """Compute the requested digests one by one, until cancelled."""
        async for view in self._take:
            try:
                digest = await self._digest(view)
            except SandqError as error:
                log.warning("a replica could not be read to be compared", group=view.group, error=error.message)
                digest = None
            self._answer(view, digest)
            await _close(view)

    async def _digest(self, view: DigestView) -> bytes:
        """Return the digest of all rows of a view. Read the rows in steps, at the bounded rate."""
        digest = StateDigest()
        start, stop = store_range(view.store)

        def step(start: bytes) -> tuple[bytes | None, int]:
            """Read some rows. Return the key at which to continue (None at the end), and the bytes read."""
            found = view.rows.scan(start, stop, limit=STEP_ROWS, max_bytes=STEP_BYTES)
            digest.add(_relative(found))
            size = sum([len(key) + len(value) for key, value in found])
            return (found[-1][0] + b"\0" if found else None), size

        after: bytes | None = start
        while after is not None:
            after, size = await trio.to_thread.run_sync(step, after, abandon_on_cancel=True)
            await trio.sleep(size / self._bytes_per_s)
        return digest.value()


async def _close(view: DigestView) -> None:
    """Close a view on a thread: this needs LevelDB's lock, which another thread may hold while the disk hangs.

    When the node ends, the stores close views that are still open."""
    await trio.to_thread.run_sync(view.rows.close, abandon_on_cancel=True)


def _relative(found: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the rows with keys relative to the store, because the stores of two replicas may have different
    numbers."""
    return [(key[STORE_PREFIX_BYTES:], value) for key, value in found]
