"""The ready messages of a group in a topic that ranks messages: its ready queues, stored in rows of the group.

The group's cursor has passed these messages: they were *promoted* from the log when they were due. Each message also
stays in the log: a lease reads its payload there. If a message was nacked, or its lease ended, it waits in a waiting
entry (`waiting_table.py`), and returns to its queue when it is due.

Rows: one row per entry of a queue, by its first offset; one row per queue, with its number of messages and first
offset; the times of fair queueing. The first entries of a queue are cached in memory; the cache grows as messages are
taken.

Tenants are served, and become active or inactive, only between `begin` and `end`, after all due messages have returned.
So turns do not depend on the contents of caches, and a restarted replica writes the same rows as all others.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from sandq.model import offsets
from sandq.model.limits import FIXED
from sandq.partition.base import rows
from sandq.partition.base.rows import LogEntry, Range
from sandq.partition.base.stale_heaps import LeastOf
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.limits.tenant_rules import TenantRules
from sandq.partition.reader.look_aheads import LookAheads
from sandq.partition.ready import queue_entries, queue_keys
from sandq.partition.ready.queue_entries import QueueEntries
from sandq.partition.ready.queue_order import Oldest, Returned
from sandq.partition.ready.ready_queue import ReadyQueue, queue_bytes
from sandq.partition.ready.tenant_limits import TenantLimits
from sandq.partition.ready.tenant_scheduler import TenantScheduler, Times
from sandq.partition.records.leases import Lease, Waiting


class ReadyQueues:
    """Owns the rows of a group's ready queues and turns."""

    def __init__(
        self,
        group_id: int,
        rank: str,
        waiting: Mapping[int, Waiting],
        rules: Callable[[], TenantRules],
        look_aheads: LookAheads | None = None,
    ) -> None:
        """`rank`: how the topic orders messages. `waiting`: the group's waiting entries by seq. `rules()` returns the
        current rules of the topic's tenants."""
        self.rank = rank
        self._group_id = group_id
        self.entries = QueueEntries(group_id, look_aheads)
        self._queue_rows = rows.of_group(rows.QUEUE, group_id)
        self._time_rows = rows.of_group(rows.TURNS, group_id)
        self._waiting = waiting
        self.limits = TenantLimits(rules)
        self._scheduler = TenantScheduler(self.limits.weight_of)
        self._queues: dict[bytes, ReadyQueue] = {}
        self._by_tenant: dict[str, list[ReadyQueue]] = {}
        """Queues of each tenant, sorted by priority."""
        self._with_returned: dict[bytes, ReadyQueue] = {}
        """Queues with returned messages, by key."""
        self._back_of: dict[str, dict[bytes, ReadyQueue]] = {}
        """Queues with returned messages, by tenant and key."""
        self._emptied: dict[bytes, ReadyQueue] = {}
        """Queues whose last message was removed outside of a round of turns."""
        self._changed: dict[bytes, ReadyQueue] = {}
        """Queues whose stored row is out of date."""
        self._firsts: LeastOf[bytes] = LeastOf()
        self._number = 0
        self._by_number: dict[int, ReadyQueue] = {}
        self._oldest = Oldest(self._by_number)
        self._first_back: Returned | None = None
        """Order of the queues with returned messages, cached during a round of turns. None until first needed."""
        self._first_back_of: dict[str, Returned] = {}
        """By tenant that gets no new messages: order of its queues with returned messages. Also cached."""
        self.messages = 0
        """Number of messages in all queues, without returned messages."""
        self.is_promoting = False
        """Whether the last lease promoted the maximum number of messages, so that more may be due. Local to this
        process."""
        self._with_rows = 0
        """Number of queues with messages, without queues that have only returned messages."""
        self._row_bytes = 0
        """Memory of the queues counted in `_with_rows`, in bytes, without their entries."""
        self._queue_bytes = 0
        """Memory of all queues, in bytes, without their entries."""
        self._look_aheads = look_aheads
        self.held_bytes = self.used = 0
        """See `LookAhead`."""
        self.fixed_bytes = 0

    def load(self, view: View) -> None:
        """Load the queues and the turns from their rows."""
        for key, value in rows.all_of_group(view, rows.PACE, self._group_id):
            self.limits.pacing.load(key[5:].decode(), rows.unpack(value)[0])
        for key, value in rows.all_of_group(view, rows.TURNS, self._group_id):
            finish, virtual = rows.unpack(value)
            self._scheduler.load(key[5:].decode(), Times(finish, virtual))
        for key, value in rows.all_of_group(view, rows.QUEUE, self._group_id):
            messages, first = rows.unpack(value)
            queue = self._queue(key[5:], messages, first)
            self.messages += messages
            self._note_rows(queue, 1)
            self._firsts.put(queue.number, first)
        self._count()

    def __len__(self) -> int:
        """Return the number of queues."""
        return len(self._queues)

    # -- adding ---------------------------------------------------------------------------------------------------

    def add(self, step: Step, key: bytes, entry: LogEntry) -> None:
        """Append an entry of the log to a queue. It must be above all other entries of the queue."""
        if entry.row is not None:
            entry = entry._replace(row=None)  # drop the row: it may be long, and is not sent from here
        queue = self._queues.get(key) or self._queue(key, 0, entry.first)
        if not queue.messages:
            self._note_rows(queue, 1)
            queue.first = entry.first
            self._firsts.put(queue.number, entry.first)
        queue.messages += entry.length
        self.messages += entry.length
        if queue.messages == entry.length:
            self._oldest.note(queue, len(self._by_tenant[queue.tenant]))
        self._changed[queue.key] = queue
        self.entries.append(step, queue, entry)

    def takes(self, keys: Iterable[bytes]) -> set[bytes]:
        """Return the queues of `keys` to which messages may be added: all queues that have messages, and, in the order
        of their keys, as many other queues as the limits allow."""
        takers = {key for key in keys if (queue := self._queues.get(key)) is not None and queue.messages}
        free, free_bytes = FIXED.ready_queues - self._with_rows, self._free_bytes
        for key in sorted(set(keys) - takers):
            if free <= 0 or free_bytes <= 0:
                break
            takers.add(key)
            free, free_bytes = free - 1, free_bytes - queue_bytes(key)
        return takers

    @property
    def _free_bytes(self) -> float:
        """Bytes of memory that further queues may use."""
        return FIXED.ready_queue_bytes - self._row_bytes

    def _note_rows(self, queue: ReadyQueue, more: int) -> None:
        """Count a queue that has messages now (`more` is 1), or no longer has messages (-1)."""
        self._with_rows += more
        self._row_bytes += more * queue.size

    def insert(self, step: Step, key: bytes, added: Sequence[LogEntry]) -> None:
        """Insert sorted entries into a queue, in the order of offsets. Do not call it during a round of turns."""
        first = added[0].first
        queue = self._queues.get(key) or self._queue(key, 0, first)
        if not queue.messages:
            self._note_rows(queue, 1)
        if not queue.messages or first < queue.first:
            queue.first = first
            self._firsts.put(queue.number, first)
        messages = sum([entry.length for entry in added])
        queue.messages += messages
        self.messages += messages
        if queue.first == first:
            self._oldest.note(queue, len(self._by_tenant[queue.tenant]))
        self._changed[key] = queue
        self.entries.insert(step, queue, added)
        self._store_queues(step)
        self._count()

    def give_back(self, key: bytes, entry: Waiting) -> None:
        """Return the messages of a due waiting entry to their queue."""
        queue = self._queues.get(key) or self._queue(key, 0, offsets.FIRST)
        assert entry.first is not None
        heapq.heappush(queue.returned, (entry.first, entry.seq))
        self._with_returned[key] = queue
        self._back_of.setdefault(queue.tenant, {})[key] = queue
        self._oldest.note(queue, len(self._by_tenant[queue.tenant]))

    def forget_returned(self) -> None:
        """Remove all returned messages from their queues."""
        for queue in self._with_returned.values():
            queue.returned.clear()
        self._emptied.update(self._with_returned)
        self._with_returned.clear()
        self._back_of.clear()

    def _queue(self, key: bytes, messages: int, first: bytes) -> ReadyQueue:
        """Create a queue and return it. `messages`: number of its messages that have rows; `first`: the first of
        them."""
        self._number += 1
        queue = self._queues[key] = self._by_number[self._number] = ReadyQueue(
            key, self._number, messages, first, queue_entries.HEAD_ENTRIES
        )
        self._queue_bytes += queue.size
        of_tenant = self._by_tenant.setdefault(queue.tenant, [])
        of_tenant.insert(bisect_right(of_tenant, queue.priority, key=_priority), queue)
        if len(of_tenant) == 1:
            self.limits.freed.add(queue.tenant)  # the next round of turns decides about it
        self.entries.share_memory(len(self._queues))
        return queue

    def count_lease(self, lease: Lease) -> None:
        """Update the numbers in flight for a new lease, or for a lease with fewer live messages than before."""
        if self.rank == queue_keys.FAIR:
            self.limits.count_lease(lease)

    def note_pause(self) -> None:
        """Note that a pause of a tenant began, ended, or has another end. The next round of turns decides again about
        all tenants: a search for those that each pause includes would cost more."""
        self.limits.are_pauses_new = True

    # -- removing -------------------------------------------------------------------------------------------------

    def begin(
        self, step: Step, most_waiting: int | None, in_flight: int, in_slices: Callable[[Sequence[str]], Iterable[str]]
    ) -> None:
        """Begin a round of turns. All due messages must have returned before. `most_waiting` and `in_flight`: see
        `TenantLimits.begin`. `in_slices` iterates over many tenants and yields to other work in between."""
        again = self.limits.begin(step, self._by_tenant, most_waiting, in_flight)
        again |= self.limits.crowding.stopped & self._back_of.keys()
        present = sorted([tenant for tenant in again if tenant in self._by_tenant])
        # A tenant without messages is not decided about: on a restarted replica, it is unknown.
        may = {tenant: self._has_messages(tenant) and self._may_be_served(tenant) for tenant in in_slices(present)}
        # Activate the tenants that may have turns before ending others. Ending a tenant forgets the times of the nodes
        # below its name, unless one of these nodes is active. On a restarted replica, a tenant that ends here was never
        # active, so it would forget nothing, and the replicas would diverge.
        for tenant in in_slices(sorted(may, key=may.__getitem__, reverse=True)):
            self._scheduler.set_active(tenant, may[tenant])
        are_new = self.limits.decided()
        touched = [*self._with_returned.values(), *self._emptied.values()]
        for queue in touched:
            self._settle(queue)
        self._emptied.clear()
        for tenant in sorted({queue.tenant for queue in touched} & self.limits.crowding.stopped):
            self._update_stopped(tenant)
        if are_new:
            self._scheduler.forget_idle()

    def _may_be_served(self, tenant: str) -> bool:
        """Decide whether a tenant with messages may have turns."""
        return self.limits.may_be_served(tenant, self._has_back)

    def _has_messages(self, tenant: str) -> bool:
        """Return whether a tenant has messages: its queues may have been emptied since the last round of turns."""
        return any(queue.messages for queue in self._by_tenant[tenant]) or self._has_back(tenant)

    def _has_back(self, tenant: str) -> bool:
        """Return whether a tenant has returned messages."""
        return any(self.first_returned(queue) is not None for queue in self._back_of.get(tenant, {}).values())

    def settle(self, queue: ReadyQueue) -> None:
        """Update a queue from which messages were taken: check whether returned messages are left, and end the queue if
        it is empty."""
        self._settle(queue)
        if queue.tenant in self.limits.crowding.stopped:
            self._update_stopped(queue.tenant)

    def _update_stopped(self, tenant: str) -> None:
        """Update a tenant that gets no new messages: it has turns as long as it has returned messages."""
        if tenant in self._by_tenant:
            self._scheduler.set_active(tenant, self._may_be_served(tenant))

    def _settle(self, queue: ReadyQueue) -> None:
        """Update a queue like `settle`, but not the turns of its tenant."""
        if self._queues.get(queue.key) is not queue:
            return
        if self.first_returned(queue) is None:
            if self._with_returned.pop(queue.key, None) is not None:
                back = self._back_of[queue.tenant]
                del back[queue.key]
                if not back:
                    del self._back_of[queue.tenant]
            if not queue.messages:
                self._end(queue)

    def _end(self, queue: ReadyQueue) -> None:
        """Remove an empty queue, and end the turns of its tenant if this was the tenant's last queue."""
        del self._queues[queue.key], self._by_number[queue.number]
        self._queue_bytes -= queue.size
        self.entries.share_memory(len(self._queues))
        of_tenant = self._by_tenant[queue.tenant]
        of_tenant.remove(queue)
        if not of_tenant:
            del self._by_tenant[queue.tenant]
            self._oldest.forget(queue.tenant)
            self.limits.held_up.pop(queue.tenant, None)
            self._scheduler.set_active(queue.tenant, False)

    def next(self, ageing_ms: int | None) -> tuple[ReadyQueue, bool] | None:
        """Return (queue whose turn it is, whether only one message of it may be taken now). None if no message is
        ready. `ageing_ms`: time after which a waiting message counts as one priority better."""
        turn = self._scheduler.next()
        if turn is None:
            return None
        tenant, is_shared = turn
        of_tenant = self._by_tenant[tenant]
        if tenant in self.limits.crowding.stopped:
            first_back = self._first_back_of.get(tenant)
            if first_back is None:
                first_back = self._first_back_of[tenant] = Returned(self._back_of[tenant].values(), ageing_ms)
            back = first_back.first()
            assert back is not None, "a tenant that gets no new messages has turns only while it has returned messages"
            return back, is_shared or ageing_ms is not None
        if ageing_ms is None or len(of_tenant) == 1:
            return of_tenant[0], is_shared
        # Take only one message: afterwards, the first message of another queue may be older.
        return self._oldest.first(tenant, of_tenant, ageing_ms), True

    def next_back(self) -> tuple[ReadyQueue, bool] | None:
        """Return the queue with the best priority that has returned messages, like `next` but regardless of turns. For
        groups that may not lease new messages. Skip tenants that are held up."""
        if self._first_back is None:
            self._first_back = Returned(self._with_returned.values())
        queue = self._first_back.first(self.limits.held_up)
        return None if queue is None else (queue, False)

    def serve(self, queue: ReadyQueue, messages: int) -> None:
        """Count messages of a queue that are added to a lease, which may change the order. Call `settle` afterwards."""
        tenant = queue.tenant
        self._scheduler.serve(tenant, messages)
        if self.limits.serve(tenant, messages):
            self._scheduler.set_active(tenant, self._may_be_served(tenant))

    def first_returned(self, queue: ReadyQueue) -> Waiting | None:
        """Return the first waiting entry that returned to a queue. None if there is none."""
        returned = queue.returned
        while returned:
            first, seq = returned[0]
            entry = self._waiting.get(seq)
            if entry is not None and entry.first == first:
                return entry
            heapq.heappop(returned)
            if entry is not None and entry.first is not None:
                heapq.heappush(returned, (entry.first, seq))
        return None

    def held_back(self) -> list[Waiting]:
        """Return the returned messages of one tenant that may not have turns now: of the one with the most ranges that
        wait in memory. The messages that come last are first. Call it after the turns of a round."""
        waits = self.limits.crowding.waits
        tenants = [tenant for tenant in self._back_of if tenant in self.limits.held_up]
        most = min(tenants, key=lambda tenant: (-waits[tenant], tenant), default=None)
        if most is None:
            return []
        seqs = {seq for queue in self._back_of[most].values() for _, seq in queue.returned}
        return [self._waiting[seq] for seq in sorted(seqs & self._waiting.keys(), reverse=True)]

    def next_returned(self, queue: ReadyQueue) -> Waiting | None:
        """Return the second of the waiting entries that returned to a queue. None if there is none."""
        entry = self.first_returned(queue)
        if entry is None:
            return None
        first = heapq.heappop(queue.returned)
        while (following := self.first_returned(queue)) is entry:
            heapq.heappop(queue.returned)
        heapq.heappush(queue.returned, first)
        return following

    def head(self, queue: ReadyQueue, view: View) -> LogEntry | None:
        """Return the first entry of a queue, without returned messages."""
        if not queue.messages:
            return None
        self.entries.load_first(queue, view)
        return queue.entries[0]

    def take(self, step: Step, queue: ReadyQueue, count: int) -> None:
        """Take the first `count` messages out of the first entry of a queue."""
        self.entries.take(queue, count)
        self._uncount(step, queue, count)

    def serve_tenants(self, step: Step, limit: int, max_bytes: int) -> tuple[list[tuple[bytes, bytes]], int]:
        """Take one message per turn from tenants that take turns, as a fast path. Return (queue key, message) pairs,
        and their bytes.

        Stop where the general path is needed: if only one tenant has turns, if the next tenant has limits or returned
        messages, or if its message needs a check or is not an entry by itself. Stop after `limit` messages, or after
        the message that brings the bytes to `max_bytes`.
        """
        view = step.view
        turns, by_tenant, limits = self._scheduler, self._by_tenant, self.limits
        has_rules = limits.are_there
        taken: list[tuple[bytes, bytes]] = []
        size = 0
        while len(taken) < limit and size < max_bytes:
            turn = turns.next()
            if turn is None or not turn[1]:
                break
            tenant = turn[0]
            queue = by_tenant[tenant][0]
            if queue.returned or (has_rules and limits.limit_of(tenant) is not None):
                break
            if limits.may_crowd(tenant):
                break
            if not queue.entries:
                self.entries.load_first(queue, view)
            first, length, its_size, extra, unit, _ = queue.entries[0]
            if length > 1 or extra is not None:
                break
            self.entries.take(queue, 1)
            self._uncount(step, queue, 1)
            turns.serve(tenant, 1)
            taken.append((queue.key, first))
            size += unit or its_size
            if not queue.messages:
                self.settle(queue)
        return taken, size

    def take_singles(self, step: Step, queue: ReadyQueue, limit: int, max_bytes: int) -> tuple[list[Range], int]:
        """Take messages out of a queue that need no check and are entries by themselves. Return them and their bytes.

        Take only entries in memory. Stop after `limit` messages, or after the message that brings the bytes to
        `max_bytes`.
        """
        firsts, size = self.entries.take_singles(queue, limit, max_bytes)
        if firsts:
            self._uncount(step, queue, len(firsts))
        return [Range(first, 1) for first in firsts], size

    def remove(self, step: Step, key: bytes, offset: bytes) -> bool:
        """Remove a message from any position in its queue. Return whether the queue contained it."""
        queue = self._queues.get(key)
        found = None if queue is None else self.entries.find(queue, offset, step.view)
        if queue is None or found is None:
            return False
        self.entries.remove(step, queue, found, offset)
        self._uncount(step, queue, 1)
        if not queue.messages:
            self._emptied[key] = queue
        self._store_queues(step)
        return True

    def remove_singles(self, step: Step, key: bytes, firsts: Sequence[bytes]) -> None:
        """Remove messages from a queue. Each of them must be an entry of its own, not part of a range. Do not call this
        during a round of turns."""
        queue = self._queues[key]
        self.entries.remove_singles(step, queue, firsts)
        self._uncount(step, queue, len(firsts))
        if not queue.messages:
            self._emptied[key] = queue
        self._store_queues(step)
        self._count()

    def singles_between(self, key: bytes, first: bytes, last: bytes, view: View) -> set[bytes]:
        """Return the messages of a queue between `first` and `last` (both included) that are entries by themselves,
        without returned messages. Do not call it during a round of turns."""
        queue = self._queues.get(key)
        if queue is None or not queue.messages or last < queue.first:
            return set()
        return self.entries.firsts_between(queue, first, last, view)

    def holds(self, key: bytes, offset: bytes, view: View) -> bool:
        """Return whether a queue contains a message. Returned messages do not count."""
        queue = self._queues.get(key)
        return queue is not None and self.entries.find(queue, offset, view) is not None

    def next_ms(self, is_stopped: bool) -> int | None:
        """Return when the first ready message was due, in ms, as of the last decision. If all messages are held up,
        return when a rate allows the next message; None if that is not known. `is_stopped`: only returned messages may
        be taken."""
        held_up = self.limits.held_up if self.limits.is_settled else {}
        back = [queue for queue in self._with_returned.values() if queue.returned and queue.tenant not in held_up]
        firsts = [queue.returned[0][0] for queue in back]
        if not is_stopped and (lowest := self.lowest) is not None and len(held_up) < len(self._by_tenant):
            firsts.append(lowest)
        if firsts:
            return offsets.deliver_ms(min(firsts))
        # All ready messages are held up, by limits of messages in flight or by rates.
        return min([until_ms for until_ms in held_up.values() if until_ms is not None], default=None)

    @property
    def takes_more(self) -> bool:
        """Whether the limits allow more queues. Queues without rows do not count, because they differ between replicas:
        a restarted replica does not have them in memory."""
        return self._with_rows < FIXED.ready_queues and self._free_bytes > 0

    @property
    def full_reason(self) -> str:
        """Why messages are not put into new queues. Valid if `takes_more` is False."""
        if self._with_rows >= FIXED.ready_queues:
            what = f"{FIXED.ready_queues} tenants and priorities"
        else:
            what = f"tenants and priorities whose names take {FIXED.ready_queue_bytes} bytes of memory"
        return f"{what} have something ready (limit): nothing more is ranked until some are empty"

    @property
    def knows_lowest(self) -> bool:
        """Whether `lowest_entry` reads no rows."""
        first = self._firsts.first()
        return first is None or bool(self._by_number[first[1]].entries)

    def lowest_entry(self, view: View) -> LogEntry | None:
        """Return the entry with the lowest message of all queues, without returned messages."""
        first = self._firsts.first()
        return None if first is None else self.head(self._by_number[first[1]], view)

    def take_lowest(self, step: Step) -> LogEntry | None:
        """Take the entry that `lowest_entry` returns out of its queue."""
        entry = self.lowest_entry(step.view)
        first = self._firsts.first()
        if entry is None or first is None:
            return None
        queue = self._by_number[first[1]]
        self.take(step, queue, entry.length)
        if not queue.messages:
            self._emptied[queue.key] = queue
        self._store_queues(step)
        return entry

    def between(self, first: bytes, last: bytes, view: View) -> set[bytes]:
        """Return the messages of all queues between `first` and `last` (both included), without returned messages."""
        found: set[bytes] = set()
        for queue in self._queues.values():
            if not queue.messages or queue.first > last:
                continue
            entries = self.entries.between(queue, max(first, queue.first), last, view)
            if (before := self.entries.find(queue, first, view)) is not None:
                entries.append(before)
            for entry in entries:
                found.update(offsets.run(entry.first, entry.length))
        return found

    def _uncount(self, step: Step, queue: ReadyQueue, count: int) -> None:
        """Subtract messages that left a queue from the numbers, and find the new first message of the queue."""
        queue.messages -= count
        self.messages -= count
        self._changed[queue.key] = queue
        if queue.messages:
            self.entries.load_first(queue, step.view)
            queue.first = queue.entries[0].first
            self._firsts.put(queue.number, queue.first)
        else:
            self._note_rows(queue, -1)
            queue.covered = offsets.LAST
            self._firsts.put(queue.number, None)

    # -- rows -----------------------------------------------------------------------------------------------------

    def end(self, step: Step) -> None:
        """End a round of turns: put all changes into rows."""
        view = step.view
        self._first_back = None
        self._first_back_of.clear()
        self.entries.save(step)
        self._store_queues(step)
        if not self._queues:
            self._scheduler.rest()
        for tenant, arrival_us in self.limits.pacing.changes():
            key = rows.of_group(rows.PACE, self._group_id, tenant.encode())
            if arrival_us is None:
                view.delete(key)
            else:
                view.put(key, rows.pack(arrival_us))
        for path, times in self._scheduler.changes():
            key = self._time_rows + path.encode()
            if times is None:
                view.delete(key)
            else:
                view.put(key, rows.pack(*times))
        if self._look_aheads is not None:
            self.used = self._look_aheads.next_use()
            self._count()

    def _store_queues(self, step: Step) -> None:
        """Write the rows of changed queues, and delete the rows of entries that were taken."""
        view = step.view
        self.entries.delete_taken(step)
        prefix = self._queue_rows
        for key, queue in self._changed.items():
            if queue.messages:
                view.put(prefix + key, rows.pack(queue.messages, queue.first))
            else:
                view.delete(prefix + key)
        self._changed.clear()

    def clear(self, step: Step) -> None:
        """Forget all queues. The caller deletes the rows of their entries."""
        view = step.view
        for tag in (rows.QUEUE, rows.TURNS):
            for key, _ in rows.all_of_group(view, tag, self._group_id):
                view.delete(key)
        self._scheduler = TenantScheduler(self.limits.weight_of)
        self.is_promoting = False
        for held in (self._queues, self._by_number, self._by_tenant, self._with_returned, self._emptied, self._back_of):
            held.clear()
        self._changed.clear()
        self.entries.clear()
        self.limits.clear()
        self._oldest.clear()
        self._firsts = LeastOf()
        self.messages = self._with_rows = self._row_bytes = self._queue_bytes = 0
        self._count()

    # -- memory ---------------------------------------------------------------------------------------------------

    def evict(self) -> None:
        """Drop all entries from memory, until they are needed again."""
        self.entries.evict(self._queues.values())
        self._count()

    def _count(self) -> None:
        """Report the memory in use to the node's look-aheads."""
        if self._look_aheads is not None:
            self._look_aheads.bytes += self.entries.bytes - self.held_bytes
            self._look_aheads.fixed_bytes += self._queue_bytes - self.fixed_bytes
            self.held_bytes, self.fixed_bytes = self.entries.bytes, self._queue_bytes

    # -- lookups --------------------------------------------------------------------------------------------------

    @property
    def lowest(self) -> bytes | None:
        """The lowest message of all queues, without returned messages."""
        first = self._firsts.first()
        return None if first is None else first[0]

    def count_by_tenant(self) -> Counter[str]:
        """Return the number of messages in the queues of each tenant, without returned messages."""
        counts: Counter[str] = Counter()
        for queue in self._queues.values():
            counts[queue.tenant] += queue.messages
        return +counts

    def count_before(
        self, tenant: str, bound: Callable[[bytes], bytes | None], most: int, view: View
    ) -> tuple[int, bool]:
        """Count the messages of a tenant that come before a position, as `QueueEntries.count_below` does."""
        return self.entries.count_below(self._by_tenant.get(tenant, ()), bound, most, view)


def _priority(queue: ReadyQueue) -> int:
    """Return the priority of a queue: its sort key."""
    return queue.priority
