"""Random walks of the partition state machine beside a model of it: every answer and every count must agree.

Two partitions apply the same entries, one that lives and one that is loaded from its rows every now and then: they must
answer alike and write the same rows. All bounds of steps, pages and look-aheads are made small, so that each is
crossed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.partition import commands as c
from sandq.partition import counts, forget, jobs, log_reader, rows, trim
from sandq.partition.log import Stored
from sandq.partition.log_reader import LogReader
from sandq.partition.timer import Status
from tests.property.partition_group_model import GroupModel, Job
from tests.property.partition_model import Lease, Row
from tests.unit.partition.bench import FOREVER_MS, Bench, T, batch_of, by_id, by_key

STEP = 2
BATCH = 8
GROUPS = ("g", "h", "i")
KEYS = (None, "a", "ab", "b")
UNIQUE = ("u", "v", "w")
SMALL = (
    (trim, "TRIM_ROWS", 3),
    (trim, "UNPIN_MESSAGES", 2),
    (trim, "FILL_TOMBSTONES", BATCH + 1),
    (log_reader, "FILL_TOMBSTONES", BATCH + 1),
    (jobs, "STEP_MESSAGES", STEP),
    (jobs, "WAITING_RANGES", 1 << 30),
    (forget, "SWEEP_ROWS", 2),
    (counts, "HOT_HOURS", 2),
    (counts, "FOLD_ROWS", 3),
    (counts, "COUNTED_HOURS", 2),
    (counts, "DROP_ROWS", 2),
)
numbers = st.integers(0, 1 << 20)
"""Which of so many: counted round."""
delays = st.sampled_from([0, 0, 0, 1, 40, 999, 3000, 20_000, 90_000])
steps = st.sampled_from([0, 1, 1, 20, 300, 999, 1000, 4000, 15_000, 31_000, 61_000, 200_000, 600_000])
positions = st.one_of(st.sampled_from(["earliest", "latest"]), st.integers(-100_000, 5000), st.tuples(numbers))


class Walk(RuleBasedStateMachine):
    topic: dict[str, Any]

    @initialize(look_ahead=st.sampled_from([2, 2048]), groups=st.integers(0, 2))
    def begin(self, look_ahead: int, groups: int) -> None:
        self.patches = ExitStack()
        for module, name, value in SMALL:
            self.patches.enter_context(patch.object(module, name, value))
        self.patches.enter_context(patch.object(LogReader.__init__, "__defaults__", (look_ahead,)))
        self.bench, self.twin = Bench(**self.topic), Bench(**self.topic)
        self.model = GroupModel(self.bench.settings, STEP)
        self.at = 0
        self.made = 0
        self.seeks: dict[bytes, tuple[str, bytes]] = {}
        """Seek jobs: group, and how far they are."""
        self.last_token = -1
        for name in GROUPS[:groups]:
            self.open(name, "earliest")

    # -- entries --------------------------------------------------------------------------------------------------

    def apply(self, command: c.Command) -> Any:
        """By both partitions; its result."""
        self.model.begin(self.bench.index + 1, self.at)
        result, other = self.bench.apply(self.at, command), self.twin.apply(self.at, command)
        assert repr(result) == repr(other), "a partition loaded from its rows answers otherwise"
        one, another = _comparable(self.bench), _comparable(self.twin)
        differ = {key: (one.get(key), another.get(key)) for key in one.keys() | another.keys()}
        assert one == another, {key: both for key, both in differ.items() if both[0] != both[1]}
        return result[0]

    @rule(ms=steps)
    def time_passes(self, ms: int) -> None:
        self.at += ms

    @rule()
    def restart(self) -> None:
        self.twin.restart()
        assert _shown(self.twin) == _shown(self.bench)

    # -- producers ------------------------------------------------------------------------------------------------

    @rule(
        dues=st.lists(delays, min_size=1, max_size=BATCH),
        which=numbers,
        relative=st.booleans(),
        ttls=st.one_of(st.none(), st.none(), st.lists(st.sampled_from([None, 1, 900, 30_000]), min_size=8, max_size=8)),
    )
    def produce(self, dues: list[int], which: int, relative: bool, ttls: list[int | None] | None) -> None:
        made = []
        for at, due in enumerate(dues):
            key = KEYS[(which >> at) % len(KEYS)]
            made.append(Row(self._name(), due if relative else self.at + due, key, ttls[at] if ttls else None))
        self._append(made, relative, c.REJECT, split=ttls is not None)

    @rule(count=st.integers(1, BATCH))
    def produce_at_once(self, count: int) -> None:
        self._append([Row(self._name()) for _ in range(count)], False, c.REJECT, split=False)

    @rule(
        named=st.lists(st.tuples(st.sampled_from([*UNIQUE, None]), delays), min_size=1, max_size=3),
        policy=st.sampled_from([c.REJECT, c.REPLACE, c.IGNORE]),
    )
    def produce_unique(self, named: list[tuple[str | None, int]], policy: int) -> None:
        made = [Row(self._name(), due, unique, None, unique) for unique, due in named]
        self._append(made, True, policy, split=True)

    def _name(self) -> str:
        self.made += 1
        return f"m{self.made}." + ("x" * 5000 if self.made % 7 == 0 else "")

    def _append(self, made: list[Row], relative: bool, policy: int, split: bool) -> None:
        due = None if made[0].due is None else [row.due or 0 for row in made]
        batch = batch_of(
            [row.name for row in made],
            due=due,
            relative=relative,
            keys=[row.key for row in made] if any(row.key for row in made) else None,
            ttls=[row.ttl for row in made] if any(row.ttl for row in made) else None,
            unique=[row.unique for row in made] if any(row.unique for row in made) else None,
        )
        split = split or (self.model.ordered and any(row.key for row in made))
        stored = self.apply(c.Append(batch, on_conflict=policy, split=split))
        answers, refused = self.model.append(made, relative, policy, not isinstance(stored, Stored))
        if isinstance(stored, Stored):
            assert stored.offsets == b"".join(answers)
            found = [tuple(one) for one in stored.refused]
            assert found == refused, (found, refused)
        else:
            assert offsets.run(*stored) == answers

    @precondition(lambda self: self.model.messages)
    @rule(which=st.lists(numbers, min_size=1, max_size=3), how=st.sampled_from(["id", "offset", "key"]))
    def cancel(self, which: list[int], how: str) -> None:
        targets = self._targets(which, how)
        outcomes = self.apply(c.Cancel([target for target, _ in targets]))
        for outcome, (_, name) in zip(outcomes, targets, strict=True):
            if self._refused(outcome, name):
                continue
            assert name is not None and outcome == ["cancelled", self.model.messages[name].id]
            self.model.remove(name, "cancelled")

    @precondition(lambda self: self.model.messages)
    @rule(
        which=st.lists(st.tuples(numbers, delays), min_size=1, max_size=3),
        how=st.sampled_from(["id", "offset", "key"]),
        relative=st.booleans(),
    )
    def move(self, which: list[tuple[int, int]], how: str, relative: bool) -> None:
        targets = self._targets([number for number, _ in which], how)
        items = [
            (target, to if relative else T + self.at + to - 500, relative)
            for (target, _), (_, to) in zip(targets, which, strict=True)
        ]
        outcomes = self.apply(c.Move(items))
        for place, (outcome, (_, name), (_, to, _)) in enumerate(zip(outcomes, targets, items, strict=True)):
            if self._refused(["too_late", "gone"] if outcome[0] == "cancelled" else outcome, name, "gone"):
                assert outcome[0] != "cancelled"
                continue
            assert name is not None
            to = self.model.now + to if relative else to - T
            assert outcome == ["moved", self.model.move(name, to, place)]

    def _targets(self, numbers: list[int], how: str) -> list[tuple[c.Target, str | None]]:
        self.model.begin(self.bench.index + 1, self.at)  # what a key names depends on the time
        targets: list[tuple[c.Target, str | None]] = []
        for number in numbers:
            # Where it stands is a name for it once in a command: then it is gone from there.
            again = self._target(number, how)[1] in [name for _, name in targets]
            targets.append(self._target(number, "id" if again and how == "offset" else how))
        return targets

    def _target(self, number: int, how: str) -> tuple[c.Target, str | None]:
        """A message by one of its names; and which it is."""
        if how == "key":
            unique = UNIQUE[number % len(UNIQUE)]
            return by_key(unique), self.model.named(unique)
        names = list(self.model.messages)
        name = names[-1 - number % len(names)]
        message = self.model.messages[name]
        # Where it had been moved to leads to it as long as it stands there.
        is_there = how == "offset" and message.gone is None and message.offset > self.model.trimmed
        return by_id(message.offset if is_there else message.id), name

    def _refused(self, outcome: Any, name: str | None, cancelled: str = "") -> bool:
        """Whether a cancel or a move was refused, as it had to be."""
        if name is None:
            assert outcome == ["not_found", None]
            return True
        allowed = self.model.refusals(name)
        if cancelled:
            allowed = [["too_late", cancelled] if one[0] == "cancelled" else one for one in allowed]
        assert not allowed or outcome in allowed, (name, outcome, allowed)
        return bool(allowed)

    # -- groups ---------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(GROUPS), to=positions)
    def open_group(self, name: str, to: Any) -> None:
        self.open(name, self._position(to))

    def open(self, name: str, to: c.Position) -> None:
        self.apply(c.OpenGroup(name, to))
        self.model.open(name, to)

    def _position(self, to: Any) -> c.Position:
        if isinstance(to, tuple):
            known = sorted(self.model.ever)
            return known[to[0] % len(known)] if known else "earliest"
        return to if isinstance(to, str) else T + self.at + to

    @precondition(lambda self: self.model.groups)
    @rule(number=numbers, to=positions)
    def seek(self, number: int, to: Any) -> None:
        name, before, place = self._group(number), self._jobs(), self._position(to)
        result = self.apply(c.Seek(name, place))
        assert isinstance(result, bytes) == self.model.seek(name, place)
        for job_id in self._jobs().keys() - before.keys():
            self.seeks[job_id] = (name, b"")

    @precondition(lambda self: self.model.groups)
    @rule(number=numbers)
    def drop_group(self, number: int) -> None:
        name = self._group(number)
        self.apply(c.DropGroup(name))
        self.model.drop(name)

    @precondition(lambda self: self.model.groups)
    @rule(number=numbers, last=st.sampled_from([None, 1, 2, "topic"]))
    def configure_group(self, number: int, last: Any) -> None:
        name = self._group(number)
        backoff = {"kind": "linear", "first_ms": 700, "factor_permille": 2000, "cap_ms": 1000, "jitter_percent": 0}
        given = {} if last == "topic" else {"max_attempts": last, "backoff": backoff}
        self.apply(c.ConfigureGroup(name, given))
        self.model.groups[name].settings = given

    @rule(names=st.lists(st.sampled_from(GROUPS), max_size=2))
    def touch(self, names: list[str]) -> None:
        self.apply(c.Touch(names))
        for group in self.model.groups.values():
            group.touched = self.model.now if group.name in names else group.touched

    def _group(self, number: int) -> str:
        return list(self.model.groups)[number % len(self.model.groups)]

    # -- consumers ------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.model.groups)
    @rule(
        number=numbers,
        grants=st.lists(st.tuples(st.sampled_from(["c", "d"]), st.integers(1, 6)), min_size=1, max_size=3),
        ahead=st.sampled_from([0, 0, 5, 50, 70]),
        lease_ms=st.sampled_from([1000, 30_000, 100_000]),
    )
    def lease(self, number: int, grants: list[tuple[str, int]], ahead: int, lease_ms: int) -> None:
        name = self._group(number)
        command = c.Lease(name, T + self.at + ahead, [c.Grant(consumer, limit, lease_ms) for consumer, limit in grants])
        granted = self.apply(command)
        foretold = self.model.lease(name, self.at + ahead, grants)
        assert sum(lease.total for lease in granted) == len(foretold), [taken.name for taken in foretold]
        for lease in granted:
            chunk, foretold = foretold[: lease.total], foretold[lease.total :]
            assert lease.token > self.last_token
            self.last_token = lease.token
            assert {taken.attempt for taken in chunk} == {lease.attempt}
            assert len({taken.grant for taken in chunk}) == 1 and grants[chunk[0].grant][0] == lease.consumer
            found = self.bench.messages(lease)
            names = self.model.by_offset(taken.name for taken in chunk)
            assert [message.fields[Column.VALUE].decode() for message in found] == names
            for message in found:
                self._is_whole(message)
            due = max(self.model.messages[n].at for n in names)
            assert lease.due_ms - T <= self.model.now + 50 and lease.due_ms - T >= min(due, self.model.now)
            now, until = self.model.now, self.model.now + lease_ms
            assert lease.deadline_ms == T + until
            at = {n: self.model.messages[n].offset for n in names}
            self.model.granted(Lease(name, lease.consumer, lease.token, lease.attempt, names, at, now, until))

    def _is_whole(self, message: Any) -> None:
        """What a consumer gets is what the producer sent."""
        of = self.model.messages[message.fields[Column.VALUE].decode()]
        assert (message.id, message.offset, message.created_ms) == (of.id, of.offset, T + of.created)
        sent = {Column.VALUE: of.name, Column.KEY: of.key, Column.TTL_MS: of.ttl, Column.UNIQUE_KEY: of.unique}
        known = {column: cell.encode() if isinstance(cell, str) else cell for column, cell in sent.items()}
        assert message.fields == {column: cell for column, cell in known.items() if cell is not None}

    @precondition(lambda self: self.model.leases)
    @rule(number=numbers, part=st.one_of(st.none(), numbers), shape=st.sampled_from(["one", "run", "bits", "foreign"]))
    def ack(self, number: int, part: int | None, shape: str) -> None:
        token, what, named = self._some(number, part, shape)
        answer = self.apply(c.Ack([(token, what)]))[0]
        assert self._lost(answer) == self.model.ack(token, named)

    @precondition(lambda self: self.model.leases)
    @rule(
        number=numbers,
        part=st.one_of(st.none(), numbers),
        shape=st.sampled_from(["one", "run", "bits", "foreign"]),
        delay=st.sampled_from([None, None, 0, 400, 70_000]),
        error=st.sampled_from([None, "no"]),
    )
    def nack(self, number: int, part: int | None, shape: str, delay: int | None, error: str | None) -> None:
        token, what, named = self._some(number, part, shape)
        answer = self.apply(c.Nack([(token, what, delay, error)]))[0]
        assert self._lost(answer) == self.model.nack(token, named, delay, error)

    def _some(self, number: int, part: int | None, shape: str) -> tuple[int, c.What, set[bytes] | None]:
        """A lease, what of it, in one of the shapes that the wire knows, and the same as offsets."""
        token = list(self.model.leases)[-1 - number % len(self.model.leases)]
        if part is None:
            return token, None, None
        held = list(self.model.leases[token].offsets.values())
        named = sorted([offset for at, offset in enumerate(held) if (part >> at) & 1] or held[:1])
        if shape == "foreign":
            named = sorted({*named, max(self.model.ever), offsets.pack(T, 1, 9, 0)})
        if shape == "bits":
            found: dict[bytes, list[bytes]] = {}
            for offset in named:
                found.setdefault(offset[:12], []).append(offset)
            return token, [[run[0], _bitmap(run)] for run in found.values()], set(named)
        if shape == "run":
            return token, [list(run) for run in _runs(named)], set(named)
        return token, [[offset, 1] for offset in named], set(named)

    @staticmethod
    def _lost(answer: Any) -> Any:
        return "all" if answer == [] else answer and {o for base, count in answer for o in offsets.run(base, count)}

    @precondition(lambda self: self.model.leases)
    @rule(number=numbers, ms=st.sampled_from([1000, 60_000]))
    def extend(self, number: int, ms: int) -> None:
        token = list(self.model.leases)[-1 - number % len(self.model.leases)]
        assert self.apply(c.Extend([(token, ms)]))[0] == self.model.extend(token, ms)

    @rule()
    def expire(self) -> None:
        count = self.apply(c.Expire())
        assert count == self.model.expire() + self._deaths()

    @precondition(lambda self: self.model.groups)
    @rule(number=numbers, consumer=st.sampled_from(["c", "d"]))
    def release(self, number: int, consumer: str) -> None:
        name = self._group(number)
        assert self.apply(c.Release(name, consumer)) == self.model.release(name, consumer)

    # -- jobs and upkeep ------------------------------------------------------------------------------------------

    @rule(
        kind=st.sampled_from(["cancel", "move", "redrive", "purge_dead"]),
        dry_run=st.sampled_from([False, False, False, True]),
        window=st.sampled_from([None, (-5000, 5000), (0, 30_000)]),
        prefix=st.sampled_from([None, None, b"a"]),
        shift=st.sampled_from([None, -4000, 2000]),
        reason=st.sampled_from([None, None, "nacked", "lease_expired", "expired"]),
        rate=st.sampled_from([None, None, 3]),
        number=numbers,
    )
    def job(
        self,
        kind: str,
        dry_run: bool,
        window: tuple[int, int] | None,
        prefix: bytes | None,
        shift: int | None,
        reason: str | None,
        rate: int | None,
        number: int,
    ) -> None:
        if any(job.state == "running" for job in self.model.jobs.values()) or not self.model.groups:
            return
        first, last = window or (-T, FOREVER_MS - T)
        arguments: dict[str, Any] = {"from_ms": T + first, "until_ms": T + last, "dry_run": dry_run}
        if window:
            arguments = arguments | {"from_ms": T + self.at + first, "until_ms": T + self.at + last}
        group = None
        if kind in ("cancel", "move"):
            arguments["key_prefix"] = prefix
        else:
            group = self.model.groups[self._group(number)]
            arguments |= {"group": group.name, "reason": reason}
        if kind == "move":
            arguments |= {"to_ms": T + self.at + 7000} if shift is None else {"shift_ms": shift}
        if kind == "redrive":
            arguments["rate"] = rate
        job_id = (len(self.model.jobs) + 1).to_bytes(16, "big")
        started = c.StartJob(job_id, kind, arguments)
        shown = self.apply(started)
        self.model.jobs[job_id] = Job(kind, arguments, self.model.index, self.model.now, group=group)
        assert (shown["state"], shown["started_ms"]) == ("running", T + self.model.now)
        assert self.apply(started) == shown, "again: it is the same job"

    @precondition(lambda self: any(job.state == "running" for job in self.model.jobs.values()))
    @rule()
    def stop_job(self) -> None:
        job_id, job = next((i, job) for i, job in self.model.jobs.items() if job.state == "running")
        assert self.apply(c.StopJob(job_id))["state"] == "stopped"
        job.state = "stopped"

    @rule()
    def upkeep(self) -> None:
        before = self._jobs()
        self.apply(c.Upkeep())
        self.model.drop_idle()
        self._watch_trim()
        stepped = [job_id for job_id, row in self._jobs().items() if job_id in before and before[job_id] != row]
        assert len(stepped) <= 1
        for job_id in stepped:
            if job_id in self.seeks:
                name, position = self.seeks[job_id]
                if name in self.model.groups and self.model.groups[name].seek_from is not None:
                    self.seeks[job_id] = (name, self.model.run_seek(name, position))
            elif job_id in self.model.jobs:
                self.model.run(self.model.jobs[job_id])
        for job_id, job in self.model.jobs.items():
            shown = self.bench.machine.jobs.find(job_id).shown()
            assert (shown["state"], shown["matched"], shown["done"], shown["too_late"]) == job.counts

    def _jobs(self) -> dict[bytes, bytes]:
        return {key[1:]: row for key, row in self.bench.rows(b"j")}

    @rule(ms=steps)
    def the_leader_looks_after_it(self, ms: int) -> None:
        """As a leader does it: whatever has a time is proposed at that time."""
        end, again = self.at + ms, 0
        while (due := self._due()) is not None and due[0] <= end:
            again = again + 1 if due[0] <= self.at else 0
            assert again < 300, "it is due again and again, and never done"
            self.at = max(self.at, due[0])
            due[1]()
            self.agrees()
        self.at = end

    def _due(self) -> tuple[int, Callable[[], None]] | None:
        status = self.bench.status()
        times = [(status.next_expiry_ms, self.expire), (status.upkeep_ms, self.upkeep)]
        found = [(at - T, what) for at, what in times if at is not None]
        return min(found, key=lambda one: one[0], default=None)

    @rule()
    def what_may_go_goes(self) -> None:
        """Without retention, once nothing more is to be trimmed, the log begins with a row that is still needed."""
        self.expire()
        self.the_leader_looks_after_it(0)
        found = self.model.in_log()
        topic = self.model.settings
        if found and topic["delete_on_ack"] and not topic["retention_ms"]:
            first = [m.name for m in found if m.row == found[0].row]
            # Beyond what was cancelled at its end the cursors come with the next message only.
            last = max(offset for offset in self.model.ever if offset[:12] == found[0].offset[:12])
            if all(group.start > last for group in self.model.groups.values()):
                assert not all(self.model.is_done(name) for name in first), f"{first} could go"

    # -- they agree -----------------------------------------------------------------------------------------------

    def _deaths(self) -> int:
        """See who died of their ttl."""
        seen = 0
        for group in self.model.groups.values():
            seen += self.model.seen_dead(group, {m.offset: m.dead_ms - T for m in self.bench.dead(group.name)})
        return seen

    def _watch_trim(self) -> None:
        self.model.seen_trimmed(self.bench.status().trimmed)

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "bench"):
            return
        model, machine = self.model, self.bench.machine
        self._deaths()
        model.watch_done()
        status = self.bench.status()
        assert {group.name for group in status.groups} == model.groups.keys()
        for state in status.groups:
            self._group_agrees(state.name, state.next_ms)
        in_log = model.in_log()
        assert status.trimmed == model.trimmed
        assert status.messages == len(in_log)
        assert status.bytes == 0 if not self.bench.rows(b"m") else status.bytes >= 0
        wanted = model.seconds()
        now_s = (T + model.now) // 1000
        assert status.later == sum(count for second, count in wanted.items() if second > now_s)
        first = offsets.deliver_ms(model.trimmed) // 3_600_000 * 3600
        for bench in (self.bench, self.twin):
            found = dict(bench.machine.log.counts.seconds(first, FOREVER_MS // 1000, bench.view))
            assert found == {second: count for second, count in wanted.items() if count and second >= first}
        for message in in_log:
            shown = machine.pending.state_of(message.offset, machine.now_ms, self.bench.view)
            assert (message.name, shown) == (message.name, model.state(message.name))

    def _group_agrees(self, name: str, next_ms: int | None) -> None:
        model, group = self.model, self.model.groups[name]
        found = self.bench.machine.book.group(name)
        at = {model.messages[n].offset: held for n, held in group.held.items()}
        leased = [(o, lease.token) for lease in found.leases.values() for o in _each(lease.select(lease.live))]
        assert sorted(leased) == sorted((o, held.token) for o, held in at.items() if held.state == "leased")
        waiting = [(o, w.due_ms - T, w.attempt) for w in found.waiting.values() for o in _each(w.ranges)]
        wanted = [(o, held.due, held.attempt) for o, held in at.items() if held.state == "waiting"]
        assert sorted(waiting) == sorted(wanted)
        assert found.order.blocked.keys() == {o for o, held in at.items() if held.state == "blocked"}
        dead = {m.offset: m for m in self.bench.dead(name)}
        for offset, entry in model.dead_of(group).items():
            m = dead.pop(offset)
            value = m.fields[Column.VALUE].decode()
            found_entry = (value, m.attempts, m.reason, m.error, m.dead_ms - T, m.history)
            assert found_entry == entry, (found_entry, entry)
        assert not dead
        ahead = [m.offset for m in model.in_log() if m.offset > found.cursor]
        assert ahead == [m.offset for m in model.ahead_of(group)]
        wanted_ms = model.next_at(group)
        assert next_ms == (None if wanted_ms is None else T + wanted_ms)
        if model.ordered:
            busy = [model.messages[n].key for n, h in group.held.items() if h.state == "leased" and not h.immortal]
            in_flight = [key for key in busy if key is not None]
            assert len(in_flight) == len(set(in_flight)), "two of one key at once"

    # -- to its end -----------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        try:
            self._finish()
        finally:
            self.patches.close()

    def _finish(self) -> None:
        """Everything comes out, once, and nothing is left."""
        for group in self.model.groups.values():
            group.touched = self.model.now
        self.touch(list(self.model.groups))
        self.at += 1_000_000
        self.touch(list(self.model.groups))
        for _ in range(2):
            self.the_leader_looks_after_it(120_000)
            self.touch(list(self.model.groups))
        self.produce_at_once(1)  # it takes the cursors beyond all that was cancelled
        for name in list(self.model.groups):
            number = list(self.model.groups).index(name)
            for _ in range(1000):
                self.lease(number, [("z", 1000)], 0, 30_000)
                mine = [lease for lease in self.model.leases.values() if lease.consumer == "z" and lease.live]
                if not mine:
                    break
                for lease in mine:
                    assert self.apply(c.Ack([(lease.token, None)])) == [self.model.ack(lease.token, None)]
                self.agrees()
            assert all(held.state == "dead" for held in self.model.groups[name].held.values()), "something is left"
            assert not self.model.ahead_of(self.model.groups[name])
        if self.model.groups and self.model.settings["delete_on_ack"]:
            self.job("purge_dead", False, None, None, None, None, None, 0)
            for _ in range(8):
                self.touch(list(self.model.groups))
                self.the_leader_looks_after_it(200_000)
            self._nothing_is_left()

    def _nothing_is_left(self) -> None:
        assert not self.model.in_log(), "the log is not empty"
        dead = {key[5:] for key, _ in self.bench.rows(b"d")}
        kinds = {key[:1] for key, _ in self.bench.everything()}
        assert kinds <= {b"s", b"g", b"l", b"a", b"n", b"j"} | ({b"d", b"i"} if dead else set()), kinds


def _shown(bench: Bench) -> Status:
    """Its status, without what counts for one process only."""
    status = bench.status()
    return replace(status, deleted=0, groups=tuple(replace(group, generation=0) for group in status.groups))


def _comparable(bench: Bench) -> dict[bytes, Any]:
    """All rows; but counts are in as many rows as it happened, and what is known of those differs."""
    found: dict[bytes, Any] = {key: row for key, row in bench.everything() if key[:1] != rows.COUNTS}
    state = rows.unpack(found[rows.STATE_KEY])
    state[6] = state[6][:2]
    return found | {rows.STATE_KEY: state}


def _bitmap(run: list[bytes]) -> bytes:
    bits = sum(1 << (offsets.distance(run[0], offset) or 0) for offset in run)
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def _runs(named: list[bytes]) -> Iterator[tuple[bytes, int]]:
    base, count = named[0], 1
    for offset in named[1:]:
        if offsets.distance(base, offset) == count:
            count += 1
        else:
            yield base, count
            base, count = offset, 1
    yield base, count


def _each(ranges: list[rows.Range]) -> list[bytes]:
    return [offset for base, length in ranges for offset in offsets.run(base, length)]


TOPICS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ttl": {"ttl": "20s", "max_attempts": 2, "dedup_window": "1m"},
    "keys": {"ordering": "key", "backoff": {"kind": "exponential", "first": "1s", "cap": "3s", "jitter_percent": 0}},
    "keys_ttl": {"ordering": "key", "ttl": "45s", "max_attempts": 1, "retention": "30s", "dedup_window": 0},
    "retention": {"retention": "2m", "max_attempts": 2, "group_ttl": "5m"},
    "retain": {"delete_on_ack": False, "retain": "1m", "max_attempts": 1, "group_ttl": None},
    "for_ever": {"delete_on_ack": False, "ttl": "10s", "ordering": "key", "max_attempts": None},
}
LONG = bool(os.environ.get("TEST_RANDOM"))


def walk(topic: str, examples: int, steps: int) -> None:
    kind = type(f"Walk_{topic}", (Walk,), {"topic": TOPICS[topic]})
    run_state_machine_as_test(kind, settings=settings(max_examples=examples, stateful_step_count=steps, deadline=None))


@pytest.mark.parametrize("topic", TOPICS)
def test_it_does_what_the_model_says(topic: str) -> None:
    walk(topic, 60, 40)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("topic", TOPICS)
def test_it_does_what_the_model_says_for_long(topic: str) -> None:
    walk(topic, 2000, 60)
