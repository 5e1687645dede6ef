"""Measure messages with their own times: producing, by the spread of the times; delivering, by the number due per
second; cancelling, moving and trimming large numbers; and a new group that starts with many due messages."""

from __future__ import annotations

from functools import partial
from typing import Any

from benchmarks.driver import measure, node_with
from benchmarks.lateness import LEAD_MS, QUICK_LEAD_MS, Due, lateness
from benchmarks.produce import HOUR_MS, MONTH_MS, PARTITIONS, TOPIC, produce
from benchmarks.result import CPU, P99, Goal, Measured, Row, Setting

YEAR_MS = 365 * 24 * HOUR_MS
CONNECTIONS, BATCH = 16, 1000
BATCHES, QUICK_BATCHES = 40, 2
"""Batches over each connection."""
DUE_S = 5
"""Time over which messages are due."""
QUICK_MESSAGES = 10_000
SPREADS = {
    "moment": ("all of a batch at one moment", 0),
    "second": ("each at a moment within a second", 1000),
    "hour": ("each at a moment within an hour", HOUR_MS),
    "month": ("each at a moment within a month", MONTH_MS),
    "year": ("each at a moment within a year", YEAR_MS),
}
JOBS = {"cancel": "cancelled by one job", "move": "moved by an hour by one job"}
PENDING, BEHIND = 200_000, 1_000_000
QUICK_PENDING = 4000
RETENTION = "10s"
"""Must be longer than the time to consume and ack all messages that will be trimmed."""
CPU_GOALS = {"moment": 2.5, "hour": 3.5, 20_000: 12}
"""Goals for the node's CPU in us per message: producing, by how far messages are spread; delivering, by how many are
due per second."""
RATES = {1000: None, 5000: Goal(10, "ms", at_least=False), 10_000: Goal(150, "ms", at_least=False), 20_000: None}
"""By number of messages due per second: the goal for their lateness."""


OUT_S = 8
"""Time over which messages are due in rows with the Python client."""


def out(setting: Setting, *, per_s: int, partitions: int, mode: str = "batches", **settings: Any) -> Measured:
    """Deliver messages that become due at a steady rate; the value is the CPU of the node and its processes per
    message. `settings`: of the topic."""
    messages = setting.count(per_s * OUT_S, per_s)
    spec = {"messages": messages, "per_s": per_s, "partitions": partitions, "mode": mode}
    with node_with(setting, TOPIC, partitions, lease="60s", **settings) as node:
        to = {"address": node.address, "port": node.port, "lead_ms": setting.count(LEAD_MS, QUICK_LEAD_MS)}
        measured = measure(node.metered, "due", **to, **spec)
    assert measured.cpu_us is not None
    measured.value = measured.cpu_us
    return measured


def _out(per_s: int, partitions: int, goal_us: float | None, p99_ms: float | None, **options: Any) -> Row:
    """Return a row of `out`. `goal_us` is for the CPU, `p99_ms` for the lateness."""
    name = "_".join(["out", str(per_s), str(partitions), *map(str, options.values())])
    how = {"each": "acked one by one", "batches": "batches acked"}[options.get("mode", "batches")]
    settings = "".join(f", {key}={value}" for key, value in options.items() if key != "mode")
    what = f"{per_s:,} due a second over {partitions} partition{'s'[: partitions > 1]}, {how}{settings}"
    goal = None if goal_us is None else Goal(goal_us, "us of CPU", at_least=False)
    further = () if p99_ms is None else (Goal(p99_ms, "ms", at_least=False, of=P99),)
    load = partial(out, per_s=per_s, partitions=partitions, **options)
    return Row(name, "scheduled", what, load, "us", goal, driver="client", further=further)


def _due(per_s: int) -> Row:
    due = Due(per_s * DUE_S, min(per_s * DUE_S, QUICK_MESSAGES), per_s)
    what, goal = f"{per_s:,} due a second", RATES[per_s]
    return Row(f"due_{per_s}", "scheduled", what, partial(lateness, due), "ms p99", goal, further=_cpu_goals(per_s))


def _cpu_goals(of: str | int) -> tuple[Goal, ...]:
    return (Goal(CPU_GOALS[of], "us of CPU", at_least=False, of=CPU),) if of in CPU_GOALS else ()


def _job(what: str, within_ms: int, setting: Setting) -> Measured:
    messages = setting.count(PENDING, QUICK_PENDING)
    with node_with(setting, TOPIC, PARTITIONS) as node:
        to = {"address": node.address, "port": node.port}
        return measure(node.metered, "pending_job", **to, messages=messages, what=what, within_ms=within_ms)


def _trim(setting: Setting) -> Measured:
    """Measure only the trimming. All messages were acked before."""
    messages = setting.count(PENDING, QUICK_PENDING)
    with node_with(setting, TOPIC, lease="60s", retention=RETENTION) as node:
        to = {"address": node.address, "port": node.port}
        return measure(node.metered, "pending_trim", **to, messages=messages, within_ms=1000)


def _earliest(setting: Setting) -> Measured:
    """Return the time of the first message, which must not depend on how many come after it."""
    messages = setting.count(BEHIND, QUICK_PENDING)
    with node_with(setting, TOPIC, lease="60s") as node:
        measured = measure(node.metered, "pending_earliest", port=node.port, messages=messages, within_ms=1000)
    measured.details["msg/s"], measured.value = measured.value, measured.details.pop("first ms")
    return measured


ROWS = (
    *(
        Row(
            f"schedule_{name}",
            "scheduled",
            f"batches of {BATCH} x 100 B, {CONNECTIONS} connections, {what}",
            partial(produce, CONNECTIONS, BATCH, BATCHES, QUICK_BATCHES, window=2, within_ms=within_ms),
            further=_cpu_goals(name),
        )
        for name, (what, within_ms) in SPREADS.items()
    ),
    Row(
        "schedule_hour_keys",
        "scheduled",
        f"batches of {BATCH} x 100 B, {CONNECTIONS} connections, {SPREADS['hour'][0]}, with a key",
        partial(produce, CONNECTIONS, BATCH, BATCHES, QUICK_BATCHES, window=2, within_ms=HOUR_MS, keyed=True),
    ),
    *(_due(per_s) for per_s in RATES),
    _out(10_000, 1, 20, None),
    _out(10_000, 4, 20, 25),
    _out(10_000, 16, 35, 30),
    _out(10_000, 4, 10, 60, precision="50ms"),
    _out(1_000, 4, 180, 20),
    _out(1_000, 4, 60, 30, precision="20ms"),
    _out(1_000, 4, None, None, precision="100ms"),
    _out(5_000, 4, 83, None, mode="each"),
    *(
        Row(
            f"{job}_{spread}",
            "scheduled",
            f"{PENDING:,} messages, {SPREADS[spread][0]}, {what}",
            partial(_job, job, SPREADS[spread][1]),
        )
        for job, what in JOBS.items()
        for spread in ("moment", "hour")
    ),
    Row("trim_second", "scheduled", f"{PENDING:,} messages, {SPREADS['second'][0]}, given back by the log", _trim),
    Row(
        "earliest",
        "scheduled",
        f"a group that begins at the earliest with {BEHIND:,} behind it, {SPREADS['second'][0]}",
        _earliest,
        "ms to the first",
    ),
)
