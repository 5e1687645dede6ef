"""Tests of the heartbeats of idle groups: one message to each peer, without any loss of effects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from sandq.raft import wire
from sandq.raft.core import HEARTBEAT_S, LEADER_FALLBACK_S
from sandq.raft.transport import Flight
from tests.support.raft.three_nodes import GROUPS, NAMES, Nodes


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    with Nodes() as nodes:
        yield nodes


def test_idle_groups_send_one_message_per_peer(nodes: Nodes) -> None:
    leaders, terms = nodes.leaders(), {number: nodes.group("a", number).term for number in GROUPS}
    nodes.frames.clear()
    nodes.ticked = 0
    nodes.run(10 * HEARTBEAT_S)
    assert {message[0] for _, _, message in nodes.frames} == {wire.BEATS, wire.BEAT_ACKS}
    assert nodes.ticked == 0
    assert len(nodes.frames) <= 11 * 2 * 6, "each node sends to two others, and they answer"
    assert {len(message[1]) for _, _, message in nodes.frames} == {10 * wire.BEAT_NUMBERS}
    nodes.run(10.0)
    assert (nodes.leaders(), {number: nodes.group("a", number).term for number in GROUPS}) == (leaders, terms)


def test_member_with_heartbeats_refuses_pre_votes(nodes: Nodes) -> None:
    nodes.run(5.0)
    leader = nodes.leaders()[1]
    asking, asked = (name for name in NAMES if name != leader)
    request = (wire.PRE_VOTE_REQUEST, 1, 1, 1, nodes.group(leader, 1).term + 1, 1 << 20, 1 << 20)
    nodes.group_commit[asked].receive(asking, (request,))
    nodes.frames.clear()
    nodes.commit_batch(asked)
    assert [message[5] for *_, message in nodes.frames if message[0] == wire.PRE_VOTE] == [False]


def test_members_know_the_commit_index_before_heartbeats_are_coalesced(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    def reported() -> int:
        leader = nodes.leaders()[1]
        nodes.group(leader, 1).propose(b"x", lambda index, failure: None)
        nodes.group_commit[leader].mark(nodes.group(leader, 1))
        for committed in nodes.committed.values():
            committed.clear()
        nodes.run(1.0)
        return sum((1, b"x") in committed for committed in nodes.committed.values())

    assert reported() == 3
    monkeypatch.setattr(Flight, "has_acknowledged", lambda self, commit: not self._sent)
    assert reported() == 1, "the other nodes have the entry, and no commit reaches them"


def test_leader_without_replies_steps_down(nodes: Nodes) -> None:
    led = [number for number, name in nodes.leaders().items() if name == "a"]
    nodes.cut = {("b", "a"), ("c", "a")}
    nodes.run(LEADER_FALLBACK_S + 1.0)
    assert not any(nodes.group("a", number).is_leader for number in led)


def test_members_without_heartbeats_elect_a_new_leader(nodes: Nodes) -> None:
    led = [number for number, name in nodes.leaders().items() if name == "a"]
    nodes.cut = {("a", "b"), ("a", "c")}
    nodes.run(5.0)
    assert all(nodes.group("b", number).is_leader or nodes.group("c", number).is_leader for number in led)


def test_a_beat_of_an_older_term_is_answered_with_the_newer(nodes: Nodes) -> None:
    leader = nodes.leaders()[1]
    other = next(name for name in NAMES if name != leader)
    nodes.group(other, 1)._election.follow(nodes.group(other, 1).term + 5)
    nodes.run(2 * HEARTBEAT_S)
    assert nodes.group(leader, 1).term > 5


def test_reopened_replica_learns_the_commit_index(nodes: Nodes) -> None:
    leader = nodes.leaders()[1]
    other = next(name for name in NAMES if name != leader)
    nodes.group(leader, 1).propose(b"x", lambda index, failure: None)
    nodes.group_commit[leader].mark(nodes.group(leader, 1))
    nodes.run(1.0)
    passes, journal = nodes.group_commit[other], nodes.group(other, 1).journal
    passes.remove(nodes.group(other, 1))
    nodes.committed[other].clear()
    passes.add(1, f"{other}#1", journal, applied=2, before_tick=lambda: None)
    nodes.run(1.0)
    assert nodes.committed[other] == [(1, b"x")]
    assert nodes.leaders()[1] == leader


def test_beat_for_another_incarnation_is_ignored(nodes: Nodes) -> None:
    follower = next(name for name in NAMES if name != nodes.leaders()[1])
    group, leader = nodes.group(follower, 1), nodes.leaders()[1]
    for beat in ((1, 1, 2, group.term, 1000), (1, 2, 1, group.term, 1000), (1, 1, 1, group.term + 1, 1000)):
        assert not group.beaten(leader, beat, nodes.now_s, nodes.now_s)
    assert group.beaten(leader, (1, 1, 1, group.term, 1000), nodes.now_s, nodes.now_s)
    stranger = nodes.group(leader, 1)
    assert not stranger.beat_answered("z", (1, 1, 1, stranger.term, 1000), nodes.now_s)


def test_an_answer_to_a_beat_from_before_confirms_no_read(nodes: Nodes) -> None:
    leader = nodes.leaders()[1]
    passes, group = nodes.group_commit[leader], nodes.group(leader, 1)
    nodes.now_s = passes._heartbeat_s
    nodes.cut = {(leader, name) for name in NAMES}
    nodes.commit_batch(leader)
    sent = [(node, message) for name, node, message in nodes.frames if name == leader and message[0] == wire.BEATS][-2:]
    answers: list[int | None] = []
    group.read_index(answers.append)
    passes.mark(group)
    nodes.commit_batch(leader)
    for node, message in sent:
        passes.receive(node, ((wire.BEAT_ACKS, message[1]),))
    nodes.commit_batch(leader)
    assert answers == [], "the replies were sent before the request"
    nodes.cut = set()
    nodes.run(1.0)
    assert answers == [group.commit_index]


@pytest.mark.parametrize("numbers", [(1, 1, 1, 1), (1, 1, 1, 1, -1), (1, 1, 1, 1, True), (1, 1, 1, 1, "1"), [1] * 5, 7])
def test_invalid_beat_is_refused(numbers: Any) -> None:
    with pytest.raises(ValueError, match="beat"):
        wire.check((wire.BEATS, numbers))
    assert wire.check((wire.BEAT_ACKS, ())) and wire.check((wire.BEATS, (1, 1, 1, 1, 1)))
