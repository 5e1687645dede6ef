"""Every bound has its line in docs/operations.md, with the value that the code has."""

from __future__ import annotations

import dataclasses
import re
from typing import Final

from sandq.broker import memory_budget
from sandq.broker.memory_budget import MemoryBudget
from sandq.model.limits import Limits
from sandq.server import caller_requests, connection
from sandq.server.http import bodies, bounds, event_streams, guards, lines, strict, supervisor, worker_pipe
from tests.support.paths import ROOT

PAGE: Final = (ROOT / "docs" / "operations.md").read_text()
KIB, MIB = 1 << 10, 1 << 20


def section(name: str) -> str:
    found = re.search(rf"^## {name}\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
    assert found is not None, name
    return found[1]


def rows(text: str) -> dict[str, str]:
    """Of its table: the first cell of each row, and the others."""
    return dict(re.findall(r"^\| (.+?) (\| .*)$", text, re.MULTILINE))


def size(count: float) -> str:
    return f"{count / MIB:g} MiB" if count >= MIB else f"{count / KIB:g} KiB"


def test_every_limit_that_can_be_changed_is_on_the_page() -> None:
    named = re.findall(r"`limits\.(\w+)`", " ".join(rows(section("What is limited by what"))))
    assert sorted(named) == sorted(field.name for field in dataclasses.fields(Limits))


def test_fixed_limits_are_those_of_the_code() -> None:
    slow = f"and 1 s for each {size(guards.BODY_BYTES_PER_S)}"
    assert connection.SEND_BYTES == bounds.SEND_BYTES
    assert connection.SEND_STALL_S == bounds.SEND_STALL_S
    assert connection.CROWDED_STALL_S == bounds.CROWDED_STALL_S
    fixed = {
        "callers of a gateway's connection that have requests under way": (f"{connection.CALLERS:,}",),
        "HELLO": (f"{connection.HELLO_S:g} s", size(connection.HELLO_BYTES)),
        "half a frame": (f"{connection.FRAME_S:g} s and 1 s for each {size(connection.FRAME_BYTES_PER_S)}",),
        "answers that a client does not take": (
            f"{size(connection.SEND_BYTES)} in {connection.SEND_STALL_S:g} s",
            f"in {connection.CROWDED_STALL_S:g} s while others wait",
        ),
        "an HTTP head": (
            f"{bounds.HEAD_S:g} s",
            size(bounds.HEAD_BYTES),
            f"{bounds.HEADERS_MOST} headers",
        ),
        "an HTTP connection without a request": (f"{bounds.IDLE_S:g} s",),
        "an HTTP body": (f"{guards.BODY_S:g} s {slow}", size(guards.CONTROL_BYTES)),
        "JSON": (
            f"{strict.PARTS_MOST:,} parts",
            f"{strict.ARRAYS_MOST:,} arrays",
            f"{strict.MEMBERS_MOST:,} members",
            f"{bodies.MEMBERS_MAX} of one that is no value",
            f"{bodies.MESSAGES_MAX:,} messages",
        ),
        "a page by HTTP": ("1,000 rows", size(lines.PAGE_BYTES)),
        "a stream by HTTP": (
            f"{event_streams.TAKE_MESSAGES} messages a lease",
            f"{event_streams.HEARTBEAT_S:g} s without one",
        ),
        "the HTTP process of a node": (
            f"{supervisor.STOP_S:g} s to end",
            f"{supervisor.BACK_OFF_FIRST_S:g} s to {supervisor.BACK_OFF_MOST_S:g} s before the next one",
            f"what the node says of itself {worker_pipe.STALE_S:g} s",
        ),
    }
    found = rows(section("What is limited by what"))
    assert {name for name in found if "`" not in name} - {"Limit"} == set(fixed)
    for name, values in fixed.items():
        for value in values:
            assert value in found[name], name


def test_every_account_is_on_the_page_with_its_share() -> None:
    shares = {
        "look_aheads": memory_budget.LOOK_AHEADS_SHARE,
        "logs": memory_budget.LOGS_SHARE,
        "rows": memory_budget.ROWS_SHARE,
        "snapshots": memory_budget.SNAPSHOTS_SHARE,
        "requests": memory_budget.REQUESTS_SHARE,
        "answers": memory_budget.ANSWERS_SHARE,
        "watchers": memory_budget.WATCHERS_SHARE,
        "http": memory_budget.HTTP_SHARE,
        "producers": memory_budget.PRODUCERS_SHARE,
    }
    assert sum(shares.values()) <= 1
    assert {*MemoryBudget(1).accounts} <= set(shares)
    found = {name.strip("`"): rest for name, rest in rows(section("When memory is short")).items()}
    assert set(found) - {"Account"} == set(shares)
    for name, share in shares.items():
        assert f"| {share.as_integer_ratio()[0]}/{share.as_integer_ratio()[1]} |" in found[name], name
    for share in (connection.CONNECTION_SHARE, caller_requests.CONNECTION_REQUESTS_SHARE, memory_budget.ADDRESS_SHARE):
        assert {0.125: "an eighth of all answers", 0.25: "a quarter of all requests", 0.75: "three quarters at most"}[
            share
        ] in section("When memory is short").replace("\n", " ")
