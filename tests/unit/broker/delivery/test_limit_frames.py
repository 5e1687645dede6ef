"""Frames about limits from other nodes: malformed ones are refused."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sandq.broker.delivery.limit_shares import LimitShares
from sandq.protocol.peer import PeerFrame

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
