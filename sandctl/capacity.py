"""Estimate the nodes, disk and memory for a load from measurements.

The constants are measured by `make bench` on one machine (docs/performance.md names the rows); another machine is
faster or slower by a factor. So a plan is only a starting point: run `sandctl bench` with the planned load on the
planned machine, and correct the plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

MOST: Final = 1e18
"""Maximum of each input."""
MIB: Final = 1 << 20
GIB: Final = 1 << 30

PRODUCED_US: Final = {"awaited": 350.0, "pipelined": 4.8, "batched": 1.6}
"""CPU time of a node per incoming message, in us. Measured by `small_produce`, `produce_1_pipe_16`, `produce_100`."""
SCHEDULED_US: Final = 3.5
"""Additional CPU time for a message with its own time, in us: `produce_scheduled` minus `produce_100`."""
DELIVERED_US: Final = {"batched": 2.9, "awaited": 390.0}
"""CPU time per delivered and acked message, in us. Measured by `consume_each` and `small_ack`."""
SCHEDULED_OUT_US: Final = 10.0
"""Additional CPU time to deliver and ack a message with its own time, in us.

Measured by `scheduled_out`, with the messages spread over an hour."""
FOLLOWED_US: Final = 1.2
"""CPU time per message of a replica that does not lead, in us.

This is a third of `cluster_1000`, which measures all nodes together."""
ROW_BYTES: Final = 47
"""Bytes on disk of a message with its own time, in addition to value, key and headers."""
BATCHED_BYTES: Final = 5
"""Bytes on disk of a message in a batch that is due at once, in addition to value, key and headers."""
SPACE_FACTOR: Final = 1.5
"""Disk space that LevelDB uses while it merges tables, as a multiple of the data. Most of the time it needs less."""
LOG_BYTES: Final = 512 * MIB
"""Bytes of a node's write-ahead log and its checkpoints."""
NODE_BYTES: Final = 110 * MIB
"""Memory of an empty node."""
PENDING_BYTES: Final = ((1_000_000, 40), (math.inf, 12))
"""Memory of pending messages with delivery times of their own, summed over the cluster, in steps: (up to this number of
messages, bytes per message).

Messages up to the first number (`pending_1m`) need more memory than all further ones (`pending_10m`)."""
GROUP_BYTES: Final = 24 << 10
"""Memory per group of a partition, measured by `pending_groups`."""
PARTITION_BYTES: Final = 40 << 10
BUDGET_BYTES: Final = 1024 * MIB
"""Memory of requests and replies in progress (the setting `limits.memory_bytes`)."""
NODE_CORES: Final = 1.5
"""Maximum cores that a node uses: one thread of Python, plus those of the log and LevelDB."""
BUSY: Final = 0.6
"""Maximum share of `NODE_CORES` that a load may use in the long run. The rest is for bursts, restarts and moves."""
PARTITION_CORES: Final = 0.5
"""Maximum share of a core that one partition uses. More partitions spread the load."""
FULL: Final = 0.7
"""Maximum share of a disk that may be used."""
NETWORK_FRAME: Final = 1.15
"""Bytes on the network per byte of a message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load: `rate` messages per second of `message_bytes` (value, key and headers) each."""

    rate: float
    message_bytes: int
    delay_s: float
    """Average time from sending until a message is due. 0: all messages are due at once."""
    kept_s: float
    """Time for which a message is kept after it became due."""
    groups: int = 1
    replicas: int = 3
    peak: float = 2.0
    """Messages in the busiest second, as a multiple of the average."""
    produced: str = "batched"
    delivered: str = "batched"


@dataclass(frozen=True, slots=True)
class Machine:
    """The size of a node."""

    cores: float
    memory_bytes: int
    disk_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The needs of a load, in total and for each of `nodes`."""

    nodes: int
    partitions: int
    limited_by: str
    pending: int
    stored: int
    cores: float
    """Cores that all nodes together use in the busiest second."""
    disk_bytes: int
    """Disk space of each node."""
    memory_bytes: int
    network_bytes_per_s: int
    """Bytes that each node sends and receives in the busiest second."""
    remarks: tuple[str, ...]


def plan(load: Load, machine: Machine) -> Plan:
    """Return what the load needs on nodes like `machine`. Raise ValueError if no number of nodes is enough."""
    _check(load, machine)
    cores = _cores(load)
    pending, stored = _messages(load)
    partitions = _partitions(load, cores)
    each = min(machine.cores, NODE_CORES) * BUSY
    spare = 1 if load.replicas > 1 else 0
    wanted = {"replicas": load.replicas, "CPU": math.ceil(cores / each) + spare}
    per_message = load.message_bytes + (ROW_BYTES if load.delay_s else BATCHED_BYTES)
    rows = stored * per_message * SPACE_FACTOR * load.replicas
    disk = machine.disk_bytes * FULL - LOG_BYTES
    if disk <= 0:
        raise ValueError(f"a node needs {LOG_BYTES // MIB} MiB of disk for its log alone, below {FULL:.0%} of its disk")
    wanted["disk"] = math.ceil(rows / disk) + spare
    led = _pending_bytes(pending) + partitions * (load.groups * GROUP_BYTES + PARTITION_BYTES)
    memory = machine.memory_bytes - NODE_BYTES - BUDGET_BYTES
    if memory <= 0:
        raise ValueError(
            f"a node needs {(NODE_BYTES + BUDGET_BYTES) // MIB} MiB of memory without any message: give it more, or "
            "lower limits.memory_bytes"
        )
    # A replica that does not lead holds the same data, so that it can lead.
    wanted["memory"] = math.ceil(led * load.replicas / memory) + spare
    nodes = max(wanted.values())
    # If there are more nodes than replicas, the other nodes take over the replicas of a failed node: plan for one node
    # less.
    bearing = nodes - 1 if nodes > load.replicas else nodes
    bytes_per_s = load.rate * load.peak * load.message_bytes * NETWORK_FRAME * (load.replicas + load.groups)
    return Plan(
        nodes=nodes,
        partitions=partitions,
        limited_by=max(wanted, key=lambda name: wanted[name]),
        pending=pending,
        stored=stored,
        cores=cores,
        disk_bytes=math.ceil(rows / bearing) + LOG_BYTES,
        memory_bytes=math.ceil(led * load.replicas / bearing) + NODE_BYTES + BUDGET_BYTES,
        network_bytes_per_s=math.ceil(bytes_per_s / bearing),
        remarks=tuple(_remarks(load, machine, nodes)),
    )


def _check(load: Load, machine: Machine) -> None:
    for name, value, least in (
        ("rate", load.rate, 0.001),
        ("peak", load.peak, 1.0),
        ("replicas", load.replicas, 1),
        ("groups", load.groups, 0),
        ("size", load.message_bytes, 0),
        ("delay", load.delay_s, 0),
        ("kept", load.kept_s, 0),
        ("cores", machine.cores, 0.1),
        ("memory", machine.memory_bytes, 0),
        ("disk", machine.disk_bytes, 0),
    ):
        if abs(value) > MOST:
            raise ValueError(f"{name}: more than {MOST:g} cannot be computed")
        if not value >= least:
            raise ValueError(f"{name}: {value:g} is less than {least:g}")


def _cores(load: Load) -> float:
    """Return the CPU of all nodes in the busiest second."""
    each_us = (
        PRODUCED_US[load.produced] + FOLLOWED_US * (load.replicas - 1) + DELIVERED_US[load.delivered] * load.groups
    )
    if load.delay_s:
        each_us += SCHEDULED_US + SCHEDULED_OUT_US * load.groups
    return load.rate * load.peak * each_us / 1e6


def _messages(load: Load) -> tuple[int, int]:
    """Return the number of pending messages, and the number of all stored messages."""
    pending = math.ceil(load.rate * load.delay_s)
    return pending, pending + math.ceil(load.rate * load.kept_s)


def _pending_bytes(pending: int) -> float:
    below, total = 0.0, 0.0
    for until, each in PENDING_BYTES:
        total += max(min(pending, until) - below, 0) * each
        below = until
    return total


def _partitions(load: Load, cores: float) -> int:
    """Return the number of partitions with which each partition uses at most `PARTITION_CORES`."""
    return max(math.ceil(cores / PARTITION_CORES), 1 if load.rate < 100 else load.replicas)


def _remarks(load: Load, machine: Machine, nodes: int) -> Iterator[str]:
    if load.replicas == 1:
        yield "with one replica the messages of a failed node are unavailable until it returns, and lost with its disk"
    if load.replicas == 2:
        yield "with two replicas the loss of either node stops the partition: use 1 or 3"
    if load.produced == "awaited":
        yield "producers that await each message cost 200 times as much as others: send several at once"
    if load.delivered == "awaited":
        yield "consumers that await each ack cost 100 times as much: do not await each ack, or use client.run"
    if machine.cores >= 2 * NODE_CORES:
        yield f"a node uses {NODE_CORES:g} cores at most: run more nodes rather than larger ones"
    if nodes == 2:
        yield "two nodes decide nothing when one fails: use one or three"
    if load.kept_s > 30 * 86_400:
        yield "messages that are kept for months are cheaper in an archive: sandctl pipeline archive"
