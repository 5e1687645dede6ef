"""Recompute derived values of groups from all their messages, and compare them with the incremental values."""

from __future__ import annotations

from sandq.model import offsets
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
        held = _held(group)
        assert group.oldest_held == min(held, default=None)
        assert {offset: group.holder_of(offset) for offset in held} == held
        named = {o for lease in group.leases.values() for base, n in lease.ranges for o in offsets.run(base, n)}
        assert all(group.holder_of(offset) is None for offset in named - held.keys()), "a settled message has a holder"
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
