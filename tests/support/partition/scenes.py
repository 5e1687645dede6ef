"""Bring one message into a chosen state, for the tests of the state table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from sandq.partition.records.leases import Lease
from tests.support.partition.bench import Bench
from tests.support.partition.ranked_bench import RankedBench

STATES = ("delayed", "ready", "leased", "waiting", "acked", "dead")
NOBODY = 123456 << 16


class Default:
    """Default options of scenes, which a test module may change."""

    is_ranked = False
    """Whether messages have ranks. Then ready messages are promoted to a ready queue of the group."""


DEFAULT = Default()


class Scene(NamedTuple):
    bench: Bench
    offset: bytes
    lease: Lease | None
    """Last lease of the message."""
    at: int

    @property
    def token(self) -> int:
        return self.lease.token if self.lease else NOBODY

    @property
    def what(self) -> Any:
        return [[self.offset, 1]]

    @property
    def state(self) -> str:
        return self.bench.state_of(self.offset)


def bench_of(**settings: Any) -> Bench:
    """Return a partition of the kind that `DEFAULT` selects."""
    return RankedBench(**settings) if DEFAULT.is_ranked else Bench(**settings)


def scene(state: str, *, before: Sequence[str] = (), own_ttl: int | None = None, **settings: Any) -> Scene:
    """Return a message in this state in group g. `before`: groups that are opened before g."""
    bench = bench_of(max_attempts=1 if state == "dead" else 3, **settings)
    for group in (*before, "g"):
        bench.open(group)
    due = 1000 if state == "delayed" else 0
    if own_ttl is not None:
        offset = bench.put("m", due=due, ttl=own_ttl)
    else:
        made = bench.append("m", at=0, due=[due])
        offset = made[0] if isinstance(made, tuple) else made
    if state in ("delayed", "ready"):
        if DEFAULT.is_ranked:
            bench.lease(0)
        return Scene(bench, offset, None, 0)
    lease = bench.one(at=1)
    if state in ("waiting", "dead"):
        assert bench.nack(lease.token, at=2, error="no") is None
    elif state == "acked":
        assert bench.ack(lease.token, at=2) is None
    return Scene(bench, offset, lease, 2)
