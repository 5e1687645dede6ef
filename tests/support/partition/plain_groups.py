"""Recompute derived values of groups from all their messages, and compare them with the incremental values."""

from __future__ import annotations

from sandq.model import offsets
from sandq.partition.base import rows
from sandq.partition.group_status import StatusTable
from sandq.partition.groups.group import Group
from sandq.partition.groups.summaries import GroupSummaries
from sandq.partition.records.leases import Lease, Waiting
from tests.support.partition.bench import Bench


def check_groups(bench: Bench) -> None:
    """Check the values of each group and of all groups."""
    machine, groups = bench.machine, bench.machine.groups
    for group in groups.by_id.values():
        assert group.done_below() == _done_below(group)
        assert group.pinned_since_ms == min((holder.since_ms for holder in _logged(group)), default=None)
        spilled = _check_spilled(bench, group)
        held = _held(group)
        assert not held.keys() & spilled, "a spilled message is in memory, too"
        assert group.oldest_held == min([*held, *spilled], default=None)
        assert {offset: group.held_in_memory(offset) for offset in held} == held
        named = {o for lease in group.leases.values() for base, n in lease.ranges for o in offsets.run(base, n)}
        assert all(group.held_in_memory(offset) is None for offset in named - held.keys()), (
            "a settled message has a holder"
        )
        assert group.waiting_ranges == sum(len(list(entry.ranges)) for entry in group.waiting.values())
        for consumer in {lease.consumer for lease in group.leases.values()}:
            held_by = [token for token, lease in sorted(group.leases.items()) if lease.consumer == consumer]
            assert [lease.token for lease in machine.leases.live_of(group.name, consumer)] == held_by
            assert machine.leases.live_count(group, consumer) == len(held_by)
    _check_sums(bench)


def _check_sums(bench: Bench) -> None:
    machine, groups = bench.machine, bench.machine.groups
    known = machine._group_state.summaries
    changes = list(groups._changed)
    anew = GroupSummaries(machine.shared, groups, machine.ttl)
    assert known.done_below() == anew.done_below()
    assert known.done_below() == min((_done_below(group) for group in groups.by_id.values()), default=None)
    assert known.pinned_since_ms() == anew.pinned_since_ms() == _pinned_since_ms(bench)
    times = [machine.ttl.next_expiry_ms(group, bench.view) for group in groups.by_id.values()]
    expiry_ms = min((at for at in times if at is not None), default=None) if machine.ttl.any_expires else None
    assert known.next_expiry_ms(bench.view) == expiry_ms
    unused = min(groups.by_id.values(), key=lambda group: (group.touched_ms, group.group_id), default=None)
    assert groups.longest_unused is unused
    told = bench.status()
    again = StatusTable(groups, machine.log.counts, machine.log.state).refresh(machine.now_ms, bench.view)
    assert list(told.groups) == list(again), "a changed group was not reported"
    assert told.dead == sum(group.dead.total() for group in groups.by_id.values())
    groups._changed[:] = changes


def _check_spilled(bench: Bench, group: Group) -> set[bytes]:
    """Check the rows of the spilled messages of a group, and return the offsets of these messages."""
    by_time = rows.all_of_group(bench.view, rows.SPILLED_AT, group.group_id)
    numbered = rows.all_of_group(bench.view, rows.SPILLED, group.group_id)
    assert {key[11:]: key[5:11] for key, _ in by_time} == {
        key[5:]: rows.unpack(row)[0].to_bytes(6, "big") for key, row in numbered[1:]
    }
    assert (group.spilled.messages, len(numbered)) == (len(by_time), len(by_time) + bool(by_time))
    assert group.spilled.next_ms == min((int.from_bytes(key[5:11], "big") for key, _ in by_time), default=None)
    spilled = {key[11:] for key, _ in by_time}
    assert all(bench.view.get(rows.of_group(rows.KEPT, group.group_id, offset)) is not None for offset in spilled)
    return spilled


def _logged(group: Group) -> list[Lease | Waiting]:
    holders: list[Lease | Waiting] = [*group.leases.values(), *group.waiting.values()]
    return [holder for holder in holders if not holder.kept]


def _held(group: Group) -> dict[bytes, Lease | Waiting]:
    held: dict[bytes, Lease | Waiting] = {}
    for lease in group.leases.values():
        for base, length in lease.select(lease.live):
            held.update(dict.fromkeys(offsets.run(base, length), lease))
    for entry in group.waiting.values():
        for base, length in entry.ranges:
            held.update(dict.fromkeys(offsets.run(base, length), entry))
    return held


def _done_below(group: Group) -> bytes:
    firsts = [offset for offset, holder in _held(group).items() if not holder.kept]
    firsts += [offset for offset in group.order.blocked if offset not in group.order.kept]
    cursor = int.from_bytes(group.cursor, "big") + 1
    return min(firsts, default=cursor.to_bytes(16, "big"))


def _pinned_since_ms(bench: Bench) -> int | None:
    since: list[int] = []
    for group in bench.machine.groups.by_id.values():
        since += [holder.since_ms for holder in _logged(group)]
        logged = [offset for offset in group.order.blocked if offset not in group.order.kept]
        since += [offsets.deliver_ms(offset) for offset in logged]
    return min(since, default=None)
