"""Tests of SWIM with suspicion: accepted names, addresses, versions and tags."""

from __future__ import annotations

import pytest

from sandq.gossip import nodes
from sandq.gossip.messages import VSN, Alive, Dead, Suspect
from sandq.gossip.nodes import INCARNATION_JUMP, INCARNATION_NEW, REFUSALS_MOST, Liveness
from sandq.model.config_types import Address
from tests.support.gossip.swim_bench import LAN, SwimBench, address_of, alive, dead, known_as, suspect, tags_of

ALIVE, SUSPECT, DEAD, LEFT = Liveness
ELSEWHERE = Address("10.9.9.9", 9900)


# ------------------------------------------------------------------------------------------------- names and addresses


@pytest.mark.parametrize("liveness", [ALIVE, SUSPECT, DEAD])
def test_another_machine_cannot_take_a_name(liveness: Liveness) -> None:
    bench = known_as(liveness)
    bench.receive(alive("a", 9, at=ELSEWHERE, meta=tags_of("a", store="of another")))
    assert bench.liveness("a") == (liveness, 5) and bench.node("a").address == address_of("a")
    assert bench.refused() == {"refused_name_conflict": 1} and bench.nodes.refusals == {"a": "name_conflict"}


def test_name_of_left_member_may_be_reused() -> None:
    bench = known_as(LEFT)
    another = alive("a", 6, at=ELSEWHERE, meta=tags_of("a", store="of another"))
    bench.receive(another)
    assert bench.liveness("a") == (ALIVE, 6) and bench.node("a").address == ELSEWHERE
    assert bench.take_broadcasts() == [another]


def test_old_message_of_another_address_revives_no_node() -> None:
    """A node that rejoins receives its own leave and refutes it: see the test of old messages about itself."""
    bench = known_as(LEFT)
    bench.receive(alive("a", 5, at=ELSEWHERE), alive("a", 1, at=ELSEWHERE, meta=tags_of("a", store="of another")))
    assert bench.liveness("a") == (LEFT, 5) and bench.take_broadcasts() == [] and bench.nodes.refusals == {}


@pytest.mark.parametrize("liveness", Liveness)
def test_member_with_same_store_may_change_its_address(liveness: Liveness) -> None:
    bench = known_as(liveness)
    bench.receive(alive("a", 5, at=ELSEWHERE))
    assert bench.liveness("a") == (liveness, 5) and bench.node("a").address == address_of("a")
    assert bench.nodes.refusals == {}, "the previous address is no conflict"
    bench.receive(alive("a", 6, at=ELSEWHERE))
    assert bench.liveness("a") == (ALIVE, 6) and bench.node("a").address == ELSEWHERE


def test_address_change_without_store_is_refused() -> None:
    bench = SwimBench()
    bench.receive(alive("serf", meta=b""), alive("serf", 2, meta=b"", at=ELSEWHERE))
    assert bench.node("serf").address == address_of("serf") and bench.refused() == {"refused_name_conflict": 1}


def test_a_refusal_is_forgotten_when_the_name_is_taken() -> None:
    bench = known_as(DEAD)
    another = alive("a", 1, at=ELSEWHERE, meta=tags_of("a", store="of another"))
    bench.receive(another)
    assert "a" in bench.nodes.refusals
    bench.advance(LAN.dead_gossip_s)
    assert bench.nodes.get("a") is None
    bench.receive(another)
    assert bench.liveness("a") == (ALIVE, 1) and bench.nodes.refusals == {}


# ------------------------------------------------------------------------------------------------------- refused nodes

REFUSED = [
    ("version", alive("x", vsn=(3, 5, 3, 2, 5, 5))),
    ("version", alive("x", vsn=(1, 1, 1, 2, 5, 5))),
    ("version", alive("x", vsn=(1, 5, 6, 2, 5, 5))),
    ("version", alive("x", vsn=(1, 5, 2, 2, 4, 4))),
    ("version", alive("x", vsn=(1, 5, 2, 2, 5, 1))),
    ("cluster", alive("x", meta=tags_of("x", cluster="of others"))),
    ("cluster_uuid", alive("x", meta=tags_of("x", uuid="of others"))),
    ("node_id", alive("x", meta=tags_of("y"))),
    *[("name", alive(name)) for name in ("x\n", "\x1b[31mx", "x\x00", "x\u202e")],
    ("malformed_tags", alive("x", meta=b"\xff\xc1")),
    ("malformed_tags", alive("x", meta=b"\xff\x81\xa1a\x01")),
    ("incarnation", alive("x", INCARNATION_NEW + INCARNATION_JUMP + 1)),
    ("incarnation", alive("a", 2 + INCARNATION_JUMP)),
    ("incarnation", suspect("a", 2 + INCARNATION_JUMP)),
    ("incarnation", dead("a", 2 + INCARNATION_JUMP)),
    ("incarnation", suspect("own", 2 + INCARNATION_JUMP)),
    ("incarnation", dead("own", 2 + INCARNATION_JUMP)),
    ("incarnation", alive("own", 2 + INCARNATION_JUMP)),
]
TAKEN = [
    alive("x", vsn=()),
    alive("x", vsn=(0, 0, 0, 0, 0, 0)),
    alive("x", vsn=(1, 2, 2, 2, 5, 5)),
    alive("x", meta=tags_of("x", uuid="of ours")),
    alive("x", meta=b""),
    alive("x", meta=b"web"),
    alive("x", INCARNATION_NEW),
]


@pytest.mark.parametrize(("reason", "word"), REFUSED)
def test_invalid_member_is_refused(reason: str, word: Alive | Suspect | Dead) -> None:
    bench = SwimBench(others="a", uuid="of ours")
    bench.receive(word)
    assert bench.refused() == {f"refused_{reason}": 1} and bench.nodes.refusals == {word.node: reason}
    assert bench.take_broadcasts() == [] and bench.changes == []
    assert bench.nodes.get("x") is None and bench.liveness("a") == bench.liveness("own") == (ALIVE, 1)


@pytest.mark.parametrize("word", TAKEN)
def test_valid_member_is_accepted(word: Alive) -> None:
    bench = SwimBench(uuid="of ours")
    bench.receive(word)
    assert (
        bench.liveness("x") == (ALIVE, word.incarnation) and bench.take_broadcasts() == [word] and not bench.refused()
    )


@pytest.mark.parametrize(("vsn", "takes"), [(VSN, True), ((1, 4, 2, 2, 5, 5), False), ((), False), ((0,) * 6, False)])
def test_checksum_support_follows_from_the_version(vsn: tuple[int, ...], takes: bool) -> None:
    bench = SwimBench()
    bench.receive(alive("x", vsn=vsn))
    assert bench.node("x").takes_crc == takes


def test_number_of_members_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "MEMBERS_MOST", 3)
    bench = SwimBench(others="ab")
    bench.receive(alive("c"), alive("a", 2), dead("b"))
    assert bench.refused() == {"refused_too_many_members": 1} and bench.liveness("a") == (ALIVE, 2)
    bench.advance(LAN.dead_gossip_s)
    bench.receive(alive("c"))
    assert bench.liveness("c") == (ALIVE, 1)


def test_number_of_remembered_refusals_is_limited() -> None:
    bench = SwimBench()
    for number in range(REFUSALS_MOST + 5):
        bench.receive(alive("x", meta=tags_of("y")), alive(f"x{number}", meta=tags_of("y")))
    assert len(bench.nodes.refusals) == REFUSALS_MOST and len(bench.nodes) == 1
