"""The order of ready queues, in cases in which each taken message may change it.

The heaps may contain outdated values. Values only rise while messages are taken, so a value is checked again when it
reaches the top. If the value of a queue falls, the queue is pushed again. The result depends only on the queues, not on
when a heap was built.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from heapq import heapify, heappop, heappush, heapreplace

from sandq.model.offsets import deliver_ms
from sandq.partition.base.stale_heaps import is_overgrown
from sandq.partition.ready.ready_queue import ReadyQueue


class Oldest:
    """Finds the queue of a tenant whose first message comes first, in topics where messages age."""

    def __init__(self, by_number: Mapping[int, ReadyQueue]) -> None:
        """`by_number`: all queues by their number."""
        self._by_number = by_number
        self._ageing_ms = 0
        """Ageing in ms with which the heaps were built."""
        self._by_tenant: dict[str, list[tuple[int, int, int]]] = {}
        """By tenant: heap of (aged time of the first message, priority, number)."""

    def first(self, tenant: str, queues: Collection[ReadyQueue], ageing_ms: int) -> ReadyQueue:
        """Return the queue that comes first. `queues`: all queues of the tenant. If two queues are equal, the better
        priority comes first."""
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
        """Push a queue that is new, or whose first message may now be earlier. `living`: number of queues of its
        tenant."""
        heap = self._by_tenant.get(queue.tenant)
        if heap is not None and is_overgrown(len(heap), living):
            del self._by_tenant[queue.tenant]
        elif heap is not None:
            heappush(heap, (queue.aged(self._ageing_ms), queue.priority, queue.number))

    def forget(self, tenant: str) -> None:
        """Forget a tenant that no longer has queues."""
        self._by_tenant.pop(tenant, None)

    def clear(self) -> None:
        """Forget all tenants."""
        self._by_tenant.clear()


class Returned:
    """Finds the first queue among the queues with returned messages. Valid for one round of turns."""

    def __init__(self, queues: Iterable[ReadyQueue], ageing_ms: int | None = None) -> None:
        """`ageing_ms`: ms by which a message ages per priority. None if messages do not age: the best priority comes
        first."""
        self._ageing_ms = ageing_ms
        self._heap = [(*self._place(queue), queue.number, queue) for queue in queues if queue.returned]
        heapify(self._heap)

    def _place(self, queue: ReadyQueue) -> tuple[int, int, tuple[bytes, int]]:
        """Return a queue's sort key: the lowest comes first."""
        first = queue.returned[0]
        if self._ageing_ms is None:
            return 0, queue.priority, first
        return deliver_ms(first[0]) + queue.priority * self._ageing_ms, queue.priority, first

    def first(self, held_up: Collection[str] = ()) -> ReadyQueue | None:
        """Return the queue that comes first. None if there is none. Skip tenants that are held up: they stay held up
        for the rest of the round."""
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
