"""Raft groups over PySyncObj, guarded (floor F3; the only importer of pysyncobj).

`Group` is one Raft group behind a small port: propose, tick, commit. `Passes` runs all groups of a node in passes:
tick what is dirty, write one WAL pass, and only then count what was written. See docs/architecture.md.
"""

from .group import Group, ProposalFailed
from .journal import GroupJournal
from .passes import Committed, Passes

__all__ = ["Committed", "Group", "GroupJournal", "Passes", "ProposalFailed"]
