"""The state of a group in the log: `Replay` rebuilds it from records, `Tracker` updates it while records are written.

Both apply the same rules (wal_format.py), so that a restart finds the state that the writer had. Invariants of a
`Tracker`: `runs` is sorted, has no overlaps, and covers base..last exactly; `last >= base - 1`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import msgpack

from sandq.model.errors import Corruption
from sandq.storage.wal_format import Kind, Record

NO_VOTE: bytes = msgpack.packb(None)
NO_MEMBERS: bytes = msgpack.packb([[], []])
FIRST_INDEX = 1
"""Base of a group before its first BASE record."""

Entry = tuple[bytes, int, int]
"""(command, index, term)"""


@dataclass
class RecoveredGroup:
    """The state of a group according to the log.

    `entries` have consecutive indexes, from `base_index` on. If it is empty, the next entry is at `base_index`."""

    term: int = 0
    voted_for: str | None = None
    base_index: int = FIRST_INDEX
    base_term: int = 0
    voters: list[str] = field(default_factory=list)
    learners: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)


class Tracker:
    """A group's hard state and base as last written, and the segment of each entry that is still needed."""

    __slots__ = ("base", "base_term", "last", "members", "runs", "term", "vote")

    def __init__(self) -> None:
        self.term = 0
        self.vote = NO_VOTE
        self.base = FIRST_INDEX
        self.base_term = 0
        self.members = NO_MEMBERS
        self.last = FIRST_INDEX - 1
        self.runs: list[list[int]] = []
        """[first index, last index, segment number] for each run of entries in one segment."""

    def note(self, segment: int, kind: int, index: int, term: int, payload: bytes) -> None:
        """Update the state for one record. Raise ValueError if it does not fit the earlier records, which is a bug of
        the caller."""
        if kind == Kind.ENTRY:
            if index != self.last + 1:
                if not self.base <= index <= self.last:
                    raise ValueError(f"entry {index} does not follow {self.base}..{self.last}")
                self._cut(index)
            self._append(index, segment)
            self.last = index
        elif kind == Kind.COPY:
            if not self.base <= index <= self.last:
                raise ValueError(f"a copy of entry {index}, which is not in {self.base}..{self.last}")
            self._move(index, segment)
        elif kind == Kind.HARD_STATE:
            self.term, self.vote = term, payload
        elif kind == Kind.BASE:
            self._rebase(index, term, payload)
        elif kind == Kind.TRUNCATE:
            if index == 0:
                self.runs.clear()
                self.base, self.base_term, self.members = FIRST_INDEX, 0, NO_MEMBERS
                self.last = FIRST_INDEX - 1
            elif index <= self.last:
                self._cut(index)
                self.last = max(index, self.base) - 1
        else:
            raise ValueError(f"kind {kind} is not one that a caller writes")

    def opening(self, group: int) -> tuple[Record, Record]:
        """Return the two records that repeat this group's state in a new segment."""
        hard_state = (Kind.HARD_STATE, group, 0, self.term, self.vote)
        return hard_state, (Kind.BASE, group, self.base, self.base_term, self.members)

    def oldest_segment(self, needed: int) -> int | None:
        """Return the lowest segment with an entry at or above `needed`. None if there is none."""
        return min((run[2] for run in self.runs if run[1] >= needed), default=None)

    def _append(self, index: int, segment: int) -> None:
        if self.runs and self.runs[-1][2] == segment:
            self.runs[-1][1] = index
        else:
            self.runs.append([index, index, segment])

    def _cut(self, index: int) -> None:
        """Remove `index` and all higher indexes from the runs."""
        while self.runs and self.runs[-1][0] >= index:
            self.runs.pop()
        if self.runs and self.runs[-1][1] >= index:
            self.runs[-1][1] = index - 1

    def _rebase(self, index: int, term: int, members: bytes) -> None:
        """Move the base to `index`. A base below the current one starts the log over (wal_format.py)."""
        if index < self.base:
            self.runs.clear()
            self.last = index - 1
        self.base, self.base_term, self.members = index, term, members
        while self.runs and self.runs[0][1] < index:
            self.runs.pop(0)
        if self.runs and self.runs[0][0] < index:
            self.runs[0][0] = index
        self.last = max(self.last, index - 1)

    def _move(self, index: int, segment: int) -> None:
        """Move the entry at `index` to `segment`: split its run, and merge with the run before if possible."""
        at = next(i for i, run in enumerate(self.runs) if run[0] <= index <= run[1])
        first, last, old = self.runs[at]
        if old == segment:
            return
        pieces = [[first, index - 1, old], [index, index, segment], [index + 1, last, old]]
        pieces = [piece for piece in pieces if piece[0] <= piece[1]]
        before = self.runs[at - 1] if at else None
        if before is not None and before[2] == segment and pieces[0][2] == segment:
            before[1] = index
            pieces.pop(0)
        self.runs[at : at + 1] = pieces


class Replay:
    """The state of one group while recovery reads the log."""

    __slots__ = ("entries", "first", "last", "tracker")

    def __init__(self) -> None:
        self.tracker = Tracker()
        self.entries: dict[int, tuple[bytes, int, int, int]] = {}
        """By index: (command, index, term, segment). If there are gaps, later COPY records fill them, or a later BASE
        is above them."""
        self.first = 0
        """Lower bound of the indexes in `entries`."""
        self.last = 0
        """Upper bound of the indexes in `entries`."""

    def note(self, segment: int, kind: int, index: int, term: int, payload: bytes) -> None:
        """Update the state for one record."""
        entries = self.entries
        if kind == Kind.ENTRY:
            if index <= self.last:
                self._cut(index + 1)
            if index < self.first or not entries:
                self.first = index
            entries[index] = (payload, index, term, segment)
            self.last = index
        elif kind == Kind.COPY:
            if index < self.first or not entries:
                self.first = index
            entries[index] = (payload, index, term, segment)
            self.last = max(self.last, index)
        elif kind == Kind.HARD_STATE:
            self.tracker.term, self.tracker.vote = term, payload
        elif kind == Kind.BASE:
            self._rebase(index, term, payload)
        elif index == 0:
            entries.clear()
            self.first = self.last = 0
            hard_state = self.tracker.term, self.tracker.vote
            self.tracker = Tracker()
            self.tracker.term, self.tracker.vote = hard_state
        else:
            self._cut(index)

    def _cut(self, index: int) -> None:
        for gone in range(index, self.last + 1):
            self.entries.pop(gone, None)
        self.last = min(self.last, index - 1)

    def _rebase(self, index: int, term: int, members: bytes) -> None:
        """Move the base to `index`, as `Tracker._rebase` does."""
        tracker = self.tracker
        if index < tracker.base:
            self.entries.clear()
            self.first = self.last = 0
        if index > self.last:
            self.entries.clear()
        for gone in range(self.first, min(index, self.last + 1)):
            self.entries.pop(gone, None)
        self.first = max(self.first, index)
        tracker.base, tracker.base_term, tracker.members = index, term, members

    def finish(self, group: int) -> RecoveredGroup:
        """Return the group's state at the end of the log. Afterwards, the writer continues with `tracker`.

        Raise Corruption if entries above the base are missing."""
        tracker = self.tracker
        kept = range(tracker.base, self.last + 1)
        missing = [index for index in kept if index not in self.entries]
        if missing:
            which = f"{missing[0]}..{missing[-1]} of group {group}, whose base is {tracker.base}"
            raise Corruption(f"the WAL lacks entries {which}", group=group, first=missing[0])
        entries: list[Entry] = []
        for index in kept:
            command, _, term, segment = self.entries[index]
            entries.append((command, index, term))
            tracker._append(index, segment)
        tracker.last = tracker.base - 1 + len(entries)
        if entries and entries[-1][2] > tracker.term:
            # The prefix of a torn commit batch may have an entry, but not the hard state that was written after it.
            # Raft requires that no entry has a term above the current term. So raise the current term; without a stored
            # hard state, no vote was cast in this term.
            tracker.term, tracker.vote = entries[-1][2], NO_VOTE
        voters, learners = msgpack.unpackb(tracker.members)
        return RecoveredGroup(
            term=tracker.term,
            voted_for=msgpack.unpackb(tracker.vote),
            base_index=tracker.base,
            base_term=tracker.base_term,
            voters=voters,
            learners=learners,
            entries=entries,
        )
