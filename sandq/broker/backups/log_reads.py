"""Entries of a partition's log, for who follows a backup: those that are applied, as each replica has applied them.

The leader answers. Each reader pins what it has yet to get, on all replicas (`LOG_PINNED`), so that another leader has
it as well.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, NamedTuple

from sandq.broker.peers.links import PeerLinks
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.reader_pins import READER_BYTES
from sandq.model.errors import Overloaded
from sandq.model.members import node_of
from sandq.protocol.peer import PeerFrame
from sandq.protocol.requests_backup import READER_CHARS, BackupLog
from sandq.raft import GroupJournal
from sandq.raft.wire import REGULAR

ENTRIES_MOST: Final = 4096
"""Of an answer: they are looked at one by one."""


class LogPart(NamedTuple):
    """An answer."""

    gone: str | None
    """Why the entries that were asked for are not to be had; None: they are."""
    applied: int
    """Index of the last entry that is applied: a part of what was asked for may be left."""
    time_ms: int
    """Everything that was acknowledged up to then stands up to there."""
    term_before: int
    """Of the entry behind which they were asked for."""
    used: float
    """Of the log's budget for readers, about."""
    entries: list[Any]
    """Term and command, in turns; an empty command is an entry of Raft's own."""


class LogReads:
    """Of one node."""

    def __init__(self, own: str, node_log: NodeLog, now_ms: Callable[[], int], links: PeerLinks) -> None:
        """`own`: this node. `now_ms`: the clock that stamps entries."""
        self._own = own
        self._node_log = node_log
        self._now_ms = now_ms
        self._links = links

    async def read(self, host: RaftGroup, request: BackupLog) -> LogPart:
        """Entries behind `request.after`, and pin those behind `request.pin`. Raises NotLeader; Overloaded:
        too many read it."""
        time_ms = self._now_ms()
        await host.read()
        after = request.after
        if after is not None and host.status.applied_index < after <= host.group.journal.last_index:
            await host.until_applied(after)  # the rows that it has read told of it before this thread was told
        journal = host.group.journal
        applied = host.status.applied_index
        self._pin(host, request.reader, applied if request.pin is None else min(request.pin, applied))
        after = applied if after is None else after
        used = min(1.0, journal.size_bytes / READER_BYTES)
        if (why := _gone(journal, after, request.term, applied)) is not None:
            return LogPart(why, applied, time_ms, 0, used, [])
        term_before = journal.term_at(after)
        assert term_before is not None
        return LogPart(
            None,
            applied,
            time_ms,
            term_before,
            used,
            _entries(journal, after, applied, request.max_bytes, host.group.commit_index),
        )

    def _pin(self, host: RaftGroup, reader: str, index: int) -> None:
        host.reader_pins.put(reader, index)
        voters, learners = host.members
        for node in {node_of(member) for member in (*voters, *learners)} - {self._own}:
            self._links.send(node, PeerFrame.LOG_PINNED, (host.number, reader, index))

    def on_frame(self, node: str, body: Any) -> bool:
        """Take what a leader says of a reader of its log. Whether it was whole."""
        if not isinstance(body, tuple) or [type(part) for part in body] != [int, str, int]:
            return False
        group, reader, index = body
        if not 0 < len(reader) <= READER_CHARS or index < 0:
            return False
        host = self._node_log.hosts.get(group)
        if host is not None:
            with suppress(Overloaded):  # the leader counts them, and knew of others
                host.reader_pins.put(reader, index)
        return True


def _gone(journal: GroupJournal, after: int, term: int | None, applied: int) -> str | None:
    """Why what stands behind an entry is not to be had."""
    if after < journal.first_index:
        return f"its log begins behind entry {journal.first_index}, and entries behind {after} were asked for"
    if after > applied:
        return f"its log has another history: it ends at entry {applied}, and there was an entry {after}"
    if term is not None and journal.term_at(after) != term:
        return f"its log has another history: entry {after} is of term {journal.term_at(after)}, and was of {term}"
    return None


def _entries(journal: GroupJournal, after: int, last: int, max_bytes: int, committed: int) -> list[Any]:
    """Entries behind `after` up to `last`: so many bytes, or one that is larger. Of an entry that was skipped: what was
    applied instead (ADR 46). `committed`: up to where the log is."""
    found: list[Any] = []
    size = 0
    start = after + 1 - journal.first_index
    for at in range(start, min(last + 1 - journal.first_index, start + ENTRIES_MOST)):
        command, index, term = journal[at]
        if journal.skips and (replacement := journal.replacement(index, committed)) is not None:
            command = bytes([REGULAR]) + replacement
        size += len(command)
        if size > max_bytes and (found or not max_bytes):
            break
        found += term, command[1:] if command[0] == REGULAR else b""
    return found
