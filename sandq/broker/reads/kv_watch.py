"""Let watchers of the keys of compacted topics wait for changes.

Whenever something was applied, all watchers of the partition are served in one visit of the thread that owns its state.
A watcher that finds nothing waits on, from where it has looked to, until its time is over.
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
"""Of one partition."""
VISIT_WATCHERS = 1000
VISIT_BYTES = 8 << 20
"""What one visit looks at; whoever comes too late in it is looked at first in the next."""


class _Watcher:
    def __init__(self, watch: Watch, max_messages: int, max_bytes: int, deadline_s: float, output: Output) -> None:
        self.output = output
        self.size = 0
        """Bytes that are held for it."""
        self.watch = watch
        self.max_messages = max_messages
        self.max_bytes = max_bytes
        self.deadline_s = deadline_s
        self.index = -1
        """All that was applied up to there has been looked at; -1: there is more."""
        self.found: outcome.Outcome[Changes] | None = None
        self.is_given_up = False
        self._woken = trio.Event()

    def looked(self, found: outcome.Outcome[Changes], index: int, now_s: float) -> None:
        """What there is for it among what was applied up to an index, if only that there is nothing."""
        if isinstance(found, outcome.Value):
            through, mark, pieces, is_behind, _ = found.value
            if not pieces and self.watch.after is not None and now_s < self.deadline_s:
                self.watch = self.watch._replace(after=through, mark=mark)
                self.index = -1 if is_behind else index
                return
        self.settle(found)

    def settle(self, found: outcome.Outcome[Changes]) -> None:
        self.found = found
        if isinstance(found, outcome.Value) and not self.is_given_up:
            self.size = sum([len(piece.batch) for piece in found.value.pieces])
            self.output.take(self.size)
        self._woken.set()

    def put_off(self) -> None:
        """There may be much for it, and its client does not take what was found before."""
        self._woken.set()

    async def wait(self) -> None:
        """Wait until something is found, or it is put off."""
        await self._woken.wait()
        self._woken = trio.Event()

    def is_over(self, index: int, now_s: float) -> bool:
        """Whether it has waited long enough, and there is nothing for it: it is told how far."""
        after, mark = self.watch.after, self.watch.mark
        if self.index < index or now_s < self.deadline_s or after is None or mark is None:
            return False
        self.settle(outcome.Value(Changes(after, mark, [], False, 0)))
        return True


class KvWatches:
    def __init__(self, runner: Runner, nursery: trio.Nursery) -> None:
        """`nursery` outlives every watcher."""
        self._nursery = nursery
        self._runner = runner
        self._watchers: dict[RaftGroup, dict[_Watcher, None]] = {}
        """Of each partition, those that were looked at longest ago first."""

    async def changes(
        self,
        host: RaftGroup,
        watch: Watch,
        max_messages: int,
        max_bytes: int,
        wait_s: float,
        output: Output = BOUNDLESS,
    ) -> Changes:
        """The next changes; without any, once `wait_s` have passed, how far was looked. `room`: where they go. Raises
        NotLeader, HistoryGone, Overloaded."""
        host.check_ready()
        await output.until_room()
        if watch.after is None:
            await host.read()  # what was acknowledged by now is not news
        watcher = _Watcher(watch, max_messages, max_bytes, trio.current_time() + wait_s, output)
        try:
            while watcher.found is None:
                await output.until_room()
                self._add(host, watcher)
                await watcher.wait()
        finally:
            watcher.is_given_up = True
            if watcher.size:
                output.let_go(watcher.size)
            self._watchers.get(host, {}).pop(watcher, None)
        assert watcher.found is not None
        return watcher.found.unwrap()

    def _add(self, host: RaftGroup, watcher: _Watcher) -> None:
        """Have it looked at from now on. Raises NotLeader, Overloaded."""
        host.check_ready()
        watchers = self._watchers.get(host)
        if watchers is None:
            watchers = self._watchers[host] = {}
            self._nursery.start_soon(self._serve, host, watchers)
        elif len(watchers) >= WATCHERS_MOST:
            raise Overloaded(f"{len(watchers)} wait for changes of the same partition; ask again in a moment")
        else:
            host.notify_changed()  # wakes who looks for them
        watchers[watcher] = None

    async def _serve(self, host: RaftGroup, watchers: dict[_Watcher, None]) -> None:
        try:
            while watchers:
                host.check_ready()
                index = host.status.applied_index
                asked = list(islice((watcher for watcher in watchers if watcher.index < index), VISIT_WATCHERS))
                for watcher in [one for one in asked if not one.output.has_room]:
                    asked.remove(watcher)
                    del watchers[watcher]
                    watcher.put_off()
                if asked:
                    await self._visit(host, watchers, asked, index)
                elif watchers:
                    await _until_news(host, watchers)
        except Exception as error:
            for watcher in watchers:
                watcher.settle(outcome.Error(error))
        finally:
            del self._watchers[host]

    async def _visit(self, host: RaftGroup, watchers: dict[_Watcher, None], asked: list[_Watcher], index: int) -> None:
        found = await self._runner.ask(lambda: _look(host, asked), group=host.number, patient=False)
        now_s = trio.current_time()
        for watcher, one in zip(asked, found, strict=False):
            watcher.looked(one, index, now_s)
            if watcher in watchers:
                del watchers[watcher]
                if watcher.found is None:
                    watchers[watcher] = None


async def _until_news(host: RaftGroup, watchers: dict[_Watcher, None]) -> None:
    """Wait until there may be something for one of them, or its time is over: then it needs no other look."""
    with trio.move_on_at(min(watcher.deadline_s for watcher in watchers)):
        await host.changed()
    index, now_s = host.status.applied_index, trio.current_time()
    for watcher in [watcher for watcher in watchers if watcher.is_over(index, now_s)]:
        del watchers[watcher]


def _look(host: RaftGroup, asked: Sequence[_Watcher]) -> list[outcome.Outcome[Changes]]:
    """What there is for the first of them, one at least (apply thread)."""
    replica = host.replica
    assert isinstance(replica, PartitionReplica)
    found: list[outcome.Outcome[Changes]] = []
    looked_bytes = 0
    for watcher in replica.in_turns(asked):
        one = outcome.capture(replica.changes, watcher.watch, watcher.max_messages, watcher.max_bytes)
        found.append(one)
        looked_bytes += one.value.bytes if isinstance(one, outcome.Value) else 0
        if looked_bytes >= VISIT_BYTES:
            break
    return found
