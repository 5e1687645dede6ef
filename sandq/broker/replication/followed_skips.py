"""Track which entries a Raft group has decided to skip, and which SKIPs this replica has followed (ADR 46)."""

from __future__ import annotations

from sandq.broker.replication.shut import ApplyFailure, Step
from sandq.raft import Group, ProposalFailed, Proposed, Skip


class FollowedSkips:
    """The SKIPs of one group, as followed by one replica."""

    def __init__(self) -> None:
        self._is_proposed = False
        """True while a SKIP is proposed and its outcome is unknown."""
        self._followed: dict[int, int] = {}
        """Index of the SKIP that this replica followed, by index of the entry that the SKIP replaces."""

    def clear(self) -> None:
        """Forget all SKIPs: the replica has got another state."""
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
        """Return whether a SKIP of the entry is proposed, or in the log and not followed by this replica yet.

        If so, no second SKIP of the entry may be proposed. It would not include the first SKIP, and a replica
        that follows one of the two would be shut when it meets the other."""
        ats = [at for at, skip in group.journal.skips.items() if skip.index == index]
        return self._is_proposed or (bool(ats) and self._followed.get(index) != ats[-1])

    def follow(self, group: Group, index: int) -> None:
        """Record that this replica applies an entry, and with it the SKIP of that entry, if there is one."""
        if group.journal.skips and (at := _decided(group).get(index)) is not None:
            self._followed[index] = at

    def may_reopen(self, group: Group, stored: int, failure: ApplyFailure | None) -> bool:
        """Return whether the group has decided to skip an entry that is not in the rows of a shut replica.

        `stored`: index of the last entry in the rows. A SKIP of an earlier entry does not help: then only a snapshot
        does. A SKIP that the replica followed before it failed, or one after the failed entry, does not help either:
        the replica would fail again."""
        if failure is None or failure.step is Step.SKIPPED or failure.index is None:
            return False
        if not failure.is_exact:
            return True  # reload it to learn which entry is at fault
        decided = {index: at for index, at in _decided(group).items() if stored < index <= failure.index}
        return any([self._followed.get(index) != at for index, at in decided.items()])


def _decided(group: Group) -> dict[int, int]:
    """Return the index of the last committed SKIP of each skipped entry, by the index of that entry."""
    return {skip.index: at for at, skip in group.journal.skips.items() if at <= group.commit_index}
