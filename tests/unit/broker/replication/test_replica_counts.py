"""A replica counts only the work that was requested on this node."""

from __future__ import annotations

from typing import Any

from sandq.broker.replication.replica import PartitionReplica
from sandq.model.batch import Column, encode
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.partition.records.metrics import Counted
from sandq.storage.stores import MemoryStores

T = 1_800_000_000_000


def apply(replica: PartitionReplica, index: int, *commands: c.Command, wanted: bool) -> list[Any]:
    return replica.apply(index, c.Entry(T + index, commands).encode(), wanted)


def test_entries_without_a_local_request_are_not_counted() -> None:
    replica = PartitionReplica(MemoryStores(), 1, 7, 0, parse_settings({}).record())
    batch = encode({Column.VALUE: [b"a", b"b", b"c"]})
    apply(replica, 1, c.Append(batch), c.OpenGroup("g", "earliest"), wanted=False)
    assert replica.status().counted == Counted()
    (stored, (lease,)) = apply(replica, 2, c.Append(batch), c.Lease("g", T + 2, [c.Grant("c", 5, 10_000)]), wanted=True)
    assert stored[1] == 3
    assert replica.status().counted == Counted(stored=3, stored_bytes=len(batch), leases=1)
    assert not lease.returning and not lease.repeated
    apply(replica, 3, c.Ack([(lease.token, None)]), wanted=False)
    assert replica.status().counted == Counted(stored=3, stored_bytes=len(batch), leases=1)
    (group,) = replica.status().groups
    assert (group.ready, group.leased) == (1, 0), "group counts must include entries of all nodes"


def test_a_lease_knows_whether_its_messages_were_leased_before() -> None:
    replica = PartitionReplica(MemoryStores(), 1, 7, 0, parse_settings({}).record())
    apply(replica, 1, c.Append(encode({Column.VALUE: [b"a"]})), c.OpenGroup("g", "earliest"), wanted=True)

    def lease(index: int) -> Any:
        ((found,),) = apply(replica, index, c.Lease("g", T + index, [c.Grant("c", 1, 10_000)]), wanted=True)
        return found

    first = lease(2)
    assert (first.attempt, first.returning) == (1, False)
    (held,) = replica.held_by("g", "c", set())
    assert (held.token, held.repeated) == (first.token, True)
    apply(replica, 3, c.Release("g", "c"), wanted=True)
    assert replica.status().counted.released == 1
    second = lease(4)
    assert (second.attempt, second.returning) == (1, True), (
        "the released attempt is not counted, but the message is marked as returning"
    )


def test_leases_belong_to_the_epoch_of_their_grant() -> None:
    """A process without an epoch gets no messages of a durable process with the same id."""
    replica = PartitionReplica(MemoryStores(), 1, 7, 0, parse_settings({}).record())
    apply(replica, 1, c.Append(encode({Column.VALUE: [b"a", b"b"]})), c.OpenGroup("g", "earliest"), wanted=True)
    grants = [c.Grant("c", 1, 10_000, 5), c.Grant("c", 1, 10_000)]
    ((one, other),) = apply(replica, 2, c.Lease("g", T + 2, grants), wanted=True)
    held = {epoch: [lease.token for lease in replica.held_by("g", "c", set(), epoch)] for epoch in (0, 5, 6)}
    assert held == {0: [other.token], 5: [one.token], 6: []}
