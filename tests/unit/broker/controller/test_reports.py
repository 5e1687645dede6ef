"""Tests of reports to the metadata leader: they arrive on whichever node leads."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sandq.broker.controller.reports import Reports
from sandq.broker.event_loop import Signal
from sandq.protocol.peer import PeerFrame

SETTLED = [(1, 2, True)]


@pytest.mark.parametrize(
    ("leader", "noted", "sent"),
    [
        ("n", [SETTLED], []),
        ("a", [], [("a", PeerFrame.SETTLED, SETTLED)]),
        (None, [], []),
    ],
)
def test_report_goes_to_the_current_leader(leader: str | None, noted: list[Any], sent: list[Any]) -> None:
    heard: list[Any] = []
    frames: list[Any] = []
    node_log: Any = SimpleNamespace(node_id="n", metadata=SimpleNamespace(leader=leader))
    links: Any = SimpleNamespace(send=lambda *frame: frames.append(frame))
    controller: Any = SimpleNamespace(settled=heard.append)
    reports = Reports(node_log, links, controller, Signal())
    reports.report_settled(SETTLED)
    assert (heard, frames) == (noted, sent)
