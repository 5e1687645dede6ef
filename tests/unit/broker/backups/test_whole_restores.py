"""A topic is opened only when the leader of each partition reports a complete restore."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from sandq.broker.backups import whole_restores
from sandq.broker.backups.whole_restores import WholeRestores
from sandq.model.errors import Conflict, Unavailable
from sandq.partition.records.restore_state import RestoreState
from sandq.protocol.peer import PeerFrame
from tests.support.nodes.fake_links import FakeLinks

LEADERS = {10: "n1", 11: "n2", 12: "n2", 13: "n3"}


class Bed:
    """Node n1, other nodes that answer with `answers`, and a topic of four partitions."""

    def __init__(self) -> None:
        self.led: dict[int, RestoreState | None] = {10: RestoreState("r", is_whole=True)}
        self.leaders: dict[int, str | None] = dict(LEADERS)
        self.answers: dict[str, tuple[int, ...]] = {"n2": (11, 12), "n3": (13,)}
        self.is_reached = True
        self.links = FakeLinks("n2", "n3", on_send=self.answer)
        catalog: Any = SimpleNamespace(by_group=self)
        routes: Any = SimpleNamespace(leader=self.leaders.get)
        self.restores = WholeRestores("n1", catalog, routes, self.links)
        self.topic: Any = SimpleNamespace(name="t", partitions=[SimpleNamespace(group=group) for group in LEADERS])

    def get(self, group: int) -> Any:
        if group not in self.led:
            return None
        return SimpleNamespace(raft_group=SimpleNamespace(status=SimpleNamespace(restore=self.led[group])))

    def answer(self, node: str, kind: int, body: Any) -> bool:
        if kind == PeerFrame.RESTORE_ASKED and node in self.answers:
            self.restores.on_frame(node, PeerFrame.RESTORE_TOLD, (body[0], self.answers[node]))
        return self.is_reached

    async def check(self) -> None:
        await self.restores.check(self.topic, "r")


async def test_each_node_gets_one_request_for_all_its_partitions() -> None:
    bed = Bed()
    await bed.check()
    assert [(node, body[1:]) for node, _, body in bed.links.sent] == [("n2", ("r", (11, 12))), ("n3", ("r", (13,)))]


@pytest.mark.parametrize("here", [None, RestoreState("r"), RestoreState("other", is_whole=True)])
async def test_incomplete_restore_on_this_node_is_reported(here: RestoreState | None) -> None:
    bed = Bed()
    bed.led[10] = here
    with pytest.raises(Conflict, match="partitions 0 are not restored yet"):
        await bed.check()


async def test_incomplete_restore_on_another_node_is_reported() -> None:
    bed = Bed()
    bed.answers["n2"] = (11,)
    with pytest.raises(Conflict, match="partitions 2 are not"):
        await bed.check()


async def test_partition_without_leader_counts_as_not_restored() -> None:
    bed = Bed()
    bed.leaders[13] = None
    with pytest.raises(Unavailable, match="partitions 3 "):
        await bed.check()


async def test_partitions_of_silent_leaders_count_as_not_restored(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    bed = Bed()
    bed.answers, bed.is_reached = {}, False
    with pytest.raises(Unavailable, match="partitions 1, 2, 3 "):
        await bed.check()
    assert trio.current_time() == 0
    bed.is_reached = True
    with pytest.raises(Unavailable, match="partitions 1, 2, 3 "):
        await bed.check()
    assert trio.current_time() == whole_restores.ANSWER_S


async def test_an_answer_of_another_node_or_that_comes_late_counts_for_nothing() -> None:
    bed = Bed()
    await bed.check()
    number = bed.links.sent[0][2][0]
    assert bed.restores.on_frame("n3", PeerFrame.RESTORE_TOLD, (number, (11, 12)))


def test_node_replies_with_its_restored_partitions() -> None:
    bed = Bed()
    bed.led[14] = RestoreState("r")
    assert bed.restores.on_frame("n4", PeerFrame.RESTORE_ASKED, (7, "r", (10, 14, 15)))
    assert bed.links.sent == [("n4", PeerFrame.RESTORE_TOLD, (7, (10,)))]


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (PeerFrame.RESTORE_ASKED, None),
        (PeerFrame.RESTORE_ASKED, (7, "r")),
        (PeerFrame.RESTORE_ASKED, (7, "r", ("10",))),
        (PeerFrame.RESTORE_TOLD, (7, 10)),
        (PeerFrame.RESTORE_TOLD, ("7", (10,))),
    ],
)
def test_unknown_frame_is_refused(kind: int, body: Any) -> None:
    assert not Bed().restores.on_frame("n2", kind, body)
