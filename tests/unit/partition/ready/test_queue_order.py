"""Tests of the first of many ready queues: the choice equals a full scan, without a full scan."""

from __future__ import annotations

import heapq
from random import Random

import pytest

from sandq.model import offsets
from sandq.partition.base.stale_heaps import FEW
from sandq.partition.ready import queue_keys
from sandq.partition.ready.queue_order import Oldest, Returned
from sandq.partition.ready.ready_queue import ReadyQueue
from tests.support.partition.bench import T
from tests.support.partition.ranked_bench import RankedBench


def offset(at: int) -> bytes:
    return offsets.pack(T + at, 1, 0, 0)


def queue_of(number: int, priority: int, first: int, tenant: str = "a") -> ReadyQueue:
    return ReadyQueue(queue_keys.pack(tenant, priority), number, 1, offset(first), 8)


@pytest.mark.parametrize("seed", range(8))
def test_oldest_equals_that_of_a_full_scan(seed: int) -> None:
    draw = Random(seed)
    by_number = {number: queue_of(number, number, draw.randrange(1000)) for number in range(1, 60)}
    oldest, ageing_ms = Oldest(by_number), 100
    for at in range(2000):
        queues = [*by_number.values()]
        queue = oldest.first("a", queues, ageing_ms)
        assert queue is min(queues, key=lambda one: (one.aged(ageing_ms), one.priority))
        deed = draw.random()
        if deed < 0.8:  # the first entry of the queue is leased
            queue.first = offset(offsets.deliver_ms(queue.first) - T + draw.randrange(1, 5000))
        elif deed < 0.9:  # a message returns to some queue
            other = draw.choice(queues)
            heapq.heappush(other.returned, (offset(draw.randrange(at + 1)), at))
            oldest.note(other, len(by_number))
        elif deed < 0.93 and len(by_number) > 2:
            del by_number[queue.number]
        elif deed < 0.96:
            number = 60 + at
            by_number[number] = queue_of(number, number, draw.randrange(at + 1))
            oldest.note(by_number[number], len(by_number))
        else:
            ageing_ms = draw.choice((100, 250))


def test_repeated_notes_do_not_accumulate() -> None:
    by_number = {1: queue_of(1, 0, 0), 2: queue_of(2, 1, 0)}
    oldest = Oldest(by_number)
    oldest.first("a", by_number.values(), 100)
    for _ in range(10 * FEW):
        oldest.note(by_number[1], 1)
    assert len(oldest._by_tenant.get("a", ())) <= 2 * FEW
    assert oldest.first("a", by_number.values(), 100) is by_number[1]


def test_returned_messages_go_by_priority_except_of_blocked_tenants() -> None:
    queues = [queue_of(number, number % 7, 0, "ab"[number % 2]) for number in range(1, 50)]
    for queue in queues:
        queue.returned = [(offset(at), at) for at in range(queue.number % 3)]
    first_back, taken = Returned(queues), []
    while (queue := first_back.first({"b"})) is not None:
        left = [one for one in queues if one.returned and one.tenant == "a"]
        assert queue is min(left, key=lambda one: (one.priority, one.returned[0]))
        taken.append(heapq.heappop(queue.returned))
    assert len(taken) == sum(number % 3 for number in range(2, 50, 2))


def test_many_priorities_are_not_all_looked_at_for_each_message(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, aged = 0, ReadyQueue.aged

    def counted(queue: ReadyQueue, ageing_ms: int) -> int:
        nonlocal looks
        looks += 1
        return aged(queue, ageing_ms)

    monkeypatch.setattr(ReadyQueue, "aged", counted)
    bench = RankedBench("priority", ageing="1m")
    bench.checks_loading = False
    bench.open()
    bench.add(*["v"] * 2000, priority=range(2000))
    assert len(bench.take(500)) == 500
    assert looks < 2000 + 4 * 500
