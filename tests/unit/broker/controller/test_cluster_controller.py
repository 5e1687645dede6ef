"""Tests of the leader of the metadata group, on a fake directory: failed nodes, voters and forgotten nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from sandq.broker.controller.cluster_controller import FAILED_S, UNCHECKED_S, ClusterController
from sandq.broker.controller.feature_level import FeatureLevel
from sandq.broker.peers.handshake import PeerIdentity
from sandq.broker.replication.replica import MetadataView
from sandq.metadata import commands as m
from sandq.metadata.records import DRAINING, REMOVING, NodeRecord
from sandq.metadata.state import MetadataState
from sandq.model.errors import Conflict
from sandq.model.features import FIRST_LEVEL, Levels
from sandq.model.members import node_of
from sandq.raft import Members
from tests.support.registered import register_node

T = 1_800_000_000_000
AFTER_MS = 60_000

OLD = Levels(FIRST_LEVEL, FIRST_LEVEL)
"""Feature levels that the version of a node knows by default."""
NEW = Levels(FIRST_LEVEL, FIRST_LEVEL + 1)


class Host:
    """A metadata group that this node leads and that commits immediately."""

    def __init__(self, voters: Sequence[str], learners: Sequence[str] = ()) -> None:
        self.state = MetadataState()
        self.members = Members(tuple(voters), tuple(learners))
        self.behind: set[str] = set()
        self.steps: list[Members] = []
        self.group = SimpleNamespace(is_changing=False, member=voters[0], has_caught_up=lambda x: x not in self.behind)

    @property
    def status(self) -> MetadataView:
        """Return the view of the metadata, as the controller reads it."""
        s = self.state
        return MetadataView(
            applied_index=s.applied_index,
            cluster_uuid="uuid",
            next_group=s.next_group,
            topics=dict(s.topics),
            nodes=dict(s.nodes),
            removed=dict(s.removed),
            balanced=s.balanced,
            partition_of_group=dict(s.partition_of_group),
            feature_level=s.feature_level,
        )

    def submit(self, command: m.Command, done: Callable[[Any], None], *, line: Any = None) -> None:
        entry = m.Entry.decode(m.Entry(T, [command]).encode())
        done(self.state.apply(self.state.applied_index + 1, entry, lambda key, value: None)[0])

    def check_ready(self) -> None:
        pass

    async def call(self, command: m.Command) -> Any:
        results: list[Any] = []
        self.submit(command, results.append)
        return results[0]

    async def change_members(self, members: Members) -> None:
        self.members = members
        self.steps.append(members)


class Joining:
    """A join service without join requests: all linked nodes are registered with their own levels."""

    def __init__(self, bed: Bed) -> None:
        self._bed = bed

    async def take_in(self, metadata: Host) -> None:
        pass

    def welcome(self, metadata: Host) -> None:
        pass

    def linked_as_registered(self, view: MetadataView) -> list[str]:
        return sorted(self._bed.linked & view.nodes.keys())


class Bed:
    def __init__(self, *names: str, zones: str = "", voters: int = 5, **host: Any) -> None:
        members = [f"{name}#1" for name in names]
        self.host = Host(members[:voters], members[voters:], **host)
        self.zones = dict(zip(names, zones or "x" * len(names), strict=True))
        self.linked = set(names)
        self.seen: set[str] = set()
        self.led: set[int] = set()
        self.sick: set[str] = set()
        self.levels = dict.fromkeys(names, OLD)
        self.directory: Any = SimpleNamespace(
            linked=lambda: [self.identity(name) for name in sorted(self.linked)],
            alive=lambda: [(name, f"store-{name}") for name in self.seen],
        )
        routes: Any = SimpleNamespace(leader=lambda group: "a" if group in self.led else None)
        nodes: Any = SimpleNamespace(is_rebuilding=lambda group: False)
        health: Any = SimpleNamespace(may_lead=lambda node: True, sick=lambda: self.sick)
        self.controller = ClusterController(
            joining=Joining(self),  # type: ignore[arg-type]
            directory=self.directory,
            routes=routes,
            nodes=nodes,
            health=health,
            now_ms=lambda: T + round(trio.current_time() * 1000),
            reassign_after_ms=AFTER_MS,
            partitions_per_node=5_000,
        )

    def identity(self, name: str) -> PeerIdentity:
        """Return the identity with which a node joins."""
        return PeerIdentity(
            node_id=name,
            store_uuid=f"store-{name}",
            cluster_uuid="uuid",
            addresses={"client": f"{name}:1"},
            zone=self.zones[name],
            weight=1,
            levels=self.levels[name],
        )

    async def tend(self, seconds: float = 0.5) -> None:
        """Run the controller for `seconds` with the interval of a real node."""
        for _ in range(max(1, round(seconds / 0.5))):
            await self.controller.tend(self.host)  # type: ignore[arg-type]
            await trio.sleep(0.5)

    def node(self, name: str) -> NodeRecord:
        return self.host.state.nodes[name]

    def failed(self) -> set[str]:
        return {name for name, node in self.host.state.nodes.items() if node.failed_since_ms is not None}

    def voting(self) -> set[str]:
        return {node_of(voter) for voter in self.host.members.voters}


async def test_unlinked_and_unreported_node_has_failed(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed("a", "b", "c")
    await bed.tend()
    began_ms = T + round(trio.current_time() * 1000)
    bed.linked.discard("c")
    await bed.tend(FAILED_S - 1)
    assert bed.failed() == set()
    await bed.tend(2)
    assert bed.failed() == {"c"}
    since_ms = bed.node("c").failed_since_ms
    assert since_ms is not None and abs(since_ms - began_ms) <= 1000, (
        "the node failed when it disappeared, not when this was noticed"
    )
    bed.linked.add("c")
    await bed.tend()
    assert bed.failed() == set()


async def test_failure_marked_with_a_wrong_clock_is_marked_again(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed("a", "b", "c")
    await bed.tend()
    bed.linked.discard("c")
    await bed.tend(FAILED_S + 1)
    right_ms = bed.node("c").failed_since_ms
    assert right_ms is not None
    await bed.host.call(m.MarkNode("c", right_ms + 365 * 86_400_000))
    await bed.tend()
    since_ms = bed.node("c").failed_since_ms
    assert since_ms is not None and abs(since_ms - right_ms) <= 1000


@pytest.mark.parametrize("what", ["gossip alone", "link alone"])
async def test_gossip_or_link_alone_keeps_a_node_alive(autojump_clock: trio.testing.MockClock, what: str) -> None:
    """Either only UDP is blocked, or only TCP is blocked."""
    bed = Bed("a", "b", "c")
    bed.seen = {"b", "c"}
    await bed.tend()
    if what == "gossip alone":
        bed.linked = {"a"}
    else:
        bed.seen = set()
    await bed.tend(10 * FAILED_S)
    assert bed.failed() == set()


async def test_another_store_with_the_name_of_a_node_does_not_count(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed("a", "b", "c")
    await bed.tend()
    bed.linked.discard("c")
    bed.directory.alive = lambda: [("c", "another store")]
    await bed.tend(2 * FAILED_S)
    assert bed.failed() == {"c"}


async def test_controller_that_paused_restarts_its_timeouts(autojump_clock: trio.testing.MockClock) -> None:
    """Another node led meanwhile, or this node was stopped. So the earlier observations are out of date."""
    bed = Bed("a", "b", "c")
    await bed.tend()
    bed.linked.discard("c")
    await bed.tend(FAILED_S - 1)
    await trio.sleep(UNCHECKED_S + 60)
    await bed.tend(FAILED_S - 1)
    assert bed.failed() == set()
    await bed.tend(2)
    assert bed.failed() == {"c"}


async def test_five_vote_of_all_zones(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed("a", "b", "c", "d", "e", "f", zones="xxxxxy")
    await bed.tend(5)
    assert len(bed.voting()) == 5 and "f" in bed.voting()
    gone = {"a", "b", "c", "d", "e"} - bed.voting()
    assert {node_of(learner) for learner in bed.host.members.learners} == gone, "the old voter remains as a learner"
    voters = [set(step.voters) for step in bed.host.steps]
    assert all(len(step) >= 5 for step in voters), "the new node votes before the old voter is removed"


async def test_a_learner_that_is_behind_does_not_vote(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed("a", "b", "c", "d", voters=2)
    bed.host.behind = {"c#1"}
    await bed.tend(3)
    assert bed.voting() == {"a", "b", "d"}


async def test_lost_voter_is_replaced(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed("a", "b", "c", "d", "e", "f")
    await bed.tend(2)
    assert bed.voting() == {"a", "b", "c", "d", "e"}
    bed.linked.discard("b")
    await bed.tend(FAILED_S + 2)
    assert "b" in bed.voting()
    await bed.tend(AFTER_MS / 1000 + 2)
    assert bed.voting() == {"a", "c", "d", "e", "f"}
    bed.linked.add("b")
    await bed.tend(2)
    assert bed.voting() == {"a", "c", "d", "e", "f"} and "b#1" in bed.host.members.learners


async def test_a_node_is_forgotten_once_nothing_depends_on_it(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed("a", "b", "c")
    await bed.tend()
    await bed.host.call(m.CreateTopic("t", "timer", 1, [["c"]], {}))
    await bed.host.call(m.ChangeStanding("c", DRAINING))
    await bed.tend(2)
    assert bed.voting() == {"a", "b"} and "c#1" in bed.host.members.learners
    await bed.host.call(m.ChangeStanding("c", REMOVING))
    await bed.tend(2)
    assert "c" in bed.host.state.nodes, "a group without a leader cannot be moved"
    bed.led = {1}
    await bed.tend(2)
    moved = bed.host.state.topics["t"].partitions[0]
    assert moved.nodes in (("a",), ("b",)) and moved.former == ("c#1",) and "c" in bed.host.state.nodes
    bed.controller.settled([(1, 1, True)])
    bed.linked.discard("c")
    await bed.tend(3)
    assert "c" not in bed.host.state.nodes and "c#1" not in (*bed.host.members.voters, *bed.host.members.learners)
    assert bed.host.state.removed["c"].stores == ("store-c",)


async def test_reports_of_deleted_groups_change_nothing(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed("a", "b")
    await bed.tend()
    bed.controller.settled([(77, 1, True)])
    await bed.tend()
    assert bed.host.state.topics == {}


async def test_unregistered_learner_without_link_is_removed(autojump_clock: trio.testing.MockClock) -> None:
    """The node was admitted and ended at once. Without its registration no one could remove it."""
    bed = Bed("a", "b", "c", voters=2)
    bed.linked.discard("c")
    await bed.tend()
    assert "c" not in bed.host.state.nodes and bed.host.members == Members(("a#1", "b#1"))


# -- feature levels ---------------------------------------------------------------------------------------------------


async def test_feature_level_rises_when_every_node_knows_it(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed("a", "b", "c")
    bed.levels |= {"a": Levels(FIRST_LEVEL, FIRST_LEVEL + 2), "b": NEW}
    await bed.tend()
    assert bed.host.state.feature_level == FIRST_LEVEL, "c runs the version before"
    bed.linked.discard("c")
    await bed.tend(2 * FAILED_S)
    assert bed.failed() == {"c"} and bed.host.state.feature_level == FIRST_LEVEL, "the node may come back unchanged"
    bed.levels["c"] = Levels(FIRST_LEVEL + 1, FIRST_LEVEL + 2)
    bed.linked.add("c")
    await bed.tend()
    assert bed.host.state.feature_level == FIRST_LEVEL and bed.node("c").levels == OLD, "c does not know the level"
    bed.levels["c"] = Levels(FIRST_LEVEL, FIRST_LEVEL + 3)
    await bed.tend()
    assert bed.host.state.feature_level == FIRST_LEVEL + 1, "what all know"


async def test_a_member_that_is_not_registered_yet_holds_the_level_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    bed = Bed("a", "b")
    bed.levels |= dict.fromkeys("ab", NEW)
    bed.linked.discard("b")
    await bed.tend()
    assert set(bed.host.state.nodes) == {"a"} and bed.host.state.feature_level == FIRST_LEVEL
    bed.linked.add("b")
    await bed.tend()
    assert bed.host.state.feature_level == FIRST_LEVEL + 1
    bed.levels["b"] = OLD
    await bed.tend()
    assert bed.node("b").levels == NEW, "a version that does not know the level is not registered"


async def test_a_node_that_is_back_with_an_older_version_holds_the_level_back(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The registered level differs from the linked level, because time passed after the linked nodes were read."""
    bed = Bed("a", "b")
    bed.levels |= {"a": NEW}
    await bed.tend()
    bed.host.submit(register_node("b", "store-b", {}, highest_level=NEW.highest), lambda result: None)
    await bed.controller.feature_level.tend(bed.host)  # type: ignore[arg-type]
    assert bed.host.state.feature_level == FIRST_LEVEL
    bed.linked.discard("b")
    await bed.controller.feature_level.tend(bed.host)  # type: ignore[arg-type]
    assert bed.host.state.feature_level == FIRST_LEVEL + 1, "the last reported levels count while the node is away"


async def test_level_waits_for_finalize(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed("a", "b")
    level = bed.controller.feature_level = FeatureLevel(bed.directory, rises_by_itself=False)
    await bed.tend()
    await bed.host.call(m.CreateTopic("t", "timer", 1, [["a"]], {}))
    newest = Levels(FIRST_LEVEL, FIRST_LEVEL + 2)
    bed.levels |= {"a": newest}
    await bed.tend()
    with pytest.raises(
        Conflict, match=rf"at feature level {OLD}, .*: a supports {newest}, b supports {OLD}\. Upgrade the nodes"
    ):
        await level.finalize(bed.host, dry_run=False)  # type: ignore[arg-type]
    bed.levels["b"] = NEW
    await bed.tend()
    assert await level.finalize(bed.host, dry_run=True) == (OLD.highest, NEW.highest)  # type: ignore[arg-type]
    assert bed.host.state.feature_level == FIRST_LEVEL
    assert await level.finalize(bed.host, dry_run=False) == (OLD.highest, NEW.highest)  # type: ignore[arg-type]
    await bed.tend()
    assert bed.host.state.feature_level == FIRST_LEVEL + 1


async def test_finalize_names_a_member_that_has_not_reported(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed("a", "b")
    bed.levels |= dict.fromkeys("ab", NEW)
    bed.linked.discard("b")
    level = FeatureLevel(bed.directory, rises_by_itself=False)
    await bed.tend()
    with pytest.raises(Conflict, match="b has not reported yet which levels it supports"):
        await level.finalize(bed.host, dry_run=False)  # type: ignore[arg-type]


async def test_a_cluster_without_topics_does_not_wait(autojump_clock: trio.testing.MockClock) -> None:
    bed = Bed("a")
    bed.controller.feature_level = FeatureLevel(bed.directory, rises_by_itself=False)
    bed.levels["a"] = NEW
    await bed.tend()
    assert bed.host.state.feature_level == FIRST_LEVEL + 1
