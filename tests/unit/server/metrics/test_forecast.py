"""Tests of the forecast of due messages: partitions with active groups are queried, a few at a time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from sandq.model.limits import DEFAULT
from sandq.server.metrics.metrics import REFRESH_FORECASTS, SOON_S, About, Metrics
from sandq.server.metrics.topics import OTHER, Board
from tests.unit.server.metrics.test_topics import group, partition, topic

NOW_S = 1000


class Replica:
    """A partition with one due message per second."""

    def due_between(self, start_s: int, stop_s: int) -> int:
        assert start_s > NOW_S
        return stop_s - start_s


async def test_partitions_with_later_messages_are_queried() -> None:
    led = {}
    for at in range(2 * REFRESH_FORECASTS + 1):
        status = SimpleNamespace(later=at, groups=[1] * (at % 2))
        led[at] = SimpleNamespace(raft_group=SimpleNamespace(number=at, status=status, replica=Replica()))
    questions: list[int] = []

    async def ask(question: Any) -> Any:
        questions.append(len(question.args[0]))
        return question()

    broker: Any = SimpleNamespace(
        limits=DEFAULT,
        stats=None,
        clock=SimpleNamespace(now_ms=lambda: NOW_S * 1000 + 999),
        topics=lambda: [SimpleNamespace(led=lambda: led)],
        ask=ask,
    )
    nobody: Any = None
    metrics = Metrics(
        broker=broker,
        health=nobody,
        scrubber=nobody,
        digests=nobody,
        clients=nobody,
        about=About("1", "n", "c", Path()),
        discovery=nobody,
    )
    await metrics.forecast()
    assert metrics._soon == {at: SOON_S for at in led if at % 2}
    assert sum(questions) == len(metrics._soon) and max(questions) <= REFRESH_FORECASTS
    led.clear()
    await metrics.forecast()
    assert metrics._soon == {}, "partitions that moved to another leader are not kept"


def test_partitions_and_groups_beyond_the_limit_are_summed_up() -> None:
    parts = [partition(group("a"), group("b"), later=9)._replace(soon=soon) for soon in ((1, 5), (), (2, 7))]
    assert Board(10, 10).sums([topic(1, *parts)])[1]["t1", "b"].soon == [3, 12]
    others = Board(10, 0).sums([topic(1, *parts)])[1]
    assert others["t1", OTHER].soon == [6, 24]
