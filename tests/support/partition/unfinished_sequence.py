"""Run random commands on one partition, and record which messages each group has yet to finish.

The record is computed from commands and answers only. A group that has received a message must finish it. The message
is finished if the group acks it, it dies, its producer cancels it, a seek passes it, or the group is deleted with
force. A message that a group has yet to receive is in the record until the group expires."""

from __future__ import annotations

from random import Random
from typing import Any

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.model.errors import SandqError
from sandq.model.nack_ends import DEAD, RETRY, SNOOZE
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.records.leases import Lease
from tests.support.partition.bench import Bench, T
from tests.support.partition.ranked_bench import RankedBench
from tests.support.partition.restore_bench import restored

GROUPS = ("a", "b", "d")
GROUP_TTL_MS = 60_000
STEPS_MS = (0, 1, 500, 3000, 30_000, GROUP_TTL_MS, 4 * GROUP_TTL_MS)
DRAIN_ROUNDS = 60


class UnfinishedSequence:
    def __init__(self, seed: int, kind: str = "timer", **settings: Any) -> None:
        self.random = Random(seed)
        settings = {"group_ttl": f"{GROUP_TTL_MS // 1000}s", "max_attempts": None, **settings}
        self.bench: Bench = Bench(**settings) if kind == "timer" else RankedBench(kind, **settings)
        self.at = 0
        self.made = self.jobs = 0
        self.ids: dict[str, bytes] = {}
        """Ids of the messages, by value."""
        self.unfinished: dict[str, set[str]] = {}
        """Values that each group has yet to finish."""
        self.received: dict[str, set[str]] = {}
        """Values of unfinished messages that each group has received."""
        self.leases: list[tuple[str, Lease, list[tuple[str, bytes]]]] = []
        self.expired = 0
        """Number of times that a group's time was over, and the group was kept because of its unfinished messages."""
        self.refused = 0
        """Number of times that the deletion of a group was rejected."""
        self.open()

    # -- commands -------------------------------------------------------------------------------------------------

    def step(self) -> None:
        """Apply one random command, and check the record."""
        acts = [self.produce, self.produce, self.lease, self.lease, self.lease, self.ack, self.nack, self.nack]
        acts += [self.expire, self.open, self.touch, self.seek, self.delete, self.cancel, self.move, self.release]
        acts += [self.purge, self.pause, self.redrive, self.restart, self.hold, self.wait, self.wait]
        acts += [self.upkeep, self.upkeep]
        if self.random.random() < 0.1:
            acts = [self.restore, self.reset_clock]
        self.random.choice(acts)()
        self.check()

    def apply(self, command: c.Command) -> Any:
        (result,) = self.bench.apply(self.at, command)
        self._note_groups()
        return result

    def group(self) -> str:
        return self.random.choice(list(self.unfinished) or ["a"])

    def produce(self) -> None:
        values = [f"m{self.made + n}" for n in range(self.random.choice([1, 1, 3]))]
        self.made += len(values)
        due = [self.at + self.random.choice([0, 0, 2000, 90_000]) for _ in values]
        if isinstance(self.bench, RankedBench):
            found = self.bench.add(*values, priority=self.random.randrange(3), due=due, at=self.at)
        else:
            keys = [self.random.choice([None, "k", "l"]) for _ in values]
            stored = self.bench.send(*values, at=self.at, due=due, keys=keys).offsets
            found = [stored[start : start + 16] for start in range(0, len(stored), 16)]
        self.ids.update(zip(values, found, strict=True))
        for unfinished in self.unfinished.values():
            unfinished.update(values)

    def open(self) -> None:
        name = self.random.choice(GROUPS)
        is_new = name not in self.unfinished
        self.apply(c.OpenGroup(name, self.random.choice(["earliest", "latest"])))
        if is_new:
            self._begin(name)

    def _begin(self, name: str) -> None:
        cursor = self.bench.machine.groups.named(name).cursor
        self.unfinished[name] = {value for value, offset in self.logged().items() if offset > cursor}
        self.received[name] = set()

    def touch(self) -> None:
        self.apply(c.Touch([self.group()]))

    def lease(self) -> None:
        name = self.group()
        command = c.Lease(
            name, T + self.at, (c.Grant("c", self.random.choice([1, 2, 5]), 20_000, 0, self.random.choice([0, 1])),)
        )
        granted = self.apply(command)
        if isinstance(granted, SandqError):
            return
        for lease in granted:
            found = [(_value(message), message.offset) for message in self.bench.messages(lease)]
            self.received[name].update(value for value, _ in found)
            self.leases.append((name, lease, found))
        self._note_dead()

    def _some_lease(self) -> tuple[str, Lease, list[tuple[str, bytes]], c.What] | None:
        if not self.leases:
            return None
        name, lease, found = self.random.choice(self.leases)
        chosen = self.random.sample(found, self.random.randint(1, len(found)))
        return name, lease, chosen, [[offset, 1] for _, offset in chosen]

    def ack(self) -> None:
        if (some := self._some_lease()) is None:
            return
        name, lease, chosen, what = some
        (lost,) = self.apply(c.Ack([(lease.token, what)]))
        gone = {offset for base, length in lost or () for offset in offsets.run(base, length)}
        if lost != [] and name in self.unfinished:
            self.unfinished[name] -= {value for value, offset in chosen if offset not in gone}

    def nack(self) -> None:
        if (some := self._some_lease()) is None:
            return
        _, lease, _, what = some
        delay_ms = self.random.choice([None, 0, 5000, 3 * GROUP_TTL_MS])
        end = self.random.choice([RETRY, RETRY, RETRY, SNOOZE, DEAD])
        self.apply(c.Nack([(lease.token, what, delay_ms, "no", self.random.random() < 0.9, None, end)]))
        self._note_dead()

    def expire(self) -> None:
        self.apply(c.Expire())
        self._note_dead()

    def release(self) -> None:
        self.apply(c.Release(self.group(), "c"))

    def seek(self) -> None:
        name = self.group()
        known = list(self.logged().values())
        to = self.random.choice(["earliest", "latest", *self.random.sample(known, min(len(known), 1))])
        found = self.kept(name) | self.logged()
        cursor = self.apply(c.Seek(name, to))
        if not isinstance(cursor, bytes):
            return
        above = offsets.FIRST if to == "earliest" else cursor
        stays = {value for value in self.unfinished[name] if found.get(value, offsets.LAST) > above}
        ahead = {value for value, offset in self.logged().items() if offset > cursor}
        self.unfinished[name] = stays | ahead
        self.received[name] &= stays - ahead  # the group will receive the messages above the cursor once more
        self._note_dead()

    def delete(self) -> None:
        name, force = self.group(), self.random.random() < 0.1
        if name not in self.unfinished:
            return
        result = self.apply(c.DropGroup(name, not force))
        if isinstance(result, SandqError):
            self.refused += 1
            return
        self._forget(name, is_forced=force)

    def cancel(self) -> None:
        if self.ids:
            value = self.random.choice(list(self.ids))
            outcome = self.apply(c.Cancel([(c.TARGET_ID, self.ids[value])]))
            if not isinstance(outcome, SandqError) and outcome[0][0] == "cancelled":
                self._cancelled({value})

    def move(self) -> None:
        if self.ids:
            target = (c.TARGET_ID, self.ids[self.random.choice(list(self.ids))])
            self.apply(c.Move([(target, self.random.choice([0, 4000]), True)]))

    def purge(self) -> None:
        """Cancel all messages that no group has received or that only wait for a retry."""
        arguments = {"from_ms": 0, "until_ms": offsets.U48_MAX, "dry_run": False, "key_prefix": None}
        live = self.bench.machine.leases.by_token
        held = {
            value
            for _, lease, found in self.leases
            for value, offset in found
            if lease.token in live and live[lease.token].holds(offset)
        }
        started = self.apply(c.StartJob(self._job_id(), "cancel", arguments))
        if not isinstance(started, SandqError):
            self._settle()
            self._cancelled(set(self.ids) - held)

    def redrive(self) -> None:
        name = self.group()
        arguments = {"from_ms": 0, "until_ms": offsets.U48_MAX, "dry_run": False, "group": name, "reason": None}
        before = self._dead(name)
        started = self.apply(c.StartJob(self._job_id(), "redrive", arguments | {"rate": None}))
        if not isinstance(started, SandqError):
            self._settle()
            if self.bench.machine.groups.find(name) is not None:
                again = before - self._dead(name)
                self.unfinished[name] |= again
                self.received[name] |= again & self.kept(name).keys()  # a seek makes others ready in the log

    def _job_id(self) -> bytes:
        self.jobs += 1
        return self.jobs.to_bytes(16, "big")

    def pause(self) -> None:
        self.apply(c.PauseGroup(self.group(), self.random.random() < 0.3))

    def hold(self) -> None:
        self.apply(c.Hold("h", self.random.choice([None, offsets.FIRST]), 5000))

    def upkeep(self) -> None:
        self.apply(c.Upkeep())
        self._note_dead()

    def wait(self) -> None:
        self.at += self.random.choice(STEPS_MS)

    def restart(self) -> None:
        self.bench.restart()

    def restore(self) -> None:
        """Continue with a partition restored from the rows of this one: leases have ended, groups are paused."""
        if self.bench.machine.resets.state is None:
            self._settle()
            self.bench = restored(self.bench, self.at)
            self.leases.clear()

    def reset_clock(self) -> None:
        """Let a wrong clock move the partition ahead, and set it back."""
        right = self.at
        self.at += 30_000_000
        self.upkeep()
        self.lease()
        self.at = right
        begun = self.apply(c.ClockReset(T + right))
        while self.bench.machine.resets.state is not None:
            self.upkeep()
        assert isinstance(begun, dict)
        self.leases.clear()
        self._note_dead()

    def _settle(self) -> None:
        """Apply upkeeps until none is due at this time."""
        for _ in range(1000):
            due_ms = self.bench.status().upkeep_ms
            if due_ms is None or due_ms > max(T + self.at, self.bench.machine.now_ms):
                return
            self.upkeep()
        raise AssertionError("upkeep stays due")

    # -- the record -----------------------------------------------------------------------------------------------

    def _note_groups(self) -> None:
        """Note groups that expired or were deleted because they had no consumers."""
        for name in list(self.unfinished):
            group = self.bench.machine.groups.find(name)
            if group is not None and group.is_expired:
                self.expired += 1
                blocked = self._values_of(group.order.blocked)
                self.unfinished[name] &= self.received[name] | blocked
                self.received[name] |= blocked

    def _values_of(self, found: Any) -> set[str]:
        stored = [(value, offset) for name in self.unfinished for value, offset in self.kept(name).items()]
        stored += self.logged().items()
        return {value for value, offset in stored if offset in found}

    def _forget(self, name: str, *, is_forced: bool) -> None:
        left = self.unfinished.pop(name) & self.received.pop(name)
        assert is_forced or not left, f"{name} was deleted with {left}"
        self.leases = [one for one in self.leases if one[0] != name]

    def _cancelled(self, values: set[str]) -> None:
        for unfinished in self.unfinished.values():
            unfinished -= values

    def _note_dead(self) -> None:
        for name in list(self.unfinished):
            if self.bench.machine.groups.find(name) is not None:
                self.unfinished[name] -= self._dead(name)

    def _dead(self, name: str) -> set[str]:
        if self.bench.machine.groups.find(name) is None:
            return set()
        return {letter.fields[Column.VALUE].decode() for letter in self.bench.dead(name)}

    # -- rows -----------------------------------------------------------------------------------------------------

    def logged(self) -> dict[str, bytes]:
        """Return the offsets of the messages in the log, by value."""
        ranges: list[rows.Range] = []
        gone = {key[1:] for key, _ in self.bench.rows(rows.TOMBSTONE)}
        for key, value in self.bench.rows(rows.LOG):
            entry = rows.log_entry(key, value)
            ranges += [rows.Range(one, 1) for one in offsets.run(entry.first, entry.length) if one not in gone]
        return {_value(message): message.offset for message in self.bench.read(ranges)}

    def kept(self, name: str) -> dict[str, bytes]:
        """Return the offsets of the messages that a group has in rows of its own, by value."""
        group = self.bench.machine.groups.find(name)
        if group is None:
            return {}
        found = rows.all_of_group(self.bench.view, rows.KEPT, group.group_id)
        return {rows.unpack(row)[2][Column.VALUE].decode(): key[5:] for key, row in found}

    def check(self) -> None:
        """Check that every message that a group has yet to finish exists."""
        for name in list(self.unfinished):
            if self.bench.machine.groups.find(name) is None:
                self._forget(name, is_forced=False)
        logged = set(self.logged())
        for name, unfinished in self.unfinished.items():
            lost = unfinished - logged - set(self.kept(name))
            assert not lost, f"{name} has yet to finish {lost}, which do not exist"

    # -- the end --------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Let every group receive all remaining messages, and check that it received its unfinished ones."""
        for name in list(self.unfinished):
            self.apply(c.PauseGroup(name, False))
        for _ in range(DRAIN_ROUNDS):
            self._settle()
            self.check()
            for name in list(self.unfinished):
                self.apply(c.Release(name, "c"))
                for lease in self.bench.lease(100, at=self.at, group=name, consumer="last"):
                    self.unfinished[name] -= set(self.bench.values([lease]))
                    assert self.bench.ack(lease.token, at=self.at) is None
            self._note_dead()
            self.at += 20_000
        left = {name: values for name, values in self.unfinished.items() if values}
        assert not left, f"never received: {left}"


def _value(message: Any) -> str:
    value: bytes = message.fields[Column.VALUE]
    return value.decode()
