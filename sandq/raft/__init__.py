"""Raft groups over PySyncObj, guarded (floor F3; the only importer of pysyncobj).

`Group` is one member of one Raft group behind a small port: messages in, propose, tick, commit. `Passes` runs all
groups of a node in passes: take in what arrived, tick what is dirty, write one WAL pass, and only then send and count
what was written. See docs/architecture.md.
"""

from .group import Group, ProposalFailed
from .journal import GroupJournal
from .members import Members
from .passes import Committed, Passes
from .reads import ReadDone

__all__ = [
    "Committed",
    "Group",
    "GroupJournal",
    "Members",
    "Passes",
    "ProposalFailed",
    "ReadDone",
]
