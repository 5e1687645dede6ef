"""Tests of the report of the lateness objective: node reports are merged, and the proven part is named."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.client.admin.slo import NodeSlo, SloReport, merge, parse_reply
from sandq.model.errors import ProtocolError
from tests.support.protocol_document import decode

HOUR_MS, WINDOW_MS = 3_600_000, 30 * 86_400_000
BOUNDS_US = [0, 100_000, 250_000]
TRUSTED = {"trusted": True, "reason": None, "drift_ms": 0, "median_ms": None}


def report(
    in_time: int = 0,
    late: int = 0,
    *,
    early: int = 0,
    unproven: int = 0,
    hour: tuple[int, int] = (0, 0),
    **changes: Any,
) -> NodeSlo:
    """Return a node's report about its lateness objective. `hour`: (in time, late) within the last hour."""
    windows = [
        [HOUR_MS, [0, hour[0], 0, hour[1]], 0, 0],
        [WINDOW_MS, [early, in_time, late, 0], early, unproven],
    ]
    body = {
        **{"lateness_ms": 100, "target_ppm": 990_000, "window_ms": WINDOW_MS, "since_ms": 5, "bounds_us": BOUNDS_US},
        **{"windows": windows, "clock": TRUSTED, "topics": []},
        **changes,
    }
    return parse_reply([0, 7, body])


def of(*nodes: NodeSlo, **missing: str) -> SloReport:
    return merge({f"n{number}": node for number, node in enumerate(nodes, 1)}, missing)


def test_nodes_are_summed_up() -> None:
    found = of(report(900, 4, since_ms=9), report(95, 1, hour=(8, 2)))
    assert (found.deliveries, found.late, found.in_time, found.since_ms) == (1000, 5, 0.995, 5)
    assert found.budget_left == 0.5, "one in a hundred may be late, and one in two hundred was"
    assert found.burn_rates == {"1h": 20.0}
    assert found.histogram == [(0.0, 0), (100.0, 995), (250.0, 5), (None, 0)]
    assert [(row["node"], row["deliveries"], row["late"]) for row in found.nodes] == [("n1", 904, 4), ("n2", 96, 1)]
    assert found.is_proven and found.doubts == [] and found.early == 0


def test_a_budget_that_is_used_up_is_below_nothing() -> None:
    assert of(report(90, 10)).budget_left == -9.0


def test_report_without_deliveries_has_no_share() -> None:
    found = of(report())
    assert (found.deliveries, found.in_time, found.budget_left, found.burn_rates) == (0, None, None, {"1h": None})
    assert found.is_proven


@pytest.mark.parametrize(
    ("nodes", "missing", "doubt"),
    [
        (
            [report(clock={**TRUSTED, "trusted": False, "reason": "wall"})],
            {},
            "the clock of n1 is not trusted: the wall",
        ),
        ([report(9, unproven=3)], {}, "3 deliveries of n1 were measured while its clock was not trusted"),
        ([report()], {"n2": "it cannot be reached"}, "n2 did not report: it cannot be reached"),
        ([report(), report(lateness_ms=250)], {}, "n2 has a different objective: 99% within 250ms, over 30d"),
    ],
)
def test_unproven_report_lists_doubts(nodes: list[NodeSlo], missing: dict[str, str], doubt: str) -> None:
    found = of(*nodes, **missing)
    assert not found.is_proven and any(said.startswith(doubt) for said in found.doubts), found.doubts


def test_a_node_that_counts_otherwise_is_not_added_up() -> None:
    other = report(7, bounds_us=[0, 100_000, 500_000])
    found = of(report(5), other)
    assert found.deliveries == 5 and found.missing.keys() == {"n2"} and not found.is_proven


def test_topics_of_all_nodes_are_together_the_worst_first() -> None:
    found = of(report(topics=[["a", 10, 1], ["b", 5, 0]]), report(topics=[["b", 5, 3]]))
    assert found.topics == [
        {"topic": "b", "deliveries": 10, "late": 3},
        {"topic": "a", "deliveries": 10, "late": 1},
    ]


def test_documented_slo_reply_is_parsed() -> None:
    found = merge({"node1": parse_reply(decode("slo-reply"))}, {})
    assert (found.deliveries, found.late, found.budget_left) == (1000, 1, 0.0)


@pytest.mark.parametrize(
    "frame", [[0, 7], [0, 7, {}], [0, 7, "x"], [0, 7, {**report()._asdict(), "windows": [[1, [1], 0, 0]]}]]
)
def test_an_answer_that_is_none_is_refused(frame: list[Any]) -> None:
    with pytest.raises(ProtocolError, match="SLO reply"):
        parse_reply(frame)
