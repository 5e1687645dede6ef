"""Tests of the send queue of a socket: large buffers are not copied, and each buffer is held until it is sent."""

from __future__ import annotations

import random

import pytest

from sandq.server.send_queue import JOINED_BUFFERS, SendQueue

LARGE = 1 << 20


def test_large_buffers_are_sent_as_they_are() -> None:
    queue, parts = SendQueue(), [b"head", bytes(LARGE), b"between", bytes(LARGE)]
    for part in parts:
        queue.add(part)
    first, second = queue.head(1000)
    assert first is parts[0] and isinstance(second, memoryview)
    assert second.obj is parts[1] and len(second) == 996
    assert queue.drop(1000) == 4 and queue.bytes == 2 * LARGE + 7, "a partly sent buffer is held completely"
    rest, between, last = queue.head(LARGE + 10_000)
    assert isinstance(rest, memoryview) and rest.obj is parts[1] and len(rest) == LARGE - 996
    assert between is parts[2]
    assert isinstance(last, memoryview) and last.obj is parts[3] and len(last) == 10_989
    assert queue.drop(LARGE - 996) == LARGE
    assert [*queue.head(3 * LARGE)] == parts[2:]
    assert queue.clear() == queue.drop(0) + 7 + LARGE and queue.bytes == 0 and not queue


def test_many_small_ones_become_one() -> None:
    queue = SendQueue()
    for number in range(JOINED_BUFFERS + 1):
        queue.add(b"%d " % number)
    (joined,) = queue.head(1000)
    assert joined == b"".join([b"%d " % number for number in range(JOINED_BUFFERS + 1)])
    assert queue.drop(2) == 2
    assert len(queue.head(1000)) == JOINED_BUFFERS
    queue.add(b"")
    assert queue.drop(len(joined) - 2) == len(joined) - 2 and not queue


@pytest.mark.parametrize("seed", range(20))
def test_queued_bytes_leave_in_order_and_are_counted(seed: int) -> None:
    rng = random.Random(seed)
    queue, added, left, held = SendQueue(), b"", b"", 0
    for _ in range(300):
        if rng.random() < 0.4:
            part = rng.randbytes(rng.choice([0, 1, 10, 300, 5000]))
            queue.add(part)
            added += part
            held += len(part)
        else:
            most = rng.choice([1, 50, 4000])
            head = b"".join(queue.head(most))
            assert len(head) == min(most, len(added) - len(left))
            sent = rng.randrange(len(head) + 1)
            left += head[:sent]
            held -= queue.drop(sent)
        assert queue.bytes == held >= len(added) - len(left)
    assert added.startswith(left)
