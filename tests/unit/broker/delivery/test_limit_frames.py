"""Frames about limits from other nodes: malformed ones are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sandq.broker.catalog import Catalog
from sandq.broker.delivery.limit_shares import LimitShares
from sandq.partition.limits.allowance import LimitPause
from sandq.partition.limits.ledger import Member
from sandq.protocol.peer import PeerFrame
from tests.support.nodes.fake_links import FakeLinks

DEFINITION = (50, 667, 1500, "tokens")
PAUSE = (7, 5000, "an operator")
OFFER = ("g", 1, 2, 3, 4, 5, 0, DEFINITION, PAUSE, "llm")
REPORT = ("g", "llm", 1, 2, 3, 0, 0, 0, 0, 0, 0, 7)


@pytest.fixture
def shares() -> LimitShares:
    nothing: Any = SimpleNamespace(by_group={})
    return LimitShares("node1", nothing, nothing, nothing, nothing)


@pytest.mark.parametrize(
    "offer",
    [
        OFFER,
        (*OFFER[:7], None, None, ""),
        (*OFFER[:7], (None, None, None, None), None, "llm"),
        (*OFFER[:7], (1, None, None, None), None, ""),
        (*OFFER[:8], (7, 0, ""), "llm"),
    ],
)
def test_offers_are_accepted(shares: LimitShares, offer: Any) -> None:
    assert shares.on_frame("node2", PeerFrame.LIMITS_ASKED, (7, (offer,)))
    assert shares.on_frame("node2", PeerFrame.LIMITS_TOLD, (7, 8, (REPORT,)))


@pytest.mark.parametrize(
    "body",
    [
        None,
        (7,),
        (7, ((),)),
        (7, (OFFER[:6],)),
        (7, ((*OFFER, 1),)),
        (7, ((*OFFER[:8], "llm"),)),
        (7, ((*OFFER[:9], None),)),
        *[
            (7, ((*OFFER[:8], pause, "llm"),))
            for pause in ((), PAUSE[:2], (0, 5, "o"), (1, -1, "o"), (1, 2**48, "o"), (1, 5, "o" * 601), (1, True, "o"))
        ],
        *[(7, ((*OFFER[:at], wrong, *OFFER[at + 1 :]),)) for at in range(7) for wrong in (None, -1, 2**63, "no name")],
        (7, ((*OFFER[:9], "no name"),)),
        *[
            (7, ((*OFFER[:7], definition, PAUSE, "llm"),))
            for definition in (
                (),
                DEFINITION[:3],
                (0, *DEFINITION[1:]),
                (True, *DEFINITION[1:]),
                (50, 10**15, 1500, "tokens"),
                (50, None, 1500, "tokens"),
                (50, 667, None, "tokens"),
                (50, 667, 1500, "no unit"),
                (50, 667, 1500, 5),
            )
        ],
    ],
)
def test_malformed_offers_are_refused(shares: LimitShares, body: Any) -> None:
    assert not shares.on_frame("node2", PeerFrame.LIMITS_ASKED, body)


@pytest.mark.parametrize(
    "row",
    [
        (),
        REPORT[:11],
        (*REPORT, 0),
        ("g", None, *REPORT[2:]),
        ("", *REPORT[1:]),
        ("g", "no name", *REPORT[2:]),
        *[(*REPORT[:at], wrong, *REPORT[at + 1 :]) for at in range(2, 12) for wrong in ("1", -2, 2**63, True)],
    ],
)
def test_malformed_reports_are_refused(shares: LimitShares, row: Any) -> None:
    assert not shares.on_frame("node2", PeerFrame.LIMITS_TOLD, (7, 8, (row,)))
    assert not shares.on_frame("node2", PeerFrame.LIMITS_TOLD, (7, 8, row, 5))


class Opened(Catalog):
    """The metadata has the partitions 7 and 8 of a topic. This node has opened only the first."""

    view: Any = SimpleNamespace(partition_of_group={7: ("t", 0), 8: ("t", 1)}, next_group=9)

    def __init__(self) -> None:
        self.topics: Any = {"t": SimpleNamespace(record=SimpleNamespace(partitions=[SimpleNamespace(group=7)]))}
        self._routes: Any = SimpleNamespace(leader=lambda group: "node2")


def test_member_in_a_partition_that_is_not_opened_yet_has_no_leader() -> None:
    links = FakeLinks("node2")
    nothing: Any = None
    shares = LimitShares("node1", Opened(), links, nothing, nothing)
    assert shares._has_leader(Member(7, 1, "g")) and not shares._has_leader(Member(8, 1, "g"))
    for group in (7, 8):
        shares._ask(group, [])
    assert [body[0] for _, _, body in links.sent] == [7]


class Home:
    """The leader of the home of the limit "llm"."""

    def __init__(self, ledger: Any) -> None:
        limits = SimpleNamespace(ledgers={"llm": ledger})
        self.raft_group = SimpleNamespace(status=SimpleNamespace(limits=limits))


def test_member_of_a_deleted_topic_need_not_confirm_a_pause() -> None:
    nothing: Any = None
    members = {4096: Member(6, 1, "g"), 4097: Member(7, 1, "g"), 4098: Member(9, 1, "g")}
    ledger = SimpleNamespace(members=members, pause=LimitPause(5, 1000, "an operator"))
    home: Any = Home(ledger)
    shares = LimitShares("node1", Opened(), nothing, nothing, nothing)
    assert shares.unpaused(home, "llm") == [members[4097], members[4098]], "a later group may be unknown here"
