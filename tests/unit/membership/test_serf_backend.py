"""Tests of the backend `serf` with a scripted agent: the nodes that it lists, the tags that it sets, the failures that
it survives, and its cleanup."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from sandq.membership import serf_backend
from sandq.membership.serf_backend import COALESCE_S, SerfMembership
from sandq.model.config_types import Address
from sandq.model.errors import InvalidRequest, StartupError, TooLarge, Unavailable
from sandq.model.membership import Change, Member, State
from tests.support.gossip.fake_serf_agent import FakeAgent, header, listed, running
from tests.support.stopped_time import loop_clock
from tests.support.waiting import until_holds

OURS = frozenset({"id", "zone", "client"})
REFRESH_S = 0.2
OLD_MS, NEW_MS = 1_000, 2_000


class Clock:
    def __init__(self) -> None:
        self.ms = OLD_MS

    def __call__(self) -> int:
        return self.ms


@pytest.fixture
def clock() -> Clock:
    return Clock()


# Agent and client run in this process, so delays of the machine must not count.
__all__ = ["loop_clock"]


@pytest.fixture
def log() -> Iterator[list[Any]]:
    with capture_logs() as captured:
        yield captured


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serf_backend, "PAUSE_S", 0.01)
    monkeypatch.setattr(serf_backend, "PAUSE_MOST_S", 0.05)


def warnings(log: list[Any]) -> list[str]:
    return [entry["event"] for entry in log if entry["log_level"] == "warning"]


def of(agent: FakeAgent, clock: Clock, **options: Any) -> SerfMembership:
    settings: dict[str, Any] = {"ours": OURS, "tags": {"id": "1"}, "refresh_s": REFRESH_S, **options}
    return SerfMembership(agent.address, agent.auth_key, now_ms=clock, **settings)


@asynccontextmanager
async def joined_to(agent: FakeAgent, clock: Clock, **options: Any) -> AsyncIterator[SerfMembership]:
    """A backend that runs on a running agent."""
    membership = of(agent, clock, **options)
    async with running(agent) as nursery:
        await nursery.start(membership.run)
        yield membership


def member(name: str, state: State = State.ALIVE, since_ms: int = OLD_MS, **tags: str) -> Member:
    return Member(name, Address("127.0.0.1", 7946), tags, state, since_ms)


# ------------------------------------------------------------------------------------------------------------- members


async def test_members_are_listed_with_translated_states(clock: Clock) -> None:
    agent = FakeAgent()
    for status in ("alive", "leaving", "left", "failed"):
        agent.members[f"is-{status}"] = listed(f"is-{status}", status)
    async with joined_to(agent, clock) as membership:
        assert membership.name == "agent1"
        assert membership.members() == {
            "agent1": member("agent1", id="1"),
            "is-alive": member("is-alive"),
            "is-failed": member("is-failed", State.FAILED),
            "is-leaving": member("is-leaving", State.LEAVING),
            "is-left": member("is-left", State.LEFT),
        }


async def test_since_is_of_the_state(clock: Clock) -> None:
    agent = FakeAgent()
    agent.members["b"] = listed("b")
    async with joined_to(agent, clock) as membership:
        changes = membership.changes()
        assert len(await anext(changes)) == 2
        clock.ms = NEW_MS
        await agent.happens(b=listed("b", zone="x"))
        assert await anext(changes) == [Change(member("b", zone="x"))]
        await agent.happens(b=listed("b", "failed", zone="x"))
        assert await anext(changes) == [Change(member("b", State.FAILED, NEW_MS, zone="x"))]
        await agent.happens(b=None)
        assert await anext(changes) == [Change(member("b", State.FAILED, NEW_MS, zone="x"), gone=True)]


async def test_unknown_status_is_logged_once(clock: Clock, log: list[Any]) -> None:
    agent = FakeAgent()
    agent.members["b"] = listed("b", "none")
    async with joined_to(agent, clock) as membership:
        await until_holds(lambda: agent.count("members") > 4)
        assert list(membership.members()) == ["agent1"]
        await agent.happens(b=listed("b"))
        await until_holds(lambda: "b" in membership.members())
    assert [entry["status"] for entry in log if entry["event"] == "a member of the Serf agent is left out"] == ["none"]


async def test_many_events_are_few_readings(clock: Clock) -> None:
    agent = FakeAgent()
    async with joined_to(agent, clock) as membership:
        readings, began_s = agent.count("members"), trio.current_time()
        for number in range(100):
            await agent.happens(b=listed("b", zone=str(number)))
            await trio.sleep(0.002)
        await until_holds(lambda: membership.members()["b"].tags == {"zone": "99"})
        lasted_s = trio.current_time() - began_s
        assert 2 <= agent.count("members") - readings <= 2 + lasted_s / COALESCE_S


async def test_an_event_is_not_waited_for_and_one_is_enough(clock: Clock) -> None:
    agent = FakeAgent()
    async with joined_to(agent, clock) as membership:
        await agent.happens(is_streamed=False, b=listed("b"))
        await until_holds(lambda: "b" in membership.members())
    agent = FakeAgent()
    async with joined_to(agent, clock, refresh_s=1000.0) as membership:
        await agent.happens(b=listed("b"))
        await until_holds(lambda: "b" in membership.members())


# ------------------------------------------------------------------------------------------------------- missing agent


async def test_absent_agent_is_awaited_and_logged_once(clock: Clock, log: list[Any]) -> None:
    agent = FakeAgent()
    membership = of(agent, clock)
    async with trio.open_nursery() as nursery:

        async def start_late() -> None:
            await until_holds(lambda: warnings(log))
            await trio.sleep(0.1)  # some more attempts
            assert (membership.name, dict(membership.members())) == ("", {})
            await nursery.start(agent.run)

        nursery.start_soon(start_late)
        await nursery.start(membership.run)
        assert membership.name == "agent1"
        nursery.cancel_scope.cancel()
    assert warnings(log) == ["there is no connection to the Serf agent"]
    assert str(agent.address) in log[0]["error"]


async def test_members_stay_while_the_agent_is_away_and_tags_come_back(clock: Clock, log: list[Any]) -> None:
    agent = FakeAgent()
    agent.members["b"] = listed("b")
    async with joined_to(agent, clock) as membership, trio.open_nursery() as nursery:
        known = membership.members()
        clock.ms = NEW_MS
        agent.stop()
        await until_holds(lambda: warnings(log))
        await trio.sleep(0.1)
        assert membership.members() == known
        await membership.set_tags({"zone": "x"})
        agent.members[agent.name] = listed(agent.name, role="web")  # as the agent's configuration says
        await nursery.start(agent.run)
        await until_holds(lambda: agent.tags == {"role": "web", "zone": "x"})
        await until_holds(lambda: membership.members()["agent1"] == member("agent1", role="web", zone="x"))
        assert membership.members()["b"] == known["b"]
        nursery.cancel_scope.cancel()
    assert warnings(log) == ["there is no connection to the Serf agent"]


@pytest.mark.parametrize("command", ["members", "stream", "handshake"])
async def test_an_agent_that_goes_mad_is_left_and_tried_again(clock: Clock, log: list[Any], command: str) -> None:
    agent = FakeAgent()
    async with joined_to(agent, clock) as membership:
        agent.spoiled[command] = b"mad"
        agent.spoiled["stats"] = b""
        if command != "members":
            agent.spoiled["members"] = b""
        await until_holds(lambda: agent.accepted > 5)
        assert list(membership.members()) == ["agent1"]
        agent.spoiled.clear()
        await agent.happens(is_streamed=False, b=listed("b"))
        await until_holds(lambda: "b" in membership.members())
    assert len(warnings(log)) <= 2, "lost, and mad"


async def test_an_agent_that_does_not_let_in_ends_the_start_only(clock: Clock, log: list[Any]) -> None:
    agent = FakeAgent(auth_key="secret")
    membership = SerfMembership(agent.address, "guess", ours=OURS, tags={}, now_ms=clock)
    with pytest.raises(BaseExceptionGroup) as caught:
        async with running(agent) as nursery:
            await nursery.start(membership.run)
    assert caught.group_contains(StartupError, match="rpc_auth")
    agent = FakeAgent(auth_key="secret")
    async with joined_to(agent, clock) as membership, trio.open_nursery() as nursery:
        agent.stop()
        agent.auth_key = "another"
        await until_holds(lambda: warnings(log))
        await nursery.start(agent.run)
        await until_holds(lambda: len(warnings(log)) == 2)
        assert "rpc_auth" in log[-1]["error"] and list(membership.members()) == ["agent1"]
        nursery.cancel_scope.cancel()


# ---------------------------------------------------------------------------------------------------------------- tags


async def test_tags_of_others_stay_and_ours_are_replaced(clock: Clock) -> None:
    agent = FakeAgent()
    agent.members[agent.name] = listed(agent.name, role="web", zone="of an earlier run")
    async with joined_to(agent, clock) as membership:
        assert agent.tags == membership.members()["agent1"].tags == {"role": "web", "id": "1"}
        await membership.set_tags({"zone": "x", "client": "127.0.0.1:7170"})
        expected = {"role": "web", "zone": "x", "client": "127.0.0.1:7170"}
        assert agent.tags == membership.members()["agent1"].tags == expected
        with pytest.raises(InvalidRequest, match="has no tags role"):
            await membership.set_tags({"role": "db"})
        with pytest.raises(TooLarge):
            await membership.set_tags({"zone": "x" * 600})
        assert agent.tags == expected
        await membership.leave()
        assert agent.tags == {"role": "web"}


async def test_tags_that_are_there_are_not_set_again(clock: Clock) -> None:
    agent = FakeAgent()
    agent.members[agent.name] = listed(agent.name, role="web", id="1")
    async with joined_to(agent, clock):
        await until_holds(lambda: agent.count("members") > 3)
    assert agent.count("tags") == 0


async def test_removed_tags_are_set_again(clock: Clock) -> None:
    """An agent that reloads its configuration has only the tags of the configuration."""
    agent = FakeAgent()
    async with joined_to(agent, clock):
        for _ in range(2):
            set_before = agent.count("tags")
            for _ in range(5):
                await agent.happens(agent1=listed("agent1", role="web"))
                await trio.sleep(0.02)
            await until_holds(lambda: agent.tags == {"role": "web", "id": "1"})
            assert agent.count("tags") - set_before <= 2


async def test_two_nodes_on_one_agent_do_not_race(clock: Clock) -> None:
    agent = FakeAgent()
    other = of(agent, clock, tags={"id": "2"})
    async with joined_to(agent, clock) as membership, trio.open_nursery() as nursery:
        began_s = trio.current_time()
        await nursery.start(other.run)
        for _ in range(25):
            await agent.happens()
            await trio.sleep(0.02)
        assert agent.count("tags") <= 2 + 2 * (trio.current_time() - began_s) / REFRESH_S
        assert membership.name == other.name
        nursery.cancel_scope.cancel()


async def test_tags_that_do_not_fit_are_refused(clock: Clock, log: list[Any]) -> None:
    agent = FakeAgent()
    agent.members[agent.name] = listed(agent.name, role="x" * 450)
    async with joined_to(agent, clock) as membership:
        agent.full = True
        with pytest.raises(TooLarge, match="role 4"):
            await membership.set_tags({"id": "1", "zone": "y" * 60})
        assert agent.tags["id"] == "1" and "zone" not in agent.tags
        await agent.happens(agent1=listed("agent1", role="x" * 510))
        await until_holds(lambda: agent.count("tags") > 4)
        assert warnings(log) == ["the Serf agent does not accept the tags of this node"]
        agent.full = False
        await until_holds(lambda: agent.tags.get("id") == "1")
        assert "zone" not in agent.tags, "refused tags are not tried again"


async def test_leave_without_agent_logs_the_remaining_tags(clock: Clock, log: list[Any]) -> None:
    agent = FakeAgent()
    async with joined_to(agent, clock) as membership, trio.open_nursery() as nursery:
        agent.stop()
        await until_holds(lambda: warnings(log))
        await membership.leave()
        assert warnings(log)[1:] == ["the tags of this node stay on the Serf agent"]
        assert agent.tags == {"id": "1"}
        await nursery.start(agent.run)
        await until_holds(lambda: agent.tags == {})
        nursery.cancel_scope.cancel()
    agent = FakeAgent()
    async with joined_to(agent, clock) as membership:
        agent.spoiled["tags"] = lambda seq: header(seq, "not now")
        await membership.leave()
    assert "not now" in log[-1]["error"]


# ---------------------------------------------------------------------------------------------------------------- join


async def test_join_counts_reached_seeds_and_names_the_others(clock: Clock) -> None:
    agent = FakeAgent()
    agent.seeds = {"127.0.0.1:7001"}
    good, bad, worse = (Address("127.0.0.1", port) for port in (7001, 7002, 7003))
    async with joined_to(agent, clock) as membership:
        assert await membership.join([bad, good]) == 1
        assert "joined" in membership.members(), "at once"
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:7002 .*refused.*; 127\.0\.0\.1:7003 .*refused"):
            await membership.join([bad, worse])
        assert await membership.join([]) == 0


async def test_a_seed_that_does_not_answer_holds_up_nothing_else(clock: Clock) -> None:
    agent = FakeAgent()
    agent.spoiled["join"] = None
    async with joined_to(agent, clock) as membership:
        answered = False

        async def join() -> None:
            nonlocal answered
            try:
                await membership.join([Address("127.0.0.1", 7001)])
            finally:
                answered = True

        async with trio.open_nursery() as nursery:
            nursery.start_soon(join)
            await until_holds(lambda: agent.count("join"))
            await membership.set_tags({"zone": "x"})
            await agent.happens(b=listed("b"))
            await until_holds(lambda: "b" in membership.members())
            assert not answered
            nursery.cancel_scope.cancel()
        assert agent.tags == {"zone": "x"} and "b" in membership.members()
