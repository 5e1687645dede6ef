"""Random commands on the partition state machine are compared with a model: every answer and every count must agree.

Two partitions apply the same entries. The first stays in memory; the second is loaded from its rows at times. Both must
give the same answers and write the same rows. All limits of steps, pages and look-aheads are small, so that the tests
exceed each limit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule, run_state_machine_as_test

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.model.errors import Unavailable
from sandq.model.group_limits import parse_limit, with_limit
from sandq.model.nack_ends import DEAD, RETRY, SNOOZE
from sandq.partition import commands as c
from sandq.partition.jobs.dead_retention import PAUSE_MS
from tests.support.examples import examples
from tests.support.partition import in_parts
from tests.support.partition.bench import FOREVER_MS, T
from tests.support.partition.group_model import Job
from tests.support.partition.hold_rules import Holding
from tests.support.partition.model_bed import GROUPS, STEP, numbers, positions, steps
from tests.support.partition.model_types import Lease, name_of


class Walk(Holding):
    epoch = 0
    """Current epoch of the consumers."""

    # -- groups ---------------------------------------------------------------------------------------------------

    @rule(name=st.sampled_from(GROUPS), to=positions)
    def open_group(self, name: str, to: Any) -> None:
        self.open(name, self._position(to))

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
    @rule(
        number=numbers,
        last=st.sampled_from([None, 1, 2, "topic"]),
        per_key=st.sampled_from([None, 1, 2, 3]),
        snoozes=st.sampled_from([None, 0, 1, "topic", "topic"]),
        on_expiry=st.sampled_from(["dead", "drop", "topic", "topic"]),
    )
    def configure_group(self, number: int, last: Any, per_key: int | None, snoozes: Any, on_expiry: str) -> None:
        name = self._group(number)
        backoff = {"kind": "linear", "first_ms": 700, "factor_permille": 2000, "cap_ms": 1000, "jitter_percent": 0}
        given: dict[str, Any] = {} if last == "topic" else {"max_attempts": last, "backoff": backoff}
        if per_key is not None and self.model.settings["max_in_flight_per_key"] is not None:
            given["max_in_flight_per_key"] = per_key
        if snoozes != "topic":
            given["max_snoozes"] = snoozes
        if on_expiry != "topic":
            given["on_expiry"] = on_expiry
        self.apply(c.ConfigureGroup(name, given))
        self.model.groups[name].settings = given

    @precondition(lambda self: self.model.groups)
    @rule(number=numbers, most=st.sampled_from([None, 1, 3, 6]))
    def limit_group(self, number: int, most: int | None) -> None:
        self._limit(self._group(number), most)

    def _limit(self, name: str, most: int | None) -> None:
        limit = parse_limit({} if most is None else {"max_in_flight": most})
        self.apply(c.Configure(with_limit(self.bench.machine.settings, name, 1, limit)))
        self.model.most_in_flight.pop(name, None)
        if most is not None:
            self.model.most_in_flight[name] = most

    @precondition(lambda self: self.model.groups)
    @rule(number=numbers, paused=st.sampled_from([True, False, False]), ms=st.sampled_from([None, 0, 50, 900, 40_000]))
    def pause_group(self, number: int, paused: bool, ms: int | None = None) -> None:
        name = self._group(number)
        until = self.at + ms if ms is not None and paused else None
        self.apply(c.PauseGroup(name, paused, None if until is None else T + until))
        group, has_ended = self.model.groups[name], until is not None and until <= self.model.now
        group.paused, group.paused_until = (False, None) if has_ended else (paused, until)
        group.touched = self.model.now

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
        handlers=st.sampled_from([0, 1, 1, 2]),
    )
    def lease(self, number: int, grants: list[tuple[str, int]], ahead: int, lease_ms: int, handlers: int = 0) -> None:
        name = self._group(number)
        command = c.Lease(name, T + self.at + ahead, self._grants(grants, lease_ms, handlers))
        waited = set(self.model.groups[name].of("waiting"))
        granted = self.apply(command)
        foretold = self.model.lease(name, self.at + ahead, grants)
        self._in_order(name, {taken.name for taken in foretold} - waited)
        assert sum(lease.total for lease in granted) == len(foretold), [taken.name for taken in foretold]
        for lease in granted:
            chunk, foretold = foretold[: lease.total], foretold[lease.total :]
            assert lease.token > self.last_token
            self.last_token = lease.token
            assert {taken.attempt for taken in chunk} == {lease.attempt}
            assert len({taken.grant for taken in chunk}) == 1 and grants[chunk[0].grant][0] == lease.consumer
            found = self.bench.messages(lease)
            names = self.model.by_offset(taken.name for taken in chunk)
            assert [name_of(message.fields[Column.VALUE]) for message in found] == names
            for message in found:
                self._is_whole(message)
            due = max(self.model.messages[n].at for n in names)
            assert lease.due_ms - T <= self.model.now + 50 and lease.due_ms - T >= min(due, self.model.now)
            now, until = self.model.now, self.model.now + lease_ms
            assert lease.deadline_ms == T + until
            at = {n: self.model.messages[n].offset for n in names}
            of = Lease(name, lease.consumer, lease.token, lease.attempt, names, at, now, until, epoch=lease.epoch)
            of.handlers = handlers
            self.model.granted(of)

    def _grants(self, grants: list[tuple[str, int]], lease_ms: int, handlers: int = 0) -> list[c.Grant]:
        return [c.Grant(consumer, limit, lease_ms, self.epoch, handlers) for consumer, limit in grants]

    def _is_whole(self, message: Any) -> None:
        """Check that a message is as its producer sent or updated it."""
        of = self.model.messages[name_of(message.fields[Column.VALUE])]
        assert (message.id, message.offset, message.created_ms) == (of.id, of.offset, T + of.created)
        sent = {Column.VALUE: of.value, Column.KEY: of.key, Column.TTL_MS: of.ttl, Column.UNIQUE_KEY: of.unique}
        sent[Column.HEADERS] = of.headers
        sent[Column.MAX_ATTEMPTS], sent[Column.BACKOFF] = of.rules
        known = {column: cell.encode() if isinstance(cell, str) else cell for column, cell in sent.items()}
        assert message.fields == {column: cell for column, cell in known.items() if cell is not None}

    def _in_order(self, name: str, fresh: set[str]) -> None:
        """Check that, when a message is leased for the first time, no earlier message of its key is still blocked."""
        group, messages = self.model.groups[name], self.model.messages
        blocked = self.bench.machine.groups.named(name).order.blocked if self.model.ordered else {}
        for taken in fresh:
            key, offset = messages[taken].key, messages[taken].offset
            left = [n for n in group.of("blocked") if messages[n].key == key and messages[n].offset < offset]
            assert not [n for n in left if messages[n].offset in blocked], f"{taken} has overtaken {left}"

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
        begun=st.sampled_from([None, True, False]),
        end=st.sampled_from([None, RETRY, DEAD, SNOOZE, SNOOZE]),
    )
    def nack(
        self,
        number: int,
        part: int | None,
        shape: str,
        delay: int | None,
        error: str | None,
        begun: bool | None,
        end: int | None,
    ) -> None:
        token, what, named = self._some(number, part, shape)
        item: tuple[Any, ...] = (token, what, delay, error) if begun is None else (token, what, delay, error, begun)
        if begun is True and end is not None:
            item = (*item, None, end)
        with in_parts.small_budget(self.budget):
            (answer,) = in_parts.nack(self.apply, c.Nack([item]))
        ends = RETRY if begun is not True or end is None else end
        assert self._lost(answer) == self.model.nack(token, named, delay, error, begun is not False, ends)

    def _some(self, number: int, part: int | None, shape: str) -> tuple[int, c.What, set[bytes] | None]:
        """Return (token of a lease, some of its messages in a form of the protocol, the offsets of these messages)."""
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
    @rule(number=numbers, ms=st.sampled_from([1000, 60_000]), part=st.one_of(st.none(), numbers))
    def extend(self, number: int, ms: int, part: int | None) -> None:
        token, begun, named = self._some(number, part, "foreign")
        item = (token, ms) if begun is None else (token, ms, begun)
        assert self.apply(c.Extend([item]))[0] == self.model.extend(token, ms, named)

    @rule()
    def expire(self) -> None:
        with in_parts.small_budget(self.budget):
            count = in_parts.expire(self.apply, self.bench.machine)
        assert count == self.model.expire() + self._deaths()

    @precondition(lambda self: self.model.groups)
    @rule(number=numbers, consumer=st.sampled_from(["c", "d"]))
    def release(self, number: int, consumer: str) -> None:
        name = self._group(number)
        assert self.apply(c.Release(name, consumer)) == self.model.release(name, consumer)

    @precondition(lambda self: self.model.groups)
    @rule(number=numbers, consumer=st.sampled_from(["c", "d"]), later=st.booleans(), ms=st.sampled_from([1000, 60_000]))
    def reclaim(self, number: int, consumer: str, later: bool, ms: int) -> None:
        name = self._group(number)
        self.epoch += later
        with in_parts.small_budget(self.budget):
            renewed, left = in_parts.reclaim(self.apply, c.Reclaim(name, consumer, self.epoch, ms))
        held = self.bench.machine.leases.live_of(name, consumer)
        tokens = [lease.token for lease in held if lease.token > self.last_token]
        self.last_token = max([self.last_token, *tokens])
        assert (renewed, left) == (self.model.reclaim(name, consumer, self.epoch, tokens, ms), 0)
        assert {lease.epoch for lease in held} <= {self.epoch}
        for token in tokens:
            lease, of = self.bench.machine.leases.by_token[token], self.model.leases[token]
            assert (lease.attempt, lease.deadline_ms) == (of.attempt, T + of.deadline)
            found = self.bench.messages(lease)
            assert [name_of(message.fields[Column.VALUE]) for message in found] == self.model.by_offset(of.names)

    # -- jobs and upkeep ------------------------------------------------------------------------------------------

    @rule(
        kind=st.sampled_from(["cancel", "move", "redrive", "purge_dead"]),
        dry_run=st.sampled_from([False, False, False, True]),
        window=st.sampled_from([None, (-5000, 5000), (0, 30_000)]),
        prefix=st.sampled_from([None, None, b"a"]),
        shift=st.sampled_from([None, -4000, 2000]),
        reason=st.sampled_from([None, None, "nacked", "lease_expired", "expired", "rejected"]),
        rate=st.sampled_from([None, None, 3]),
        number=numbers,
        to_its_end=st.booleans(),
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
        to_its_end: bool,
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
        assert self.apply(started) == shown, "a repeated request refers to the same job"
        if to_its_end:
            self.the_leader_runs_timers(0)

    @precondition(lambda self: self.model.groups)
    @rule(number=numbers, part=numbers, is_purge=st.sampled_from([False, False, True]))
    def dead_by_id(self, number: int, part: int, is_purge: bool) -> None:
        """Redrive or purge some dead messages of a group by id, together with two ids of other messages."""
        group = self.model.groups[self._group(number)]
        names = [name for at, name in enumerate(group.of("dead")) if part >> at & 1]
        others = [name for name in self.model.messages if name not in names]
        ids = [self.model.messages[name].id for name in [*others[-1:], *names, *others[:1]]]
        answer = self.apply((c.PurgeDead if is_purge else c.RedriveDead)(group.name, ids))
        foretold = self.model.each_dead(group, ids, is_purge)
        assert isinstance(answer, Unavailable) if foretold is None else answer == foretold

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
        self.model.remove_dead(STEP, PAUSE_MS)
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
    def the_leader_runs_timers(self, ms: int) -> None:
        """Run the leader's timers: each command is proposed at its time."""
        end, again = self.at + ms, 0
        while (due := self._due()) is not None and due[0] <= end:
            again = again + 1 if due[0] <= self.at else 0
            assert again < 300, "a timer stays due after its command"
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
    def held_messages_are_copied_aside(self) -> None:
        """Extend all leases for so long that groups copy the messages, and the log is trimmed above them."""
        for lease in [lease for lease in self.model.leases.values() if lease.live]:
            assert self.apply(c.Extend([(lease.token, 300_000)])) == [self.model.extend(lease.token, 300_000)]
        self.the_leader_runs_timers(61_000)
        self.log_begins_with_needed_row()

    @rule()
    def log_begins_with_needed_row(self) -> None:
        """Finish the trim. Without retention, check that the log then begins with a row that is still needed."""
        self.expire()
        self.the_leader_runs_timers(0)
        found = self.model.in_log()
        topic = self.model.settings
        if found and topic["delete_on_ack"] and not topic["retention_ms"]:
            first = [m.name for m in found if m.row == found[0].row]
            # If messages at the end of the log were cancelled, cursors pass them only with the next message.
            last = max(offset for offset in self.model.ever if offset[:12] == found[0].offset[:12])
            if all(group.start > last for group in self.model.groups.values()) and not self.is_held(last):
                assert not all(self.model.is_done(name) for name in first), f"{first} could go"

    @precondition(lambda self: self.model.groups and self.model.ever)
    @rule(held=numbers)
    def ack_all_under_a_hold(self, held: int) -> None:
        self.hold("one", held, 400_000)
        for number in range(len(self.model.groups)):
            self.lease(number, [("d", 6)], 0, 30_000)
            self.agrees()
        for lease in [lease for lease in self.model.leases.values() if lease.live]:
            assert self.apply(c.Ack([(lease.token, None)])) == [self.model.ack(lease.token, None)]
            self.agrees()
        self.log_begins_with_needed_row()

    # -- the end --------------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "bench"):
            return
        try:
            self._finish()
        finally:
            self.patches.close()

    def _finish(self) -> None:
        """Deliver all messages once, and check that no message is left."""
        for number in range(len(self.model.groups)):
            self.pause_group(number, False)
        for name in list(self.model.most_in_flight):
            self._limit(name, None)  # includes limits of deleted groups
        for group in self.model.groups.values():
            group.touched = self.model.now
        self.touch(list(self.model.groups))
        self.at += 1_000_000
        self.touch(list(self.model.groups))
        for _ in range(2):
            self.the_leader_runs_timers(120_000)
            self.touch(list(self.model.groups))
        self.produce_at_once(1)  # this message moves the cursors past all cancelled messages
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
            assert all(held.state == "dead" for held in self.model.groups[name].held.values()), "some messages are left"
            assert not self.model.ahead_of(self.model.groups[name])
        if self.model.groups and self.model.settings["delete_on_ack"]:
            self.job("purge_dead", False, None, None, None, None, None, 0, True)
            for _ in range(8):
                self.touch(list(self.model.groups))
                self.the_leader_runs_timers(200_000)
            self._nothing_is_left()

    def _nothing_is_left(self) -> None:
        assert not self.model.in_log(), "the log is not empty"
        dead = {key[5:] for key, _ in self.bench.rows(b"d")}
        assert {key[11:] for key, _ in self.bench.rows(b"D")} == dead
        kinds = {key[:1] for key, _ in self.bench.everything()}
        assert kinds <= {b"s", b"g", b"l", b"a", b"n", b"j"} | ({b"d", b"D", b"i"} if dead else set()), kinds


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


TOPICS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ttl": {"ttl": "20s", "max_attempts": 2, "dedup_window": "1m"},
    "drop": {"ttl": "20s", "on_expiry": "drop", "max_attempts": 2, "dedup_window": "1m"},
    "keys_drop": {"ordering": "key", "ttl": "45s", "on_expiry": "drop", "retention": "30s", "dedup_window": 0},
    "keys": {"ordering": "key", "backoff": {"kind": "exponential", "first": "1s", "cap": "3s", "jitter_percent": 0}},
    "keys_ttl": {"ordering": "key", "ttl": "45s", "max_attempts": 1, "retention": "30s", "dedup_window": 0},
    "per_key": {"max_in_flight_per_key": 2, "backoff": {"kind": "linear", "first": "1s", "jitter_percent": 0}},
    "per_key_ttl": {"max_in_flight_per_key": 2, "ttl": "45s", "max_attempts": 1, "retention": "30s", "dedup_window": 0},
    "dead_retention": {"ttl": "45s", "max_attempts": 1, "dead_retention": "40s", "dedup_window": 0},
    "max_dead_letters": {"ordering": "key", "ttl": "45s", "max_attempts": 1, "max_dead_letters": 2},
    "dead_limits": {"max_attempts": 1, "retention": "30s", "dead_retention": "90s", "max_dead_letters": 4},
    "retention": {"retention": "2m", "max_attempts": 2},
    "retain": {"delete_on_ack": False, "retain": "1m", "max_attempts": 1, "group_ttl": None},
    "for_ever": {"delete_on_ack": False, "ttl": "10s", "ordering": "key", "max_attempts": None, "max_snoozes": 1},
}


def walk(topic: str, tries: int, steps: int) -> None:
    kind = type(f"Walk_{topic}", (Walk,), {"topic": TOPICS[topic]})
    run_state_machine_as_test(kind, settings=settings(max_examples=tries, stateful_step_count=steps, deadline=None))


@pytest.mark.parametrize("topic", TOPICS)
def test_partition_matches_the_model(topic: str) -> None:
    walk(topic, examples(60), 42)


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("topic", TOPICS)
def test_long_run_of_partition_matches_the_model(topic: str) -> None:
    walk(topic, 2000, 60)
