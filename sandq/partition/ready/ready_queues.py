"""What is ready and waits its turn in a group: its ready queues, in rows of the group's own, and whose turn is next.

The group's cursor has passed these messages: they were *promoted* from the log when they were due. Each stays in the
log, too, for whoever gets it. What was nacked, or lost its lease, waits in an entry of its own (`waiting_table.py`),
and stands in its queue again from when its time has come.

Rows: of each entry of a queue, under its first offset; of each queue how much is in it, and its first offset; of the
turns of tenants their times. A queue holds the first of its entries in memory: a cache, which grows with what is taken.

Turns are taken, and begin and end for tenants, between `begin` and `end` alone, with all that is due given back: so
they do not depend on what was in memory before, and a replica that was restarted has the rows of one that was not.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, bisect_right
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate, islice
from typing import Final

from sandq.model import offsets
from sandq.model.limits import FIXED
from sandq.partition.base import rows
from sandq.partition.base.rows import LogEntry, Range
from sandq.partition.base.stale_heaps import LeastOf
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.limits.tenant_rules import TenantRules
from sandq.partition.reader.look_aheads import LookAheads
from sandq.partition.reader.reader import without
from sandq.partition.ready import queue_keys
from sandq.partition.ready.queue_order import Oldest, Returned
from sandq.partition.ready.ready_queue import ENTRY_BYTES, ReadyQueue, bytes_of, queue_bytes, row_of
from sandq.partition.ready.tenant_limits import TenantLimits
from sandq.partition.ready.turns import Times, Turns
from sandq.partition.records.leases import Lease, Waiting

HEAD_ENTRIES: Final = 8
"""That the first look into a queue reads; each further one twice as many."""
MOST_ENTRIES: Final = 1024
HELD_SHARE: Final = 1 / 2
"""Of what all look-aheads of a node may take, what one group's queues read or keep together, beyond `HEAD_ENTRIES`."""
_NO_LIMIT = 1 << 40
READ_BYTES: Final = 1 << 20


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
        """`rank`: what the topic's order goes by. `waiting`: the group's waiting entries by seq. `rules()`: those of
        the topic's tenants, as they are."""
        self.rank = rank
        self._group_id = group_id
        self._entry_rows = rows.of_group(rows.READY, group_id)
        self._queue_rows = rows.of_group(rows.QUEUE, group_id)
        self._turn_rows = rows.of_group(rows.TURNS, group_id)
        self._waiting = waiting
        self.limits = TenantLimits(rules)
        self._turns = Turns(self.limits.weight_of)
        self._queues: dict[bytes, ReadyQueue] = {}
        self._by_tenant: dict[str, list[ReadyQueue]] = {}
        """In the order of their priorities."""
        self._with_returned: dict[bytes, ReadyQueue] = {}
        """Queues that something was given back to."""
        self._back_of: dict[str, dict[bytes, ReadyQueue]] = {}
        """The same by tenant."""
        self._emptied: dict[bytes, ReadyQueue] = {}
        """Queues whose last message was taken out by others than those who take turns."""
        self._unsaved: dict[bytes, tuple[ReadyQueue, LogEntry]] = {}
        """By first offset: entries that have no row yet."""
        self._gone: list[bytes] = []
        """Keys of rows of entries that were taken, and are to be deleted."""
        self._changed: dict[bytes, ReadyQueue] = {}
        """Queues whose rows say something else."""
        self._firsts: LeastOf[bytes] = LeastOf()
        self._number = 0
        self._by_number: dict[int, ReadyQueue] = {}
        self._oldest = Oldest(self._by_number)
        self._first_back: Returned | None = None
        """While turns are taken, once it was asked for."""
        self._first_back_of: dict[str, Returned] = {}
        """The same of tenants that get nothing new."""
        self.messages = 0
        """Of all queues, without what was returned."""
        self.is_promoting = False
        """The last lease promoted as much as one may, and there may be more; of this process alone."""
        self._with_rows = 0
        """How many queues have messages, without those to which messages were returned alone, ..."""
        self._row_bytes = 0
        """... and what these take."""
        self._queue_bytes = 0
        """What all queues take in memory beside their entries."""
        self._look_aheads = look_aheads
        self._entry_bytes = 0
        """Of entries in memory."""
        self._most_entries = MOST_ENTRIES
        """That a queue reads or keeps at once: so many small ones, and as many bytes of larger ones."""
        self.held_bytes = self.used = 0
        """As in `LookAhead`."""
        self.fixed_bytes = 0

    def load(self, view: View) -> None:
        """Read which queues there are, and whose turn it is."""
        for key, value in rows.all_of_group(view, rows.PACE, self._group_id):
            self.limits.pacing.load(key[5:].decode(), rows.unpack(value)[0])
        for key, value in rows.all_of_group(view, rows.TURNS, self._group_id):
            finish, virtual = rows.unpack(value)
            self._turns.load(key[5:].decode(), Times(finish, virtual))
        for key, value in rows.all_of_group(view, rows.QUEUE, self._group_id):
            messages, first = rows.unpack(value)
            queue = self._queue(key[5:], messages, first)
            self.messages += messages
            self._note_rows(queue, 1)
            self._firsts.put(queue.number, first)
        self._count()

    def __len__(self) -> int:
        """How many queues there are."""
        return len(self._queues)

    # -- in -------------------------------------------------------------------------------------------------------

    def add(self, step: Step, key: bytes, entry: LogEntry) -> None:
        """Put an entry of the log into a queue, whose other entries are all below it."""
        if entry.row is not None:
            entry = entry._replace(row=None)  # by the time it is sent nobody asks for it here, and it may be long
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
        if queue.covered == offsets.LAST and queue.held_bytes < self._most_entries * ENTRY_BYTES:
            queue.entries.append(entry)
            self._note_held(queue, bytes_of(entry))
            self._unsaved[entry.first] = queue, entry
        else:
            if queue.covered == offsets.LAST:
                queue.covered = rows.last_of(queue.entries[-1])
            self._save(step, queue, entry)

    def takes(self, keys: Iterable[bytes]) -> set[bytes]:
        """Return those of these queues into which something may be put: those that are there, and of the others, in
        their order, as many as there may be further ones."""
        there = {key for key in keys if (queue := self._queues.get(key)) is not None and queue.messages}
        room, room_bytes = FIXED.ready_queues - self._with_rows, self._room_bytes
        for key in sorted(set(keys) - there):
            if room <= 0 or room_bytes <= 0:
                break
            there.add(key)
            room, room_bytes = room - 1, room_bytes - queue_bytes(key)
        return there

    @property
    def _room_bytes(self) -> float:
        """How many bytes further queues may take."""
        return FIXED.ready_queue_bytes - self._row_bytes

    def _note_rows(self, queue: ReadyQueue, more: int) -> None:
        """A queue has messages now (1), or has none any more (-1)."""
        self._with_rows += more
        self._row_bytes += more * queue.size

    def insert(self, step: Step, key: bytes, added: Sequence[LogEntry]) -> None:
        """Put entries into a queue, which are in their order, where they belong there by their places; not while turns
        are taken."""
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
        prefix = self._entry_rows + key
        step.view.put_all([(prefix + entry.first, row_of(entry)) for entry in added])
        near = [entry for entry in added if entry.first <= queue.covered]
        if near:
            self._hold(queue, near)
        self._store_queues(step)
        self._count()

    def _hold(self, queue: ReadyQueue, added: Sequence[LogEntry]) -> None:
        """Have entries in memory, beside those of their queue that are."""
        held = queue.entries
        if len(added) == 1:
            held.insert(bisect_left(held, added[0].first, key=_first), added[0])
        else:
            held = queue.entries = deque(sorted([*held, *added], key=_first))
        self._note_held(queue, sum(map(bytes_of, added)))
        most_bytes = self._most_entries * ENTRY_BYTES
        if queue.held_bytes > 2 * most_bytes:
            ends = accumulate(map(bytes_of, held))
            count = next((at for at, size in enumerate(ends, 1) if size >= most_bytes), len(held))
            queue.entries = deque(islice(held, count))
            self._note_held(queue, sum(map(bytes_of, queue.entries)) - queue.held_bytes)
            queue.covered = rows.last_of(queue.entries[-1])

    def _note_held(self, queue: ReadyQueue, more: int) -> None:
        """A queue has so many bytes more in memory."""
        queue.held_bytes += more
        self._entry_bytes += more

    def give_back(self, key: bytes, entry: Waiting) -> None:
        """What waits in an entry is due: it stands in its queue again."""
        queue = self._queues.get(key) or self._queue(key, 0, offsets.FIRST)
        assert entry.first is not None
        heapq.heappush(queue.returned, (entry.first, entry.seq))
        self._with_returned[key] = queue
        self._back_of.setdefault(queue.tenant, {})[key] = queue
        self._oldest.note(queue, len(self._by_tenant[queue.tenant]))

    def forget_returned(self) -> None:
        """Have nothing that was given back stand in its queue."""
        for queue in self._with_returned.values():
            queue.returned.clear()
        self._emptied.update(self._with_returned)
        self._with_returned.clear()
        self._back_of.clear()

    def _queue(self, key: bytes, messages: int, first: bytes) -> ReadyQueue:
        self._number += 1
        queue = self._queues[key] = self._by_number[self._number] = ReadyQueue(
            key, self._number, messages, first, HEAD_ENTRIES
        )
        self._queue_bytes += queue.size
        of_tenant = self._by_tenant.setdefault(queue.tenant, [])
        of_tenant.insert(bisect_right(of_tenant, queue.priority, key=_priority), queue)
        if len(of_tenant) == 1:
            self.limits.freed.add(queue.tenant)  # as soon as turns are taken
        self._share_memory()
        return queue

    def count_lease(self, lease: Lease) -> None:
        """Count what is in flight of a lease that is new, or some of which is not live any more."""
        if self.rank == queue_keys.FAIR:
            self.limits.count_lease(lease)

    # -- out ------------------------------------------------------------------------------------------------------

    def begin(
        self, step: Step, most_waiting: int | None, in_flight: int, in_turns: Callable[[Sequence[str]], Iterable[str]]
    ) -> None:
        """Turns are going to be taken: all that is due was given back. `most_waiting` and what follows: see
        `TenantLimits`.
        `in_turns`: goes through many, and gives way now and then."""
        again = self.limits.begin(step, self._by_tenant, most_waiting, in_flight)
        again |= self.limits.crowding.stopped & self._back_of.keys()
        there = sorted([tenant for tenant in again if tenant in self._by_tenant])
        may = {tenant: self._may_have_turns(tenant) for tenant in in_turns(there)}
        # First those that may: with a tenant that ends go the times of those below its name, unless one of them has
        # begun by then, as in a replica that was restarted, where this one never had.
        for tenant in in_turns(sorted(may, key=may.__getitem__, reverse=True)):
            self._turns.set_active(tenant, may[tenant])
        are_new = self.limits.decided()
        touched = [*self._with_returned.values(), *self._emptied.values()]
        for queue in touched:
            self._settle(queue)
        self._emptied.clear()
        for tenant in sorted({queue.tenant for queue in touched} & self.limits.crowding.stopped):
            self._look_at_stopped(tenant)
        if are_new:
            self._turns.forget_idle()

    def _may_have_turns(self, tenant: str) -> bool:
        return self.limits.may_have_turns(tenant, self._has_back)

    def _has_back(self, tenant: str) -> bool:
        """Whether something of a tenant was given back."""
        return any(self.first_returned(queue) is not None for queue in self._back_of.get(tenant, {}).values())

    def settle(self, queue: ReadyQueue) -> None:
        """Something was taken from a queue: see what is left of what was given back to it, and whether it ends."""
        self._settle(queue)
        if queue.tenant in self.limits.crowding.stopped:
            self._look_at_stopped(queue.tenant)

    def _look_at_stopped(self, tenant: str) -> None:
        """Somebody who gets nothing new has turns while something of it was given back."""
        if tenant in self._by_tenant:
            self._turns.set_active(tenant, self._may_have_turns(tenant))

    def _settle(self, queue: ReadyQueue) -> None:
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
        del self._queues[queue.key], self._by_number[queue.number]
        self._queue_bytes -= queue.size
        self._share_memory()
        of_tenant = self._by_tenant[queue.tenant]
        of_tenant.remove(queue)
        if not of_tenant:
            del self._by_tenant[queue.tenant]
            self._oldest.forget(queue.tenant)
            self.limits.held_up.pop(queue.tenant, None)
            self._turns.set_active(queue.tenant, False)

    def next(self, ageing_ms: int | None) -> tuple[ReadyQueue, bool] | None:
        """The queue whose turn it is, and whether others are to have their turns after one message of it; None: nothing
        is ready. `ageing_ms`: so long a message waits to count as one priority better."""
        turn = self._turns.next()
        if turn is None:
            return None
        tenant, is_shared = turn
        of_tenant = self._by_tenant[tenant]
        if tenant in self.limits.crowding.stopped:
            first_back = self._first_back_of.get(tenant)
            if first_back is None:
                first_back = self._first_back_of[tenant] = Returned(self._back_of[tenant].values(), ageing_ms)
            back = first_back.first()
            assert back is not None, "who gets nothing new has turns while something was given back"
            return back, is_shared or ageing_ms is not None
        if ageing_ms is None or len(of_tenant) == 1:
            return of_tenant[0], is_shared
        # After one message of this queue another one may be older.
        return self._oldest.first(tenant, of_tenant, ageing_ms), True

    def next_back(self) -> tuple[ReadyQueue, bool] | None:
        """The queue of the best priority that something was given back to, of tenants that are not held up: for when
        nothing else is given. As `next`, but for turns."""
        if self._first_back is None:
            self._first_back = Returned(self._with_returned.values())
        queue = self._first_back.first(self.limits.held_up)
        return None if queue is None else (queue, False)

    def serve(self, queue: ReadyQueue, messages: int) -> None:
        """So many messages of a queue are put into a lease: others come first, perhaps. Then see to `settle`."""
        tenant = queue.tenant
        self._turns.serve(tenant, messages)
        if self.limits.serve(tenant, messages):
            self._turns.set_active(tenant, self._may_have_turns(tenant))

    def first_returned(self, queue: ReadyQueue) -> Waiting | None:
        """The first entry of what was given back in a queue; None: nothing was."""
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

    def next_returned(self, queue: ReadyQueue) -> Waiting | None:
        """The entry of what was given back in a queue that begins next behind the first one; None: there is none."""
        entry = self.first_returned(queue)
        if entry is None:
            return None
        first = heapq.heappop(queue.returned)
        while (following := self.first_returned(queue)) is entry:
            heapq.heappop(queue.returned)
        heapq.heappush(queue.returned, first)
        return following

    def head(self, queue: ReadyQueue, view: View) -> LogEntry | None:
        """The first entry of a queue, without what was returned."""
        if not queue.messages:
            return None
        self._look(queue, view)
        return queue.entries[0]

    def _look(self, queue: ReadyQueue, view: View) -> None:
        """Have the first of a queue's entries in memory."""
        if queue.entries or not queue.messages:
            return
        prefix = self._entry_rows + queue.key
        start = prefix + max(queue.first, queue.covered)
        if queue.covered >= queue.first:
            start = rows.after(start)
        stop = prefix + offsets.LAST + b"\0"
        window = min(queue.window, self._most_entries)
        found = view.scan(start, stop, limit=window, max_bytes=min(READ_BYTES, window * ENTRY_BYTES))
        queue.entries.extend([queue.load(key, value) for key, value in found])
        self._note_held(queue, sum(map(bytes_of, queue.entries)))
        assert queue.entries, "a queue that has messages has rows of them"
        is_all = sum([entry.length for entry in queue.entries]) == queue.messages
        queue.covered = offsets.LAST if is_all else rows.last_of(queue.entries[-1])
        queue.window = 2 * window

    def take(self, step: Step, queue: ReadyQueue, count: int) -> None:
        """Take the first `count` messages of a queue's first entry out of it."""
        entry = queue.entries.popleft()
        self._note_held(queue, -bytes_of(entry))
        if self._unsaved.pop(entry.first, None) is None:
            self._gone.append(self._entry_rows + queue.key + entry.first)
        if count < entry.length:
            rest = entry.part(count, entry.length)
            queue.entries.appendleft(rest)
            self._note_held(queue, bytes_of(rest))
            self._unsaved[rest.first] = queue, rest
        self._uncount(step, queue, count)

    def take_turns(self, step: Step, limit: int, max_bytes: int) -> tuple[list[tuple[bytes, bytes]], int]:
        """Take one message of each tenant whose turn it is, as long as others are to have theirs after it, none of them
        has limits, and it is an entry by itself of which nothing is to be looked at: so many at most, and none behind
        the one that reaches `max_bytes`. Queues and messages, and their bytes."""
        view = step.view
        turns, by_tenant, limits = self._turns, self._by_tenant, self.limits
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
                self._look(queue, view)
            first, length, its_size, extra, unit, _ = queue.entries[0]
            if length > 1 or extra is not None:
                break
            self.take(step, queue, 1)
            turns.serve(tenant, 1)
            taken.append((queue.key, first))
            size += unit or its_size
            if not queue.messages:
                self.settle(queue)
        return taken, size

    def take_singles(self, step: Step, queue: ReadyQueue, limit: int, max_bytes: int) -> tuple[list[Range], int]:
        """Take messages of a queue out that are entries by themselves, of which nothing is to be looked at, as long as
        there are some in memory: so many at most, and none behind the one that reaches `max_bytes`. And their bytes."""
        entries, taken, size = queue.entries, 0, 0
        for _, length, its_size, extra, *_ in islice(entries, limit):
            if length > 1 or extra is not None or size >= max_bytes:
                break
            taken += 1
            size += its_size
        if not taken:
            return [], 0
        firsts = [entries.popleft().first for _ in range(taken)]
        self._note_held(queue, -taken * ENTRY_BYTES)
        prefix = self._entry_rows + queue.key
        self._gone += [prefix + first for first in firsts if self._unsaved.pop(first, None) is None]
        self._uncount(step, queue, taken)
        return [Range(first, 1) for first in firsts], size

    def remove(self, step: Step, key: bytes, offset: bytes) -> bool:
        """Take a message out of its queue, wherever it stands there. Whether it was in it."""
        queue = self._queues.get(key)
        found = None if queue is None else self._find(queue, offset, step.view)
        if queue is None or found is None:
            return False
        parts = without(found, [offset])
        held = queue.entries
        at = bisect_left(held, found.first, key=_first)
        if self._unsaved.pop(found.first, None) is None:
            step.view.delete(self._entry_rows + key + found.first)
        for part in parts:
            self._save(step, queue, part)
        if at < len(held) and held[at].first == found.first:
            self._note_held(queue, sum(map(bytes_of, parts)) - bytes_of(held[at]))
            del held[at]
            for part in reversed(parts):
                held.insert(at, part)
        self._uncount(step, queue, 1)
        if not queue.messages:
            self._emptied[key] = queue
        self._store_queues(step)
        return True

    def remove_singles(self, step: Step, key: bytes, firsts: Sequence[bytes]) -> None:
        """Take messages out of a queue that are entries by themselves; not while turns are taken."""
        queue, gone = self._queues[key], set(firsts)
        prefix = self._entry_rows + key
        step.view.delete_all([prefix + first for first in firsts])
        queue.entries = deque([entry for entry in queue.entries if entry.first not in gone])
        self._note_held(queue, sum(map(bytes_of, queue.entries)) - queue.held_bytes)
        self._uncount(step, queue, len(firsts))
        if not queue.messages:
            self._emptied[key] = queue
        self._store_queues(step)
        self._count()

    def singles_between(self, key: bytes, first: bytes, last: bytes, view: View) -> set[bytes]:
        """The messages from `first` to `last` that are entries by themselves in a queue, which no turns are taken of;
        without what was returned."""
        queue = self._queues.get(key)
        if queue is None or not queue.messages or last < queue.first:
            return set()
        prefix = self._entry_rows + key
        found = view.scan(prefix + first, rows.after(prefix + last), limit=_NO_LIMIT, max_bytes=_NO_LIMIT)
        return {entry_key[-offsets.OFFSET_BYTES :] for entry_key, _ in found}

    def holds(self, key: bytes, offset: bytes, view: View) -> bool:
        """Whether a message is in a queue, and was not returned to it."""
        queue = self._queues.get(key)
        return queue is not None and self._find(queue, offset, view) is not None

    def next_ms(self, is_stopped: bool) -> int | None:
        """When the first of what is ready was due; None: there is nothing that may be taken, as far as was looked.
        `is_stopped`: only what was given back may be."""
        held_up = self.limits.held_up if self.limits.is_settled else {}
        back = [queue for queue in self._with_returned.values() if queue.returned and queue.tenant not in held_up]
        firsts = [queue.returned[0][0] for queue in back]
        if not is_stopped and (lowest := self.lowest) is not None and len(held_up) < len(self._by_tenant):
            firsts.append(lowest)
        if firsts:
            return offsets.deliver_ms(min(firsts))
        # All that is ready waits for something to be settled, or for its time.
        return min([until_ms for until_ms in held_up.values() if until_ms is not None], default=None)

    @property
    def takes_more(self) -> bool:
        """Whether there may be more queues. Those that have no rows do not count: whether they are in memory depends on
        when this process began."""
        return self._with_rows < FIXED.ready_queues and self._room_bytes > 0

    @property
    def full_reason(self) -> str:
        """Why nothing more is put into queues that are not there: for when `takes_more` is false."""
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
        """The entry with the lowest message in any queue, without what was returned."""
        first = self._firsts.first()
        return None if first is None else self.head(self._by_number[first[1]], view)

    def take_lowest(self, step: Step) -> LogEntry | None:
        """Take that entry out."""
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
        """The messages from `first` to `last` that are in any queue, without what was returned."""
        found: set[bytes] = set()
        for queue in self._queues.values():
            if not queue.messages or queue.first > last:
                continue
            prefix = self._entry_rows + queue.key
            start, stop = prefix + max(first, queue.first), rows.after(prefix + last)
            entries = [
                queue.load(key, value) for key, value in view.scan(start, stop, limit=_NO_LIMIT, max_bytes=_NO_LIMIT)
            ]
            if (before := self._find(queue, first, view)) is not None:
                entries.append(before)
            for entry in entries:
                found.update(offsets.run(entry.first, entry.length))
        return found

    def _find(self, queue: ReadyQueue, offset: bytes, view: View) -> LogEntry | None:
        """The entry of a queue that a message is in."""
        if not queue.messages or offset < queue.first:
            return None
        if offset <= queue.covered:
            before = bisect_right(queue.entries, offset, key=_first) - 1
            entry = queue.entries[before] if before >= 0 else None
        else:
            prefix = self._entry_rows + queue.key
            found = view.scan(prefix, rows.after(prefix + offset), limit=1, max_bytes=1, reverse=True)
            entry = queue.load(*found[0]) if found else None
        behind = None if entry is None else offsets.distance(entry.first, offset)
        return entry if entry is not None and behind is not None and 0 <= behind < entry.length else None

    def _uncount(self, step: Step, queue: ReadyQueue, count: int) -> None:
        queue.messages -= count
        self.messages -= count
        self._changed[queue.key] = queue
        if queue.messages:
            self._look(queue, step.view)
            queue.first = queue.entries[0].first
            self._firsts.put(queue.number, queue.first)
        else:
            self._note_rows(queue, -1)
            queue.covered = offsets.LAST
            self._firsts.put(queue.number, None)

    # -- rows -----------------------------------------------------------------------------------------------------

    def _save(self, step: Step, queue: ReadyQueue, entry: LogEntry) -> None:
        step.view.put(self._entry_rows + queue.key + entry.first, row_of(entry))

    def end(self, step: Step) -> None:
        """Turns were taken: put all that has changed into rows."""
        view = step.view
        self._first_back = None
        self._first_back_of.clear()
        if self._unsaved:
            prefix = self._entry_rows
            view.put_all(
                [(prefix + queue.key + first, row_of(entry)) for first, (queue, entry) in self._unsaved.items()]
            )
            self._unsaved.clear()
        self._store_queues(step)
        if not self._queues:
            self._turns.rest()
        for tenant, arrival_us in self.limits.pacing.changes():
            key = rows.of_group(rows.PACE, self._group_id, tenant.encode())
            if arrival_us is None:
                view.delete(key)
            else:
                view.put(key, rows.pack(arrival_us))
        for path, times in self._turns.changes():
            key = self._turn_rows + path.encode()
            if times is None:
                view.delete(key)
            else:
                view.put(key, rows.pack(*times))
        if self._look_aheads is not None:
            self.used = self._look_aheads.next_turn()
            self._count()

    def _store_queues(self, step: Step) -> None:
        view = step.view
        if self._gone:
            view.delete_all(self._gone)
            self._gone = []
        prefix = self._queue_rows
        for key, queue in self._changed.items():
            if queue.messages:
                view.put(prefix + key, rows.pack(queue.messages, queue.first))
            else:
                view.delete(prefix + key)
        self._changed.clear()

    def clear(self, step: Step) -> None:
        """Forget all queues; the rows of their entries are for the caller to delete."""
        view = step.view
        for tag in (rows.QUEUE, rows.TURNS):
            for key, _ in rows.all_of_group(view, tag, self._group_id):
                view.delete(key)
        self._turns = Turns(self.limits.weight_of)
        self.is_promoting = False
        for held in (self._queues, self._by_number, self._by_tenant, self._with_returned, self._emptied, self._back_of):
            held.clear()
        for others in (self._unsaved, self._gone, self._changed):
            others.clear()
        self.limits.clear()
        self._oldest.clear()
        self._firsts = LeastOf()
        self.messages = self._with_rows = self._row_bytes = self._entry_bytes = self._queue_bytes = 0
        self._count()

    # -- memory ---------------------------------------------------------------------------------------------------

    def evict(self) -> None:
        """Keep no entries in memory, until they are wanted again."""
        for queue in self._queues.values():
            if queue.messages:
                queue.entries.clear()
                queue.covered, queue.window, queue.held_bytes = offsets.FIRST, HEAD_ENTRIES, 0
        self._entry_bytes = 0
        self._count()

    def _count(self) -> None:
        """Tell what is held."""
        if self._look_aheads is not None:
            self._look_aheads.bytes += self._entry_bytes - self.held_bytes
            self._look_aheads.fixed_bytes += self._queue_bytes - self.fixed_bytes
            self.held_bytes, self.fixed_bytes = self._entry_bytes, self._queue_bytes

    def _share_memory(self) -> None:
        """There are more queues, or fewer: among many each has few entries in memory, rather than some none."""
        share_bytes = math.inf if self._look_aheads is None else self._look_aheads.share_bytes
        held = HELD_SHARE * share_bytes / ENTRY_BYTES / max(len(self._queues), 1)
        self._most_entries = int(min(max(held, HEAD_ENTRIES), MOST_ENTRIES))

    # -- looking --------------------------------------------------------------------------------------------------

    @property
    def lowest(self) -> bytes | None:
        """The lowest message in any queue, without what was returned."""
        first = self._firsts.first()
        return None if first is None else first[0]

    def count_by_tenant(self) -> Counter[str]:
        """How many messages each tenant has in its queues, without what was returned."""
        counts: Counter[str] = Counter()
        for queue in self._queues.values():
            counts[queue.tenant] += queue.messages
        return +counts

    def count_before(
        self, tenant: str, bound: Callable[[bytes], bytes | None], most: int, view: View
    ) -> tuple[int, bool]:
        """How many messages the queues of a tenant have below an offset, which `bound` tells of each queue by its key,
        unless it is None; without what was returned. It stops at `most`, or when it has looked into so many rows. And
        whether all were looked at."""
        count, left = 0, most
        for queue in self._by_tenant.get(tenant, ()):
            stop = bound(queue.key) if queue.messages else None
            if stop is None or stop <= queue.first:
                continue
            if stop == offsets.LAST:
                count += queue.messages
            elif left > 0:
                prefix = self._entry_rows + queue.key
                found = view.scan(prefix + queue.first, prefix + stop, limit=left, max_bytes=READ_BYTES)
                left -= max(len(found), 1)
                for key, row in found:
                    entry = queue.load(key, row)
                    behind = offsets.distance(entry.first, stop)
                    # Messages of one entry have offsets that follow one another; the last may be beyond the bound.
                    count += entry.length if behind is None else min(entry.length, behind)
            if count >= most:
                return count, True
        return count, left > 0


def _first(entry: LogEntry) -> bytes:
    return entry.first


def _priority(queue: ReadyQueue) -> int:
    return queue.priority
