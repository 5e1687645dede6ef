"""Run random commands on a partition whose clock goes wrong and is set back. No message may be lost or early.

Two partitions apply the same entries. The first stays in memory; the second is repeatedly loaded from its rows. Both
must have the same rows. Times are ms after T, by the right clock."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.model.nack_ends import SNOOZE
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.digest import comparable
from sandq.partition.log.appends import Stored
from sandq.partition.reader.reader import without
from sandq.partition.records.leases import Lease
from tests.support.partition.bench import Bench, T, batch_of

GROUPS = ("g", "h")
DELAY = 5000
"""Longest delay of a nack, in ms; the back-off is shorter."""
LATE = 120_000
"""Longest permitted lateness of a delivery, in ms. Leases, keys and back-off may delay it; a wrong clock may not.
"""
STEP = 700
"""Time between deliveries in `drain`, in ms."""


@dataclass
class Message:
    name: str
    wanted: int
    """Earliest permitted delivery time; 0: no limit."""
    by: int
    """Time by which the message must be delivered, if nothing else delays it."""
    key: str | None
    unique: str | None
    id: bytes
    acked: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    gone: bool = False
    delay: int | None = None
    """Relative delay that was requested under a wrong clock. It counts from the clock reset."""
    waits: bool = False
    """Whether the message was moved while it waited for a retry. Its new time holds even under a wrong clock."""
    had: set[str] = field(default_factory=set)
    """Groups that leased it since the last move."""


class ResetSequence:
    def __init__(self, seed: int, *, per_key: int | None = None, delete_on_ack: bool = True) -> None:
        """`per_key`: maximum number of messages of a key that a group may hold. 1: use `ordering`. None: no limit."""
        self.random = random.Random(seed)
        self.ordered = per_key is not None
        limit = {"ordering": "key"} if per_key == 1 else {"max_in_flight_per_key": per_key}
        made: dict[str, Any] = {**limit, "lease": "30s", "max_attempts": 3}
        if not delete_on_ack:
            made |= {"delete_on_ack": False, "retain": "30d"}
        self.benches = [self.make_bench(**made) for _ in range(2)]
        self.bench, self.other = self.benches
        self.now = 1000
        self.skew = 0
        self.messages: dict[str, Message] = {}
        self.leases: dict[int, tuple[str, Lease]] = {}
        self.open = list(GROUPS)
        for name in GROUPS:
            self.apply(c.OpenGroup(name, "earliest"))

    def make_bench(self, **settings: Any) -> Bench:
        """Return a new partition."""
        return Bench(**settings)

    # -- the partitions -------------------------------------------------------------------------------------------

    def apply(self, *commands: c.Command) -> Any:
        """Apply an entry with the leader's time to both partitions and return its first result."""
        results = [bench.apply(self.now + self.skew, *commands) for bench in self.benches]
        assert str(results[0]) == str(results[1])
        return results[0][0]

    def compare(self) -> None:
        """Check that both partitions have the same rows, except for rows that may differ."""
        one, two = (comparable(bench.everything()) for bench in self.benches)
        assert one == two

    def restart(self) -> None:
        """Load the second partition from its rows."""
        self.other.restart()

    # -- work -----------------------------------------------------------------------------------------------------

    def work(self, steps: int) -> None:
        """Run random actions."""
        for _ in range(steps):
            self.now += self.random.randrange(400)
            deeds = [self.produce] * 5 + [self.lease] * 4 + [self.ack] * 3 + [self.nack] * 2
            deeds += [self.cancel, self.move, self.expire, self.leave, self.upkeep]
            self.random.choice(deeds)()
            if self.random.random() < 0.1:
                self.restart()
        self.compare()

    def produce(self) -> None:
        draw = self.random
        count, how = draw.randrange(1, 6), draw.choice(["now", "now", "at", "moment", "moment", "delay", "mixed"])
        names = [f"m{len(self.messages) + at}" for at in range(count)]
        due: list[int | None] = [None] * count
        far = max(self.skew, self.ahead)
        if how in ("at", "mixed"):
            due = [self.now + draw.choice([-2000, 500, 8000, far // 2, far + 9000]) for _ in names]
            if how == "mixed":
                due[0] = -T  # the absolute time 0, in 1970: due at once
        elif how == "moment":
            due = [self.now + draw.choice([500, 8000, far // 2, far + 9000])] * count
        elif how == "delay":
            due = [draw.choice([0, 300, 6000, 20_000]) for _ in names]
        split = draw.random() < 0.5
        keys = [draw.choice("abc") if self.ordered else None for _ in names] if split else [None] * count
        unique = [f"u{name}" if draw.random() < 0.3 else None for name in names] if split else [None] * count
        columns: dict[str, Any] = {"keys": keys, "unique": unique} if split else {}
        batch = batch_of(
            names,
            due=None if how == "now" else due,
            relative=how == "delay",
            **columns,  # type: ignore[arg-type]
        )
        result = self.apply(c.Append(batch, split=split))
        if isinstance(result, Stored):
            ids = [result.offsets[at : at + 16] for at in range(0, len(result.offsets), 16)]
        else:
            ids = offsets.run(*result)
        for at, name in enumerate(names):
            asked = due[at]
            wanted = by = 0
            if how == "delay":
                wanted = by = self.now + (asked or 0)
            elif asked is not None and asked != -T:
                wanted = by = asked
            made = self.messages[name] = Message(name, wanted, by, keys[at], unique[at], ids[at])
            made.delay = (asked or 0) if how == "delay" and self.skew else None

    @property
    def ahead(self) -> int:
        return max(self.bench.machine.floor_ms - T - self.now, 0)

    def _name(self, message: Any) -> str:
        name: str = message.fields[Column.VALUE].decode()
        return name

    def lease(self, group: str | None = None, limit: int | None = None) -> list[Lease]:
        group = group or self.random.choice(self.open)
        limit = limit or self.random.randrange(1, 8)
        command = c.Lease(group, T + self.now + self.skew + 5, [c.Grant("c", limit, 30_000)])
        granted: list[Lease] = self.apply(command)
        for lease in granted:
            for message in self.bench.messages(lease):
                known = self.messages[self._name(message)]
                assert not known.gone and group not in known.acked | known.dead, (
                    f"{known.name} was redelivered to {group}"
                )
                assert message.id == known.id
                is_early = known.wanted > self.due_until(group) and group not in known.had
                assert not is_early, f"{known.name} was delivered early to {group}"
                if known.waits:
                    known.had.add(group)
            self.leases[lease.token] = (group, lease)
        return granted

    def due_until(self, group: str) -> int:
        """Return the time up to which the group may receive due messages, by the leader's clock."""
        return self.now + self.skew + 5

    def _some(self) -> tuple[str, Lease] | None:
        return self.random.choice(list(self.leases.values())) if self.leases else None

    def ack(self) -> None:
        if (chosen := self._some()) is not None:
            self.settle(*chosen, c.Ack([(chosen[1].token, None)]))

    def nack(self) -> None:
        if (chosen := self._some()) is not None:
            delay = self.random.choice([None, 0, DELAY])
            item = (chosen[1].token, None, delay, "no")
            snoozed = self.random.random() < 0.3
            self.settle(*chosen, c.Nack([(*item, True, None, SNOOZE) if snoozed else item]))

    def settle(self, group: str, lease: Lease, command: c.Command) -> None:
        live = self.bench.machine.leases.by_token.get(lease.token)
        ranges = live.select(live.live) if live is not None and not live.ended else []
        names = [self._name(m) for m in self.bench.read(ranges, lease.group_id if live and live.kept else None)]
        self.apply(command)
        self.leases.pop(lease.token)
        for name in names:
            if isinstance(command, c.Ack):
                self.messages[name].acked.add(group)
        self.note_dead()

    def note_dead(self) -> None:
        for group in self.open:
            for found in self.bench.dead(group):
                self.messages[found.fields[Column.VALUE].decode()].dead.add(group)

    def cancel(self) -> None:
        message = self._pick()
        if message is not None and self.apply(c.Cancel([(c.TARGET_ID, message.id)]))[0][0] == "cancelled":
            message.gone = True

    def move(self) -> None:
        message, relative = self._pick(), self.random.random() < 0.5
        if message is None:
            return
        before = self._offset_of(message)
        ms = self.random.choice([500, 5000, 40_000])
        to = ms if relative else T + self.now + ms
        outcome = self.apply(c.Move([((c.TARGET_ID, message.id), to, relative)]))[0]
        if outcome[0] == "moved":
            message.wanted = message.by = self.now + ms
            message.waits, message.had = outcome[1] == before, set()
            message.delay = ms if relative and self.skew else None

    def _offset_of(self, message: Message) -> bytes:
        found = self.bench.machine.log.find_owned(message.id, self.bench.view)
        return b"" if found is None else found.offset

    def _pick(self) -> Message | None:
        """Return a random message. In half of the calls, prefer a waiting message, because few messages wait."""
        waits = []
        if self.random.random() < 0.5:
            groups = [self.bench.machine.groups.named(name) for name in self.open]
            ranges = [(entry, group) for group in groups for entry in group.waiting.values()]
            waits = [m for e, g in ranges for m in self.bench.read(list(e.ranges), g.group_id if e.kept else None)]
        if waits:
            return self.messages[self._name(self.random.choice(waits))]
        return self.random.choice(list(self.messages.values())) if self.messages else None

    def expire(self) -> None:
        self.apply(c.Expire())
        self.note_dead()

    def leave(self) -> None:
        self.apply(c.Release(self.random.choice(self.open), "c"))

    def upkeep(self) -> None:
        self.apply(c.Upkeep())

    # -- the reset ------------------------------------------------------------------------------------------------

    def reset(self) -> int:
        """Set the clock back, with other entries between the steps. Return the number of steps."""
        new = self.now
        begun = self.apply(c.ClockReset(T + new))
        assert begun["outcome"] == "begun"
        steps = 0
        while self.bench.machine.resets.state is not None:
            steps += 1
            assert steps < 5000
            self.now += self.random.randrange(30)
            if self.random.random() < 0.3:
                refused = self.apply(c.Lease("g", T + self.now, [c.Grant("c", 1, 1000)]))
                assert refused.code == "UNAVAILABLE"
            if self.random.random() < 0.2:
                assert self.apply(c.ClockReset(T + self.now))["outcome"] == "under_way"
            if self.random.random() < 0.5:
                self.restart()
            assert self.apply(c.Upkeep()) in (True, False)
            self.compare()
        assert self.apply(c.ClockReset(T + new))["outcome"] == "not_ahead"
        for message in self.messages.values():
            message.by = max(message.by, new if message.delay is None else new + message.delay)
            message.delay = None
        self.leases.clear()
        return steps

    def check_rows(self) -> None:
        """Check that, after a clock reset, no row belongs to a time far ahead of the clock."""
        machine, last = self.bench.machine, T + self.now + 7 * 86_400_000
        for key, _ in self.bench.rows(rows.FORGET):
            assert int.from_bytes(key[1:7], "big") <= last
        for name in self.open:
            group = machine.groups.named(name)
            assert group.cursor <= offsets.ceiling(T + self.now, offsets.U48_MAX)
            assert all(entry.since_ms <= T + self.now for entry in group.waiting.values())
        second = Counted(self.bench)
        assert second.stored == second.counted

    def drain(self) -> None:
        """Lease and ack everything when it is due: no message is late, and none is left."""
        last = max([self.now, *[max(m.wanted, m.by) for m in self.messages.values() if not m.gone]]) + 2 * DELAY
        came: dict[tuple[str, str], int] = {}
        begun = self.now
        while self.now < last + 60_000:
            self.apply(c.Expire(), c.Upkeep())
            self.note_dead()
            for group in self.open:
                while granted := self.lease(group, 1000):
                    for lease in granted:
                        names = [self._name(message) for message in self.bench.messages(lease)]
                        came.update({(group, name): self.now for name in names})
                        self.settle(group, lease, c.Ack([(lease.token, None)]))
            status = self.bench.status()
            times = [group.next_ms for group in status.groups if group.next_ms is not None]
            times += [status.next_expiry_ms] if status.next_expiry_ms is not None else []
            self.now = max(self.now + STEP, min([*times, T + last + 60_000]) - T)
        for message in self.messages.values():
            if message.gone:
                continue
            for group in self.open:
                assert group in message.acked | message.dead, f"{message.name} was never delivered to {group}"
                at = came.get((group, message.name), 0)
                assert at <= max(message.by, begun) + LATE, f"{message.name} was delivered to {group} only at {at}"
        self.compare()


class Counted:
    """Return the number of messages per second, first from the counters, then from the log."""

    def __init__(self, bench: Bench) -> None:
        machine, view = bench.machine, bench.view
        first = machine.now_ms // 1000 + 1
        self.counted = dict(machine.log.counts.seconds(first, first + 100 * 366 * 86_400, view))
        self.stored: dict[int, int] = {}
        gone = [key[1:] for key, _ in bench.rows(rows.TOMBSTONE)]
        for key, value in bench.rows(rows.LOG):
            second = offsets.deliver_ms(key[1:]) // 1000
            left = sum(part.length for part in without(rows.log_entry(key, value), gone))
            if second >= first and left:
                self.stored[second] = self.stored.get(second, 0) + left
        assert machine.log.counts.later == sum(self.counted.values())
