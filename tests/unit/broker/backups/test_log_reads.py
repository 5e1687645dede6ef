"""Tests of reading log entries for a backup follower: applied entries within bounds, or the reason for refusal."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from sandq.broker.backups import log_reads
from sandq.broker.backups.log_reads import LogPart, LogReads
from sandq.broker.replication.reader_pins import READERS_MOST, ReaderPins
from sandq.model.errors import NotLeader
from sandq.protocol.peer import PeerFrame
from sandq.protocol.requests_backup import READER_CHARS, BackupLog
from sandq.raft import GroupJournal, Members
from tests.support.nodes.fake_links import FakeLinks

GROUP = 7


class Bed:
    """A node that leads a partition whose log has entries 1 to 8, of which 6 are applied."""

    def __init__(self) -> None:
        self.leads = True
        self.links = FakeLinks("n2", "n3")
        self.members = Members(("n1#1", "n2#1"), ("n3#4",))
        journal = GroupJournal.create([], GROUP, self.members)
        for index in range(2, 9):
            journal.add(bytes([0]) + b"%d" % index if index != 4 else bytes([1]), index, 1 + index // 5)
        self.host: Any = SimpleNamespace(
            number=GROUP,
            group=SimpleNamespace(journal=journal, commit_index=6),
            status=SimpleNamespace(applied_index=6),
            members=self.members,
            reader_pins=ReaderPins(lambda: 0.0),
            read=self.read,
            until_applied=self.until_applied,
        )
        node_log: Any = SimpleNamespace(hosts={GROUP: self.host})
        self.reads = LogReads("n1", node_log, lambda: 1_000, self.links)

    async def read(self) -> None:
        if not self.leads:
            raise NotLeader("no")

    async def until_applied(self, index: int) -> None:
        self.host.status.applied_index = index

    async def ask(
        self, after: int | None, *, pin: int | None = 2, term: int | None = None, max_bytes: int = 100
    ) -> LogPart:
        return await self.reads.read(self.host, BackupLog("t", 0, "r", pin, after, term, max_bytes))

    @property
    def pinned(self) -> int | None:
        pinned: int | None = self.host.reader_pins.needed_from(self.host.group.journal)
        return pinned


async def test_applied_entries_are_returned_and_the_rest_is_kept_on_all_replicas() -> None:
    bed = Bed()
    found = await bed.ask(3)
    assert (found.gone, found.applied, found.time_ms, found.term_before) == (None, 6, 1_000, 1)
    assert found.entries == [1, b"", 2, b"5", 2, b"6"], (
        "entries of Raft itself are empty, and 7 and 8 are not committed yet"
    )
    assert bed.pinned == 2
    assert sorted(bed.links.sent) == [(node, PeerFrame.LOG_PINNED, (GROUP, "r", 2)) for node in ("n2", "n3")]


async def test_first_read_returns_the_position_and_sets_a_pin() -> None:
    bed = Bed()
    found = await bed.ask(None, pin=None, max_bytes=0)
    assert (found.applied, found.term_before, found.entries) == (6, 2, []) and bed.pinned == 6
    assert (await bed.ask(2, pin=99, max_bytes=0)).entries == [] and bed.pinned == 6, (
        "a pin must not be ahead of the log"
    )


async def test_answers_are_bounded_and_a_large_entry_is_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Bed()
    assert (await bed.ask(1, max_bytes=5)).entries == [1, b"2", 1, b"3", 1, b""]
    assert (await bed.ask(1, max_bytes=1)).entries == [1, b"2"]
    monkeypatch.setattr(log_reads, "ENTRIES_MOST", 2)
    assert (await bed.ask(1)).entries == [1, b"2", 1, b"3"]


async def test_missing_entries_are_reported_with_the_reason() -> None:
    bed = Bed()
    assert "different history: it ends at entry 6, and there was an entry 20" in str((await bed.ask(20)).gone)
    assert "entry 3 is of term 1, and was of 9" in str((await bed.ask(3, term=9)).gone)
    assert (await bed.ask(3, term=1)).gone is None
    bed.host.group.journal.truncate_below(5)
    assert "begins after entry 5" in str((await bed.ask(4)).gone)
    assert (await bed.ask(5, term=2)).entries == [2, b"6"]
    assert (await bed.ask(8)).gone is None and bed.host.status.applied_index == 8, (
        "rows may report an entry before the log does"
    )


async def test_node_that_does_not_lead_refuses() -> None:
    bed = Bed()
    bed.leads = False
    with pytest.raises(NotLeader):
        await bed.ask(3)
    assert bed.pinned is None and bed.links.sent == []


def test_pins_of_a_leader_are_accepted_within_limits() -> None:
    bed = Bed()
    for body in (None, (GROUP, "r"), (GROUP, b"r", 3), (GROUP, "", 3), (GROUP, "r" * (READER_CHARS + 1), 3)):
        assert not bed.reads.on_frame("n2", body)
    assert not bed.reads.on_frame("n2", (GROUP, "r", -1)) and not bed.reads.on_frame("n2", (GROUP, "r", True))
    assert bed.reads.on_frame("n2", (99, "r", 3)) and bed.pinned is None, "group 99 is not on this node"
    for number in range(READERS_MOST + 1):
        assert bed.reads.on_frame("n2", (GROUP, f"{number}", 3 + number))
    assert bed.pinned == 3 and len(bed.host.reader_pins) == READERS_MOST
