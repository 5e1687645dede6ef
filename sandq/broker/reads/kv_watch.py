"""Let watchers wait for changes of keys of compacted topics.

Whenever an entry is applied, one call on the apply thread serves all watchers of the partition. Such a call is a visit.
If the visit finds no changes for a watcher, the watcher waits further, from the scanned position on, until its
deadline.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import outcome
import trio

from sandq.broker.reads.linearizable_reads import BOUNDLESS, Output
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import PartitionReplica
from sandq.broker.replication.runner import Runner
from sandq.model.errors import Overloaded
from sandq.partition.kv.watch import Changes, Watch

WATCHERS_MOST = 10_000
"""Maximum number of watchers of one partition."""
VISIT_WATCHERS = 1000
"""Maximum number of watchers that one visit serves."""
VISIT_BYTES = 8 << 20
"""Bytes of scanned log after which a visit ends. The next visit serves the remaining watchers first."""


class _Watcher:
    """One waiting request for changes."""

    def __init__(self, watch: Watch, max_messages: int, max_bytes: int, deadline_s: float, output: Output) -> None:
        self.output = output
        self.size = 0
        """Bytes that are charged to `output` for the result."""
        self.watch = watch
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.deadline_s = deadline_s
        self.index = -1
        """Raft index up to which the log was scanned; -1 if the last scan did not reach the end."""
        self.found: outcome.Outcome[Changes] | None = None
        """The result; None while the request waits."""
        self.is_given_up = False
        """True once the request has ended."""
        self._woken = trio.Event()

    def on_scan(self, found: outcome.Outcome[Changes], index: int, now_s: float) -> None:
        """Handle the result of a scan up to Raft index `index`. If there are no changes, wait further until the
        deadline."""
        if isinstance(found, outcome.Value):
            through, mark, pieces, is_behind, _ = found.value
            if not pieces and self.watch.after is not None and now_s < self.deadline_s:
                self.watch = self.watch._replace(after=through, mark=mark)
                self.index = -1 if is_behind else index
                return
        self.settle(found)

    def settle(self, found: outcome.Outcome[Changes]) -> None:
        """Set the result, charge its bytes, and wake the request."""
        self.found = found
        if isinstance(found, outcome.Value) and not self.is_given_up:
            self.size = sum([len(piece.batch) for piece in found.value.pieces])
            self.output.charge(self.size)
        self._woken.set()

    def put_off(self) -> None:
        """Wake the request without a result, because its client must first accept earlier replies."""
        self._woken.set()

    async def wait(self) -> None:
        """Wait until there is a result, or `put_off` is called."""
        await self._woken.wait()
        self._woken = trio.Event()

    def is_over(self, index: int, now_s: float) -> bool:
        """Return whether the deadline has passed, and the log up to Raft index `index` was scanned without changes.

        If so, set the result: no changes, and the scanned position."""
        after, mark = self.watch.after, self.watch.mark
        if self.index < index or now_s < self.deadline_s or after is None or mark is None:
            return False
        self.settle(outcome.Value(Changes(after, mark, [], False, 0)))
        return True


class KvWatches:
    """The watchers of this node's partitions."""

    def __init__(self, runner: Runner, nursery: trio.Nursery) -> None:
        """`nursery` runs the tasks that serve watchers. The nursery must stay open longer than any watcher waits."""
        self._nursery = nursery
        self._runner = runner
        self._watchers: dict[RaftGroup, dict[_Watcher, None]] = {}
        """Watchers by partition, least recently served first."""

    async def changes(
        self,
        host: RaftGroup,
        watch: Watch,
        max_messages: int,
        max_bytes: int,
        wait_s: float,
        output: Output = BOUNDLESS,
    ) -> Changes:
        """Return the next changes. If there are none within `wait_s`, return only the scanned position.

        `output`: the output of the client, which is charged for the result. Raise NotLeader, HistoryGone,
        Overloaded."""
        host.check_ready()
        await output.wait_for_capacity()
        if watch.after is None:
            await host.read()  # changes that were acknowledged before this call are not new
        watcher = _Watcher(watch, max_messages, max_bytes, trio.current_time() + wait_s, output)
        try:
            while watcher.found is None:
                await output.wait_for_capacity()
                self._add(host, watcher)
                await watcher.wait()
        finally:
            watcher.is_given_up = True
            if watcher.size:
                output.release(watcher.size)
            self._watchers.get(host, {}).pop(watcher, None)
        assert watcher.found is not None
        return watcher.found.unwrap()

    def _add(self, host: RaftGroup, watcher: _Watcher) -> None:
        """Add a watcher to the watchers that `_serve` serves. Raise NotLeader, Overloaded."""
        host.check_ready()
        watchers = self._watchers.get(host)
        if watchers is None:
            watchers = self._watchers[host] = {}
            self._nursery.start_soon(self._serve, host, watchers)
        elif len(watchers) >= WATCHERS_MOST:
            raise Overloaded(f"{len(watchers)} watchers wait for changes of the same partition; ask again in a moment")
        else:
            host.notify_changed()  # wakes the task in `_serve`
        watchers[watcher] = None

    async def _serve(self, host: RaftGroup, watchers: dict[_Watcher, None]) -> None:
        """Serve the watchers of a partition until there are none. After an error, pass the error to all watchers."""
        try:
            while watchers:
                host.check_ready()
                index = host.status.applied_index
                served = list(islice((watcher for watcher in watchers if watcher.index < index), VISIT_WATCHERS))
                # Let watchers without capacity wait for their clients: `changes` adds them again later.
                for watcher in [one for one in served if not one.output.has_capacity]:
                    served.remove(watcher)
                    del watchers[watcher]
                    watcher.put_off()
                if served:
                    await self._visit(host, watchers, served, index)
                elif watchers:
                    await _until_news(host, watchers)
        except Exception as error:
            for watcher in watchers:
                watcher.settle(outcome.Error(error))
        finally:
            del self._watchers[host]

    async def _visit(self, host: RaftGroup, watchers: dict[_Watcher, None], served: list[_Watcher], index: int) -> None:
        """Scan for these watchers on the apply thread, and pass them the results.

        If a served watcher found no changes, move the watcher to the end of the order."""
        found = await self._runner.ask(lambda: _scan(host, served), group=host.number, patient=False)
        now_s = trio.current_time()
        for watcher, one in zip(served, found, strict=False):
            watcher.on_scan(one, index, now_s)
            if watcher in watchers:
                del watchers[watcher]
                if watcher.found is None:
                    watchers[watcher] = None


async def _until_news(host: RaftGroup, watchers: dict[_Watcher, None]) -> None:
    """Wait until there may be changes for a watcher, or until a deadline. Settle watchers past their deadline without a
    visit."""
    with trio.move_on_at(min(watcher.deadline_s for watcher in watchers)):
        await host.changed()
    index, now_s = host.status.applied_index, trio.current_time()
    for watcher in [watcher for watcher in watchers if watcher.is_over(index, now_s)]:
        del watchers[watcher]


def _scan(host: RaftGroup, served: Sequence[_Watcher]) -> list[outcome.Outcome[Changes]]:
    """Scan for these watchers, in order. Runs on the apply thread.

    The scan ends with the watcher after which it has read `VISIT_BYTES`. Return one result for each watcher that was
    reached: its changes, or an error.
    """
    replica = host.replica
    assert isinstance(replica, PartitionReplica)
    found: list[outcome.Outcome[Changes]] = []
    scanned_bytes = 0
    for watcher in replica.in_slices(served):
        one = outcome.capture(replica.changes, watcher.watch, watcher.max_messages, watcher.max_bytes)
        found.append(one)
        scanned_bytes += one.value.bytes if isinstance(one, outcome.Value) else 0
        if scanned_bytes >= VISIT_BYTES:
            break
    return found
