"""The private names of PySyncObj that sandq uses, checked at start-up, and the only global patch of the library.

PySyncObj is pinned to 0.3.17, because these names are private. docs/replication.md lists the faults of the
library that sandq avoids by using these names.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from zlib import crc32

import pysyncobj.syncobj as syncobj
from pysyncobj.config import SERIALIZER_STATE
from pysyncobj.node import Node
from pysyncobj.version import VERSION

from sandq.model.errors import StartupError
from sandq.raft.journal import GroupJournal

SUPPORTED_VERSION = "0.3.17"
PREFIX = "_SyncObj__"
METHODS = (
    "applyLogEntries",
    "doApplyCommand",
    "parseChangeClusterRequest",
    "changeCluster",
    "doChangeCluster",
    "getEntries",
    "sendAppendEntries",
    "sendNextNodeIdx",
    "generateRaftTimeout",
    "setCurrentTerm",
    "setState",
    "tryLogCompaction",
)
"""Private methods of the library that sandq calls or replaces, without PREFIX."""
ATTRIBUTES = (
    "raftLastApplied",
    "raftCommitIndex",
    "leaderCommitIndex",
    "serializer",
    "raftElectionDeadline",
    "raftState",
    "raftCurrentTerm",
    "commandsQueue",
    "commandsWaitingCommit",
    "noopIDx",
    "otherNodes",
    "readonlyNodes",
    "connectedNodes",
    "raftLeader",
    "raftNextIndex",
    "raftMatchIndex",
    "lastResponseTime",
    "newAppendEntriesTime",
    "transferInProgress",
)
"""Private attributes of the library that sandq reads or sets, without PREFIX."""

_stock_create_journal = syncobj.createJournal


def _create_journal(journal: Any) -> Any:
    """Replace the library's function: a `GroupJournal` is the journal itself, not the name of a file."""
    return journal if isinstance(journal, GroupJournal) else _stock_create_journal(journal)


def install() -> None:
    """Patch the library so that `conf.journalFile` can be a journal object.

    Raise StartupError if its version is not the supported one."""
    if VERSION != SUPPORTED_VERSION:
        raise StartupError(
            f"pysyncobj {VERSION} is installed, sandq works with {SUPPORTED_VERSION} only: its guards depend "
            f"on private names of that version; install pysyncobj=={SUPPORTED_VERSION}"
        )
    missing = [name for name in METHODS if not hasattr(syncobj.SyncObj, PREFIX + name)]
    if missing:
        raise StartupError(f"pysyncobj lacks {', '.join(missing)}: this is not the release it says it is")
    syncobj.createJournal = _create_journal


def now_s() -> float:
    """Return the time of the library's monotonic clock in seconds, which the whole process shares."""
    return float(syncobj.monotonicTime())


class Member(Node):  # type: ignore[misc]
    """A member of a group, as the library sees it.

    Its hash is the same in every process, so that sets of members have the same order and a simulation can be replayed
    from its seed."""

    def __init__(self, id: str) -> None:
        super().__init__(id)
        self._hash = crc32(id.encode())

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Node) and other.id == self.id


@lru_cache(maxsize=65_536)
def member_node(member: str) -> Member:
    """Return the library's object for a member, usually one that exists already."""
    return Member(member)


def check_attributes(group: Any) -> None:
    """Raise StartupError if an object of the library lacks one of `ATTRIBUTES`."""
    missing = [name for name in ATTRIBUTES if not hasattr(group, PREFIX + name)]
    if missing:
        raise StartupError(f"pysyncobj lacks {', '.join(missing)}: this is not the release it says it is")


class NoSerializer:
    """Replaces the library's serializer, because its snapshots (pickles on disk) are never used."""

    def checkSerializing(self) -> tuple[int, None]:
        return SERIALIZER_STATE.NOT_SERIALIZING, None

    def getTransmissionData(self, node: Any) -> None:
        return None

    def setTransmissionData(self, data: Any) -> bool:
        return False

    def cancelTransmisstion(self, node: Any) -> None:
        pass


class NoPoller:
    """Replaces the library's poller, which polls sockets at the end of every tick. The library has no sockets here."""

    def poll(self, timeout: float) -> None:
        pass

    def subscribe(self, *args: Any) -> None:
        pass

    def unsubscribe(self, *args: Any) -> None:
        pass
