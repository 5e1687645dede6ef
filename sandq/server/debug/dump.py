"""Dump the internal state of a node as a map, to diagnose problems.

The dump contains addresses, and names of topics, groups and identities, but no values, keys, headers or secrets.
"""

from __future__ import annotations

import gc
import math
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgpack

from sandq.broker.broker import Broker
from sandq.broker.health.node_health import NodeHealth
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import METADATA_GROUP
from sandq.server import logs
from sandq.server.client_stats import ClientStats
from sandq.server.debug.loop_watch import LoopWatch
from sandq.server.debug.stacks import tasks, threads

GROUPS: Final = 200
"""Maximum number of Raft groups in a dump: those with the most unapplied entries."""
CONNECTIONS: Final = 200
"""Maximum number of connections in a dump: those with the most unsent bytes."""
EACH_S: Final = 1.0
"""Minimum interval between two dumps, in seconds. Requests in between get the last dump."""

_BEGAN_S = time.monotonic()


class NodeDump:
    def __init__(
        self,
        broker: Broker,
        health: NodeHealth,
        clients: ClientStats,
        watch: LoopWatch | None,
        settings: Callable[[], Iterable[str]],
        version: str,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`watch`: None if stalls of the loop are not recorded. `settings`: lines of the node's configuration, without
        secrets."""
        self._broker = broker
        self._health = health
        self._clients = clients
        self._watch = watch
        self._settings = settings
        self._version = version
        self._now_s = now_s
        self._last: dict[str, Any] = {}
        self._made_s = -math.inf

    def make(self) -> dict[str, Any]:
        """Return a dump. Call it on the event loop. Making a dump takes some ten milliseconds on a busy node, so the
        last dump is cached."""
        if self._now_s() - self._made_s >= EACH_S:
            self._last, self._made_s = self._make(), self._now_s()
        return self._last

    def _make(self) -> dict[str, Any]:
        """Make a new dump."""
        rows, count = tasks()
        return {
            "process": self._process(),
            "threads": threads(),
            "tasks": rows,
            "task_count": count,
            "loop_stalls": [] if self._watch is None else self._watch.stalls(),
            "loop_stall_count": None if self._watch is None else self._watch.count,
            "standing_still_s": {name: round(age_s, 3) for name, age_s in self._health.ages_s.items()},
            "stalled": self._health.stalled,
            "memory": self._memory(),
            "connections": self._connections(),
            "raft_groups": self._groups(),
            "configuration": list(self._settings()),
            "log": logs.recent(),
        }

    def _process(self) -> dict[str, Any]:
        """Return the process: version, interpreter, machine, uptime and load."""
        return {
            "pid": os.getpid(),
            "version": self._version,
            "python": platform.python_version(),
            "implementation": sys.implementation.name,
            "machine": platform.machine(),
            "system": platform.platform(),
            "cores": os.cpu_count(),
            "uptime_s": round(time.monotonic() - _BEGAN_S, 1),
            "cpu_s": round(time.process_time(), 2),
            "load": _load(),
            "log_level": logs.level(),
            "log_lines_dropped": logs.lines_dropped(),
            "garbage": [dict(generation) for generation in gc.get_stats()],
            "msgpack": ".".join(map(str, msgpack.version)),
        }

    def _memory(self) -> dict[str, Any]:
        """Return the memory budget, and the bytes that each account holds."""
        budget = self._broker.node_log.memory
        held = {name: {"bytes": one.bytes, "limit": int(one.share_bytes)} for name, one in budget.accounts.items()}
        return {"limit": budget.limit_bytes, "accounts": held}

    def _connections(self) -> dict[str, Any]:
        """Return the number of connections, and those with the most unsent bytes."""
        found = list(self._clients.open)
        found.sort(key=lambda one: (one.waiting_bytes, one.requests), reverse=True)
        rows = [{"requests": one.requests, "waiting_bytes": one.waiting_bytes} for one in found[:CONNECTIONS]]
        return {"count": len(found), "most_loaded": rows}

    def _groups(self) -> dict[str, Any]:
        """Return the number of Raft groups, and the groups with the most unapplied entries."""
        hosts = list(self._broker.node_log.hosts.values())
        # A node that waits for its cluster has no metadata yet.
        partitions = self._broker.metadata.partition_of_group if METADATA_GROUP in self._broker.node_log.hosts else {}
        rows = [self._group(host, partitions) for host in hosts]
        rows.sort(key=lambda row: (row["failed"] is None, -row["unapplied"], row["group"]))
        return {"count": len(rows), "led": sum(row["leads"] for row in rows), "most_behind": rows[:GROUPS]}

    def _group(self, host: RaftGroup, partitions: Mapping[int, tuple[str, int]]) -> dict[str, Any]:
        """Return the state of one Raft group. `partitions`: (topic, partition) by number of the group."""
        topic, partition = partitions.get(host.number, (None, None))
        applied, last = host.status.applied_index, host.group.journal.last_index
        return {
            "group": host.number,
            "topic": topic,
            "partition": partition,
            "leader": host.leader,
            "leads": host.group.is_leader,
            "term": host.group.term,
            "applied": applied,
            "committed": host.group.commit_index,
            "last": last,
            "unapplied": max(last - applied, 0),
            "failed": host.failed.message if host.failed is not None else None,
            "voters": list(host.members.voters),
            "learners": list(host.members.learners),
            "pins": len(host.pins),
        }


def _load() -> Sequence[float]:
    """Return the load averages of the machine; empty if the system has none."""
    try:
        return list(os.getloadavg())
    except OSError:
        return []
