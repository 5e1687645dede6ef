"""Tests of replica comparison: differing replicas are named, and requests do not accumulate on a node."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from sandq.broker.health import replica_digests
from sandq.broker.health.replica_digests import ANSWER_S, REFUSED_MOST, VIEWS_MOST, ReplicaDigests
from sandq.broker.replication.applier import DigestView
from sandq.model.errors import StorageFailed, TimedOut
from sandq.partition import commands as c
from sandq.protocol.peer import PeerFrame
from sandq.storage.keys import store_prefix
from sandq.storage.stores import MemoryStores
from tests.support.nodes.fake_links import FakeLinks
from tests.support.waiting import until_holds

GROUP, INDEX = 7, 12
RIGHT, WRONG, OTHER = b"r" * 16, b"w" * 16, b"o" * 16


class Host:
    def __init__(self, bed: Bed) -> None:
        self._bed = bed
        self.members = SimpleNamespace(voters=("a#1", "b#1", "c#1"), learners=())
        self.leader: str | None = "a"
        self.ready = True
        self.refusal: Exception | None = None

    async def call(self, command: c.TakeDigest, line: Any) -> None:
        if self.refusal is not None:
            raise self.refusal
        self._bed.number = command.number
        for node, digest in self._bed.digests.items():
            self._bed.send_digest(node, digest)


class Bed:
    """Node "a" leads the only group. `digests` holds the answers of the nodes."""

    def __init__(self, bytes_per_s: int = 1 << 30) -> None:
        self.number = 0
        self.digests: dict[str, bytes | None] = {}
        self.links = FakeLinks("b", "c", own="a")
        self.host = Host(self)
        node_log: Any = SimpleNamespace(node_id="a", hosts={GROUP: self.host})
        catalog: Any = SimpleNamespace(led_here=[GROUP], view=SimpleNamespace(partition_of_group={GROUP: ("t", 0)}))

        shut_replicas: Any = SimpleNamespace(is_shut=lambda group, node: False)
        self.comparing = ReplicaDigests(node_log, catalog, self.links, shut_replicas, bytes_per_s)

    def send_digest(self, node: str, digest: bytes | None, index: int = INDEX, group: int = GROUP) -> None:
        assert self.comparing.on_frame(node, (group, self.number, index, digest))

    async def compare(self, **digests: bytes | None) -> bool | None:
        self.digests = digests
        return await self.comparing.compare(GROUP)


async def test_equal_replicas_are_not_different() -> None:
    bed = Bed()
    assert await bed.compare(a=RIGHT, b=RIGHT, c=RIGHT) is True
    assert bed.comparing.different == {} and bed.comparing.compared == 1


@pytest.mark.parametrize(
    ("digests", "odd"),
    [
        ({"a": RIGHT, "b": WRONG, "c": RIGHT}, ("b",)),
        ({"a": WRONG, "b": RIGHT, "c": RIGHT}, ("a",)),
        ({"a": RIGHT, "b": WRONG, "c": OTHER}, ("a", "b", "c")),
        ({"a": RIGHT, "b": WRONG, "c": None}, ("a", "b")),
        ({"a": RIGHT, "b": None, "c": WRONG}, ("a", "c")),
    ],
)
async def test_differing_node_is_named(digests: dict[str, bytes | None], odd: tuple[str, ...]) -> None:
    bed = Bed()
    assert await bed.compare(**digests) is False
    assert bed.comparing.different == {GROUP: odd}
    assert await bed.compare(a=RIGHT, b=RIGHT, c=RIGHT) is True
    assert bed.comparing.different == {}, "it was mended"


async def test_digest_at_another_index_counts_as_different() -> None:
    bed = Bed()

    async def answer() -> None:
        await until_holds(lambda: bed.number != 0)
        bed.send_digest("b", RIGHT)
        bed.send_digest("c", RIGHT, index=INDEX + 1)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(answer)
        assert await bed.compare(a=RIGHT) is False
    assert bed.comparing.different == {GROUP: ("c",)}


async def test_a_difference_stays_known_until_all_were_heard() -> None:
    bed = Bed()
    assert await bed.compare(a=RIGHT, b=WRONG, c=RIGHT) is False
    assert await bed.compare(a=RIGHT, b=None, c=RIGHT) is True
    assert await bed.compare(a=RIGHT, b=None, c=None) is None
    assert bed.comparing.different == {GROUP: ("b",)}


async def test_absent_member_is_not_awaited(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed()
    bed.links.peers = {"b": None}
    assert await bed.compare(a=RIGHT, b=RIGHT) is True
    bed.links.peers = {}
    assert await bed.compare(a=RIGHT) is None
    assert trio.current_time() == 0
    bed.links.peers = {"b": None, "c": None}
    assert await bed.compare(a=RIGHT, b=RIGHT) is True, "c has not answered in time"
    assert trio.current_time() >= ANSWER_S
    bed.host.ready = False
    assert await bed.compare(a=RIGHT, b=WRONG) is False, "the node no longer leads, but keeps its results"


async def test_comparison_without_peers_or_view_returns_none() -> None:
    bed = Bed()
    bed.host.refusal = TimedOut("the outcome is unknown")
    assert await bed.compare() is None
    bed.host.members.voters = ("a#1",)
    assert await bed.compare(a=RIGHT) is None


async def test_invalid_digest_is_dropped() -> None:
    comparing = Bed().comparing
    for body in (None, (), (1, 2, 3), (1, 2, 3, b"short"), (1, 2, 3, "t" * 16), (True, 2, 3, RIGHT), [1, 2, 3, RIGHT]):
        assert not comparing.on_frame("b", body), body
    assert comparing.on_frame("b", (GROUP, 5, 3, RIGHT)), "an answer without a waiting request"
    assert comparing.different == {}


# -- asked nodes ------------------------------------------------------------------------------------------------------


class Rows:
    """`StoresSnapshot` of one store. The test decides whether it fails."""

    def __init__(self, fails: bool = False) -> None:
        self.closed = False
        stores = MemoryStores([(store_prefix(3) + b"mkey", b"value"), (store_prefix(4) + b"m", b"not of this store")])
        self._rows = stores.snapshot()
        self._fails = fails

    def scan(self, *args: Any, **kwargs: Any) -> list[tuple[bytes, bytes]]:
        if self._fails:
            raise StorageFailed("the disk fails")
        return self._rows.scan(*args, **kwargs)

    def close(self) -> None:
        self.closed = True


def view(number: int, **options: Any) -> DigestView:
    return DigestView(GROUP, INDEX, number, 3, Rows(**options))  # type: ignore[arg-type]


async def test_view_digest_is_sent_to_the_leader() -> None:
    bed = Bed()
    bed.host.leader = "b"
    views = [view(1), view(2, fails=True), view(3)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bed.comparing.run)
        for one in views:
            bed.comparing.on_view(one)
        # type: ignore[attr-defined]
        await until_holds(lambda: len(bed.links.sent) == len(views) and all(one.rows.closed for one in views))
        nursery.cancel_scope.cancel()
    told = {body[1]: (node, kind, body[0], body[2], body[3]) for node, kind, body in bed.links.sent}
    assert told[1] == told[3] and told[1][:4] == ("b", PeerFrame.DIGEST, GROUP, INDEX) and len(told[1][4]) == 16
    assert told[2] == ("b", PeerFrame.DIGEST, GROUP, INDEX, None)


async def test_too_much_at_once_is_answered_with_nothing() -> None:
    bed = Bed()
    bed.host.leader = "b"
    views = [view(number) for number in range(VIEWS_MOST + 3)]
    for one in views:
        bed.comparing.on_view(one)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bed.comparing.run)
        # type: ignore[attr-defined]
        await until_holds(lambda: len(bed.links.sent) == len(views) and all(one.rows.closed for one in views))
        nursery.cancel_scope.cancel()
    assert {body[1] for _, _, body in bed.links.sent if body[3] is None} == {VIEWS_MOST, VIEWS_MOST + 1, VIEWS_MOST + 2}


async def test_refused_views_are_closed_beyond_a_limit() -> None:
    bed = Bed(bytes_per_s=0)
    bed.host.leader = "b"
    views = [view(number) for number in range(REFUSED_MOST + 3)]
    for one in views:
        bed.comparing.on_view(one)
    assert [body[1] for _, _, body in bed.links.sent] == [*range(REFUSED_MOST + 3)]
    assert [one.rows.closed for one in views] == REFUSED_MOST * [False] + 3 * [True]  # type: ignore[attr-defined]


async def test_node_with_read_rate_zero_replies_without_digest() -> None:
    bed = Bed(bytes_per_s=0)
    bed.host.leader = "b"
    one = view(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bed.comparing.run)
        bed.comparing.on_view(one)
        await until_holds(lambda: one.rows.closed)  # type: ignore[attr-defined]
        nursery.cancel_scope.cancel()
    assert bed.links.sent == [("b", PeerFrame.DIGEST, (GROUP, 1, INDEX, None))]


async def test_rounds(autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replica_digests, "ROUND_S", 1000.0)
    bed = Bed()
    bed.digests = {"a": RIGHT, "b": RIGHT, "c": RIGHT}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bed.comparing.run)
        await trio.sleep(replica_digests.FIRST_S + 2500)
        nursery.cancel_scope.cancel()
    assert bed.comparing.compared == 3
