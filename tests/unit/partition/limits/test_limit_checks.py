"""Tests that commands about limits with wrong fields are refused by `apply`, and change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.model.errors import InvalidRequest
from sandq.model.group_limits import parse_limit, with_limit
from sandq.model.offsets import U64_MAX
from sandq.model.pauses import FOREVER
from sandq.partition import commands as c
from tests.support.partition.bench import Bench, T

DEFINITION = (5, 667, 10, "tokens")
PAUSE = (1, T + 1000, "an operator")
ITEM = ("g", 1, 1, 1, 5, 5, 0, DEFINITION, PAUSE)
WRONG: tuple[Any, ...] = (None, -1, True, 1.5, "x y", b"x", [], {}, U64_MAX, -(2**63))

FINE: dict[tuple[int, int], tuple[Any, ...]] = {(7, 0): (None,), (7, 3): (None,), (8, 2): ("x y",)}
"""Values that a field of the definition or of the pause may have, by the position of both."""


def home() -> Bench:
    bench = Bench()
    limit = parse_limit({"max_in_flight": 5, "rate": "90000/m", "unit": "tokens"})
    bench.apply(0, c.Configure(with_limit(bench.settings, "llm", 0, limit)))
    bench.apply(0, c.ShareLimit("llm", 1, [], [], joined=[(7, 1, "g", 0)]))
    return bench


def member() -> Bench:
    bench = Bench()
    bench.open()
    bench.apply(0, c.Configure(with_limit(bench.settings, "g", 1, parse_limit({"limit": "llm"}))))
    return bench


def wrong_in(row: tuple[Any, ...], at: int, fine: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    return [(*row[:at], one, *row[at + 1 :]) for one in WRONG if not any(one is other for other in fine)]


def check(bench: Bench, command: c.Command) -> None:
    before = bench.status().limits
    (result,) = bench.apply(0, command)
    assert isinstance(result, InvalidRequest), command
    assert bench.status().limits == before


@pytest.mark.parametrize("at", range(9))
def test_allowance_with_a_wrong_field_is_refused(at: int) -> None:
    bench = member()
    for item in wrong_in(ITEM, at, fine=(None,) if at > 6 else ()):
        check(bench, c.AllowLimit([item]))
        check(bench, c.AllowLimit([ITEM, item]))
    for part, row in ((7, DEFINITION), (8, PAUSE)):
        for field in range(len(row)):
            for wrong in wrong_in(row, field, FINE.get((part, field), ())):
                check(bench, c.AllowLimit([(*ITEM[:part], wrong, *ITEM[part + 1 :])]))
    check(bench, c.AllowLimit([ITEM[:8]]))
    assert bench.apply(0, c.AllowLimit([ITEM])) == [None]


def test_share_with_a_wrong_field_is_refused() -> None:
    bench = home()
    number = next(iter(bench.machine.limits.ledger("llm").members))  # type: ignore[union-attr]
    command: Any = c.ShareLimit("llm", 1, [(number, 0, 0, 0)], [(number, 1, 1)], [(8, 1, "h", 0)], [9])
    for at in range(2):
        for fields in wrong_in(command.fields(), at):
            check(bench, c.ShareLimit(*fields))
    for at in range(2, 5):
        fields, row = command.fields(), command.fields()[at][0]
        for field in range(len(row)):
            # The number of a member may be any number, and the messages in flight of a new one are perhaps unknown.
            fine = (U64_MAX,) if at < 4 and field == 0 else (None,) if (at, field) == (4, 3) else ()
            for wrong in wrong_in(row, field, fine):
                check(bench, c.ShareLimit(*fields[:at], [wrong], *fields[at + 1 :]))
        check(bench, c.ShareLimit(*fields[:at], [row[1:]], *fields[at + 1 :]))
        check(bench, c.ShareLimit(*fields[:at], 5, *fields[at + 1 :]))
    for wrong in (None, -1, "x", []):
        check(bench, c.ShareLimit(*command.fields()[:5], [wrong]))
    assert bench.apply(0, command) == [None]


@pytest.mark.parametrize("at", range(4))
def test_pause_with_a_wrong_field_is_refused(at: int) -> None:
    bench, command = home(), c.PauseLimit("llm", T + 1000, "an operator", False)
    fine = ("x y",) if at == 2 else (True,) if at == 3 else ()
    for fields in wrong_in(command.fields(), at, fine):
        check(bench, c.PauseLimit(*fields))
    check(bench, c.PauseLimit("llm", FOREVER + 1, "an operator", False))
    check(bench, c.PauseLimit("llm", FOREVER, "o" * 601, False))
    assert not isinstance(bench.apply(0, command)[0], InvalidRequest)
