"""The result: tables on the terminal and in Markdown, and all raw data as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from benchmarks.peers.figures import Outcome, Row, Spread, errors, rows
from benchmarks.peers.peer import Peer
from benchmarks.peers.workloads import BY_NAME, POLL_S, PREFETCH, Kind, Workload

FAIRNESS: Final = (
    "Peers promise different things when they respond; a column says what. Peers marked `*` respond before they sync:"
    " after a power failure, their last confirmed messages are lost. Only the others do the same work as sandq.",
    "Each peer is one server process on the machine's loopback interface, with one topic, stream, queue, tube or "
    "table, default settings except those named below, and data on the same disk. Each load has a new server. The "
    "loads are interleaved: a round runs each load on each peer, each time in another order, and syncs everything in "
    "between.",
    "The client is one Python process with one selector loop over raw sockets, the same for all peers. It sends "
    "prepared bytes and counts responses; an error ends the measurement. Afterwards, the messages are compared with "
    "the peer's own count. The loads named `usual_*` use each peer's most common Python library instead, as its "
    "documents show it. Server and client share the cores: where the client's CPU time is close to one core, the "
    "client is the limit.",
    "The server's CPU time is user and system time of all its processes and threads while the load runs. It does not "
    "include work that the server delays (compaction, syncs every second, vacuum). In `lateness` it includes the cost"
    " of waiting and of polls.",
    "`stolen` is the share of the machine's CPU time that its host gave to other machines while the load ran, at the "
    "median of the rounds. Rates and times are worse than on a dedicated machine; rounds and ratios reduce that "
    "effect.",
    f"Consumers ack each message as soon as it arrives, and hold at most {PREFETCH} unacked (one in `consume_one`). An "
    "ack names the message; several travel together if the protocol allows it (sandq: entries of one request; "
    "Redis: ids of one XACK). PostgreSQL, and Redis' sorted set, deliver and delete messages in one step: a "
    "consumer that dies loses them (in PostgreSQL unless its transaction stays open). Acks of NATS and RabbitMQ"
    " have no response: the time ends when NATS has none pending, and when RabbitMQ's channel has received the "
    "last one.",
    f"Polling consumers poll every {POLL_S * 1000:g} ms, which gives their best lateness, at their highest cost.",
    "Not compared: replication, many consumers, large messages, memory, long backlogs, recovery after a crash, and "
    "further features of a peer.",
)


@dataclass(frozen=True, slots=True)
class Run:
    """All results of a run. `about` describes the machine; `versions` and `left_out` are by peer."""

    about: Mapping[str, Any]
    versions: Mapping[str, str]
    left_out: Mapping[str, str]
    peers: Sequence[Peer]
    outcomes: Sequence[Outcome]

    @property
    def workloads(self) -> list[Workload]:
        """Return the loads that have outcomes."""
        found = {outcome.workload for outcome in self.outcomes}
        return [workload for workload in BY_NAME.values() if workload.name in found]


def head(workload: Workload) -> list[str]:
    """Return the names of the columns."""
    names = ["peer", "before it responds"]
    if workload.kind is not Kind.LATENESS:
        names.append("msg/s (least - most)")
    names += ["server CPU us/msg", "client CPU us/msg", "stolen"]
    if workload.timed:
        names += ["p50 ms", "p99 ms", "max ms"]
    if workload.kind is Kind.LATENESS:
        return [*names, "early", "sandq / peer: p99", "CPU"]
    return [*names, "messages a sync", "sandq / peer: rate", "CPU"]


def cells(workload: Workload, row: Row, peer: Peer) -> list[str]:
    """Return one row as text."""
    found = [marked(peer), peer.durability]
    if workload.kind is not Kind.LATENESS:
        found.append(f"{row.rate.median:,.0f} ({row.rate.least:,.0f} - {row.rate.most:,.0f})")
    found += [number(row.server_us.median), number(row.client_us), f"{row.stolen:.0%}"]
    if workload.timed:
        found += [number(value) for value in (row.p50_ms, _median(row.p99_ms), row.max_ms)]
    if workload.kind is Kind.LATENESS:
        return [*found, str(row.early), number(row.p99_ratio), number(row.cpu_ratio)]
    return [*found, number(row.per_sync), number(row.rate_ratio), number(row.cpu_ratio)]


def marked(peer: Peer) -> str:
    """Return the peer's name, with a mark if it responds before it syncs."""
    return peer.name if peer.syncs_first else f"{peer.name} *"


def number(value: float | None) -> str:
    """Return three or more digits; empty for None."""
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _median(spread: Spread | None) -> float | None:
    return None if spread is None else spread.median


def remarks(run: Run, workload: Workload) -> list[str]:
    """Return the peers that are not in the table, with reasons."""
    found = [
        f"{peer.name}: cannot do it: {peer.cannot[workload.name]}" for peer in run.peers if workload.name in peer.cannot
    ]
    found += [f"{name}: left out: {why}" for name, why in run.left_out.items()]
    return found + [f"failed: {error}" for error in errors(run.outcomes).get(workload.name, [])]


def table_of(run: Run, workload: Workload) -> list[list[str]]:
    """Return the cells of each peer, in the peers' order."""
    found = {row.peer: row for row in rows(run.outcomes, workload.name)}
    return [cells(workload, found[peer.name], peer) for peer in run.peers if peer.name in found]


def print_tables(console: Console, run: Run) -> None:
    """Print the tables on a terminal."""
    console.print(", ".join(f"{name} {value}" for name, value in run.about.items()), highlight=False)
    for workload in run.workloads:
        title = f"{workload.name}: {workload.what}"
        table = Table(title=title, title_justify="left")
        for at, name in enumerate(head(workload)):
            table.add_column(name, justify="left" if at < 2 else "right")
        for line in table_of(run, workload):
            table.add_row(*line)
        console.print(table)
        for remark in remarks(run, workload):
            console.print(f"  {remark}", highlight=False, markup=False)
    console.print("* responds before anything is synced", highlight=False, markup=False)


def markdown(run: Run, charts: Mapping[str, str]) -> str:
    """Return the tables as Markdown. `charts`: file names by load."""
    lines = ["# sandq compared with other brokers", "", "Written by `make bench-peers`.", ""]
    lines += [f"- {name}: {value}" for name, value in run.about.items()]
    for workload in run.workloads:
        lines += ["", f"## {workload.name}", "", f"{workload.what[0].upper()}{workload.what[1:]}.", ""]
        names = head(workload)
        lines += [_line(names), _line(["---", "---", *["---:"] * (len(names) - 2)])]
        lines += [_line(line) for line in table_of(run, workload)]
        found = remarks(run, workload)
        lines += ["", *[f"- {remark}" for remark in found]] if found else []
        if workload.name in charts:
            lines += ["", f"![{workload.name}]({charts[workload.name]})"]
    lines += ["", "## Conditions", "", *[f"- {text}" for text in FAIRNESS]]
    lines += ["", "## Peers", "", _line(["peer", "version", "before it responds", "what it does"]), _line(["---"] * 4)]
    for peer in run.peers:
        lines.append(_line([marked(peer), run.versions.get(peer.name, "left out"), peer.durability, peer.notes]))
    return "\n".join([*lines, ""])


def _line(words: Sequence[str]) -> str:
    return "| " + " | ".join(word.replace("|", "\\|").replace("\n", " ") for word in words) + " |"


def as_json(run: Run) -> str:
    """Return all raw data."""
    found = {
        "about": dict(run.about),
        "versions": dict(run.versions),
        "left_out": dict(run.left_out),
        "durability": {peer.name: peer.durability for peer in run.peers},
        "syncs_before_it_answers": {peer.name: peer.syncs_first for peer in run.peers},
        "cannot": {peer.name: dict(peer.cannot) for peer in run.peers},
        "rows": {
            workload.name: [asdict(row) for row in rows(run.outcomes, workload.name)] for workload in run.workloads
        },
        "outcomes": [asdict(outcome) for outcome in run.outcomes],
    }
    return json.dumps(found, indent=1) + "\n"
