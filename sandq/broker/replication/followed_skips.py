"""Track the SKIPs of a Raft group, and which of them this replica has followed (ADR 46).

A SKIP is a log entry that orders all replicas to skip an earlier entry or some of its commands, because no replica can
apply that entry. A replica follows a SKIP by applying the SKIP's replacement instead of the entry.
"""

from __future__ import annotations

from sandq.broker.replication.shut import ApplyFailure, Step
from sandq.raft import Group, ProposalFailed, Proposed, Skip


class FollowedSkips:
    """Records which SKIPs of its group one replica has followed."""

    def __init__(self) -> None:
        self._is_proposed = False
        """True while a SKIP is proposed and its outcome is unknown."""
        self._followed: dict[int, int] = {}
        """By index of a skipped entry: index of the last SKIP of this entry that this replica followed."""

    def clear(self) -> None:
        """Forget all SKIPs, because the state of the replica was replaced."""
        self._followed.clear()
        self._is_proposed = False

    def propose(self, group: Group, skip: Skip, done: Proposed) -> None:
        """Propose a SKIP; `done` is called with its outcome."""

        def decided(index: int | None, failure: ProposalFailed | None) -> None:
            self._is_proposed = False
            done(index, failure)

        self._is_proposed = True
        group.propose_skip(skip, decided)

    def is_skipping(self, group: Group, index: int) -> bool:
        """Return whether the caller must not propose a SKIP of this entry now.

        True if this replica has proposed a SKIP (of any entry), and its outcome is unknown. Also true if the log
        contains a SKIP of this entry that this replica has not followed. The replacement of a second SKIP would not
        contain the changes of the first SKIP. A replica that follows one of the two SKIPs would be shut at the other
        SKIP."""
        ats = [at for at, skip in group.journal.skips.items() if skip.index == index]
        return self._is_proposed or (bool(ats) and self._followed.get(index) != ats[-1])

    def follow(self, group: Group, index: int) -> None:
        """If a committed SKIP replaces this entry, record that the replica follows the SKIP. Call this when the replica
        applies the entry."""
        if group.journal.skips and (at := _decided(group).get(index)) is not None:
            self._followed[index] = at

    def may_reopen(self, group: Group, stored: int, failure: ApplyFailure | None) -> bool:
        """Return whether a new SKIP may let a shut replica open again.

        `stored`: index of the last entry in the rows of the replica. `failure`: why the replica is shut. The SKIP must
        be for an entry after `stored`, up to the failed entry. If the replica had followed this SKIP before it failed,
        the replica would fail again."""
        if failure is None or failure.step is Step.SKIPPED or failure.index is None:
            return False
        if not failure.is_exact:
            return True  # the failed entry is unknown: only a reload of the replica shows which entry is at fault
        decided = {index: at for index, at in _decided(group).items() if stored < index <= failure.index}
        return any([self._followed.get(index) != at for index, at in decided.items()])


def _decided(group: Group) -> dict[int, int]:
    """Return, by index of each skipped entry, the index of its last committed SKIP."""
    return {skip.index: at for at, skip in group.journal.skips.items() if at <= group.commit_index}
