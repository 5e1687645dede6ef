"""SKIPs of a Raft group: entries that it has decided to skip, and SKIPs that this replica has followed (ADR 46)."""

from __future__ import annotations

from sandq.broker.replication.shut import ApplyFailure, Step
from sandq.raft import Group, ProposalFailed, Proposed, Skip


class FollowedSkips:
    """SKIPs of one group, as one replica follows them."""

    def __init__(self) -> None:
        self._is_proposed = False
        """A SKIP is proposed, and its outcome is unknown."""
        self._followed: dict[int, int] = {}
        """Index of the SKIP that this replica followed, by the index of the entry that the SKIP replaces."""

    def clear(self) -> None:
        """Begin anew: the replica has another state."""
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
        """Return whether a SKIP of an entry is proposed, or in the log, that this replica has not followed yet.

        A second one must not be proposed then. It would not contain the first, and replicas that follow one of the two
        would be shut where they meet the other."""
        ats = [at for at, skip in group.journal.skips.items() if skip.index == index]
        return self._is_proposed or (bool(ats) and self._followed.get(index) != ats[-1])

    def follow(self, group: Group, index: int) -> None:
        """Note that this replica applies an entry, and with it the SKIP of that entry, if there is one."""
        if group.journal.skips and (at := _decided(group).get(index)) is not None:
            self._followed[index] = at

    def may_reopen(self, group: Group, stored: int, failure: ApplyFailure | None) -> bool:
        """Return whether the group has decided to skip an entry that the rows of a shut replica do not have.

        `stored`: index of the last entry in the rows. A SKIP of an entry that the rows have is no reason: only a
        snapshot helps then. Neither is a SKIP that the replica followed before it failed, nor one behind its failure:
        it would fail again, and again."""
        if failure is None or failure.step is Step.SKIPPED or failure.index is None:
            return False
        if not failure.is_exact:
            return True  # to learn which entry it was
        decided = {index: at for index, at in _decided(group).items() if stored < index <= failure.index}
        return any([self._followed.get(index) != at for index, at in decided.items()])


def _decided(group: Group) -> dict[int, int]:
    """Return the index of the last committed SKIP of each entry that is skipped, by the index of the entry."""
    return {skip.index: at for at, skip in group.journal.skips.items() if at <= group.commit_index}
