"""Tests of the usage of topic owners: it is summed over nodes as long as they report it."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from sandq.broker.owner_usage import STALE_S, Held, OwnerUsage
from sandq.model.errors import QuotaExceeded
from sandq.protocol.peer import PeerFrame
from tests.support.nodes.fake_links import FakeLinks


def no(what: str = "") -> Callable[[], int | None]:
    return lambda: None


class Bed:
    """A node that leads partitions of topics, with these owners."""

    def __init__(self, **quotas: dict[str, int]) -> None:
        self.links = FakeLinks("n2", "n3")
        self.asked = 0
        self.came_due = 0
        identities = {name: SimpleNamespace(quota=quota) for name, quota in quotas.items()}
        runner: Any = SimpleNamespace(ask=self._ask)
        self.catalog: Any = SimpleNamespace(view=SimpleNamespace(identities=identities), topics={})
        self.usage = OwnerUsage(self.catalog, self.links, runner, lambda: 10_000)

    async def _ask(self, fetch: Callable[[], list[int]], *, patient: bool) -> list[int]:
        self.asked += 1
        return fetch()

    def topic(self, name: str, owner: str | None, *held: tuple[int, int]) -> None:
        led = {}
        for number, (size, later) in enumerate(held):
            status = SimpleNamespace(bytes=size, later=later, now_ms=10_500)
            host = SimpleNamespace(status=status, number=len(self.catalog.topics) * 10 + number, replica=None)
            led[number] = SimpleNamespace(raft_group=host)
        self.catalog.topics[name] = SimpleNamespace(record=SimpleNamespace(owner=owner), led=lambda: led)


async def test_led_partitions_are_summed_and_reported() -> None:
    bed = Bed(ada={"stored_bytes": 100}, bob={"topics": 1})
    bed.topic("a", "ada", (30, 1), (20, 2))
    bed.topic("b", "ada", (10, 0))
    bed.topic("c", "bob", (1000, 9))
    bed.topic("d", None, (1000, 9))
    await bed.usage.update()
    assert bed.usage.held == {"ada": Held(60, 3)}
    assert bed.links.sent == [(node, PeerFrame.USAGE, (("ada", 60, 3),)) for node in ("n2", "n3")]


async def test_usage_is_not_reported_without_limited_owners() -> None:
    bed = Bed(bob={"topics": 1})
    bed.topic("c", "bob", (1000, 9))
    await bed.usage.update()
    assert bed.links.sent == [] and bed.usage.held == {}
    bed.usage.check("bob", 0, no())


async def test_usage_reported_by_other_nodes_expires(autojump_clock: MockClock) -> None:
    bed = Bed(ada={"stored_bytes": 100, "pending_messages": 5})
    bed.topic("a", "ada", (30, 1))
    await bed.usage.update()
    bed.usage.check("ada", 0, lambda: 1)
    assert bed.usage.on_frame("n2", (("ada", 40, 4), ("eve", 1, 1)))
    bed.usage.check("ada", 0, no())
    with pytest.raises(QuotaExceeded) as refused:
        bed.usage.check("ada", 0, lambda: 1)
    assert (refused.value.details["quota"], refused.value.details["maximum"]) == ("pending_messages", 5)
    bed.usage.on_frame("n3", (("ada", 30, 0),))
    with pytest.raises(QuotaExceeded) as refused:
        bed.usage.check("ada", 0, no())
    assert refused.value.details["quota"] == "stored_bytes" and refused.value.retriable
    bed.usage.on_frame("n3", ())
    bed.usage.check("ada", 0, no())
    await trio.sleep(STALE_S)
    await bed.usage.update()
    assert bed.usage.held == {"ada": Held(30, 1)}


@pytest.mark.parametrize(
    "body", [None, [], ("ada",), (("ada", 1),), (("ada", 1, "2"),), ((1, 1, 1),), (("a", True, 1),)]
)
def test_a_frame_of_another_form_is_none(body: Any) -> None:
    assert not Bed().usage.on_frame("n2", body)


async def test_a_quota_that_is_taken_away_bounds_nothing() -> None:
    bed = Bed(ada={"stored_bytes": 10})
    bed.topic("a", "ada", (30, 1))
    await bed.usage.update()
    with pytest.raises(QuotaExceeded):
        bed.usage.check("ada", 0, no())
    bed.catalog.view = SimpleNamespace(identities={})
    await bed.usage.update()
    bed.usage.check("ada", 0, no())
    assert bed.usage.held == {}
