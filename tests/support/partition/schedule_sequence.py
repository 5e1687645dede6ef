"""Run random commands on a partition with schedules, and compare it with a model.

Leaders are late, repeat themselves or act on old information. Schedules change at any moment. Consumers receive
messages, the partition restarts, and the clock is wrong at times. The model computes which occurrences exist between
two changes of a schedule. An occurrence becomes at most one message, and never before its time. If the schedule did not
change and the misfire policy skipped nothing, each occurrence becomes exactly one message."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import Any

from sandq.broker.leader.schedule_firing import plan, replan
from sandq.broker.requests.schedule_requests import _plan_pauses, _plan_puts
from sandq.model.batch import Column
from sandq.model.headers import headers_unpack
from sandq.model.offsets import deliver_ms
from sandq.partition import commands as c
from sandq.partition.schedules import schedule_queries
from sandq.partition.schedules.schedule import GRACE_MS, SENT, Schedule
from sandq.schedules.settings import check
from tests.support.partition.bench import Bench, T

NAMES = ("a", "b", "c")
EVERY = (1_000, 2_000, 5_000)
DEEDS = ("pass", "pass", "pass", "fire", "fire", "fire", "put", "pause", "resume", "delete", "trigger")
DEEDS += ("consume", "consume", "restart", "see", "far", "wrong_clock")


class ScheduleSequence:
    def __init__(self, **settings: Any) -> None:
        """`settings`: settings of the topic."""
        self.bench = Bench(**settings)
        self.bench.open()
        self.at = 0
        """Current time, in ms after T."""
        self.seen: list[tuple[str, bytes]] | None = None
        """Due schedules that a leader has read and fires later."""
        self.token = 0
        self.delivered: defaultdict[tuple[str, int, int], set[bytes]] = defaultdict(set)
        """Ids of delivered messages, by schedule, its incarnation, and occurrence. Without triggered messages."""
        self.triggered: dict[bytes, tuple[str, int]] = {}
        """Schedule and incarnation of each triggered message that was not delivered yet, by its id."""
        self.made: dict[str, int] = {}
        """Incarnation of each schedule: a number that changes when the schedule is created again."""
        self.lives = 0
        self.held: list[int] = []

    # -- actions --------------------------------------------------------------------------------------------------

    def do(self, deed: str, seed: int) -> None:
        """Run one action and check everything."""
        random = Random(seed)
        getattr(self, f"_{deed}")(random)
        self.check()

    def _pass(self, random: Random) -> None:
        self.at += random.choice((1, 300, 999, 1_000, 2_500))
        self.bench.apply(self.at, c.Clock())

    def _far(self, random: Random) -> None:
        """Let a long time without a leader pass."""
        if random.random() < 0.2:
            self.at += GRACE_MS + random.randrange(10_000)

    def _see(self, random: Random) -> None:
        """Let a leader read the due schedules, so that it can fire them later."""
        self.seen = schedule_queries.due(self.bench.view, T + self.at, 10)

    def _fire(self, random: Random) -> None:
        stored = schedule_queries.due(self.bench.view, T + self.at, 10)
        if self.seen is not None and random.random() < 0.5:
            stored, self.seen = self.seen, None if random.random() < 0.5 else self.seen
        items = plan(stored, T + self.at)
        entry = [c.FireSchedules(items)] * (2 if random.random() < 0.2 else 1)
        for results in self.bench.apply(self.at, *entry):
            assert {result[0] for result in results} <= {"fired", "stale", "early"}

    def _put(self, random: Random) -> None:
        name = random.choice(NAMES)
        settings: dict[str, Any] = {"every_ms": random.choice(EVERY), "start_ms": T + self.at + random.randrange(2_000)}
        settings |= random.choice(({}, {}, {"misfire": "all"}, {"misfire": "skip"}, {"overlap_group": "g"}))
        if random.random() < 0.2:
            settings["count"] = random.randrange(1, 4)
        fields = {Column.VALUE: b"%d" % random.randrange(3)}
        wanted = [(name, None, check(settings, T), fields, random.random() < 0.1)]
        planned, _ = _plan_puts(wanted, self._named(name), T + self.at)
        if planned:
            ((result,),) = self.bench.apply(self.at, c.PutSchedules(planned))
            if result[0] == "created":
                self._born(name)

    def _pause(self, random: Random, paused: bool = True) -> None:
        name = random.choice(NAMES)
        planned, _ = _plan_pauses([name], self._named(name), paused, T + self.at)
        if planned:
            self.bench.apply(self.at, c.PauseSchedules(planned))

    def _resume(self, random: Random) -> None:
        self._pause(random, paused=False)

    def _delete(self, random: Random) -> None:
        if random.random() < 0.3:
            self.bench.apply(self.at, c.DeleteSchedules([(random.choice(NAMES),)]))

    def _trigger(self, random: Random) -> None:
        name = random.choice(NAMES)
        self.token += random.random() < 0.7
        token = b"%d" % self.token
        ((result,),) = self.bench.apply(self.at, c.TriggerSchedules([(name, token)]))
        if isinstance(result, list):
            self.triggered[result[1]] = name, self.at

    def _consume(self, random: Random) -> None:
        bench = self.bench
        if self.held and random.random() < 0.5:
            bench.ack(self.held.pop(), at=self.at)
            return
        for lease in bench.lease(at=self.at, limit=random.randrange(1, 5)):
            for message in bench.messages(lease):
                headers = headers_unpack(message.fields[Column.HEADERS])
                assert deliver_ms(message.offset) <= T + self.at
                if message.id in self.triggered:
                    continue
                name, occurrence_ms = headers["sandq-schedule"], headers["sandq-occurrence"]
                assert occurrence_ms <= T + self.at, "never early"
                self.delivered[name, self.made.get(name, 0), occurrence_ms].add(message.id)
            if random.random() < 0.7:
                bench.ack(lease.token, at=self.at)
            else:
                self.held.append(lease.token)

    def _restart(self, random: Random) -> None:
        before = self.bench.status()
        self.bench.restart()
        after = self.bench.status()
        names = ("schedules", "schedule_ms", "planned_to")
        assert [getattr(before, name) for name in names] == [getattr(after, name) for name in names]

    def _wrong_clock(self, random: Random) -> None:
        """Fire schedules with a clock that is far ahead, and set it back."""
        if random.random() > 0.3:
            return
        ahead = self.at + 3_600_000
        stored = schedule_queries.due(self.bench.view, T + ahead, 10)
        self.bench.apply(ahead, c.FireSchedules(plan(stored, T + ahead)))
        self.bench.apply(self.at, c.ClockReset(T + self.at))
        self.bench.trim(self.at)
        while (behind := self.bench.status().planned_to) is not None:
            stored, behind = schedule_queries.page(self.bench.view, "", behind or None, 2)
            self.bench.apply(self.at, c.PlanSchedules(replan(stored, T + self.at), behind))
        for name in NAMES:
            schedule = self.bench.machine.schedules.find(name, self.bench.view)
            if schedule is not None and schedule.expected_ms is not None:
                assert schedule.expected_ms < T + ahead - 1_000_000, "it goes by the right time"

    # -- the model ------------------------------------------------------------------------------------------------

    def _named(self, name: str) -> dict[str, Schedule]:
        found = self.bench.machine.schedules.find(name, self.bench.view)
        return {} if found is None else {name: found}

    def _born(self, name: str) -> None:
        self.lives += 1
        self.made[name] = self.lives

    def check(self) -> None:
        """Check that rows, status and messages agree."""
        bench, status = self.bench, self.bench.status()
        stored, following = schedule_queries.page(bench.view, "", None, 100)
        assert following is None and status.schedules == len(stored)
        schedules = [Schedule.load(name, row) for name, row in stored]
        fires = {(one.fire_ms, one.name) for one in schedules if one.fire_ms is not None}
        rows = {(int.from_bytes(key[1:7], "big"), key[7:].decode()) for key, _ in bench.rows(b"F")}
        assert rows == fires
        assert status.schedule_ms == min([ms for ms, _ in fires], default=None)
        for one in schedules:
            assert (one.expected_ms is None) == (one.fire_ms is None)
            assert not (one.paused and one.expected_ms is not None)
            assert one.made is None or one.expected_ms is not None
            sent = [row[0] for row in one.history if row[2] == SENT]
            assert len({*sent}) == len(sent), "each occurrence ends once"
            if one.settings.get("count") is not None and one.expected_ms is not None:
                assert one.fired < one.settings["count"]
        for key, ids in self.delivered.items():
            assert len(ids) == 1, f"{key} has {len(ids)} messages"
