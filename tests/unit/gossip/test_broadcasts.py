"""Tests of queued broadcasts: their order, their number of transmissions and their size."""

from __future__ import annotations

from sandq.gossip.broadcasts import KEPT_MOST, MISFITS_MOST, PARTS_MOST, Broadcasts
from sandq.gossip.packets import PART_BYTES

ROOM = 1400


def filled(*names: str) -> Broadcasts:
    queue = Broadcasts()
    for name in names:
        queue.put(name, name.encode())
    return queue


def bytes_for(*messages: str) -> int:
    return sum(len(message) + PART_BYTES for message in messages)


def test_newest_broadcast_is_sent_first() -> None:
    queue = filled("a", "b", "c")
    assert queue.take(ROOM, 3) == [b"c", b"b", b"a"]


def test_least_transmitted_message_goes_first() -> None:
    queue = filled("a", "b", "c")
    assert queue.take(bytes_for("c"), 9) == [b"c"]
    assert queue.take(bytes_for("b"), 9) == [b"b"]
    queue.put("d", b"d")
    assert queue.take(ROOM, 9) == [b"d", b"a", b"b", b"c"]
    # Transmitted once: d and a. Transmitted twice: b and c.
    assert queue.take(ROOM, 9) == [b"a", b"d", b"c", b"b"]


def test_each_message_is_transmitted_a_limited_number_of_times() -> None:
    queue = filled("a")
    assert "a" in queue and len(queue) == 1 and queue
    assert [queue.take(ROOM, 4) for _ in range(6)] == [[b"a"]] * 4 + [[]] * 2
    assert "a" not in queue and not queue


def test_lower_transmission_limit_ends_a_broadcast() -> None:
    queue = filled("a")
    assert [queue.take(ROOM, 8) for _ in range(5)] == [[b"a"]] * 5
    assert [queue.take(ROOM, 4) for _ in range(2)] == [[b"a"], []]


def test_later_message_replaces_an_earlier_one_and_resets_its_count() -> None:
    queue = filled("a", "b")
    assert queue.take(ROOM, 2) == [b"b", b"a"]
    queue.put("a", b"a again")
    assert len(queue) == 2
    assert queue.take(ROOM, 2) == [b"a again", b"b"]
    assert queue.take(ROOM, 2) == [b"a again"]
    assert queue.take(ROOM, 2) == []


def test_broadcasts_never_exceed_the_free_bytes() -> None:
    queue = Broadcasts()
    for number in range(40):
        queue.put(str(number), bytes(number + 1))
    for room in range(0, 300, 7):
        taken = queue.take(room, 1000)
        assert sum(len(message) + PART_BYTES for message in taken) <= room


def test_oversized_message_waits_for_the_next_packet_without_delaying_others() -> None:
    queue = Broadcasts()
    queue.put("small", b"s")
    queue.put("large", bytes(1000))
    assert queue.take(bytes_for("s"), 1) == [b"s"]
    assert queue.take(ROOM, 1) == [bytes(1000)]


def test_search_for_fitting_broadcasts_is_limited() -> None:
    queue = filled("s")
    for number in range(MISFITS_MOST):
        queue.put(str(number), bytes(100))
    assert queue.take(50, 1) == []
    assert len(queue.take(101 + 1 + MISFITS_MOST * 102, 1)) == MISFITS_MOST + 1


def test_parts_of_a_packet_are_limited() -> None:
    queue = filled(*(str(number) for number in range(300)))
    assert [len(queue.take(1 << 20, 1)) for _ in range(4)] == [PARTS_MOST, PARTS_MOST, PARTS_MOST, 0]


def test_full_queue_drops_the_oldest_of_the_most_transmitted() -> None:
    queue = filled("first", "second")
    assert len(queue.take(ROOM, 9)) == 2
    for number in range(KEPT_MOST - 1):
        queue.put(str(number), b"x")
    assert len(queue) == KEPT_MOST
    # Both messages were transmitted in the same packet. The earlier message of the packet is dropped.
    assert "second" not in queue and "first" in queue
    queue.put("more", b"x")
    queue.put("still more", b"x")
    assert "first" not in queue and "0" not in queue and "1" in queue and len(queue) == KEPT_MOST
