"""The limits of groups in a partition: the partition's own allowances, and in partition 0 the ledgers that divide the
limits.

PERSISTED: for each group with limits, one row with the allowance of the partition. Partition 0 has one more row per
other partition that has reported or has a share.

The partition of the topic `sandq.limits` has the same rows for named limits, with the name of the limit in the place of
a group's name, and one more row for each member.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from sandq.model.errors import NotFound
from sandq.model.group_limits import limits_of
from sandq.model.limits import FIXED
from sandq.model.pauses import set_back_end
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.limits.allowance import Allowance, AllowanceStatus, Definition, LimitPause, fresh
from sandq.partition.limits.buckets import renewed
from sandq.partition.limits.cost_budget import CostBudget
from sandq.partition.limits.ledger import Confirmed, Ledger, LedgerStatus, Member, Share
from sandq.partition.limits.limit_checks import check_command
from sandq.partition.shared_state import SharedState

HOME: Final = 0
"""The partition that keeps the ledgers."""


class LimitsStatus(NamedTuple):
    """An immutable copy of the state of limits."""

    allowances: dict[str, AllowanceStatus]
    """By group name, including groups that do not exist yet."""
    ledgers: dict[str, LedgerStatus]


class GroupLimits:
    """Owns the rows of limits."""

    def __init__(self, partition: int, shared: SharedState, groups: GroupTable) -> None:
        self._is_home = partition == HOME
        self._shared = shared
        self._groups = groups
        self._allowances = groups.allowances
        self._ledgers: dict[str, Ledger] = {}
        self._status: LimitsStatus | None = None
        """The last returned copy. None if the state has changed since then."""
        self._begin()

    def _begin(self) -> None:
        """Create the allowances of a partition that is created with the settings of its topic."""
        for name, limit in limits_of(self._shared.settings).items():
            self._put(name, fresh(limit, self._is_home))

    def load(self, view: View) -> None:
        """Load the stored state."""
        self._allowances.clear()
        self._ledgers.clear()
        self._status = None
        self._begin()
        limits = limits_of(self._shared.settings)
        for key, value in rows.all_rows(view, rows.LIMIT):
            name, row = key[1:].decode(), tuple(rows.unpack(value))
            self._put(name, Allowance.load(limits[name], row))
        for key, value in rows.all_rows(view, rows.LIMIT_MEMBER):
            name, number = _named_and_number(key)
            self._ledgers[name].members[number] = Member(*rows.unpack(value))
        for key, value in rows.all_rows(view, rows.SHARE):
            name, partition = _named_and_number(key)
            self._ledgers[name].put(partition, Share(*rows.unpack(value)))
        for ledger in self._ledgers.values():
            ledger.distribute()

    def status(self) -> LimitsStatus | None:
        """Return an immutable copy. None if no group has limits."""
        if not self._allowances:
            return None
        if self._status is None:
            allowances = {name: allowance.status() for name, allowance in self._allowances.items()}
            self._status = LimitsStatus(allowances, {name: one.status() for name, one in self._ledgers.items()})
        return self._status

    def ledger(self, name: str) -> LedgerStatus | None:
        """Return a copy of a group's ledger. None if the group has no limits, or this is not the home partition."""
        ledger = self._ledgers.get(name)
        return None if ledger is None else ledger.status()

    # -- changes --------------------------------------------------------------------------------------------------

    def configure(self, step: Step) -> None:
        """Apply the current settings of the topic."""
        limits = limits_of(self._shared.settings)
        for name in [name for name in self._allowances if name not in limits]:
            self._drop(step, name)
            self._note(name)
        for name, limit in limits.items():
            old = self._allowances.get(name)
            if old is not None and old.assigned == limit.epoch:
                continue
            allowance, members = fresh(limit, self._is_home), None
            if old is not None:
                ledger = self._drop(step, name)
                if self._is_home and limit.name is None and old.limit.name is None:
                    allowance.part = renewed(old.limit, old.part, limit, _now_us(step))
                if ledger is not None and limit.is_named:
                    members, allowance.pause = ledger.members, old.pause
            self._put(name, allowance, members)
            for number in members or ():
                self._store_member(step, name, number)
            self._store(step, name)

    def begin_again(self, step: Step) -> None:
        """Forget all allowances and ledgers, and begin with those of a new partition. Leases were given back."""
        for name in list(self._allowances):
            self._drop(step, name)
            self._note(name)
        self._begin()
        for name in list(self._allowances):
            self._store(step, name)

    def allow(self, step: Step, command: c.AllowLimit) -> None:
        """Set allowances of groups. Ignore an allowance that is older than the current one, or belongs to other
        limits. A newer definition of a named limit replaces the allowance, and a newer pause the pause. Raise
        InvalidRequest if a field is wrong."""
        check_command(command)
        for name, assigned, epoch, version, in_flight, units, given_us, definition, pause in command.items:
            allowance = self._allowances.get(name)
            if allowance is None or allowance.assigned != assigned:
                continue
            if pause is not None and allowance.limit.name is not None and pause[0] > allowance.pause.version:
                allowance.pause = LimitPause(*pause)
                self._store(step, name)
            if allowance.limit.name is None:
                if self._is_home or allowance.limit.epoch != epoch:
                    continue
            elif definition is not None and epoch > allowance.limit.epoch:
                allowance.define(epoch, Definition(*definition))
                self._store(step, name)
            if allowance.limit.epoch != epoch or version <= allowance.version:
                continue
            allowance.allow(version, in_flight, units, given_us, _now_us(step))
            self._store(step, name)

    def share(self, step: Step, command: c.ShareLimit) -> None:
        """Change the ledger of a group or of a named limit: first apply the reports of partitions, then the new
        targets. Raise InvalidRequest if a field is wrong."""
        check_command(command)
        view = step.view
        ledger = self._ledgers.get(command.group)
        if ledger is None or ledger.limit.epoch != command.epoch:
            return
        group = self._groups.find(command.group)
        own_leased = 0 if group is None else group.in_flight
        for number in ledger.leave(command.gone, _now_us(step)):
            view.delete(_share_key(command.group, number))
            view.delete(_member_key(command.group, number))
        first = step.index * FIXED.limit_members
        joined = ledger.join([Member(*one[:3]) for one in command.joined[: FIXED.limit_members]], first)
        for number in joined:
            self._store_member(step, command.group, number)
        changed = ledger.confirm(self._first_reports(ledger, joined, command.joined), _now_us(step))
        changed |= ledger.confirm([Confirmed(*one) for one in command.reports], _now_us(step))
        changed |= ledger.share_out(command.targets, own_leased, step.index, _now_us(step))
        for partition in sorted(changed):
            view.put(_share_key(command.group, partition), rows.pack(*ledger.shares[partition]))
        self._store(step, command.group)

    def pause(self, step: Step, command: c.PauseLimit) -> LimitPause:
        """Pause or resume a named limit, and return its pause. Raise NotFound if this is not the home of the limit,
        and InvalidRequest if a field is wrong."""
        check_command(command)
        ledger = self._ledgers.get(command.limit)
        if ledger is None or not ledger.limit.is_named:
            raise NotFound(f"there is no limit {command.limit!r}", limit=command.limit)
        old, own = ledger.own.pause, ledger.own
        if command.is_longer and command.until_ms <= max(old.until_ms, step.now_ms):
            return old
        own.pause = LimitPause(max(step.index, old.version + 1), command.until_ms, command.by)
        self._store(step, command.limit)
        return own.pause

    def available(self, step: Step, group: Group, most: int) -> int:
        """Return how many messages the group may lease now, up to `most`. If its rate has a unit, costs are limited as
        well: see `budget`."""
        return most if group.allowance is None else group.allowance.available(group.in_flight, _now_us(step), most)

    def budget(self, step: Step, group: Group) -> CostBudget | None:
        """Return the budget for the costs of messages that the group leases now. None if its rate has no unit."""
        allowance = group.allowance
        if allowance is None or allowance.limit.unit is None or allowance.limit.burst is None:
            return None
        return CostBudget(allowance.available_units(_now_us(step)), allowance.limit.burst)

    def serve(self, step: Step, group: Group, messages: int, budget: CostBudget | None) -> None:
        """Count leased messages of a group. `budget`: the costs of these messages."""
        allowance = group.allowance
        if allowance is None:
            return
        needed = 1 if budget is None or budget.needed is None else budget.needed
        if messages or needed != allowance.needed:
            allowance.needed = needed
            if messages:
                allowance.serve(messages if budget is None else budget.spent, _now_us(step))
            self._store(step, group.name)

    def set_back(self, step: Step, old_ms: int) -> None:
        """Adjust to a clock reset, which sets the partition's time back from `old_ms` to that of `step`. In the home,
        shorten the pauses that the wrong clock has most likely set."""
        for name, allowance in self._allowances.items():
            allowance.set_back(old_ms * 1000, _now_us(step))
            pause = allowance.pause
            until_ms = set_back_end(pause.until_ms, old_ms, step.now_ms)
            # A member keeps the pause as it is in the home, which perhaps has a correct clock.
            if name in self._ledgers and until_ms != pause.until_ms:
                allowance.pause = pause._replace(version=pause.version + 1, until_ms=until_ms)
            self._store(step, name)

    def _first_reports(self, ledger: Ledger, joined: list[int], reports: Sequence[Sequence[Any]]) -> list[Confirmed]:
        """Return the reports of members that joined and hold no units. Others must report first."""
        held = {Member(*one[:3]): one[3] for one in reports}
        found = [(number, held[ledger.members[number]]) for number in joined]
        return [Confirmed(number, 0, in_flight, 0) for number, in_flight in found if in_flight is not None]

    def _put(self, name: str, allowance: Allowance, members: dict[int, Member] | None = None) -> None:
        """Set the allowance of a group. In the home partition, begin its ledger, unless the group uses a named limit.

        `members`: members of a named limit."""
        self._allowances[name] = allowance
        if self._is_home and allowance.limit.name is None:
            self._ledgers[name] = Ledger(allowance, members)

    def _store_member(self, step: Step, name: str, number: int) -> None:
        """Put the row of a member of a named limit."""
        step.view.put(_member_key(name, number), rows.pack(*self._ledgers[name].members[number]))

    def _store(self, step: Step, name: str) -> None:
        """Put the row of a group's allowance."""
        step.view.put(rows.LIMIT + name.encode(), rows.pack(*self._allowances[name].row()))
        self._note(name)

    def _drop(self, step: Step, name: str) -> Ledger | None:
        """Delete the allowance of a group, and its ledger. Return the ledger."""
        view = step.view
        del self._allowances[name]
        view.delete(rows.LIMIT + name.encode())
        ledger = self._ledgers.pop(name, None)
        for partition in ledger.shares if ledger is not None else ():
            view.delete(_share_key(name, partition))
        for number in ledger.members if ledger is not None else ():
            view.delete(_member_key(name, number))
        return ledger

    def _note(self, name: str) -> None:
        """Update a group after its allowance, or the state of its limits, has changed."""
        self._status = None
        group = self._groups.find(name)
        if group is not None:
            group.allowance = self._allowances.get(name)
            group.note_change()


def _now_us(step: Step) -> int:
    """Return the partition's time in us."""
    return step.now_ms * 1000


def _share_key(name: str, partition: int) -> bytes:
    return rows.SHARE + name.encode() + b"\x00" + partition.to_bytes(8, "big")


def _member_key(name: str, number: int) -> bytes:
    return rows.LIMIT_MEMBER + name.encode() + b"\x00" + number.to_bytes(8, "big")


def _named_and_number(key: bytes) -> tuple[str, int]:
    """Return the name and the number in the key of a share or member."""
    return key[1:-9].decode(), int.from_bytes(key[-8:], "big")
