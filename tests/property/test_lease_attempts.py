"""A lease command stops when a further attempt would find no message.

The result is the same as with one attempt for every grant, so replicas that make all attempts have the same rows."""

from __future__ import annotations

import random
from typing import Any

import pytest

from sandq.model.nack_ends import ENDS
from sandq.partition import commands as c
from sandq.partition.leasing.lease_grants import LeaseGrants
from sandq.partition.reader import reader
from tests.support.examples import seeds
from tests.support.partition.bench import Bench, T, batch_of

STEPS = 60


class Untiring(LeaseGrants):
    """Makes an attempt for each grant, even if earlier attempts found no message."""

    def _may_find_more(self, *_: Any) -> bool:
        return True


def step(rng: random.Random, at: int, tokens: list[int]) -> tuple[int, c.Command]:
    match rng.choice(["append", "send", "lease", "lease", "lease", "ack", "nack", "expire", "seek"]):
        case "append":
            due = [at + rng.choice([0, 3, 40, 4000]) for _ in range(rng.randint(1, 12))]
            return at, append(due, None)
        case "send":
            due = [at + rng.choice([0, 3, 40]) for _ in range(rng.randint(1, 12))]
            return at, append(due, rng)
        case "lease":
            grants = [c.Grant(rng.choice("abc"), rng.choice([1, 2, 5]), 2000) for _ in range(rng.randint(1, 7))]
            return at, c.Lease("g", T + at + rng.choice([0, 5]), tuple(grants))
        case "ack" if tokens:
            return at, c.Ack([(rng.choice(tokens), None)])
        case "nack" if tokens:
            item = (rng.choice(tokens), None, rng.choice([0, 30, 900]), None)
            return at, c.Nack([(*item, True, None, rng.choice(ENDS)) if rng.random() < 0.5 else item])
        case "seek" if not rng.randrange(8):
            return at, c.Seek("g", rng.choice(["earliest", "latest"]))
        case _:
            return at, c.Expire()


def append(due: list[int], rng: random.Random | None) -> c.Command:
    columns: dict[str, Any] = {}
    if rng is not None:
        columns = {
            "keys": [rng.choice(["k", "l", None]) for _ in due],
            "ttls": [rng.choice([1, 20, 60_000, None]) for _ in due],
            "attempts": [rng.choice([2, None, None]) for _ in due],
        }
    return c.Append(batch_of(["v"] * len(due), due=due, **columns), split=rng is not None)


@pytest.mark.parametrize("limit", [{}, {"ordering": "key"}, {"max_in_flight_per_key": 2}], ids=str)
@pytest.mark.parametrize("seed", seeds(15, 400))
def test_early_stop_gives_the_same_result(seed: int, limit: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(reader, "PASSED_OVER", rng.choice([1, 3, 1000]))
    benches = [Bench(**limit), Bench(**limit)]
    benches[1].machine._lease_grants.__class__ = Untiring
    for bench in benches:
        bench.open()
    tokens: list[int] = []
    at = 0
    for _ in range(STEPS):
        at += rng.choice([0, 1, 7, 300])
        at, command = step(rng, at, tokens)
        (found,), (wanted,) = (bench.apply(at, command) for bench in benches)
        if isinstance(command, c.Lease):
            assert [(lease.token, lease.consumer, lease.ranges) for lease in found] == [
                (lease.token, lease.consumer, lease.ranges) for lease in wanted
            ]
            tokens += [lease.token for lease in found]
        assert benches[0].everything() == benches[1].everything(), f"seed {seed}, after {command}"
