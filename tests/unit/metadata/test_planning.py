"""Tests of planned placement changes, node by node and rule by rule."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from sandq.metadata import commands as m
from sandq.metadata.planning import MOVES_MOST, next_changes, next_voters, too_many_failed
from sandq.metadata.records import DRAINING, IN, REMOVING, NodeRecord, Partition, Topic
from sandq.metadata.state import MetadataState
from sandq.model.errors import SandqError
from sandq.model.features import KNOWN
from tests.support.registered import register_node

T = 1_800_000_000_000
AFTER_MS = 300_000


def node(name: str, *, failed: int | None = None, standing: str = IN, zone: str = "default") -> NodeRecord:
    """Return a registered node. `failed`: for how long it has failed, in ms."""
    failed_ms = T - failed if failed is not None else None
    return NodeRecord(
        node_id=name,
        store_uuid=f"store-{name}",
        addresses={},
        zone=zone,
        weight=1,
        incarnation=1,
        standing=standing,
        failed_since_ms=failed_ms,
        lowest_level=KNOWN.lowest,
        highest_level=KNOWN.highest,
    )


def registry(*nodes: NodeRecord) -> dict[str, NodeRecord]:
    return {record.node_id: record for record in nodes}


def topic(*placed: tuple[str, ...], replicas: int = 0) -> dict[str, Topic]:
    """Return a topic whose partitions have replicas on these nodes; the first node leads."""
    partitions = []
    for group, nodes in enumerate(placed, 1):
        members = tuple([f"{name}#{group}" for name in nodes])
        partitions.append(Partition(group, members, members))
    count = replicas or len(placed[0])
    return {
        "t": Topic(
            name="t",
            number=1,
            kind="timer",
            initial_partitions=len(placed),
            replicas=count,
            settings={},
            created_ms=T,
            partitions=tuple(partitions),
            first_settings={},
        )
    }


def changes(
    topics: dict[str, Topic],
    nodes: dict[str, NodeRecord],
    *,
    balanced: Iterable[str] | None = None,
    not_led: Collection[int] = (),
) -> list[m.Command]:
    """Return the commands that the planning proposes next. `not_led`: Raft groups without a leader."""
    there = [n.node_id for n in nodes.values() if n.standing == IN] if balanced is None else list(balanced)
    led = {p.group for topic in topics.values() for p in topic.partitions} - set(not_led)
    return next_changes(topics, nodes, there, led, T, AFTER_MS)


def assigned(found: list[m.Command]) -> dict[int, set[str]]:
    return {command.group: set(command.nodes) for command in found if isinstance(command, m.Assign)}


ABC = (("a", "b", "c"),)


def test_recently_failed_node_keeps_its_replicas() -> None:
    nodes = registry(node("a"), node("b"), node("c", failed=AFTER_MS - 1), node("d"))
    assert changes(topic(*ABC), nodes) == []
    nodes["c"] = node("c", failed=AFTER_MS)
    found = changes(topic(*ABC), nodes, balanced="abd")
    assert assigned(found) == {1: {"a", "b", "d"}} and found[0] == m.Assign(1, 0, ["a", "b", "d"])


def test_lost_node_stays_until_a_replacement_exists() -> None:
    nodes = registry(node("a"), node("b"), node("c", failed=AFTER_MS))
    assert changes(topic(*ABC), nodes, balanced="ab") == []


def test_removed_node_is_drained_even_then() -> None:
    nodes = registry(node("a"), node("b"), node("c", failed=AFTER_MS, standing=REMOVING))
    assert assigned(changes(topic(*ABC), nodes)) == {1: {"a", "b"}}


def test_drained_node_leaves_once_another_can_replace_it() -> None:
    nodes = registry(node("a"), node("b"), node("c", standing=DRAINING))
    assert changes(topic(*ABC), nodes) == []
    assert assigned(changes(topic(*ABC), registry(*nodes.values(), node("d")))) == {1: {"a", "b", "d"}}


def test_moves_avoid_full_nodes_while_others_have_capacity() -> None:
    nodes = registry(node("a"), node("b"), node("c", standing=DRAINING), node("d"), node("e"))
    topics = topic(("a", "c"), ("d", "c"), ("d", "c"), replicas=2)
    led = {1, 2, 3}
    found = assigned(next_changes(topics, nodes, "abde", led, T, AFTER_MS, 2))
    assert len(found) == 3 and "d" not in found[1], "it is full"
    found = assigned(next_changes(topics, nodes, "abde", led, T, AFTER_MS, 0))
    assert all(len(held) == 2 and "c" not in held for held in found.values()), (
        "full nodes are better than too few replicas"
    )


def test_no_changes_while_more_than_a_third_failed() -> None:
    two = [node("c", failed=AFTER_MS), node("d", failed=AFTER_MS)]
    nodes = registry(node("a"), node("b"), *two, node("e"))
    assert too_many_failed(nodes)
    assert changes(topic(("a", "b", "c")), nodes, balanced=()) == []
    sixth = registry(*nodes.values(), node("f"))
    assert not too_many_failed(sixth), "one third is not more than one third"
    assert assigned(changes(topic(("a", "b", "c")), sixth))[1] <= {"a", "b", "e", "f"}


def test_without_a_leader_nothing_can_be_moved() -> None:
    """Only members of the group could report progress. The group does not block other moves."""
    nodes = registry(node("a"), node("b", failed=AFTER_MS), node("c"), node("d"))
    assert assigned(changes(topic(("a", "b"), ("b",), ("c", "d")), nodes, not_led=[1, 2])) == {}
    stuck = tuple([replace(p, epoch=1) for p in topic(*[("a", "b")] * MOVES_MOST)["t"].partitions])
    free = replace(topic(("a", "b", "c"))["t"].partitions[0], group=1000)
    first, second = topic(("a", "b"))["t"], topic(("a", "b", "c"))["t"]
    both = {"t": replace(first, partitions=stuck), "u": replace(second, name="u", partitions=(free,))}
    assert assigned(changes(both, nodes, not_led=range(1, MOVES_MOST + 1))) == {1000: {"a", "c", "d"}}


def test_removed_node_is_drained_even_if_others_failed() -> None:
    """After the loss of a majority the lost nodes are removed one after another."""
    lost = [node("b", failed=AFTER_MS, standing=REMOVING), node("c", failed=AFTER_MS)]
    nodes = registry(node("a"), *lost, node("d"), node("e", failed=AFTER_MS))
    assert too_many_failed(nodes)
    assert assigned(changes(topic(*ABC), nodes, balanced=())) == {1: {"a", "c"}}, "no node takes its place"


def test_replica_that_no_node_can_take_stays() -> None:
    nodes = registry(node("a", standing=DRAINING), node("b", failed=AFTER_MS, standing=REMOVING))
    assert assigned(changes(topic(("b",)), nodes)) == {}


def test_removed_node_is_not_missed() -> None:
    """After the loss of a majority all remaining members are failed."""
    lost = [node(name, failed=AFTER_MS, standing=REMOVING) for name in "bc"]
    assert assigned(changes(topic(*ABC), registry(node("a"), *lost))) == {1: {"a"}}


def test_number_of_concurrent_moves_is_limited() -> None:
    nodes = registry(node("a"), node("b", standing=DRAINING))
    topics = topic(*[("b",)] * (MOVES_MOST + 5))
    first = changes(topics, nodes)
    assert len(first) == MOVES_MOST
    coming = [replace(p, epoch=1) for p in topic(*[("a",)] * 10)["t"].partitions]
    left = [replace(p, group=p.group + 100) for p in topics["t"].partitions]
    then = changes({"t": replace(topics["t"], partitions=(*coming, *left))}, nodes)
    assert len(then) == MOVES_MOST - 10


def test_even_spread_is_recorded_once_for_these_nodes() -> None:
    nodes = registry(node("a"), node("b"))
    topics = topic(("a",), ("a",))
    (assign,) = changes(topics, nodes, balanced=())
    assert isinstance(assign, m.Assign) and assign.nodes == ["b"]
    assert changes(topic(("a",), ("b",)), nodes, balanced=()) == [m.Balance(["a", "b"])]
    assert changes(topics, nodes) == [], "a deleted topic may leave the placement uneven"


def test_returning_node_gets_its_share_before_the_spread_is_even() -> None:
    """The other nodes have taken the replicas, and the even state was not recorded yet."""
    state = MetadataState()

    def apply(*commands: m.Command) -> None:
        results = state.apply(state.applied_index + 1, m.Entry(T, commands), lambda key, row: None)
        assert not any(isinstance(result, SandqError) for result in results), results

    def moves() -> list[m.Assign]:
        """Return the moves that begin now, and finish them."""
        led = {p.group for topic in state.topics.values() for p in topic.partitions}
        found = next_changes(state.topics, state.nodes, state.balanced, led, T, AFTER_MS)
        apply(*found)
        assigns = [command for command in found if isinstance(command, m.Assign)]
        apply(*[m.Settle(assign.group, assign.epoch + 1, True) for assign in assigns])
        return assigns

    apply(*[register_node(name, f"store-{name}", {}) for name in "abc"])
    apply(m.CreateTopic("t", "timer", 1, [["a"], ["b"], ["c"]], {}))
    assert moves() == [] and state.balanced == ("a", "b", "c")
    for away, back in (
        (m.ChangeStanding("c", DRAINING), m.ChangeStanding("c", IN)),
        (m.MarkNode("c", T - AFTER_MS), m.MarkNode("c", None)),
    ):
        apply(away)
        assert len(moves()) == 1
        apply(back)
        (assign,) = moves()
        assert assign.nodes == ["c"]
        assert moves() == [] and state.balanced == ("a", "b", "c")


def test_voters_are_of_all_zones_and_change_no_more_than_they_must() -> None:
    nodes = registry(*[node(name, zone=zone) for name, zone in zip("abcdefg", "xxxxyyz", strict=True)])
    assert next_voters(nodes, "abcde", 5, ()) >= {"a", "e", "g"}, "g is alone in its zone"
    assert next_voters(nodes, "abefg", 5, ()) == set("abefg")
    assert next_voters(nodes, "abefg", 5, {"g"}) == set("abcef"), "a lost node is replaced first"
    few = registry(node("a"), node("b"), node("c"))
    assert next_voters(few, "abc", 5, {"c"}) == set("abc"), "unless no other node is left"
    drained = registry(node("a"), node("b"), node("c", standing=DRAINING))
    assert next_voters(drained, "abc", 5, ()) == set("ab")
