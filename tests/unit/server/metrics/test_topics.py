"""Tests that metrics by topic and group stay limited, and that counters never decrease."""

from __future__ import annotations

from sandq.broker.stats.node_stats import NodeStats, TopicStats
from sandq.partition.group_status import GroupStatus, Limited
from sandq.partition.partition_status import Status
from sandq.partition.records.metrics import Counted
from sandq.server.metrics.topics import OTHER, Board, PartitionSeen, TopicNumbers, TopicSeen


def group(name: str, *, ready: int = 0, leased: int = 0, oldest_ms: int | None = None, **others: object) -> GroupStatus:
    fields = {
        "next_ms": None,
        "head_ms": None,
        "paused": None,
        "is_paused": False,
        "generation": 0,
        "waiting": 0,
        "dead": 0,
    } | others
    # type: ignore[arg-type]
    return GroupStatus(group_id=1, name=name, ready=ready, leased=leased, oldest_ms=oldest_ms, **fields)


def partition(*groups: GroupStatus, later: int = 0, came_due: int = 0, **counted: int) -> PartitionSeen:
    """Return a partition with these groups and counters, as metrics see it."""
    status = Status(
        applied_index=1,
        now_ms=0,
        floor_ms=0,
        next_expiry_ms=None,
        upkeep_ms=None,
        messages=5,
        later=later,
        trimmed=b"",
        bytes=50,
        dead=0,
        garbage_rows=0,
        garbage_bytes=0,
        settings={},
        groups=groups,
        counted=Counted(**counted),
    )
    return PartitionSeen(status, came_due, {"g": 2})


def topic(number: int, *partitions: PartitionSeen, sent: int = 0) -> TopicSeen:
    stats = TopicStats(NodeStats())
    stats.sent = sent
    stats.lateness.observe(0.5, sent)
    return TopicSeen(number, f"t{number}", partitions, stats)


def stored(sums: dict[str, TopicNumbers]) -> dict[str, int]:
    return {label: numbers.count("stored") for label, numbers in sums.items()}


def test_partitions_are_summed_up() -> None:
    parts = [
        partition(group("g", ready=3, leased=1, oldest_ms=70), later=4, stored=10),
        partition(group("g", ready=5, oldest_ms=60, paused="why"), later=1, stored=2),
    ]
    topics, groups = Board(10, 10).sums([topic(1, *parts)])
    assert stored(topics) == {"t1": 12}
    assert (topics["t1"].messages, topics["t1"].delayed, topics["t1"].bytes) == (10, 5, 100)
    found = groups["t1", "g"]
    assert (found.ready, found.leased, found.delayed, found.oldest_ms) == (8, 1, 5, 60)
    assert found.stalled and found.consumers == 2, "a subscription counts in every partition"


def test_a_group_waits_for_a_limit_where_something_is_due() -> None:
    now_ms = 1000
    free, full = Limited(900, True, 0), Limited(900, False, 0)
    at_rate, later = Limited(900, True, 2000), Limited(1100, False, 2000)
    for limits, wanted in (
        ([None, None], None),
        ([free, later], (False, False)),
        ([free, full], (True, False)),
        ([at_rate, full], (True, True)),
        ([None, Limited(900, True, None)], (False, True)),
    ):
        _, groups = Board(10, 10).sums([topic(1, *[partition(group("g", limit=limit)) for limit in limits])])
        assert groups["t1", "g"].held_up(now_ms) == wanted
    others = Board(10, 1).sums([topic(1, partition(group("a"), group("b", limit=full), group("c", limit=at_rate)))])[1]
    assert others["t1", OTHER].held_up(now_ms) == (True, True)


def test_due_messages_count_as_ready() -> None:
    idle = partition(group("g", next_ms=90), later=4, came_due=3)
    topics, groups = Board(10, 10).sums([topic(1, idle)])
    assert topics["t1"].delayed == 1
    assert (groups["t1", "g"].ready, groups["t1", "g"].delayed, groups["t1", "g"].oldest_ms) == (3, 1, 90)


def test_topics_beyond_the_limit_are_summed_up() -> None:
    board = Board(2, 10)
    topics, groups = board.sums([topic(n, partition(group("g", ready=n), stored=n), sent=n) for n in (1, 2, 3, 4)])
    assert stored(topics) == {"t1": 1, "t2": 2, OTHER: 7}
    assert topics[OTHER].sent == 7 and sum(topics[OTHER].lateness.counts) == 7
    assert {labels: found.ready for labels, found in groups.items()} == {
        ("t1", "g"): 1,
        ("t2", "g"): 2,
        (OTHER, OTHER): 7,
    }


def test_a_topic_keeps_its_label_and_the_sum_of_others_never_falls() -> None:
    board = Board(1, 10)
    one, two, three = (topic(n, partition(stored=n)) for n in (1, 2, 3))
    assert stored(board.sums([one, two, three])[0]) == {"t1": 1, OTHER: 5}
    assert stored(board.sums([two, three])[0]) == {OTHER: 5}, "topics without a label do not get the free label"
    assert stored(board.sums([three])[0]) == {OTHER: 5}, "deleted, and counted"
    four = topic(4, partition(stored=4))
    assert stored(board.sums([three, four])[0]) == {"t4": 4, OTHER: 5}
    assert stored(board.sums([])[0]) == {OTHER: 5}


def test_recreated_topic_is_a_different_topic() -> None:
    board = Board(1, 10)
    board.sums([topic(1, partition(stored=9))])
    again = topic(2, partition(stored=1))._replace(name="t1")
    assert stored(board.sums([again])[0]) == {"t1": 1}


def test_groups_beyond_the_limit_are_summed_up_by_topic() -> None:
    first = partition(group("a", ready=1), group("b", ready=2))
    second = partition(group("c", ready=4), group("d", ready=8, oldest_ms=5), group("e", ready=16, oldest_ms=3))
    _, groups = Board(10, 3).sums([topic(1, first), topic(2, second)])
    assert {labels: found.ready for labels, found in groups.items()} == {
        ("t1", "a"): 1,
        ("t1", "b"): 2,
        ("t2", "c"): 4,
        ("t2", OTHER): 24,
    }
    assert groups["t2", OTHER].oldest_ms == 3
