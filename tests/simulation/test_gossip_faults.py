"""Gossip with faults of the network or of processes: live members do not count as failed, and all members agree in the
end."""

from __future__ import annotations

import pytest

from sandq.model.config_types import Address
from sandq.model.gossip_timing import PROFILES
from sandq.model.membership import State
from tests.support.simulation.gossip_world import Member, World, acquainted
from tests.support.simulation.seeds import few_of

LAN = PROFILES["lan"]


def failed(world: World) -> set[tuple[str, str]]:
    """Return (member, name) for each member that ever believed that a name had failed."""
    return {(who, about) for _, who, about, state in world.history if state == State.FAILED}


def count(world: World, what: str) -> int:
    return sum(member.core.counts[what] for member in world.members.values())


# ------------------------------------------------------------------------------------------------------------- loss


@pytest.mark.parametrize(
    ("loss", "stream_loss", "falsely"),
    # `falsely`: maximum number of suspicions per probe. Streams hide most of the lost datagrams.
    [(0.2, 0.0, 0.0), (0.05, 0.2, 0.003), (0.1, 0.35, 0.02)],
)
def test_packet_loss_causes_no_failures(loss: float, stream_loss: float, falsely: float) -> None:
    world = acquainted(20, 7, loss=loss, stream_loss=stream_loss)
    world.run(120)
    assert failed(world) == set()
    assert count(world, "probes_failed") <= falsely * count(world, "probes")
    world.loss = world.stream_loss = 0.0
    world.run(30)
    assert world.agree()


@pytest.mark.parametrize("seed", few_of(range(3), 1))
def test_member_failed_by_packet_loss_returns_within_seconds(seed: int) -> None:
    """The network loses a fifth of the datagrams and three fifths of the streams, so one probe in twenty fails."""
    world = acquainted(20, seed, loss=0.2, stream_loss=0.6)
    world.run(120)
    assert count(world, "probes_failed") > 50, "enough probes must fail for this test"
    wrong = [line for line in world.history if line[3] == State.FAILED]
    assert len(wrong) <= 3
    for when, who, about, _ in wrong:
        back = min(at for at, by, of, state in world.history if (by, of) == (who, about) and at > when)
        assert back - when < 2.0
    world.loss = world.stream_loss = 0.0
    world.run(30)
    assert world.agree()


def test_members_are_not_suspected_if_only_streams_work() -> None:
    world = acquainted(10, 1)
    world.cut = lambda sender, receiver, stream: not stream
    world.run(120)
    assert not world.believed_somewhere(State.SUSPECT, State.FAILED)
    assert count(world, "acks_by_stream") > 500


def test_members_are_not_suspected_if_only_datagrams_work() -> None:
    world = acquainted(10, 1)
    world.cut = lambda sender, receiver, stream: stream
    world.run(120)
    assert not world.believed_somewhere(State.SUSPECT, State.FAILED)
    world.crash("n1")
    assert world.run(30, lambda: world.all_believe("n1", State.FAILED)) < 10.0


# ------------------------------------------------------------------------------------------------------------- cuts


@pytest.mark.parametrize("is_symmetric", [False, True])
def test_members_without_a_direct_path_are_not_suspected(is_symmetric: bool) -> None:
    def cut(sender: Member, receiver: Member, stream: bool) -> bool:
        names = sender.core.name, receiver.core.name
        return names == ("n1", "n2") or (is_symmetric and names == ("n2", "n1"))

    world = acquainted(5, 1)
    world.cut = cut
    world.run(120)
    assert not world.believed_somewhere(State.SUSPECT, State.FAILED)


@pytest.mark.parametrize("seed", few_of(range(3), 1))
@pytest.mark.parametrize("deaf", [True, False], ids=["deaf", "mute"])
def test_member_that_cannot_send_or_receive_fails_alone(deaf: bool, seed: int) -> None:
    world = acquainted(6, seed)
    world.cut = lambda sender, receiver, stream: (receiver if deaf else sender).core.name == "n1"
    took_s = world.run(90, lambda: world.all_believe("n1", State.FAILED))
    assert took_s < 15.0
    world.run(60)
    assert not {(who, about) for who, about in failed(world) if "n1" not in (who, about)}
    world.cut = lambda *_: False
    assert world.run(120, world.agree) < 60.0
    world.run(60)
    assert world.agree()


def halves(sender: Member, receiver: Member, stream: bool) -> bool:
    return (int(sender.core.name[1:]) % 2) != (int(receiver.core.name[1:]) % 2)


@pytest.mark.parametrize("seed", few_of(range(3), 1))
@pytest.mark.parametrize("cut_s", [8.0, 25.0, 60.0, 300.0])
def test_a_partition_heals(cut_s: float, seed: int) -> None:
    """It also heals if each half regards the other as failed, and only remembers its addresses."""
    world = acquainted(10, seed)
    world.cut = halves
    world.run(cut_s)
    if cut_s > 30.0:
        assert all(
            (member.believes(other) == State.FAILED) == ((int(name[1:]) - int(other[1:])) % 2 == 1)
            for name, member in world.members.items()
            for other in world.members
        )
    world.cut = lambda *_: False
    assert world.run(200, world.agree) < 3 * LAN.reconnect_interval_s
    world.run(60)
    assert world.agree()


@pytest.mark.parametrize("seed", few_of(range(3), 1))
def test_changes_in_each_half_are_known_in_both_after_the_partition(seed: int) -> None:
    world = acquainted(10, seed)
    world.cut = halves
    world.run(60)
    world.leave("n1")
    world.crash("n1")
    world.crash("n2")
    world.add("n10")
    assert world.join("n10", "n4")
    world.members["n3"].core.set_tags({"cluster": "sandq", "id": "n3", "zone": "new"})
    world.run(20)
    world.cut = lambda *_: False

    def believed(name: str) -> set[State | None]:
        return {member.believes(name) for member in world.members.values()}

    def agreed() -> bool:
        return (
            world.agree()
            # A new member does not learn of members that are gone.
            and believed("n1") <= {State.LEFT, None}
            and believed("n2") <= {State.FAILED, None}
            and all(m.core.records["n3"].tags.get("zone") == "new" for m in world.members.values())
        )

    assert world.run(300, agreed) < 90.0


def test_isolated_member_finds_the_others_again() -> None:
    world = acquainted(10, 4)
    world.cut = lambda sender, receiver, stream: "n1" in (sender.core.name, receiver.core.name)
    world.run(120)
    assert all(world.members["n1"].believes(f"n{number}") == State.FAILED for number in (0, 2, 9))
    world.cut = lambda *_: False
    assert world.run(100, world.agree) < 2 * LAN.reconnect_interval_s


def test_reconnects_to_failed_member_are_spread() -> None:
    world = acquainted(50, 1)
    world.run(3)
    world.crash("n1")
    world.run(100)
    knocks: list[str] = []
    world.knocked = lambda asker, ask: knocks.append(ask.name)
    world.run(200)
    found = knocks.count("n1") / 200 * LAN.reconnect_interval_s
    assert 1.0 < found < 6.0, "all together, in an interval"


# ----------------------------------------------------------------------------------------------------------- stalls


@pytest.mark.parametrize("seed", few_of(range(4), 2))
def test_member_that_stalls_for_three_seconds_causes_no_failure(seed: int) -> None:
    world = acquainted(10, seed)
    world.run(3)
    world.stall("n6", 3.0)
    world.run(60)
    assert failed(world) == set() and world.agree()
    assert not [line for line in world.history if line[1] == "n6" and line[3] == State.SUSPECT and line[2] != "n6"]


def test_short_stalls_of_all_members_cause_no_failures() -> None:
    world = acquainted(8, 2)
    for number in range(30):
        world.at_time(world.now + 2 * number, lambda n=number: world.stall(f"n{3 * n % 8}", 1.5))
    world.run(120)
    assert failed(world) == set() and world.agree()


# ------------------------------------------------------------------------------------------------------------ churn


class Churn:
    """Lets members join, crash, return and leave at random. At least three members stay."""

    def __init__(self, seed: int, loss: float) -> None:
        self.world = world = acquainted(8, seed, loss=loss)
        self.rng = world.rng
        self.gone: dict[str, tuple[State, Address]] = {}
        for _ in range(30):
            world.run(self.rng.random() * 8)
            self.rng.choice([self.crash, self.leave, self.join, self.come_back, self.come_back])()

    def pick(self) -> str | None:
        return self.rng.choice(sorted(self.world.members)) if len(self.world.members) > 3 else None

    def crash(self) -> None:
        if name := self.pick():
            self.gone[name] = State.FAILED, self.world.crash(name).address

    def leave(self) -> None:
        if name := self.pick():
            self.world.leave(name)
            self.gone[name] = State.LEFT, self.world.crash(name).address

    def join(self) -> None:
        self.begin(f"m{len(self.gone) + len(self.world.members)}", None)

    def come_back(self) -> None:
        if self.gone:
            name = self.rng.choice(sorted(self.gone))
            _, address = self.gone.pop(name)
            self.begin(name, self.rng.choice([address, None]))

    def begin(self, name: str, address: Address | None) -> None:
        others = sorted(self.world.members)
        self.world.add(name, address=address)
        self.world.join(name, self.rng.choice(others))

    def agreed(self) -> bool:
        world = self.world
        return world.agree() and all(
            m.core.records[name].address == member.address
            for name, member in world.members.items()
            for m in world.members.values()
        )


@pytest.mark.parametrize("loss", [0.0, 0.05])
@pytest.mark.parametrize("seed", few_of(range(8), 3))
def test_after_a_time_of_change_all_agree(seed: int, loss: float) -> None:
    churn = Churn(seed, loss)
    world = churn.world
    assert world.run(200, churn.agreed) < 60.0
    world.run(90)
    assert churn.agreed()
    for name, (state, _) in churn.gone.items():
        believed = {member.believes(name) for member in world.members.values()}
        assert believed <= {state, State.LEFT, None}, (name, state, believed)
