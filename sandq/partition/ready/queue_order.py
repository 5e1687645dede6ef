"""Which of many ready queues goes first where that changes with each message that is taken.

Heaps whose values may be out of date: they only rise while messages are taken, and are looked at again at the top. One
that falls is put in once more. What comes out hangs on the queues alone, not on when a heap was built.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace

from sandq.model.offsets import deliver_ms
from sandq.partition.base.stale_heaps import is_overgrown
from sandq.partition.ready.ready_queue import ReadyQueue


class Oldest:
    """The queue of each tenant whose first message goes first where messages age."""

    def __init__(self, by_number: Mapping[int, ReadyQueue]) -> None:
        """`by_number`: the queues that there are."""
        self._by_number = by_number
        self._ageing_ms = 0
        """That the heaps go by."""
        self._by_tenant: dict[str, list[tuple[int, int, int]]] = {}
        """Heaps of (what the first message counts as, priority, number)."""

    def first(self, tenant: str, queues: Collection[ReadyQueue], ageing_ms: int) -> ReadyQueue:
        """Return the queue of these, which are all of a tenant, that goes first; of equal ones the best priority's."""
        if ageing_ms != self._ageing_ms:
            self._by_tenant.clear()
            self._ageing_ms = ageing_ms
        heap = self._by_tenant.get(tenant)
        if heap is None or is_overgrown(len(heap), len(queues)):
            heap = self._by_tenant[tenant] = [(one.aged(ageing_ms), one.priority, one.number) for one in queues]
            heapify(heap)
        while True:
            value, priority, number = heap[0]
            queue = self._by_number.get(number)
            if queue is None:
                heappop(heap)
            elif (now := queue.aged(ageing_ms)) == value:
                return queue
            else:
                heapreplace(heap, (now, priority, number))

    def note(self, queue: ReadyQueue, living: int) -> None:
        """Look at a queue again: it is new, or its first message may go before the one that was it. `living`: how many
        queues its tenant has."""
        heap = self._by_tenant.get(queue.tenant)
        if heap is not None and is_overgrown(len(heap), living):
            del self._by_tenant[queue.tenant]
        elif heap is not None:
            heappush(heap, (queue.aged(self._ageing_ms), queue.priority, queue.number))

    def forget(self, tenant: str) -> None:
        """Forget a tenant that has no queues any more."""
        self._by_tenant.pop(tenant, None)

    def clear(self) -> None:
        """Forget all tenants: there are no queues."""
        self._by_tenant.clear()


class Returned:
    """The queue that goes first of those to which something was given back, by that: while turns are taken."""

    def __init__(self, queues: Iterable[ReadyQueue], ageing_ms: int | None = None) -> None:
        """`ageing_ms`: what messages age by, if they do; else the best priority goes first."""
        self._ageing_ms = ageing_ms
        self._heap = [(*self._place(queue), queue.number, queue) for queue in queues if queue.returned]
        heapify(self._heap)

    def _place(self, queue: ReadyQueue) -> tuple[int, int, tuple[bytes, int]]:
        first = queue.returned[0]
        if self._ageing_ms is None:
            return 0, queue.priority, first
        return deliver_ms(first[0]) + queue.priority * self._ageing_ms, queue.priority, first

    def first(self, held_up: Collection[str] = ()) -> ReadyQueue | None:
        """Return it, but of no tenant that is held up, and will be until the turns end; None: there is nothing."""
        heap = self._heap
        while heap:
            queue = heap[0][-1]
            if not queue.returned or queue.tenant in held_up:
                heappop(heap)
            elif queue.returned[0] == heap[0][2]:
                return queue
            else:
                heapreplace(heap, (*self._place(queue), queue.number, queue))
        return None
