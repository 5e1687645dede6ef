"""Tests of the messages about clocks that a node sends and accepts. No task runs here."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from sandq.broker.clock.clock_keeper import GUARDED_US_MOST, REQUESTS_MOST, ClockKeeper
from sandq.broker.clock.guarded_clock import GuardedClock
from sandq.broker.clock.peer_clocks import COMPARED_WITHIN_S, Standing
from sandq.broker.replication.raft_group import RaftGroup
from sandq.protocol.peer import PeerFrame
from tests.support.nodes.fake_links import FakeLinks

NOW_S = 1_800_000_000.25


class Kept:
    """A keeper, and the messages that it sent."""

    def __init__(self) -> None:
        self.wall_s = NOW_S
        self.monotonic_s = 10.0
        self.clock = GuardedClock(wall=lambda: self.wall_s, monotonic=lambda: self.monotonic_s)
        self.links = FakeLinks("b")
        self.nodes = 2
        self.keeper = ClockKeeper(self.clock, self.links, lambda: self.nodes)

    def question(self) -> int:
        """The last one."""
        node, kind, (question, _) = self.links.sent[-1]
        assert (node, kind) == ("b", PeerFrame.CLOCK_ASKED)
        return int(question)

    def reply(self, *body: Any, node: str = "b") -> bool:
        return self.keeper.on_frame(node, PeerFrame.CLOCK_TOLD, body)

    def waits(self, *, is_only_voter: bool = False) -> bool:
        host = cast(RaftGroup, SimpleNamespace(group=SimpleNamespace(is_only_voter=is_only_voter)))
        return self.keeper.reason_to_wait(host) is not None

    def advance(self, seconds: float) -> None:
        self.wall_s += seconds
        self.monotonic_s += seconds
        self.keeper._compare()

    def offsets(self) -> dict[str, int]:
        return dict(self.clock.status().peers)


AT_US = int(NOW_S * 1e6)


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_a_new_link_is_asked_at_once_and_its_answer_counts(kept: Kept) -> None:
    kept.keeper.up("b")
    assert kept.reply(kept.question(), int((NOW_S + 0.1) * 1e6), 0)
    assert kept.offsets() == {"b": 100}
    assert kept.keeper.good() == {"b"}
    kept.keeper.down("b")
    assert kept.offsets() == {} and kept.keeper.good() == set()


def test_clock_request_is_answered_with_time_and_clock_state(kept: Kept) -> None:
    assert kept.keeper.on_frame("b", PeerFrame.CLOCK_ASKED, (17, 0))
    assert kept.links.sent == [("b", PeerFrame.CLOCK_TOLD, (17, int(NOW_S * 1e6), 2))]
    kept.keeper.up("b")
    kept.reply(kept.question(), int(NOW_S * 1e6), 2)
    kept.keeper.on_frame("b", PeerFrame.CLOCK_ASKED, (18, 0))
    assert kept.links.sent[-1][2][2] == Standing.GOOD, "it has agreed"
    kept.wall_s += 3600
    kept.keeper.on_frame("b", PeerFrame.CLOCK_ASKED, (19, 0))
    assert kept.links.sent[-1][2][1:] == (int(NOW_S * 1e6), int(Standing.DOUBTED)), (
        "the node checks its clock when the question arrives"
    )


def test_an_answer_counts_once_and_only_to_a_question_of_that_link(kept: Kept) -> None:
    kept.keeper.up("b")
    question = kept.question()
    at_us = int(NOW_S * 1e6)
    assert kept.reply(question + 1, at_us, 0) and kept.reply(question, at_us, 0, node="c")
    assert kept.offsets() == {}
    kept.reply(question, at_us, 0)
    assert kept.reply(question, at_us + 400_000, 0)
    assert kept.offsets() == {"b": 0}
    kept.keeper.up("b")
    question = kept.question()
    kept.keeper.down("b")
    kept.keeper.up("b")
    assert kept.reply(question, at_us, 0) and kept.offsets() == {}


def test_leadership_is_not_handed_to_a_node_with_a_worse_clock(kept: Kept) -> None:
    assert kept.keeper.may_lead("b"), "nothing is known"
    kept.keeper.up("b")
    kept.reply(kept.question(), int(NOW_S * 1e6), int(Standing.DOUBTED))
    assert not kept.keeper.may_lead("b") and kept.keeper.may_lead("c")
    kept.wall_s += 3600
    kept.clock.now_s()
    assert kept.keeper.may_lead("b"), "this node's own clock is no better"


def test_clock_request_reports_a_worse_clock_at_once(kept: Kept) -> None:
    """A better clock is not accepted from a request, because the request may be old."""
    kept.keeper.up("b")
    kept.reply(kept.question(), int(NOW_S * 1e6), 0)
    kept.keeper.on_frame("b", PeerFrame.CLOCK_ASKED, (1, int(Standing.DOUBTED)))
    assert kept.keeper.good() == set() and not kept.keeper.may_lead("b")
    kept.keeper.on_frame("b", PeerFrame.CLOCK_ASKED, (2, int(Standing.GOOD)))
    assert kept.keeper.good() == set()


def test_node_waits_until_its_clock_has_agreed(kept: Kept) -> None:
    kept.keeper.up("b")
    assert kept.waits() and kept.waits(is_only_voter=True)
    kept.reply(kept.question(), AT_US, 0)
    assert not kept.waits()
    kept.keeper.down("b")
    kept.keeper.up("b")
    assert not kept.waits(), "the clock has agreed before"


def test_node_of_a_single_node_cluster_waits_for_no_peer(kept: Kept) -> None:
    assert kept.waits(), "the size of the cluster is unknown"
    kept.nodes = 1
    assert not kept.waits()
    kept.nodes = 2
    kept.keeper.up("b")
    assert not kept.waits(), "the joining node has to agree with the existing timestamps"


def test_node_without_peers_waits_a_limited_time(kept: Kept) -> None:
    kept.advance(COMPARED_WITHIN_S - 0.1)
    assert kept.waits()
    kept.advance(0.2)
    assert not kept.waits()
    kept.keeper.up("b")
    assert kept.waits(), "now there is a peer to compare with"


def test_node_with_wrong_clock_waits_if_others_can_lead(kept: Kept) -> None:
    kept.keeper.up("b")
    kept.reply(kept.question(), AT_US + 3_600_000_000, 0)
    assert kept.waits() and not kept.waits(is_only_voter=True)
    assert kept.keeper._better() == {"b"} or kept.links.sent[-1][1] == PeerFrame.CLOCK_ASKED, (
        "the node knows the better node, or asks for it"
    )
    kept.advance(COMPARED_WITHIN_S - 1)
    assert kept.waits()
    kept.keeper._ask_all()
    kept.reply(kept.question(), AT_US + 3_609_000_000, 0)
    kept.advance(1.1)
    assert not kept.waits(), "no other node has taken over"


@pytest.mark.parametrize(
    "body",
    [
        None,
        (),
        (1, 2),
        (1, 2, 0, 0),
        [1, 2, 0],
        (1, 2.0, 0),
        (1, True, 0),
        (1, -1, 0),
        (1, GUARDED_US_MOST + 1, 0),
        (1, 2, 3),
        (1, 2, -1),
        (1, 2, True),
        ("1", 2, 0),
    ],
)
def test_invalid_reply_is_ignored(kept: Kept, body: Any) -> None:
    assert not kept.keeper.on_frame("b", PeerFrame.CLOCK_TOLD, body)


@pytest.mark.parametrize(
    ("kind", "body"),
    [(PeerFrame.CLOCK_ASKED, body) for body in (None, 1, (1,), (1, True), (1, 3), ("1", 0), [1, 0])] + [(9, (1, 0))],
)
def test_invalid_question_is_ignored(kept: Kept, kind: int, body: Any) -> None:
    assert not kept.keeper.on_frame("b", kind, body)
    assert kept.links.sent == []


def test_only_the_latest_requests_to_silent_peer_are_kept(kept: Kept) -> None:
    kept.keeper.up("b")
    first = kept.question()
    for _ in range(REQUESTS_MOST):
        kept.keeper._ask_all()
    last = kept.question()
    assert kept.reply(first, int(NOW_S * 1e6), 0) and kept.offsets() == {}
    assert kept.reply(last, int(NOW_S * 1e6), 0) and kept.offsets() == {"b": 0}


def test_node_in_alarm_asks_its_peers_again(kept: Kept) -> None:
    """A node that reported a good clock earlier may have been wrong."""
    kept.keeper.up("b")
    kept.reply(kept.question(), int(NOW_S * 1e6), 0)
    kept.monotonic_s += 1
    kept.wall_s += 1 + 3600
    assert kept.clock.now_s() == NOW_S + 1 and kept.clock.alarm
    before = len(kept.links.sent)
    kept.keeper._compare()
    assert kept.keeper._better() == set()
    assert len(kept.links.sent) == before + 1
    kept.reply(kept.question(), int((NOW_S + 1) * 1e6), 0)
    assert kept.keeper._better() == {"b"}
