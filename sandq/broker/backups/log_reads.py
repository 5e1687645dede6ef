"""Read applied entries of a partition's log, for clients that continuously add new entries to a backup.

The leader answers. The entries that a reader has not read yet are pinned on all replicas (`LOG_PINNED`). So a later
leader still has these entries.
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
"""Maximum number of entries in an answer. Limits the CPU time of one answer."""


class LogPart(NamedTuple):
    """The answer to a request for log entries."""

    gone: str | None
    """Reason why the requested entries are not available; None if they are available."""
    applied: int
    """Raft index of the last applied entry. The answer may end at an earlier entry."""
    time_ms: int
    """Time in ms. The log up to `applied` includes all writes that were acknowledged before this time."""
    term_before: int
    """Term of the entry after which entries were requested."""
    used: float
    """Bytes of the log, divided by the maximum number of bytes that it keeps for readers. Approximate, from 0 to 1."""
    entries: list[Any]
    """Terms and commands alternating. If Raft itself created an entry, the command of this entry is empty."""


class LogReads:
    """Reads the logs of one node."""

    def __init__(self, own: str, node_log: NodeLog, now_ms: Callable[[], int], links: PeerLinks) -> None:
        """`own`: id of this node. `now_ms()`: returns the time of the clock that stamps entries."""
        self._own = own
        self._node_log = node_log
        self._now_ms = now_ms
        self._links = links

    async def read(self, host: RaftGroup, request: BackupLog) -> LogPart:
        """Return the entries after `request.after`, and pin the entries after `request.pin`.

        If `request.after` is None, return no entries, only the state of the log, so that a reader can begin there.
        Raise NotLeader; Overloaded if too many readers use the log."""
        time_ms = self._now_ms()
        await host.read()
        after = request.after
        if after is not None and host.status.applied_index < after <= host.group.journal.last_index:
            # The reader's rows include the entry `after`, so this entry is applied, but the event loop does not know
            # that yet.
            await host.until_applied(after)
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
        """Keep the entries after `index` for a reader, on this node and on all other replicas."""
        host.reader_pins.put(reader, index)
        voters, learners = host.members
        for node in {node_of(member) for member in (*voters, *learners)} - {self._own}:
            self._links.send(node, PeerFrame.LOG_PINNED, (host.number, reader, index))

    def on_frame(self, node: str, body: Any) -> bool:
        """Pin the entries after the position of a reader, which a leader reports. Return whether the frame is valid."""
        if not isinstance(body, tuple) or [type(part) for part in body] != [int, str, int]:
            return False
        group, reader, index = body
        if not 0 < len(reader) <= READER_CHARS or index < 0:
            return False
        host = self._node_log.hosts.get(group)
        if host is not None:
            # The leader enforces the limit of readers. This node may still count readers that the leader has dropped.
            with suppress(Overloaded):
                host.reader_pins.put(reader, index)
        return True


def _gone(journal: GroupJournal, after: int, term: int | None, applied: int) -> str | None:
    """Return the reason why the entries after `after` are not available; None if they are available."""
    if after < journal.first_index:
        return f"its log begins after entry {journal.first_index}, and entries after {after} were requested"
    if after > applied:
        return f"its log has a different history: it ends at entry {applied}, and there was an entry {after}"
    if term is not None and journal.term_at(after) != term:
        return f"its log has a different history: entry {after} is of term {journal.term_at(after)}, and was of {term}"
    return None


def _entries(journal: GroupJournal, after: int, last: int, max_bytes: int, committed: int) -> list[Any]:
    """Return the entries after `after` up to `last`: at most `ENTRIES_MOST` and `max_bytes`, or a single larger entry.

    For a skipped entry, return its replacement (ADR 46). `committed`: Raft index up to which the log is committed."""
    found: list[Any] = []
    size = 0
    start = after + 1 - journal.first_index
    for at in range(start, min(last + 1 - journal.first_index, start + ENTRIES_MOST)):
        command, index, term = journal[at]
        if journal.skips and (replacement := journal.replacement(index, committed)) is not None:
            command = bytes([REGULAR]) + replacement
        size += len(command)
        if size > max_bytes and (found or not max_bytes):
            break  # a larger entry is returned alone, unless the client asked for no bytes
        found += term, command[1:] if command[0] == REGULAR else b""
    return found
