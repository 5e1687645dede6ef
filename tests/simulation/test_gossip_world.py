"""On a network that works, gossip shows joins, leaves, crashes and changed tags in time."""

from __future__ import annotations

import dataclasses

import pytest

from sandq.gossip.keyring import Keyring
from sandq.model.config_types import Address
from sandq.model.gossip_timing import PROFILES
from sandq.model.membership import State
from tests.support.simulation.gossip_world import Member, World, acquainted
from tests.support.simulation.seeds import few_of

SEEDS = few_of(range(6), 3)


def change_tags(world: World, member: Member, **tags: str) -> None:
    own = member.core.records[member.core.name].tags
    member.core.set_tags({**own, **tags})
    world.step(member)


def seen(world: World, name: str, tag: str, value: str) -> bool:
    return all(m.core.records[name].tags.get(tag) == value for m in world.members.values())


@pytest.mark.parametrize("count", [2, 3, 5, 10, 20, 50])
@pytest.mark.parametrize("seed", few_of([1, 2], 1))
def test_joined_members_know_each_other(count: int, seed: int) -> None:
    world = World(seed)
    world.add("n0")
    for number in range(1, count):
        world.add(f"n{number}")
        assert world.join(f"n{number}", f"n{world.rng.randrange(number)}")
    # By chance, a message may not reach one of many members. The member then learns of it by a comparison.
    assert world.run(90, world.agree) < (2.0 if count <= 10 else 65.0)
    world.run(30)
    assert world.agree() and not world.believed_somewhere(State.SUSPECT, State.FAILED)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("loss", [0.0, 0.1])
@pytest.mark.parametrize(("profile", "within_s"), [("lan", 10.0), ("fast", 5.0)])
def test_a_crash_is_seen_in_time(profile: str, within_s: float, loss: float, seed: int) -> None:
    world = acquainted((3, 5, 10)[seed % 3], seed, timing=PROFILES[profile], loss=loss)
    world.run(3 + world.rng.random())
    world.crash("n1")
    assert world.run(60, lambda: world.all_believe("n1", State.FAILED)) < within_s
    assert {about for *_, about, state in world.history if state == State.FAILED} == {"n1"}


@pytest.mark.parametrize("seed", SEEDS)
def test_several_crashes_at_once_are_seen(seed: int) -> None:
    world = acquainted(10, seed)
    world.run(3)
    gone = ["n1", "n4", "n5", "n8"]
    for name in gone:
        world.crash(name)
    assert world.run(60, lambda: all(world.all_believe(name, State.FAILED) for name in gone)) < 20.0
    assert {about for *_, about, state in world.history if state == State.FAILED} == set(gone)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("loss", [0.0, 0.05])
def test_new_tags_and_a_leave_are_seen_at_once(loss: float, seed: int) -> None:
    world = acquainted(10, seed, loss=loss)
    world.run(3)
    change_tags(world, world.members["n2"], zone="new")
    assert world.run(10, lambda: seen(world, "n2", "zone", "new")) < 2.0
    leaving = world.members["n3"]
    took = world.leave("n3")
    assert took + world.run(10, lambda: world.all_believe("n3", State.LEFT)) < 2.0
    assert not [line for line in world.history if line[2] == "n3" and line[3] == State.FAILED]
    world.crash("n3")
    world.run(60)
    assert world.all_believe("n3", State.LEFT) and leaving.core.counts["refutations"] == 0


def test_leave_of_last_member_ends_without_peers() -> None:
    world = acquainted(2, 1)
    world.run(3)
    world.leave("n0")
    assert world.run(5, lambda: world.all_believe("n0", State.LEFT)) < 1.0
    world.crash("n0")
    world.leave("n1")
    world.run(60)
    assert world.members["n1"].believes("n1") == State.LEFT


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("elsewhere", [False, True])
@pytest.mark.parametrize("how", ["crashed just now", "failed", "failed long ago", "left"])
def test_returning_member_is_alive_again(how: str, elsewhere: bool, seed: int) -> None:
    """The returning member begins at incarnation 1, and the others know a higher incarnation of its earlier life."""
    world = acquainted(5, seed)
    member = world.members["n1"]
    for number in range(5):
        change_tags(world, member, zone=str(number))
    world.run(3)
    if how == "left":
        world.leave("n1")
    world.crash("n1")
    world.run({"crashed just now": 0.5, "left": 5.0, "failed": 12.0, "failed long ago": 90.0}[how])
    world.add("n1", address=None if elsewhere else member.address)
    assert world.join("n1", "n3")
    back = world.members["n1"]

    def is_back() -> bool:
        believed = [m.core.records["n1"] for m in world.members.values()]
        return world.agree() and all((r.meta, r.address) == (own.meta, back.address) for r in believed)

    own = back.core.records["n1"]
    assert world.run(30, is_back) < 5.0
    world.run(60)
    assert is_back(), "no old belief returns"


def test_another_machine_takes_a_name_only_after_a_long_absence() -> None:
    world = acquainted(5, 1)
    world.run(3)
    world.crash("n1")
    world.run(10)
    tags = {"cluster": "sandq", "id": "n1", "store": "of another"}
    address = Address("10.7.7.7", 9900)
    world.add("n1", tags, address)
    world.join("n1", "n3")
    world.run(5)
    assert all(m.believes("n1") == State.FAILED for name, m in world.members.items() if name != "n1")
    assert any("n1" in m.core.refusals for m in world.members.values())
    assert world.run(300, world.agree) < 120.0
    assert all(m.core.records["n1"].address == address for m in world.members.values())


def test_members_of_another_cluster_stay_separate() -> None:
    world = acquainted(3, 1)
    world.add("x0", cluster="another")
    world.add("x1", cluster="another")
    world.join("x1", "x0")
    for name in ("x0", "x1"):
        world.join(name, "n0")
    world.run(60)
    for name, member in world.members.items():
        alike = {other for other in world.members if other[0] == name[0]}
        assert set(member.core.records) == alike and all(member.believes(other) == State.ALIVE for other in alike)
    assert world.members["n0"].core.counts["refused_cluster"] >= 2


# ------------------------------------------------------------------------------------------------------- encryption


def test_encrypted_gossip_works_like_plain_gossip() -> None:
    world = acquainted(10, 3, keys=Keyring([bytes(32)]))
    world.run(3)
    change_tags(world, world.members["n2"], zone="new")
    assert world.run(10, lambda: seen(world, "n2", "zone", "new")) < 2.0
    world.crash("n1")
    assert world.run(60, lambda: world.all_believe("n1", State.FAILED)) < 10.0


@pytest.mark.parametrize("keys", [None, Keyring([bytes(31) + b"x"])], ids=["none", "another"])
def test_outsider_without_the_key_changes_nothing(keys: Keyring | None) -> None:
    world = acquainted(5, 5, keys=Keyring([bytes(32)]))
    names = list(world.members)
    outsider = world.add("n9", keys=keys)
    # The outsider knows the members. The members do not know the outsider.
    outsider.core.on_push_pull(world.now, world.members["n0"].core.push_pull(False))
    world.history.clear()
    world.run(60)
    assert {who for _, who, *_ in world.history} == {"n9"}
    assert all(world.members[name].core.counts["malformed"] > 5 for name in names)
    assert all(outsider.believes(name) == State.FAILED for name in names)


# ------------------------------------------------------------------------------------------------------------- many


@pytest.mark.parametrize("count", few_of([200, 1000], 1))
def test_many_members(count: int) -> None:
    seconds = 3.0
    # Streams take CPU time. Real machines have their own cores; here all members share one, so use few streams.
    timing = dataclasses.replace(PROFILES["lan"], push_pull_interval_s=3600.0)
    world = acquainted(count, 11, timing=timing, loss=0.01)
    world.run(1)
    packets = world.packets
    world.run(seconds)
    a_second = (world.packets - packets) / seconds / count
    assert a_second < 2.5, "each member sends about one ping and one answer per second"
    world.crash("n3")
    crashed = world.now
    world.run(0.5)
    change_tags(world, world.members["n150"], zone="new")
    assert world.run(10, lambda: seen(world, "n150", "zone", "new")) < 2.0
    took = world.leave("n170")
    assert took + world.run(10, lambda: world.all_believe("n170", State.LEFT)) < 3.0
    world.crash("n170")
    world.run(60, lambda: world.all_believe("n3", State.FAILED))
    assert world.now - crashed < 20.0
    assert world.all_believe("n170", State.LEFT)
    assert not {about for *_, about, state in world.history if state == State.FAILED} - {"n3"}
