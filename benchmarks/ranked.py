"""Measure priority and fair topics: producing, consuming, changing priorities, and consuming while very many messages
are ready."""

from __future__ import annotations

from functools import partial

from benchmarks.driver import measure, node_with
from benchmarks.produce import TOPIC
from benchmarks.result import CPU, Goal, Measured, Row, Setting

BATCH = 100
TENANTS = 10_000
MESSAGES, QUICK_MESSAGES = 300_000, 10_000
CHANGES, QUICK_CHANGES = 50_000, 2_000
BEHIND = (10_000, 1_000_000)
QUICK_BEHIND = (1_000, 20_000)
FIRST, QUICK_FIRST = 100_000, 5_000
FLAT = Goal(1.25, "x", at_least=False)
LEASE = "60s"


def _run(what: str, kind: str, tenants: int, setting: Setting) -> Measured:
    messages = setting.count(MESSAGES, QUICK_MESSAGES)
    with node_with(setting, TOPIC, kind=kind, lease=LEASE) as node:
        return measure(node.metered, f"ranked_{what}", port=node.port, messages=messages, size=BATCH, tenants=tenants)


def _change(setting: Setting) -> Measured:
    messages = setting.count(CHANGES, QUICK_CHANGES)
    with node_with(setting, TOPIC, kind="priority", lease=LEASE) as node:
        return measure(node.metered, "ranked_change", port=node.port, messages=messages, size=BATCH)


def _change_all(setting: Setting) -> Measured:
    spec = {"messages": setting.count(MESSAGES, QUICK_MESSAGES), "size": BATCH}
    with node_with(setting, TOPIC, kind="priority", lease=LEASE) as node:
        return measure(node.metered, "ranked_change_all", address=node.address, port=node.port, **spec)


def _backlog(setting: Setting) -> Measured:
    """Compare the node's CPU time per message with a million messages ready and with few messages ready."""
    first, took = setting.count(FIRST, QUICK_FIRST), []
    for few, many in zip(QUICK_BEHIND, BEHIND, strict=True):
        spec = {"behind": setting.count(many, few), "messages": first, "size": BATCH}
        with node_with(setting, TOPIC, kind="priority", lease=LEASE) as node:
            measured = measure(node.metered, "ranked_backlog", port=node.port, pid=node.pid, **spec)
        took.append(measured.details.pop("us"))
    measured.details |= {"us of each with few": took[0], "us of each with many": took[1]}
    measured.value = took[1] / max(took[0], 0.01)
    return measured


def _goal(most_us: float) -> tuple[Goal, ...]:
    return (Goal(most_us, "us of CPU", at_least=False, of=CPU),)


ROWS = (
    Row(
        "priority_in",
        "ranked",
        f"batches of {BATCH} x 100 B, each message of one of ten priorities",
        partial(_run, "produce", "priority", 0),
        further=_goal(8),
    ),
    Row(
        "priority_out",
        "ranked",
        "the same, consumed, every ack separate",
        partial(_run, "consume", "priority", 0),
        further=_goal(12),
    ),
    Row(
        "fair_in",
        "ranked",
        f"batches of {BATCH} x 100 B, each message of one of {TENANTS:,} tenants",
        partial(_run, "produce", "fair", TENANTS),
        further=_goal(12),
    ),
    Row("fair_out", "ranked", "the same, consumed", partial(_run, "consume", "fair", TENANTS), further=_goal(25)),
    Row("priority_change", "ranked", "changed priority, each by its own request", _change, further=_goal(40)),
    Row("priority_change_all", "ranked", "changed priority of all, by one job", _change_all, further=_goal(8)),
    Row(
        "priority_backlog",
        "ranked",
        f"CPU of the first messages while {BEHIND[1]:,} wait, relative to {BEHIND[0]:,}",
        _backlog,
        "x",
        FLAT,
    ),
)
