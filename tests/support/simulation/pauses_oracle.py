"""Check pauses: while a pause is known, no leader grants a lease of the paused group, tenant or key.

A lease token contains the index of the log entry that granted the lease. So the oracle can tell whether a lease was
granted before the pause was confirmed. The time of a grant is known exactly, in the partition's time, which also ends
pauses: it is the deadline of the lease minus its duration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from sandq.broker.replication.replica import Delivery
from sandq.model.pauses import FOREVER
from tests.support.simulation.oracle import Oracle, Sent, messages_of


class Target(NamedTuple):
    """A part of a topic that can be paused."""

    group: str
    tenant: bytes | None = None
    key: bytes | None = None
    """If `tenant` and `key` are None, the target is the whole group."""


class Pause(NamedTuple):
    """A confirmed pause."""

    end_ms: int
    """`FOREVER`: until it is resumed."""
    last_index: int
    """Index of the last entry that was applied when the pause was confirmed. Later entries must respect the pause."""


@dataclass
class Pauses:
    """The pauses that the clients know. A violation raises AssertionError."""

    oracle: Oracle
    lease_ms: int
    """Duration of each lease."""
    last_index: Callable[[], int]
    """Return the index of the last entry that any replica has applied."""
    known: dict[Target, Pause] = field(default_factory=dict)
    changes: Counter[Target] = field(default_factory=Counter)
    """Number of requests of an operator to pause or resume a target."""
    resets: int = 0
    """Number of times that the partition's clock was set back, which moves the ends of pauses."""
    unanswered: dict[Target, int] = field(default_factory=dict)
    """Requests of an operator without an answer: target -> `resets` at the request. Each target has at most one."""
    endless: set[Target] = field(default_factory=set)
    """Targets that may stay paused until an operator resumes them."""
    confirmed: Counter[str] = field(default_factory=Counter)
    """Number of confirmed pauses, by their kind: operator, lease, endless, resume."""
    ended: int = 0
    """Number of known pauses after whose end a message of the target was delivered."""
    outlived: int = 0
    """Number of deliveries during a known pause, of leases that may be older than the pause."""
    _tokens: set[int] = field(default_factory=set)
    """Tokens of earlier deliveries. The deadlines of these leases may have been extended."""

    def requested(self, target: Target, end_ms: int | None) -> None:
        """Note that an operator requests a pause, or to resume the target (`end_ms` is None).

        Until the answer arrives, the target may be paused or not."""
        self.changes[target] += 1
        self.unanswered[target] = self.resets
        self.known.pop(target, None)
        if end_ms == FOREVER:
            self.endless.add(target)

    def answered(self, target: Target, end_ms: int | None, *, is_confirmed: bool) -> None:
        """Note the answer to an operator's request. If it is not confirmed, its outcome is unknown."""
        resets = self.unanswered.pop(target)
        if not is_confirmed:
            return
        self.confirmed["resume" if end_ms is None else "endless" if end_ms == FOREVER else "operator"] += 1
        if end_ms is not None and resets == self.resets:
            self.known[target] = Pause(end_ms, self.last_index())
        if end_ms != FOREVER:
            self.endless.discard(target)

    def version(self, target: Target) -> tuple[int, int]:
        """Return a value that changes when anything but a lease may have changed the pause of a target."""
        return self.changes[target], self.resets

    def paused_by_lease(self, target: Target, end_ms: int, version: tuple[int, int]) -> None:
        """Note a confirmed pause by the holder of a lease, which never shortens a pause. `version`: version of the
        target before the request."""
        self.confirmed["lease"] += 1
        known = self.known.get(target)
        if version == self.version(target) and (known is None or end_ms > known.end_ms):
            self.known[target] = Pause(end_ms, self.last_index())

    def set_back(self) -> None:
        """Note that the partition's clock is set back: the ends of all pauses are unknown."""
        self.resets += 1
        self.known.clear()

    def delivered(self, group: str, delivery: Delivery) -> None:
        """Check that no message of a delivery was paused when its lease was granted."""
        if delivery.token in self._tokens:
            return
        self._tokens.add(delivery.token)
        granted_ms = delivery.deadline_ms - self.lease_ms
        for _, payload in messages_of(delivery):
            for target in self._targets(group, self.oracle.sent[payload]):
                pause = self.known.get(target)
                if pause is None:
                    continue
                if delivery.token >> 16 <= pause.last_index:
                    self.outlived += 1
                    continue
                early_ms = pause.end_ms - granted_ms
                assert early_ms <= 0, f"{payload!r} is leased {early_ms} ms before the end of the pause of {target}"
                del self.known[target]
                self.ended += 1

    def _targets(self, group: str, sent: Sent) -> Iterator[Target]:
        """Yield the targets to which a message belongs."""
        yield Target(group)
        if self.oracle.ordered and sent.key is not None:
            yield Target(group, key=sent.key)
        yield from (Target(group, tenant=name) for name in _names_above(sent.tenant))


def _names_above(tenant: bytes) -> Iterable[bytes]:
    """Return the name of a tenant, and the names of the tenants above it."""
    labels = tenant.split(b".")
    return [b".".join(labels[:count]) for count in range(1, len(labels) + 1)]
