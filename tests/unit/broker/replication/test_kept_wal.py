"""Tests of the WAL size that one group may keep for a lagging member while other groups write."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from sandq.broker.memory_budget import Measured
from sandq.broker.replication import node_log as node_log_module
from sandq.broker.replication.log_pin import PIN_BYTES_MOST, LogPin
from sandq.broker.replication.node_log import NodeLog
from sandq.metadata.records import Partition, Topic
from sandq.model.batch import Column, encode
from sandq.model.limits import Limits
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.raft import Members
from sandq.storage.memory_files import MemoryFiles
from sandq.storage.stores import MemoryStores
from tests.support.simulation.stepped import Stepped, VirtualClock

BEHIND, BUSY = 7, 8
"""Numbers of the groups."""
SEGMENT_BYTES = 64 << 10
SEGMENTS_MOST = 4
"""Maximum number of segments that one log may keep."""


class Bed(Stepped):
    """Two partitions whose only member is this node."""

    def __init__(self) -> None:
        clock = VirtualClock()
        super().__init__(random.Random(0), clock)
        self.files = MemoryFiles()
        self.node_log = NodeLog(
            self.files,
            MemoryStores(),
            node_id="n1",
            now_ms=clock.now_ms,
            publish=self.published.append,
            limits=Limits(),
            segment_bytes=SEGMENT_BYTES,
        )
        settings = parse_settings({}).record()
        groups = tuple(Partition(group, ("n1#1",), ("n1#1",)) for group in (BEHIND, BUSY))
        topic = Topic(
            name="t",
            number=1,
            kind="timer",
            initial_partitions=1,
            replicas=1,
            settings=settings,
            created_ms=0,
            partitions=groups,
            first_settings=settings,
        )
        self.node_log.install([(group, "n1#1", Members(("n1#1",))) for group in (BEHIND, BUSY)])
        self.hosts = {group: self.node_log.open_partition(topic, at) for at, group in enumerate((BEHIND, BUSY))}
        self.settle()

    def settle(self) -> None:
        for _ in range(50):
            self.drive()

    def write(self, group: int) -> None:
        """16 KiB."""
        results: list[object] = []
        batch = encode({Column.VALUE: [bytes(16 << 10)]})
        self.hosts[group].submit(c.Append(batch), results.append, messages=1)
        self.settle()
        assert len(results) == 1

    def run_checkpoint(self) -> None:
        self.step_checkpoint()
        while self.checkpoint is not None:
            self.drive()
            self.step_checkpoint()

    def segments(self) -> int:
        return sum(name.endswith(".wal") for name in self.files.list("wal"))


def test_a_long_tail_is_kept_for_a_member_until_it_keeps_too_much_of_the_wal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_log_module, "LAG_WAL_BYTES", SEGMENTS_MOST * SEGMENT_BYTES)
    monkeypatch.setattr(node_log_module, "COPY_BYTES", 8 << 10)
    monkeypatch.setattr(node_log_module, "KEPT_BYTES", 0)
    bed = Bed()
    host = bed.hosts[BEHIND]
    lost: list[bool] = []
    host.pins["n2#1"] = LogPin(host.status.applied_index, PIN_BYTES_MOST, lambda: lost.append(True))
    for _ in range(4):
        bed.write(BEHIND)
    found = []
    for _ in range(10):
        for _ in range(4):
            bed.write(BUSY)
        bed.run_checkpoint()
        found.append((bool(lost), bed.segments()))
    assert not found[0][0], "the log is kept at first"
    assert found[-1][0]
    assert all(one <= other for (one, _), (other, _) in pairwise(found))
    assert max(segments for _, segments in found) <= SEGMENTS_MOST + 4, found
    assert found[-1][1] <= 3, found


def test_logs_take_no_more_than_their_share_together() -> None:
    """Entries kept for lagging members are dropped first, the longest log first. One pin stays."""
    bed = Bed()
    logs = bed.node_log.memory.accounts["logs"]
    lost: list[int] = []
    for group, host in bed.hosts.items():
        host.pins["n2#1"] = LogPin(host.status.applied_index, PIN_BYTES_MOST, lambda group=group: lost.append(group))
    for group, times in ((BUSY, 20), (BEHIND, 10)):
        for _ in range(times):
            bed.write(group)
    bed.run_checkpoint()
    assert logs.bytes > 30 * (16 << 10) and lost == [], "there is room"
    assert isinstance(logs, Measured)
    logs.share_bytes = logs.bytes // 2
    bed.run_checkpoint()
    assert lost == [BUSY] and logs.bytes <= logs.share_bytes
    logs.share_bytes = 100
    bed.run_checkpoint()
    assert lost == [BUSY], "one log must always remain to follow a snapshot"


def test_many_groups_keep_less_of_their_logs_each() -> None:
    bed = Bed()
    logs = bed.node_log.memory.accounts["logs"]
    assert isinstance(logs, Measured)
    logs.share_bytes = 8 * (40 << 10)  # 40 KiB for each of two groups
    for group in bed.hosts:
        for _ in range(10):
            bed.write(group)
    bed.run_checkpoint()
    sizes = [host.group.journal.size_bytes for host in bed.hosts.values()]
    assert all(size < 96 << 10 for size in sizes), "40 KiB and the last two entries"
