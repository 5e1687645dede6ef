"""Tests that the client merges the topics that nodes report."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from sandq.client.admin import GroupOverview, Lateness, TopicOverview
from sandq.client.admin import overview as module
from sandq.client.admin.overview import OverviewAdmin, _added, _plus
from sandq.model.errors import InvalidRequest, ProtocolError, Unauthenticated, Unavailable, UnknownTopic
from sandq.protocol.frames import Type
from sandq.protocol.request import unknown_request
from sandq.protocol.requests_overview import GroupRow, HistoryReply, HistoryRow, OverviewReply, TopicRow

BOUNDS = (0.0, 0.01, 0.1, 1.0)


def row(name: str = "t", led: int = 1, *groups: GroupRow, lateness: tuple[int, ...] = ()) -> TopicRow:
    return TopicRow(name, "timer", 3, led, 10, 4, 1, 0, 2, 0, 100, 5, 6, 7, 1, lateness, len(groups), groups, 1)


def group(name: str = "g", ready: int = 1, consumers: int = 1, reason: str | None = None) -> GroupRow:
    return GroupRow(
        name, ready, 2, 3, 4, consumers, reason is not None, reason, 1000 - ready, 0, None, None, None, None
    )


@pytest.mark.parametrize(
    ("counts", "part", "seconds"),
    [
        ((0, 0, 0, 0, 0), 0.5, None),
        ((0, 10, 0, 0, 0), 0.5, 0.005),
        ((0, 10, 0, 0, 0), 1.0, 0.01),
        ((0, 99, 1, 0, 0), 0.99, 0.01),
        ((0, 98, 2, 0, 0), 0.99, 0.055),
        ((0, 0, 0, 0, 3), 0.5, 1.0),
        ((4, 0, 0, 0, 0), 0.99, 0.0),
    ],
)
def test_a_quantile_lies_within_its_bucket(counts: tuple[int, ...], part: float, seconds: float | None) -> None:
    found = Lateness(BOUNDS, counts).quantile(part)
    assert found == seconds if seconds is None else found == pytest.approx(seconds)


def test_counts_of_several_leaders_are_added() -> None:
    topic = TopicOverview(name="t", kind="timer", partitions=3)
    topic.add(row("t", 1, group(ready=5, consumers=2), lateness=(1, 10)), BOUNDS)
    topic.add(row("t", 1, group(ready=7, reason="it is paused"), group("other"), lateness=(1, 5, 4, 1)), BOUNDS)
    assert (topic.led, topic.messages, topic.delayed, topic.bytes, topic.stored) == (2, 20, 8, 200, 10)
    assert topic.lateness == Lateness(BOUNDS, (0, 15, 0, 0, 1))
    found = topic.groups["g"]
    assert (found.ready, found.consumers, found.paused, found.reason) == (12, 2, True, "it is paused")
    assert found.oldest_ms == 993
    assert topic.lag == found.lag == 12 + 4 + 6
    assert topic.group_count == 2


def test_group_has_the_latest_error_and_the_sum_of_kept_messages() -> None:
    topic = TopicOverview(name="t", kind="timer", partitions=3)
    failed = group()._replace(push="pushing", push_error="503", push_error_ms=2000)
    topic.add(row("t", 1, failed)._replace(replicas=3), BOUNDS)
    topic.add(
        row("t", 1, failed._replace(push_error="500", push_error_ms=1000, unfinished=4))._replace(replicas=3), BOUNDS
    )
    topic.add(row("t", 1, group()._replace(unfinished=3))._replace(replicas=3), BOUNDS)
    found = topic.groups["g"]
    assert (found.push_error, found.push_error_ms, found.unfinished, topic.replicas) == ("503", 2000, 7, 3)


def test_a_topic_without_groups_lags_by_nothing() -> None:
    assert TopicOverview(name="t", kind="timer", partitions=1).lag == 0
    assert GroupOverview(group="g").lag == 0


def test_buckets_of_another_version_are_not_mixed() -> None:
    known = _plus(Lateness((), ()), (0, 3), BOUNDS)
    assert _plus(known, (0, 3), (5.0,)) == known


def test_slots_of_several_nodes_are_added() -> None:
    slot = _added(None, HistoryRow(60_000, 1, 2, 3, 4, (1, 2)), BOUNDS)
    slot = _added(slot, HistoryRow(60_000, 1, 2, 3, 4, (1, 2)), BOUNDS)
    assert slot[:5] == (60_000, 2, 4, 6, 8)
    assert sum(slot.lateness.counts) == 4


def test_further_fields_are_passed_over_and_other_things_refused() -> None:
    told = [0, 1, [[*row("t", 1, group()), "new"]], None, 5, 10_000, [1.0], "new"]
    told[2][0][17] = [[*group(), "new"]]  # type: ignore[index]
    reply = OverviewReply.parse(told)
    assert reply.rows == [row("t", 1, group())._replace(furthest=[group()])]
    for frame in ([0, 1, 5, None, 5, 5, []], [0, 1], [0, 1, [["t"]], None, 5, 5, []]):
        with pytest.raises(ProtocolError):
            OverviewReply.parse(frame)
    assert HistoryReply.parse([0, 1, [[5, 1, 1, 1, 1, [], "new"]], 30_000, [1]]).rows == [HistoryRow(5, 1, 1, 1, 1, [])]
    with pytest.raises(ProtocolError):
        HistoryReply.parse([0, 1, [[5]], 30_000, [1]])


class Nodes(OverviewAdmin):
    """Four nodes: a working node, a node of an older version, a node that cannot answer now, and a node that is
    down."""

    _cluster: Any = None

    async def cluster(self, node: str | None = None, *, timeout: Any = None) -> dict[str, Any]:  # noqa: ASYNC109
        return {"nodes": [{"node": name, "up": name != "gone"} for name in ("new", "old", "busy", "gone")]}

    def _introduce(self, node: str, rows: Any) -> None:
        """Do nothing: the topics are known."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the requests that `new` got; it replies with two pages."""
    found: list[Any] = []

    async def call(cluster: Any, request: Any, *, node_id: str) -> list[Any]:
        if node_id == "old":
            raise InvalidRequest(unknown_request(request.type))
        if node_id == "busy":
            raise Unavailable("it is starting")
        found.append(tuple(request))
        if request.type == Type.TOPIC_HISTORY:
            if request.topic == "none":
                raise UnknownTopic("there is no topic", topic="none")
            return [0, 1, [[60_000, 1, 2, 3, 4, []]], 30_000, list(BOUNDS)]
        name, following = ("b", None) if request.after else ("a", "a")
        return [0, 1, [list(row(name, 1, group()))], following, 7, 10_000, list(BOUNDS)]

    monkeypatch.setattr(module, "call", call)
    return found


async def test_pages_are_followed_and_silent_nodes_are_named(asked: list[Any]) -> None:
    seen = await Nodes().overview()
    assert asked == [(None,), ("a",)]
    assert [*seen.topics] == ["a", "b"]
    assert seen.missing == {
        "old": "its version does not report it",
        "busy": "it is starting",
        "gone": "it cannot be reached",
    }


@pytest.mark.parametrize("ask", [lambda nodes: nodes.overview(), lambda nodes: nodes.history("t")])
async def test_a_node_that_hangs_keeps_nothing_back(
    asked: list[Any], monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.abc.Clock, ask: Any
) -> None:
    answers = module.call

    async def call(cluster: Any, request: Any, *, node_id: str) -> Any:
        if node_id != "new":
            await trio.sleep_forever()
        return await answers(cluster, request, node_id=node_id)

    monkeypatch.setattr(module, "call", call)
    seen = await ask(Nodes())
    assert asked and trio.current_time() <= 2 * module.NODE_S
    assert seen.missing["busy"] == seen.missing["old"] == "it does not answer in 5 s"


async def test_error_not_about_a_node_is_raised_unchanged(asked: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    async def call(cluster: Any, request: Any, *, node_id: str) -> Any:
        raise Unauthenticated("the token is no more")

    monkeypatch.setattr(module, "call", call)
    with pytest.raises(Unauthenticated):
        await Nodes().overview()


async def test_a_history_is_of_a_topic_that_is_there(asked: list[Any]) -> None:
    found = await Nodes().history("t")
    assert (found.slot_ms, [slot.sent for slot in found.slots], sorted(found.missing)) == (
        30_000,
        [2],
        ["busy", "gone", "old"],
    )
    with pytest.raises(UnknownTopic):
        await Nodes().history("none")
