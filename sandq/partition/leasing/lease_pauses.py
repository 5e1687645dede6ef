"""Pauses by consumers: the holder of a live lease pauses the tenant, the key or the group of one of its messages, or
the named limit of the group.

The partition of the message verifies the lease. The other partitions of the topic then get a `PauseLonger`
(`broker.delivery.pause_spreader`). The home of a named limit gets a `PauseLimit` (`broker.delivery.limit_pauses`).
"""

from __future__ import annotations

from typing import NamedTuple

from sandq.model.batch_format import Column
from sandq.model.errors import InvalidRequest
from sandq.model.pauses import FOREVER, GROUP, KEY, LIMIT, STORED_KEY_BYTES
from sandq.partition.base import rows
from sandq.partition.base.step import Step
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_state import GroupState
from sandq.partition.groups.part_pauses import Part
from sandq.partition.reader.pieces import load_message
from sandq.partition.ready import queue_keys
from sandq.partition.records.leases import Lease
from sandq.partition.shared_state import SharedState


class Paused(NamedTuple):
    """The result of a pause by a lease. `until_ms`: end of the pause. `tenant`: the paused tenant, if one was named.
    `limit`: the named limit to pause, if one was asked for."""

    until_ms: int
    tenant: str | None
    limit: str | None = None


class LeasePauses:
    def __init__(self, shared: SharedState, group_state: GroupState) -> None:
        self._shared = shared
        self._groups = group_state.groups
        self._leases = group_state.leases

    def pause(self, step: Step, token: int, offset: bytes, part: str, until_ms: int, group_name: str) -> Paused | None:
        """Pause a part of a group to which a leased message belongs, unless it is paused for longer already. Return
        None if the lease has ended, or does not hold the message. For a named limit, only return its name.

        Raise InvalidRequest if another group holds the lease, if the message has no such part, if the group uses no
        named limit, or if too many parts are paused."""
        lease = self._leases.by_token.get(token)
        if lease is None or lease.ended or lease.revoked:
            return None
        if not lease.mask_of([[offset, 1]])[0] & lease.live:
            return None
        group = self._groups.by_id[lease.group_id]
        if group.name != group_name:
            raise InvalidRequest(
                f"the lease does not belong to group {group_name!r}: name the group that leased the message"
            )
        if part == GROUP:
            return Paused(self._pause_group(step, group, until_ms), None)
        if part == LIMIT:
            if group.allowance is None or group.allowance.limit.name is None:
                raise InvalidRequest(f"group {group_name!r} uses no named limit: pause the group")
            return Paused(until_ms, None, group.allowance.limit.name)
        named = self._part(step, group, lease, offset, part)
        end_ms = group.pauses.ends.get(named, 0)
        if until_ms > end_ms:
            key = self._key(step, group, lease, offset) if part == KEY else None
            self._groups.pause_part(step, group, named, until_ms, key)
        return Paused(max(until_ms, end_ms), named if isinstance(named, str) else None)

    def pause_longer(self, step: Step, group_name: str, tenant: str | None, until_ms: int) -> None:
        """Pause a group or one of its tenants, as `pause` did in another partition. Do nothing if there is no such
        group, or if it is paused for longer already. Raise InvalidRequest if too many parts are paused."""
        group = self._groups.find(group_name)
        if group is None or group.is_paused_until(tenant, until_ms):
            return
        if tenant is None:
            self._pause_group(step, group, until_ms)
        else:
            self._groups.pause_part(step, group, tenant, until_ms)

    def _key(self, step: Step, group: Group, lease: Lease, offset: bytes) -> bytes | None:
        """Return the key of a leased message, to be stored with its pause. None if it is too long for this."""
        if lease.kept:
            row = step.view.get(rows.of_group(rows.KEPT, group.group_id, offset))
            assert row is not None, "a message that a group keeps has a row"
            fields = rows.load_kept(row).fields
        else:
            row = step.view.get(rows.log_key(offset))
            assert row is not None, "a message with a limited key has a row of its own"
            fields = load_message(step.view, offset, row).fields
        key: bytes = fields[Column.KEY]
        return key if len(key) <= STORED_KEY_BYTES else None

    def _pause_group(self, step: Step, group: Group, until_ms: int) -> int:
        """Pause a group, unless it is paused for longer. Return the end of the pause in ms."""
        if group.paused and group.paused_until_ms is None:
            return FOREVER
        until_ms = max(until_ms, group.paused_until_ms or 0)
        if until_ms > step.now_ms and until_ms != group.paused_until_ms:
            group.pause(True, until_ms)
            self._groups.store(step, group)
        return until_ms

    def _part(self, step: Step, group: Group, lease: Lease, offset: bytes, part: str) -> Part:
        """Return the key or the tenant of a leased message. Raise InvalidRequest if it has none."""
        if part == KEY:
            key = group.order.key_of(offset)
            if key is None:
                raise InvalidRequest("the message has no key that the topic limits: pause the group")
            return key
        if self._shared.rank != queue_keys.FAIR:
            raise InvalidRequest("only messages of a fair topic have tenants: pause the group")
        if lease.kept:
            row = step.view.get(rows.of_group(rows.KEPT, group.group_id, offset))
            assert row is not None, "a message that a group keeps has a row"
            return queue_keys.tenant_of(queue_keys.of_fields(self._shared.rank, rows.load_kept(row).fields))
        queue = queue_keys.of_message(self._shared.rank, step.view, offset)
        assert queue is not None, "a leased message has a row"
        return queue_keys.tenant_of(queue)
