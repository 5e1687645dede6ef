"""Tests of the messages between nodes about outboxes: replies to batches that cannot be stored, unexpected frames."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from sandq.broker.delivery.outbox_sender import OutboxSender
from sandq.model.batch import Column, encode
from sandq.model.errors import NotLeader
from sandq.model.limits import DEFAULT
from sandq.model.outbox import RESERVED_PRODUCERS, Target, is_reserved, reserved_producer
from sandq.partition import commands as c
from sandq.partition.outbox import OutboxStatus
from sandq.partition.produce_validation import BatchTarget
from sandq.protocol.peer import PeerFrame
from tests.support.nodes.fake_links import FakeLinks

BATCH = encode({Column.VALUE: [b"m"], Column.KEY: [b"k"]})
OURS = reserved_producer(5)


class Bed:
    """A node with one partition, of Raft group 7."""

    def __init__(self, *, leads: bool = True) -> None:
        self.proposed: list[tuple[c.Append, Any]] = []

        def check_ready() -> None:
            if not leads:
                raise NotLeader("another node leads it")

        host: Any = SimpleNamespace(
            check_ready=check_ready,
            submit=lambda command, done, **options: self.proposed.append((command, done)),
        )
        catalog: Any = SimpleNamespace(
            by_group={7: SimpleNamespace(raft_group=host)},
            view=SimpleNamespace(partition_of_group={7: ("t", 0)}),
            topics={"t": SimpleNamespace(targets={0: BatchTarget(0, 1, ordered=True)})},
        )
        clock: Any = SimpleNamespace(now_ms=lambda: 1_800_000_000_000)
        nothing: Any = None
        self.links = FakeLinks("n2")
        self.sender = OutboxSender("n1", catalog, nothing, clock, self.links, nothing)

    def batch(self, *body: Any) -> bool:
        return self.sender.on_frame("n2", PeerFrame.OUTBOX_BATCH, body)


def test_a_batch_is_proposed_and_answered_once_it_is_stored() -> None:
    bed = Bed()
    assert bed.batch(3, 7, OURS, 9, BATCH)
    ((command, done),) = bed.proposed
    assert command == c.Append(BATCH, OURS, 9, 1, c.REJECT, True), "an ordered topic separates keys"
    assert bed.links.sent == []
    done((b"offset", 1))
    assert bed.links.sent == [("n2", PeerFrame.OUTBOX_ANSWER, (3, None))]


@pytest.mark.parametrize(
    ("bed", "group", "batch", "code"),
    [
        (Bed(), 8, BATCH, "NOT_LEADER"),
        (Bed(leads=False), 7, BATCH, "NOT_LEADER"),
        (Bed(), 7, b"no batch", "INVALID"),
        (Bed(), 7, encode({Column.VALUE: [bytes(DEFAULT.batch_bytes + 1)]}), "TOO_LARGE"),
    ],
)
def test_batch_that_cannot_be_stored_gets_an_error_reply(bed: Bed, group: int, batch: bytes, code: str) -> None:
    assert bed.batch(3, group, OURS, 9, batch)
    ((_, kind, (number, said)),) = bed.links.sent
    assert (kind, number, said[0]) == (PeerFrame.OUTBOX_ANSWER, 3, code) and not bed.proposed


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (PeerFrame.OUTBOX_BATCH, None),
        (PeerFrame.OUTBOX_BATCH, (3, 7, OURS, 9)),
        (PeerFrame.OUTBOX_BATCH, (3, 7, OURS, True, BATCH)),
        (PeerFrame.OUTBOX_BATCH, (3, 7, 77, 9, BATCH)),
        (PeerFrame.OUTBOX_ANSWER, (3,)),
        (PeerFrame.OUTBOX_ANSWER, ("3", None)),
    ],
)
def test_strange_frames_are_none(kind: int, body: Any) -> None:
    bed = Bed()
    assert not bed.sender.on_frame("n2", kind, body) and not bed.proposed and not bed.links.sent


@pytest.mark.parametrize("said", [None, ("X", "y", True), "strange", (1, 2, 3)])
def test_reply_without_a_waiter_is_ignored(said: Any) -> None:
    assert Bed().sender.on_frame("n2", PeerFrame.OUTBOX_ANSWER, (99, said))


def test_ids_of_clients_are_no_ids_of_partitions() -> None:
    assert not is_reserved((1 << 63) - 1) and not is_reserved(RESERVED_PRODUCERS - 1)
    assert is_reserved(reserved_producer(0)) and reserved_producer((1 << 32) - 1) == (1 << 64) - 1


async def test_an_answer_counts_from_the_node_that_was_asked_in_this_life() -> None:
    bed, other = Bed(), Bed()
    catalog: Any = bed.sender._catalog
    catalog.leader = lambda topic, partition: "n2"
    topic: Any = SimpleNamespace(record=SimpleNamespace(partitions=[SimpleNamespace(group=7)]))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(bed.sender._deliver, topic, 0, OURS, 9, BATCH)
        await trio.testing.wait_all_tasks_blocked()
        ((_, kind, (number, *_)),) = bed.links.sent
        assert kind == PeerFrame.OUTBOX_BATCH and number != next(other.sender._numbers)
        bed.sender.on_frame("n3", PeerFrame.OUTBOX_ANSWER, (number, None))
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks, "n3 was not asked"
        bed.sender.on_frame("n2", PeerFrame.OUTBOX_ANSWER, (number, None))


def test_batch_beyond_local_limits_is_accepted() -> None:
    bed = Bed()
    far = encode({Column.VALUE: [bytes(DEFAULT.message_bytes + 1)], Column.DELIVER_MS: [1 << 47]})
    assert bed.batch(3, 7, OURS, 9, far) and len(bed.proposed) == 1


async def test_an_unexpected_error_ends_no_sending(autojump_clock: trio.testing.MockClock) -> None:
    """An outbox has no other sender."""
    bed, tries, said = Bed(), [], []
    target = Target(9, 0)
    status = SimpleNamespace(outbox=OutboxStatus({target: 5}, 1))

    async def fails_at_first(leader: Any, to: Target, epoch: int) -> str | None:
        tries.append(epoch)
        if len(tries) < 4:
            raise KeyError("a fault")
        return None

    async def call(command: Any, line: Any) -> None:
        said.append(command)
        status.outbox = None

    host: Any = SimpleNamespace(works=True, status=status, call=call)

    class Leader:
        closed = False

        def __init__(self) -> None:
            self.raft_group = host

    leader: Any = Leader()
    sender: Any = bed.sender
    sender._outcome = fails_at_first
    async with trio.open_nursery() as nursery:
        sender._nursery = nursery
        sender.on_change(leader)
        await trio.testing.wait_all_tasks_blocked()
        assert "KeyError" in sender.stuck(leader)[target].error, (
            "the error must be reported while the sender tries again"
        )
    assert (tries, said) == ([5] * 4, [c.OutboxSent(*target, 5)])
    assert not sender.stuck(leader)


async def test_change_after_the_node_ended_starts_nothing() -> None:
    """The apply thread ends after the tasks of the node and reports its last applied entry."""
    status = SimpleNamespace(outbox=OutboxStatus({Target(9, 0): 5}, 1))
    leader: Any = type("Leader", (), {"closed": False, "raft_group": SimpleNamespace(works=True, status=status)})()
    sender: Any = Bed().sender
    async with trio.open_nursery() as nursery:
        sender._nursery = nursery
        nursery.cancel_scope.cancel()
    sender.on_change(leader)
    assert not sender.stuck(leader)
