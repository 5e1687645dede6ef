"""Tests of requests to all partitions of a topic: they yield, and process each named partition once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import trio

from sandq.broker.delivery.subscribe import held_by, known_to
from sandq.broker.event_loop import SLICE_WORK
from sandq.broker.reads.fan_out import GROUP_WORK, answers_of, read_all
from sandq.broker.replication.replica import PartitionReplica
from sandq.protocol.requests import Subscribe

PARTITIONS = 3000


class Steps(trio.abc.Instrument):
    number = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.number += 1


async def at_most_so_many_in_a_step(
    work: Callable[[Callable[[], None]], Any], most: int = SLICE_WORK // GROUP_WORK + 1
) -> None:
    """`work(note)` calls `note` for each partition."""
    steps, at = Steps(), []
    trio.lowlevel.add_instrument(steps)
    try:
        await work(lambda: at.append(steps.number))
    finally:
        trio.lowlevel.remove_instrument(steps)
    assert len(at) == PARTITIONS
    assert max(at.count(step) for step in set(at)) <= most


async def test_commands_for_all_partitions_are_submitted_in_time_slices() -> None:
    async def work(note: Callable[[], None]) -> None:
        def submit(command: Any, done: Callable[[Any], None], *, line: Any) -> None:
            note()
            done(command)

        host: Any = SimpleNamespace(submit=submit)
        assert await answers_of([(host, number) for number in range(PARTITIONS)]) == [*range(PARTITIONS)]

    await at_most_so_many_in_a_step(work)


async def test_reads_of_all_partitions_begin_in_time_slices() -> None:
    async def work(note: Callable[[], None]) -> None:
        async def finish_read(confirmation: Any) -> None: ...

        # type: ignore[list-item]
        await read_all(PARTITIONS * [SimpleNamespace(begin_read=note, finish_read=finish_read)])

    await at_most_so_many_in_a_step(work)


async def test_held_tokens_of_consumer_are_iterated_once() -> None:
    looked: list[set[int]] = []
    times = 0

    class Held(list[list[int]]):
        def __iter__(self) -> Iterator[list[int]]:
            nonlocal times
            times += 1
            return super().__iter__()

    class Replica(PartitionReplica):
        def __init__(self) -> None:
            self.is_mid_entry = False

        def held_by(self, group: str, consumer: str, known: set[int], epoch: int = 0) -> Iterator[Any]:
            looked.append(known)
            return iter(())

    held = Held([[1, 0, 5], [1, 0, 6], [2, 1, 7], [9, 9, 8]])
    request = Subscribe(1, "t", "g", "c", 1, None, "earliest", held)
    leaders: Any = [
        SimpleNamespace(raft_group=SimpleNamespace(number=number + 1, replica=Replica()), partition=number)
        for number in range(3)
    ]
    known = await known_to(request)
    leaders[1].raft_group.replica.is_mid_entry = True
    assert held_by(leaders, request, known, 1) == ([], leaders[1:2]), "the lease is reported when its entry is applied"
    assert looked == [{5, 6}, set()]
    leaders[1].raft_group.replica.is_mid_entry = False
    assert held_by(leaders[1:2], request, known, 1) == ([], [])
    assert looked[2:] == [{7}] and times == 1
