"""Compare two partitions and a model: each entry is applied to all three, and then all of them must agree."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.partition import commands as c
from sandq.partition.base import expiring_rows, rows
from sandq.partition.base.digest import comparable
from sandq.partition.group_status import GroupStatus
from sandq.partition.jobs import dead_retention, jobs, redrive
from sandq.partition.log import appends, counts, trim
from sandq.partition.partition_status import Status
from sandq.partition.pending import pending
from sandq.partition.reader import reader
from sandq.partition.records.leases import Lease
from sandq.partition.records.lives import load_lives
from tests.support.partition.bench import FOREVER_MS, Bench, T
from tests.support.partition.group_model import GroupModel
from tests.support.partition.model_types import name_of
from tests.support.partition.plain_groups import check_groups
from tests.support.partition.spilling import spilled_of, spilling_all

STEP = 2
BATCH = 8
GROUPS = ("g", "h", "i")
KEYS = (None, "a", "ab", "b")
UNIQUE = ("u", "v", "w")
SMALL = (
    (trim, "TRIM_ROWS", 3),
    (trim, "UNPIN_MESSAGES", 2),
    (appends, "WHOLE_MESSAGES", 2),
    (trim, "FILL_TOMBSTONES", BATCH + 1),
    (reader, "FILL_TOMBSTONES", BATCH + 1),
    (reader, "HEAD_ENTRIES", 2),
    (pending, "AHEAD_FROM", 1),
    (jobs, "STEP_MESSAGES", STEP),
    (dead_retention, "STEP_MESSAGES", STEP),
    (redrive, "WAITING_RANGES", 1 << 30),
    (redrive, "WAITING_RANGES", 1 << 30),
    (expiring_rows, "SWEEP_ROWS", 2),
    (counts, "HOT_HOURS", 2),
    (counts, "FOLD_ROWS", 3),
    (counts, "COUNTED_HOURS", 2),
    (counts, "DROP_ROWS", 2),
)
numbers = st.integers(0, 1 << 20)
"""Chooses one of several items: the number modulo the number of items."""
delays = st.sampled_from([0, 0, 0, 1, 40, 999, 3000, 20_000, 90_000])
steps = st.sampled_from([0, 1, 1, 20, 300, 999, 1000, 4000, 15_000, 31_000, 61_000, 200_000, 600_000])
positions = st.one_of(st.sampled_from(["earliest", "latest"]), st.integers(-100_000, 5000), st.tuples(numbers))


class Bed(RuleBasedStateMachine):
    topic: dict[str, Any]

    @initialize(
        look_ahead=st.sampled_from([2, 2048]),
        groups=st.integers(0, 2),
        restarts=st.sampled_from([1, 2, 5, 1 << 30]),
        budget=st.sampled_from([None, 1, 3]),
        evicts=st.booleans(),
        spills=st.booleans(),
    )
    def begin(
        self,
        look_ahead: int,
        groups: int,
        restarts: int,
        budget: int | None,
        evicts: bool,
        spills: bool,
    ) -> None:
        self.budget = budget
        """Number of messages that an entry which settles leases may copy; None for no limit."""
        self.patches = ExitStack()
        for module, name, value in SMALL:
            self.patches.enter_context(patch.object(module, name, value))
        self.patches.enter_context(patch.object(reader, "LOOK_AHEAD_ENTRIES", look_ahead))
        if spills:
            self.patches.enter_context(spilling_all())
        self.bench, self.reloaded = Bench(**self.topic), Bench(**self.topic)
        self.model = GroupModel(self.bench.settings, STEP)
        self.restarts = restarts
        """Number of entries after which the second partition is loaded from its rows again."""
        self.evicts = evicts
        """Whether the groups of the second partition drop their look-ahead before each entry."""
        self.at = 0
        self.made = 0
        self.seeks: dict[bytes, tuple[str, bytes]] = {}
        """Group and position of each seek."""
        self.last_token = -1
        for name in GROUPS[:groups]:
            self.open(name, "earliest")

    # -- entries --------------------------------------------------------------------------------------------------

    def apply(self, command: c.Command) -> Any:
        """Apply a command to both partitions and return its result."""
        self.model.begin(self.bench.index + 1, self.at)
        if self.bench.index % self.restarts == 0:
            self.restart()
        if self.evicts:
            self.evict()
        result, other = self.bench.apply(self.at, command), self.reloaded.apply(self.at, command)
        assert repr(result) == repr(other), "a partition loaded from its rows gives another answer"
        one, another = comparable(self.bench.everything()), comparable(self.reloaded.everything())
        differ = {key: (one.get(key), another.get(key)) for key in one.keys() | another.keys()}
        assert one == another, {key: both for key, both in differ.items() if both[0] != both[1]}
        return result[0]

    @rule(ms=steps)
    def wait(self, ms: int) -> None:
        self.at += ms

    @rule(number=numbers, late=st.sampled_from([-1, 0, 0, 1]))
    def wait_until_due(self, number: int, late: int) -> None:
        due = sorted(at for at in self.model.instants() if at + late > self.at)
        if due:
            self.at = due[number % len(due)] + late

    @rule()
    def restart(self) -> None:
        self.reloaded.restart()
        assert _shown(self.reloaded) == _shown(self.bench)

    @rule()
    def evict(self) -> None:
        for one in self.reloaded.machine.groups.readers():
            one.evict()
        assert _shown(self.reloaded) == _shown(self.bench)

    def open(self, name: str, to: c.Position) -> None:
        self.apply(c.OpenGroup(name, to))
        self.model.open(name, to)

    # -- comparison -----------------------------------------------------------------------------------------------

    def _deaths(self) -> int:
        """Let the model observe messages that died or were dropped because their ttl passed. Return their number."""
        seen = 0
        for group in self.model.groups.values():
            dead = {m.offset: m.dead_ms - T for m in self.bench.dead(group.name)}
            seen += self.model.seen_dead(group, dead)
            real = self.bench.machine.groups.named(group.name)
            ranges = [one for lease in real.leases.values() for one in lease.select(lease.live)]
            ranges += [one for entry in real.waiting.values() for one in entry.ranges]
            found = {*_each(ranges), *real.order.blocked, *dead}
            seen += self.model.seen_dropped(group, real.cursor, found)
        return seen

    def _keys(self) -> dict[str, tuple[int, bytes, int | None]]:
        """Return the unique keys that are not forgotten: state, id, and when they are forgotten (ms after T)."""
        found = {}
        for key, row in self.bench.rows(rows.KEYED_UNIQUE):
            state, message_id, _, until = rows.unpack(row)
            if until is None or until > T + self.model.now:
                found[key[17:].decode()] = (state, message_id, None if until is None else until - T)
        return found

    def _watch_trim(self) -> None:
        self.model.seen_trimmed(self.bench.status().trimmed)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "bench"):
            return
        model, machine = self.model, self.bench.machine
        self._deaths()
        for group in model.groups.values():
            start, stop = rows.group_bounds(rows.KEPT, machine.groups.named(group.name).group_id)
            spilled = spilled_of(self.bench, machine.groups.named(group.name).group_id)
            model.seen_spilled(group, spilled.keys())
            model.seen_copied(group, {key[5:] for key, _ in self.bench.rows(rows.KEPT) if start <= key < stop})
        model.seen_keys(self._keys())
        model.watch_done()
        for bench in (self.bench, self.reloaded):
            check_groups(bench)
        status = self.bench.status()
        assert {group.name for group in status.groups} == model.groups.keys()
        for state in status.groups:
            self._group_agrees(state.name, state.next_ms)
            self._tally_agrees(state)
        in_log = model.in_log()
        assert status.trimmed == model.trimmed
        assert status.messages == len(in_log)
        assert status.bytes == 0 if not self.bench.rows(b"m") else status.bytes >= 0
        wanted = model.seconds()
        now_s = (T + model.now) // 1000
        assert status.later == sum(count for second, count in wanted.items() if second > now_s)
        first = offsets.deliver_ms(model.trimmed) // 3_600_000 * 3600
        for bench in (self.bench, self.reloaded):
            found = dict(bench.machine.log.counts.seconds(first, FOREVER_MS // 1000, bench.view))
            assert found == {second: count for second, count in wanted.items() if count and second >= first}
        for message in in_log if self.bench.index % 3 == 0 else ():
            shown = machine.pending.state_of(message.offset, machine.now_ms, self.bench.view)
            assert (message.name, shown) == (message.name, model.state(message.name))

    def _group_agrees(self, name: str, next_ms: int | None) -> None:
        model, group = self.model, self.model.groups[name]
        found = self.bench.machine.groups.named(name)
        at = {model.messages[n].offset: held for n, held in group.held.items()}
        leased = [(o, lease.token) for lease in found.leases.values() for o in _each(lease.select(lease.live))]
        rules = {model.messages[n].offset: model.messages[n].rules for n in group.held}
        for one in [*found.leases.values(), *found.waiting.values()]:
            for offset in _each(one.select(one.live) if isinstance(one, Lease) else one.ranges):
                assert (one.retry or (None, None)) == rules[offset]
        assert sorted(leased) == sorted((o, held.token) for o, held in at.items() if held.state == "leased")
        waiting = [(o, w.due_ms - T, w.attempt) for w in found.waiting.values() for o in _each(w.ranges)]
        spilled = spilled_of(self.bench, found.group_id)
        waiting += [(o, w.due_ms - T, w.attempt) for o, w in spilled.items()]
        wanted = [(o, held.due, held.attempt) for o, held in at.items() if held.state == "waiting"]
        assert sorted(waiting) == sorted(wanted)
        assert found.order.blocked.keys() == {o for o, held in at.items() if held.state == "blocked"}
        dead = {m.offset: m for m in self.bench.dead(name)}
        for offset, entry in model.dead_of(group).items():
            m = dead.pop(offset)
            value = name_of(m.fields[Column.VALUE])
            assert m.fields[Column.VALUE].decode() == model.messages[value].value
            lives = tuple((*one[:4], one.dead_ms - T, one.redriven_ms - T, one.history) for one in m.lives)
            found_entry = (value, m.attempts, m.reason, m.error, m.dead_ms - T, m.history, lives)
            assert found_entry == entry, (found_entry, entry)
        assert not dead
        for offset, held in at.items():
            if held.lives and held.state in ("leased", "waiting"):
                row = self.bench.view.get(rows.of_group(rows.KEPT, found.group_id, offset))
                assert row is not None and [life.number for life in load_lives(rows.unpack(row)[5])] == [
                    number for number, *_ in held.lives
                ]
        ahead = [m.offset for m in model.in_log() if m.offset > found.cursor]
        assert ahead == [m.offset for m in model.ahead_of(group)]
        is_full = len(group.of("leased")) >= model.most_in_flight.get(name, 1 << 30)
        wanted_ms = None if is_full else model.next_at(group)
        assert next_ms == (None if wanted_ms is None else T + wanted_ms)
        if model.ordered:
            busy = [model.messages[n].key for n, h in group.held.items() if h.state == "leased" and not h.immortal]
            in_flight = Counter(key for key in busy if key is not None)
            # The topic's limit, because a group may lower its own limit below the number of leased messages.
            most = model.settings["max_in_flight_per_key"] or 1
            assert all(count <= most for count in in_flight.values()), "too many messages of one key are leased at once"

    def _tally_agrees(self, state: GroupStatus) -> None:
        """Check that the incremental counts equal counts over all messages."""
        machine = self.bench.machine
        group, now_ms = machine.groups.named(state.name), machine.now_ms
        now_s, at_s = now_ms // 1000, offsets.deliver_ms(group.cursor) // 1000
        leased = [o for lease in group.leases.values() for o in _each(lease.select(lease.live))]
        waiting = [o for entry in group.waiting.values() if entry.due_ms > now_ms for o in _each(entry.ranges)]
        waiting += spilled_of(self.bench, group.group_id)
        back = [o for entry in group.waiting.values() if entry.due_ms <= now_ms for o in _each(entry.ranges)]
        blocked = list(group.order.blocked)
        assert (state.leased, state.waiting, state.dead) == (len(leased), len(waiting), group.dead.total())
        assert state.dropped == group.dropped == self.model.groups[state.name].dropped
        assert state.removed == group.removed == self.model.groups[state.name].removed
        logged = [message.offset for message in self.model.in_log()]
        ahead = [o for o in logged if o > group.cursor]
        due = [o for o in ahead if offsets.deliver_ms(o) // 1000 <= now_s and not group.seeking]
        oldest = min([*leased, *waiting, *back, *blocked, *due], default=None)
        assert state.oldest_ms == (None if oldest is None else offsets.deliver_ms(oldest))
        # Counters have one number per second. The second of the cursor is counted completely, and messages that were
        # leased early are missing in theirs. So the count of ready messages is only known within bounds.
        wanted = sum(offsets.deliver_ms(o) // 1000 <= now_s for o in ahead)
        passed = sum(offsets.deliver_ms(o) // 1000 == at_s for o in self.model.ever if o <= group.cursor)
        early = sum(offsets.deliver_ms(o) // 1000 > now_s for o in self.model.ever if o <= group.cursor)
        ready = state.ready - len(back) - len(blocked)
        assert wanted - early <= ready <= wanted + passed, (wanted, ready, passed, early)


def _shown(bench: Bench) -> Status:
    """Return the status without the fields that depend on the process, or are inexact after a start."""
    status = bench.status()
    groups = tuple(replace(group, generation=0, ready=0) for group in status.groups)
    return replace(status, garbage_rows=0, garbage_bytes=0, groups=groups)


def _each(ranges: list[rows.Range]) -> list[bytes]:
    return [offset for base, length in ranges for offset in offsets.run(base, length)]
