"""What sandq touches of PySyncObj's inside, checked at start-up, and the one global patch.

PySyncObj 0.3.17 is pinned: these names are private to it. docs/architecture.md says what each hook is for.
"""

from __future__ import annotations

from typing import Any

import pysyncobj.syncobj as syncobj
from pysyncobj.config import SERIALIZER_STATE
from pysyncobj.version import VERSION

from sandq.model.errors import StartupError

from .journal import GroupJournal

SUPPORTED_VERSION = "0.3.17"
PREFIX = "_SyncObj__"
METHODS = ("doApplyCommand", "parseChangeClusterRequest", "getEntries", "tryLogCompaction")
ATTRIBUTES = (
    "raftLastApplied",
    "raftCommitIndex",
    "serializer",
    "raftElectionDeadline",
    "raftState",
    "raftCurrentTerm",
    "commandsQueue",
    "commandsWaitingCommit",
    "noopIDx",
)

_stock_create_journal = syncobj.createJournal


def _create_journal(journal: Any) -> Any:
    return journal if isinstance(journal, GroupJournal) else _stock_create_journal(journal)


def install() -> None:
    """Let `conf.journalFile` carry a journal object. Raises StartupError when the library is another version."""
    if VERSION != SUPPORTED_VERSION:
        raise StartupError(
            f"pysyncobj {VERSION} is installed, sandq works with {SUPPORTED_VERSION} only: its guards are written "
            f"against that version's inside; install pysyncobj=={SUPPORTED_VERSION}"
        )
    missing = [name for name in METHODS if not hasattr(syncobj.SyncObj, PREFIX + name)]
    if missing:
        raise StartupError(f"pysyncobj lacks {', '.join(missing)}: this is not the release it says it is")
    syncobj.createJournal = _create_journal


def check_attributes(group: Any) -> None:
    missing = [name for name in ATTRIBUTES if not hasattr(group, PREFIX + name)]
    if missing:
        raise StartupError(f"pysyncobj lacks {', '.join(missing)}: this is not the release it says it is")


class NoSerializer:
    """The library's snapshots (pickles on disk) are never used."""

    def checkSerializing(self) -> tuple[int, None]:
        return SERIALIZER_STATE.NOT_SERIALIZING, None

    def getTransmissionData(self, node: Any) -> None:
        return None

    def setTransmissionData(self, data: Any) -> bool:
        return False

    def cancelTransmisstion(self, node: Any) -> None:
        pass


class NoPoller:
    """The library polls sockets at the end of every tick; it has none."""

    def poll(self, timeout: float) -> None:
        pass

    def subscribe(self, *args: Any) -> None:
        pass

    def unsubscribe(self, *args: Any) -> None:
        pass
