"""Applies entries of a partition that is being restored. Such a partition accepts only commands of the restore.

`apply_closed` applies such an entry. When all rows of the backup have arrived, `RestoreEnd` loads a partition from
them, which replaces the empty one.
"""

from __future__ import annotations

from typing import Any, TypeVar

from sandq.model import offsets
from sandq.model.errors import Conflict, InvalidRequest, NotFound, Unavailable
from sandq.model.group_limits import with_newest_limits
from sandq.model.names import RESTORING
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.partition_state import PartitionState
from sandq.partition.records.restore_state import RestoreState
from sandq.partition.restore import restoring
from sandq.partition.restore.whole import check_whole

P = TypeVar("P", bound=PartitionState)

FIXED_SETTINGS = ("rank", "ordering", "max_in_flight_per_key")
"""Settings that must be equal in the topic and in the backup, because rows depend on them."""


def apply_closed(partition: PartitionState, index: int, entry: c.Entry, stamp_ms: int, view: View) -> list[Any]:
    """Apply an entry of a partition that is being restored, and return one result per command."""
    now_ms = max(partition.now_ms, stamp_ms)
    step = Step(view, index=index, stamp_ms=stamp_ms, now_ms=now_ms, floor_ms=max(partition.floor_ms, now_ms))
    partition.results = results = []
    for command in entry.commands:
        try:
            results.append(_apply_command(partition, step, command))
        except (NotFound, InvalidRequest, Conflict, Unavailable) as refusal:
            results.append(refusal)
    partition.note_applied(step, index)
    return results


def _apply_command(partition: PartitionState, step: Step, command: c.Command) -> Any:
    """Apply one command of an entry and return its result. Raise the error that rejects the command."""
    shared = partition.shared
    match command:
        case c.RestoreBegin():
            return _begin(partition, command)
        case c.RestoreRows():
            state = restoring.check_chunk(partition.restore, command.restore_id)
            partition.restore = restoring.put_chunk(step, state, command.number, command.data, shared.yield_now)
            return partition.restore.shown()
        case c.RestoreEnd():
            return _end(partition, step, command)
        case c.TakeDigest():
            return partition.take_digest(step, command)
        case c.RaiseLevel():
            return partition.raise_level(step, command)
        case c.Configure():
            shared.configure(with_newest_limits(shared.settings, command.settings))
            if not partition.is_closed:
                partition.restore = None
                partition.limits.configure(step)
                partition.trim_schedule.note_settled(step)
            return None
        case c.Skipped():
            return partition.skip(step, command)
        case c.Clock() | c.Touch():
            return None
    partition.check_open()
    raise AssertionError("a partition is being restored")


def _begin(partition: PartitionState, command: c.RestoreBegin) -> dict[str, Any]:
    """Bind the partition to a restore, and return the progress. Raise Conflict if another restore may use the topic."""
    wanted = partition.shared.settings.get(RESTORING)
    if wanted != command.restore_id:
        raise Conflict(f"the topic is being restored by {wanted}, not by {command.restore_id}")
    if partition.restore is None:
        targets = tuple((old, new) for old, new in command.targets)
        partition.restore = RestoreState(command.restore_id, targets=targets)
    return restoring.check_chunk(partition.restore, command.restore_id).shown()


def _end(partition: PartitionState, step: Step, command: c.RestoreEnd) -> dict[str, Any]:
    """Make the rows the state of the partition. Raise Conflict if rows are missing, or if they do not fit this
    partition."""
    view = step.view
    state = restoring.check_chunk(partition.restore, command.restore_id)
    if state.is_whole or partition.successor is not None:
        return state._replace(is_whole=True).shown()
    if state.next_chunk != command.chunks:
        raise Conflict(f"{state.next_chunk} chunks of rows are there, and {command.chunks} are expected")
    row = view.get(restoring.STATE_OF_BACKUP)
    if row is None:
        raise Conflict("no row of the state is among those that were restored")
    view.put(rows.STATE_KEY, row)
    view.has_overlays = view.has_tombstones = None  # not known yet for these rows
    try:
        restored = _restored(partition, view)
        restored.index_base += restored.applied_index
        restored.applied_index = step.index
        restored.restore = state._replace(is_whole=True)
        restored.skips = partition.skips
        _settle(restored, step, partition)
    except restoring.NOT_OF_ROWS:
        raise  # an error of this machine, not of the rows: other replicas may not have it
    except Exception as error:
        # Any other error is caused by the rows, so every replica has the same error: the partition stays closed.
        raise Conflict(f"the rows that were restored are not those of such a partition: {error!r:.200}") from error
    view.delete(restoring.STATE_OF_BACKUP)
    partition.successor = restored
    return restored.restore.shown()


def _restored(partition: P, view: View) -> P:
    """Return the partition loaded from the rows of a backup. Raise any error that the rows cause."""
    settings = partition.shared.settings
    restored = type(partition).load(partition.partition, settings, view, partition.look_aheads)
    other = restored.shared.settings
    differing = [name for name in FIXED_SETTINGS if settings.get(name) != other.get(name)]
    if differing:
        raise Conflict(f"{differing[0]} was {other.get(differing[0])!r}, and is {settings.get(differing[0])!r}")
    if restored.resets.state is not None or restored.restore is not None:
        raise Conflict("its clock was being set back, or it was being restored itself")
    restoring.check_numbers(
        restored.applied_index, restored.index_base, restored.now_ms, restored.floor_ms, restored.clock_epoch
    )
    start, stop = rows.tag_bounds(rows.LOG)
    for key, _ in view.scan(start, stop, limit=1, max_bytes=1):
        if (found := offsets.unpack(key[1:]).partition) != partition.partition:
            raise Conflict(f"they are of partition {found}, not of {partition.partition}")
    check_whole(restored, view, partition.shared.yield_now)
    return restored


def _settle(restored: PartitionState, step: Step, before: PartitionState) -> None:
    """Copy the settings, the level and the time of the empty partition to the restored one.

    End leases; their messages are ready again, and the attempt does not count. Pause all groups, and count each as used
    now.
    """
    shared = restored.shared
    shared.yield_now = before.shared.yield_now
    restored.digests_asked = before.digests_asked
    shared.configure(before.shared.settings)
    shared.level = max(shared.level, before.shared.level)
    own = restored.first_step(step.index, step.view)
    restored.advance(own, max(restored.now_ms, step.stamp_ms))
    restored.settlement.give_back_all(own)
    for group in restored.groups.by_id.values():
        group.use(own)
        group.pause(True, None)
        restored.groups.store(own, group)
        if shared.is_ordered:  # leased messages wait now, so messages of the same keys are blocked
            group.order.clear()
            group.load_key_order(own.view)
    # The partitions of a backup are not of one instant, so shares in a ledger may differ from the allowances elsewhere.
    restored.limits.begin_again(own)
    restored.note_applied(own, step.index)
