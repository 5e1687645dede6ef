"""Raft groups over PySyncObj, guarded (floor F3; the only importer of pysyncobj).

`Group` is one member of one Raft group behind a small interface: receive messages, propose, tick, commit. `GroupCommit`
runs all groups of a node in commit batches: handle arrived messages, tick the dirty groups, write and sync one batch of
WAL records, and only then send messages and count the new entries. See docs/architecture.md.
"""

from sandq.raft.group import Group, ProposalFailed, Proposed
from sandq.raft.group_commit import Committed, GroupCommit
from sandq.raft.journal import GroupJournal
from sandq.raft.members import Members
from sandq.raft.read_index import ReadDone
from sandq.raft.skip import Skip

__all__ = [
    "Committed",
    "Group",
    "GroupCommit",
    "GroupJournal",
    "Members",
    "ProposalFailed",
    "Proposed",
    "ReadDone",
    "Skip",
]
