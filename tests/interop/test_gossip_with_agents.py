"""Members of the native backend and real Serf agents form one cluster, in plain text or encrypted."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from sandq.gossip import lzw
from sandq.gossip.keyring import Keyring
from sandq.gossip.packets import PACKET_BYTES
from sandq.gossip.steps import Steps
from sandq.membership.gossip_backend import GossipMembership
from sandq.model.errors import Unavailable
from sandq.model.gossip_timing import PROFILES
from sandq.model.membership import Member, State
from tests.support.gossip.gossip_bed import CLUSTER, QUICK, GossipBed, key_bytes
from tests.support.gossip.membership_contract import Follower
from tests.support.gossip.serf_agent import SerfAgent, new_key
from tests.support.waiting import PATIENCE_S, until_holds

pytestmark = pytest.mark.interop

LOOK_S = 0.01


def is_in(state: State) -> Callable[[Member], bool]:
    return lambda member: member.state is state


async def met(bed: GossipBed, **options: Any) -> tuple[GossipMembership, Follower, SerfAgent]:
    """Start the native member `a` and the agent `sa`, and wait until they list each other."""
    sa = await bed.agent("sa", role="web")
    a = await bed.start("a", {"id": "a"}, **options)
    follows = Follower(a.changes())
    assert await a.join([sa.gossip]) == 1
    await follows.until("sa", is_in(State.ALIVE))
    await sa.until("a", "alive", id="a")
    return a, follows, sa


# -- meeting ----------------------------------------------------------------------------------------------------------


async def test_joining_an_agent(bed: GossipBed) -> None:
    a, _, sa = await met(bed)
    seen, found = a.members()["sa"], (await sa.members())["a"]
    assert (seen.address, seen.tags) == (sa.gossip, {"role": "web"})
    assert found["addr"] == str(bed.address("a"))


async def test_an_agent_that_joins(bed: GossipBed) -> None:
    a = await bed.start("a", {"id": "a"})
    sa = await bed.agent("sa", joins=bed.address("a"), role="web")
    seen = await Follower(a.changes()).until("sa", is_in(State.ALIVE))
    assert (seen.address, seen.tags) == (sa.gossip, {"role": "web"})
    await sa.until("a", "alive", id="a")


async def test_agents_meet_through_a_native_member(bed: GossipBed) -> None:
    _, _, sa = await met(bed)
    sb = await bed.agent("sb", joins=bed.address("a"), role="db")
    await sa.until("sb", "alive", role="db")
    await sb.until("sa", "alive", role="web")


async def test_native_members_meet_through_an_agent(bed: GossipBed) -> None:
    _, follows, sa = await met(bed)
    b = await bed.start("b", {"id": "b"})
    await b.join([sa.gossip])
    assert (await follows.until("b", is_in(State.ALIVE))).tags == {"id": "b"}
    assert (await Follower(b.changes()).until("a", is_in(State.ALIVE))).tags == {"id": "a"}


async def test_tags_that_change(bed: GossipBed) -> None:
    a, follows, sa = await met(bed)
    await a.set_tags({"id": "a", "zone": "x"})
    await sa.until("a", "alive", zone="x")
    await sa.set_tags(role="db")
    await follows.until("sa", lambda member: member.tags == {"role": "db"})


# -- failing and leaving ----------------------------------------------------------------------------------------------


async def test_an_agent_fails_and_comes_back(bed: GossipBed) -> None:
    _, follows, sa = await met(bed)
    await sa.kill()
    await follows.until("sa", is_in(State.FAILED))
    await sa.start()
    # A failed member is contacted again, so no member has to join again.
    await follows.until("sa", is_in(State.ALIVE))
    await sa.until("a", "alive")


async def test_a_native_member_fails_and_comes_back(bed: GossipBed) -> None:
    _, _, sa = await met(bed)
    await bed.kill("a")
    await sa.until("a", "failed", id="a")
    a = await bed.start("a", {"id": "a", "run": "2"}, seeds=[sa.gossip])
    await Follower(a.changes()).until("sa", is_in(State.ALIVE))
    await sa.until("a", "alive", run="2")


async def test_an_agent_leaves_and_comes_back(bed: GossipBed) -> None:
    _, follows, sa = await met(bed)
    await sa.leave()
    await follows.until("sa", is_in(State.LEFT))
    await sa.start()
    await sa.join(bed.address("a"))
    await follows.until("sa", is_in(State.ALIVE))
    await sa.until("a", "alive")


async def test_a_native_member_leaves_and_comes_back(bed: GossipBed) -> None:
    _, _, sa = await met(bed)
    await bed.stop("a")
    await sa.until("a", "left")
    a = await bed.start("a", {"id": "a", "run": "2"})
    await a.join([sa.gossip])
    await sa.until("a", "alive", run="2")
    await Follower(a.changes()).until("sa", is_in(State.ALIVE))


async def test_restart_within_the_failure_timeout_is_alive_again(bed: GossipBed) -> None:
    """The member begins at incarnation 1, and must announce a higher incarnation than the others know."""
    a, _, sa = await met(bed)
    for run in range(20):
        await a.set_tags({"id": "a", "run": str(run)})
    await sa.until("a", "alive", run="19")
    await bed.kill("a")
    a = await bed.start("a", {"id": "a", "run": "again"}, seeds=[sa.gossip])
    await sa.until("a", "alive", run="again")
    # The member jumps to a higher incarnation than the known one, instead of counting up to it.
    assert 1 <= a.counts["refutations"] < 10
    assert (await Follower(a.changes()).until("a", lambda member: member.tags["run"] == "again")).state is State.ALIVE


async def test_an_agent_makes_a_failed_member_leave(bed: GossipBed) -> None:
    a, follows, sa = await met(bed)
    await bed.start("b", {"id": "b"}, seeds=[sa.gossip])
    await follows.until("b", is_in(State.ALIVE))
    await bed.kill("b")
    await follows.until("b", is_in(State.FAILED))
    await sa.until("b", "failed")
    await sa.force_leave("b")
    await follows.until("b", is_in(State.LEFT))
    assert a.members()["a"].state is State.ALIVE


@pytest.mark.parametrize("key", ["encrypted"], indirect=True)
async def test_a_leave_that_was_missed(bed: GossipBed) -> None:
    """Agents and native members are separated by keys for a while. Then each side reports which members have left."""
    a, follows, sa = await met(bed)
    b = await bed.start("b", {"id": "b"}, seeds=[bed.address("a")])
    sb = await bed.agent("sb", joins=sa.gossip)
    await follows.until("sb", is_in(State.ALIVE))
    await sa.until("b", "alive")
    await sb.kill()
    await follows.until("sb", is_in(State.FAILED))
    await sa.until("sb", "failed")
    other = Keyring([key_bytes(new_key())])
    for member in (a, b):
        member.use_keys(other)
    await bed.stop("b")
    await follows.until("b", is_in(State.LEFT))
    await sa.force_leave("sb")
    await sa.until("sb", "left")
    assert (await sa.members())["b"]["status"] != "left" and a.members()["sb"].state is State.FAILED
    assert bed.keyring is not None
    a.use_keys(bed.keyring)
    assert await a.join([sa.gossip]) == 1
    await sa.until("b", "left")
    await follows.until("sb", is_in(State.LEFT))
    await follows.until("sa", is_in(State.ALIVE))
    await sa.until("a", "alive")


# -- stalled processes ------------------------------------------------------------------------------------------------


async def test_agent_that_stalls_briefly_is_not_failed(bed: GossipBed) -> None:
    lan = PROFILES["lan"]
    # Probe often, but suspect a member for as long as the profile "lan" does.
    timing = dataclasses.replace(QUICK, suspicion_mult=int(lan.suspicion_s(2) / QUICK.probe_interval_s))
    _, follows, sa = await met(bed, timing=timing)
    states: list[State] = []

    async def read() -> None:
        states.extend(change.member.state for change in await follows.read() if change.member.name == "sa")

    sa.stall()
    with trio.fail_after(PATIENCE_S):
        while State.SUSPECT not in states:
            await read()
        sa.resume()
        while states[-1:] != [State.ALIVE]:
            await read()
    assert set(states) == {State.SUSPECT, State.ALIVE}
    await sa.until("a", "alive")


async def test_agent_that_stalls_fails_and_is_alive_again(bed: GossipBed) -> None:
    _, follows, sa = await met(bed)
    sb = await bed.agent("sb", joins=bed.address("a"))
    await sb.until("sa", "alive")
    sa.stall()
    await follows.until("sa", is_in(State.FAILED))
    await sb.until("sa", "failed")
    sa.resume()
    await follows.until("sa", is_in(State.ALIVE))
    await sb.until("sa", "alive")
    for name in ("a", "sb"):
        await sa.until(name, "alive")


# -- outsiders --------------------------------------------------------------------------------------------------------


async def test_an_agent_of_another_cluster_is_refused(bed: GossipBed) -> None:
    a = await bed.start("a", {"id": "a", "cluster": CLUSTER})
    with capture_logs() as logs:
        other = await bed.agent("other", joins=bed.address("a"), cluster="another")
        await other.until("a", "alive")
        await until_holds(lambda: a.counts["refused_cluster"] > 0)
    assert list(a.members()) == ["a"]
    assert rejections(logs) == [("other", "cluster")]
    with pytest.raises(Unavailable, match=r"other \(cluster\)"):
        await a.join([other.gossip])


async def test_agent_with_name_of_member_ends(bed: GossipBed) -> None:
    """In a name conflict, an agent asks all other members. If fewer than half confirm its address, it ends."""
    a, _, sa = await met(bed)
    with capture_logs() as logs:
        double = await bed.agent("a", joins=bed.address("a"))
        await until_holds(lambda: not double.is_running)
    assert "name conflict" in double.output()
    assert a.counts["refused_name_conflict"] >= 1 and rejections(logs) == [("a", "name_conflict")]
    assert (await sa.until("a", "alive", id="a"))["addr"] == str(bed.address("a"))
    assert a.members()["a"].address == bed.address("a")


async def test_two_native_members_of_one_name(bed: GossipBed) -> None:
    """The second member logs an error, and both members continue."""
    a, _, sa = await met(bed)
    with capture_logs() as logs:
        await bed.start("double", {"id": "a", "store": "another"}, called="a", seeds=[sa.gossip])
        await until_holds(lambda: bool(rejections(logs)))
    assert rejections(logs) == [("a", "name_conflict")]
    assert (await sa.until("a", "alive"))["addr"] == str(bed.address("a"))
    assert a.members()["a"].address == bed.address("a")


def rejections(logs: list[Any]) -> list[tuple[str, str]]:
    """Return (member, reason) for each rejected message."""
    return [(entry["member"], entry["reason"]) for entry in logs if "reason" in entry]


# -- other messages of agents-----------------------------------------------------------------------------------------


async def test_events_and_queries_do_no_harm(bed: GossipBed) -> None:
    a, follows, sa = await met(bed)
    for say in (sa.event, sa.query):
        before = a.counts["not_spoken"]
        await say("deploy")
        await until_holds(lambda: a.counts["not_spoken"] > before)  # noqa: B023 - called before it changes
    # An agent sends earlier events to a member that joins.
    b = await bed.start("b", {"id": "b"})
    assert await b.join([sa.gossip]) == 1
    await follows.until("b", is_in(State.ALIVE))
    assert [member.counts["malformed"] for member in (a, b)] == [0, 0]


async def test_compressed_state_of_an_agent_is_read(bed: GossipBed, monkeypatch: pytest.MonkeyPatch) -> None:
    inflated: list[int] = []
    decoding = lzw.decoding

    def spy(data: bytes, limit: int) -> Steps[bytes]:
        found = yield from decoding(data, limit)
        inflated.append(len(found))
        return found

    names = [f"n{number}" for number in range(1, 16)]
    members = [await bed.start(name, {"id": name, "zone": f"a zone of {name}"}) for name in names]
    for member in members[1:]:
        await member.join([bed.address("n1")])
    monkeypatch.setattr(lzw, "decoding", spy)
    sa = await bed.agent("sa", joins=bed.address("n1"))
    late = await bed.start("late", {"id": "late"})
    assert await late.join([sa.gossip]) == 1
    # The data are larger than a datagram, so they arrived over a stream.
    assert max(inflated) > PACKET_BYTES
    everybody = sorted([*names, "sa", "late"])
    for member in (*members, late):
        for name in everybody:
            await Follower(member.changes()).until(name, is_in(State.ALIVE))
    for name in everybody:
        await sa.until(name, "alive")
    assert all(member.counts["malformed"] == 0 for member in (*members, late))


# -- keys -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["encrypted"], indirect=True)
async def test_keys_are_changed_while_all_run(bed: GossipBed) -> None:
    old, new = bed.key, new_key()
    assert old is not None
    sa = await bed.agent("sa", keyring=[old])
    a = await bed.start("a", {"id": "a"}, seeds=[sa.gossip])
    follows = Follower(a.changes())
    await sa.until("a", "alive")

    async def use(*keys: str) -> None:
        a.use_keys(Keyring([key_bytes(key) for key in keys]))

    for number, step in enumerate(
        (
            lambda: use(old, new),
            lambda: sa.change_keys("install", new),
            lambda: use(new, old),
            lambda: sa.change_keys("use", new),
            lambda: sa.change_keys("remove", old),
            lambda: use(new),
        )
    ):
        await step()
        await a.set_tags({"id": "a", "step": str(number)})
        await sa.until("a", "alive", step=str(number))
        await sa.set_tags(step=str(number))
        await follows.until("sa", lambda member: member.tags["step"] == str(number))  # noqa: B023 - as above
        assert await a.join([sa.gossip]) == 1
    assert a.counts["malformed"] == 0


@pytest.mark.parametrize("key", ["encrypted"], indirect=True)
@pytest.mark.parametrize("theirs", ["another key", "no key"])
async def test_member_without_the_key_cannot_join(bed: GossipBed, theirs: str) -> None:
    sa = await bed.agent("sa")
    ring = Keyring([key_bytes(new_key())]) if theirs == "another key" else None
    a = await bed.start("a", {"id": "a"}, keyring=ring)
    with pytest.raises(Unavailable, match="no seed answered"):
        await a.join([sa.gossip])
    with pytest.raises(AssertionError, match="serf join"):
        await sa.join(bed.address("a"))
    assert list(a.members()) == ["a"] and list(await sa.members()) == ["sa"]
