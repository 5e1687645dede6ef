"""Tests of cluster watchers: they share one poll. Each gets the parts that it may read once, and then the changes."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import anyio
import pytest
import trio

from sandq.client.admin import ClusterOverview, GroupOverview, TopicOverview
from sandq.model.access import Access
from sandq.model.errors import Overloaded, Unavailable
from sandq.server.http.cluster_watch import (
    EVENT_BYTES,
    REFRESH_S,
    WATCHERS_MOST,
    WATCHERS_SHARE,
    ClusterView,
    ClusterWatch,
    Watcher,
    next_view,
)

INFO = {"cluster": "c", "node": "node1", "nodes": [{"node": "node1", "up": True}]}


def seen(*topics: TopicOverview, missing: dict[str, str] | None = None) -> ClusterOverview:
    return ClusterOverview(0, 10_000, {topic.name: topic for topic in topics}, missing or {})


def topic(name: str, **given: Any) -> TopicOverview:
    return replace(TopicOverview(name=name, kind="timer", partitions=1, led=1), **given)


def reported(watcher: Watcher, view: ClusterView) -> dict[str, list[Any]]:
    """Return event name -> data of the events of one poll."""
    found: dict[str, list[Any]] = {}
    for event in watcher.events(view):
        first, second = event.decode().rstrip("\n").split("\n")
        assert len(event) < EVENT_BYTES + 4096
        found.setdefault(first.removeprefix("event: "), []).append(json.loads(second.removeprefix("data: ")))
    return found


def test_full_state_is_sent_once_and_then_changes() -> None:
    watcher = Watcher(None)
    look = next_view(None, INFO, seen(topic("a"), topic("b", messages=5)))
    first = reported(watcher, look)
    assert [row["topic"] for row in first["topics"][0]] == ["a", "b"]
    assert first["cluster"][0]["findings"] == []
    look = next_view(look, INFO, seen(topic("a"), topic("b", messages=6)))
    second = reported(watcher, look)
    assert [(row["topic"], row["messages"]) for row in second["topics"][0]] == [("b", 6)]
    assert "cluster" not in second
    assert reported(watcher, next_view(look, INFO, seen(topic("a")))) == {"gone": [["b"]], "look": second["look"]}


def test_watcher_that_missed_a_poll_gets_all_changes() -> None:
    watcher = Watcher(None)
    look = next_view(None, INFO, seen(topic("a"), topic("b")))
    reported(watcher, look)
    look = next_view(look, INFO, seen(topic("a", messages=1), topic("b")))
    look = next_view(look, INFO, seen(topic("a", messages=1), topic("b", messages=2)))
    assert [row["topic"] for row in reported(watcher, look)["topics"][0]] == ["a", "b"]


def test_watcher_gets_only_permitted_rows() -> None:
    groups = {"g": GroupOverview(group="g", ready=3)}
    look = next_view(None, INFO, seen(topic("open.a", groups=groups), topic("shut.b", groups=groups)))
    found = reported(Watcher(Access.of("token:x", ["read:open.*"], {})), look)
    assert [row["topic"] for row in found["topics"][0]] == ["open.a"]
    assert [one["topic"] for one in found["cluster"][0]["findings"]] == ["open.a"]
    found = reported(Watcher(Access.of("token:x", ["produce:open.*"], {})), look)
    assert "topics" not in found and found["cluster"][0]["findings"] == []


def test_events_have_a_bounded_size() -> None:
    look = next_view(None, INFO, seen(*[topic(f"t{number:04}") for number in range(1000)]))
    pieces = reported(Watcher(None), look)["topics"]
    assert len(pieces) > 4
    assert sum(len(piece) for piece in pieces) == 1000


def test_findings_name_paused_groups_and_missing_nodes() -> None:
    stands = {"g": GroupOverview(group="g", ready=1, paused=True, reason="it is paused", dead=2)}
    look = next_view(
        None,
        {**INFO, "nodes": [{"node": "node2", "up": False}], "clock_alarm": True},
        seen(topic("a", groups=stands, partitions=3), missing={"node2": "it cannot be reached"}),
    )
    found = reported(Watcher(None), look)["cluster"][0]["findings"]
    assert [one["state"] for one in found] == ["failed"] * 3 + ["warning"] * 2
    texts = " | ".join(one["found"] for one in found)
    for part in (
        "node2 cannot be reached",
        "clock is in alarm",
        "2 of 3 partitions of a",
        "gets no new messages",
    ):
        assert part in texts
    assert any("sandctl group resume a g" in one["todo"] for one in found)


def test_topics_of_silent_node_are_not_reported_without_leader() -> None:
    missing = {"node3": "its version does not report it"}
    look = next_view(None, INFO, seen(topic("a", partitions=3), missing=missing))
    (found,) = reported(Watcher(None), look)["cluster"][0]["findings"]
    assert (found["state"], found["what"]) == ("warning", "nodes")
    assert "node3 does not report its topics" in found["found"]


class Admin:
    """A cluster that counts its refreshes."""

    def __init__(self) -> None:
        self.polls = 0
        self.error: Unavailable | None = None

    async def cluster(self) -> dict[str, Any]:
        if self.error is not None:
            raise self.error
        return INFO

    async def overview(self) -> ClusterOverview:
        self.polls += 1
        return seen(topic("a", messages=self.polls))


class Client:
    def __init__(self) -> None:
        self.admin = Admin()


async def test_watchers_share_a_poll_and_there_is_none_without_watchers(autojump_clock: trio.abc.Clock) -> None:
    client: Any = Client()
    watch = ClusterWatch(client)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        await anyio.sleep(10 * REFRESH_S)
        assert client.admin.polls == 0
        with watch.watching("ada"), watch.watching("bob"):
            assert (await watch.next(0)).number == (await watch.next(0)).number == 1
            assert (await watch.next(1)).number == 2
            assert client.admin.polls == 2
        await anyio.sleep(10 * REFRESH_S)
        assert client.admin.polls <= 3
        await watch.refresh()
        assert (await watch.refresh()) is (await watch.refresh())
        tasks.cancel_scope.cancel()


async def test_later_watcher_gets_no_old_state(autojump_clock: trio.abc.Clock) -> None:
    client: Any = Client()
    watch = ClusterWatch(client)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        with watch.watching("ada"):
            await watch.next(0)
        await anyio.sleep(3600)
        before = client.admin.polls
        with watch.watching("ada"):
            view = await watch.next(0)
        assert client.admin.polls == before + 1
        assert view.overview.topics["a"].messages == client.admin.polls
        tasks.cancel_scope.cancel()


async def test_watchers_get_the_error_of_a_failed_poll(autojump_clock: trio.abc.Clock) -> None:
    client: Any = Client()
    client.admin.error = Unavailable("no node answers")
    watch = ClusterWatch(client)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        with watch.watching("ada"):
            with pytest.raises(Unavailable):
                await watch.next(0)
            client.admin.error = None
            assert (await watch.next(0)).number == 1
        tasks.cancel_scope.cancel()


async def test_watchers_are_limited() -> None:
    client: Any = Client()
    watch = ClusterWatch(client)
    with ExitStack() as watching:
        for number in range(WATCHERS_MOST):
            watching.enter_context(watch.watching(f"caller {number // WATCHERS_SHARE}"))
        with pytest.raises(Overloaded, match="64 streams watch"), watch.watching("another"):
            pass
    with watch.watching("ada"):
        pass


async def test_streams_per_principal_are_limited() -> None:
    client: Any = Client()
    watch = ClusterWatch(client)
    with ExitStack() as watching:
        for _ in range(WATCHERS_SHARE):
            watching.enter_context(watch.watching("ada"))
        with pytest.raises(Overloaded, match="streams of ada"), watch.watching("ada"):
            pass
        with watch.watching("bob"):
            pass
    with watch.watching("ada"):
        pass
