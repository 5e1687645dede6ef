"""Record logs of real entries. Together, the logs contain every command of a partition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sandq.broker.leader.schedule_firing import replan
from sandq.model import offsets
from sandq.model.batch import Column
from sandq.model.features import KNOWN
from sandq.model.group_limits import parse_limit, with_limit
from sandq.model.nack_ends import DEAD
from sandq.model.outbox import reserved_producer
from sandq.model.partitioning import ordering_hash
from sandq.model.pauses import FOREVER
from sandq.model.sequence import sequence_of
from sandq.partition import commands as c
from sandq.partition.log.appends import Stored
from sandq.partition.schedules import schedule_queries
from tests.support.partition.bench import Bench, T, batch_of, by_id
from tests.support.partition.key_bench import KeyBench
from tests.support.partition.outbox_bench import HERE, TO, OutboxBench
from tests.support.partition.ranked_bench import RankedBench
from tests.support.partition.restore_bench import RESTORE, chunks_of, empty_like, rows_of

SCHEDULE_MS = 1_000
SKIP_ID = b"a skip long ago!"


@dataclass(frozen=True, slots=True)
class Recording:
    """The log of a partition, beginning with its first entry."""

    name: str
    kind: str
    settings: dict[str, Any]
    entries: Sequence[c.Entry]
    """The first entry has the Raft index 1."""

    def positions(self, command_class: type[c.Command]) -> list[int]:
        """Return the positions of the entries with a command of this class."""
        return [
            at for at, one in enumerate(self.entries) if any([type(each) is command_class for each in one.commands])
        ]


def _record(name: str, bench: Bench, script: Callable[[Any], None]) -> Recording:
    """Record the entries that a script applies."""
    entries: list[c.Entry] = []
    assert bench.index == len(entries), "the bench applied more before it was recorded"
    kind, settings, apply = bench.kind, bench.settings, bench.apply

    def recording(at: int, *commands: c.Command) -> list[Any]:
        entries.append(c.Entry(T + at, commands))
        return apply(at, *commands)

    bench.apply = recording  # type: ignore[method-assign]
    script(bench)
    bench.apply(9_000_000, c.Clock())
    return Recording(name, kind, settings, tuple(entries))


def recordings() -> list[Recording]:
    """Return logs that hold every command of `partition.commands`."""
    source = Bench()
    _messages(source)
    restored = Recording("restore", source.kind, empty_like(source).settings, ())
    return [
        _record("messages", Bench(), _messages),
        _record("jobs", Bench(), _jobs),
        _record("clock", Bench(), _clock),
        _record("keys", KeyBench(), _keys),
        _record("ranked", RankedBench("fair"), _ranked),
        _record("schedules", Bench(), _schedules),
        _record("outbox", _recordable(OutboxBench), _outbox),
        Recording("restore", restored.kind, restored.settings, _restore(source, restored.settings)),
    ]


def _recordable(bench_class: type[OutboxBench]) -> Bench:
    return Bench(max_attempts=1)


def _ids(stored: Any) -> list[bytes]:
    assert isinstance(stored, Stored)
    return [stored.offsets[at : at + 16] for at in range(0, len(stored.offsets), 16)]


def _messages(b: Bench) -> None:
    """Run commands of consumers, then of producers, then of operators."""
    b.open()
    b.apply(0, c.OpenGroup("h", "latest", True))
    b.append("a", "b", "c", due=[0, 0, 5_000])
    ids = _ids(b.send("d", "e", "f", keys=["k", None, "k"], unique=["u", "v", None], due=[0, 0, 60_000]))
    b.apply(0, c.Append(batch_of(["p"]), 77, 1, sequence_of(1)))
    b.apply(0, c.Append(batch_of(["q"]), 77, 1, sequence_of(2)))
    b.apply(0, c.Append(batch_of(["r"]), 77, 1, sequence_of(2)))
    b.apply(0, c.Configure(with_limit(b.settings, "g", 1, parse_limit({"max_in_flight": 9}))))
    b.apply(0, c.ShareLimit("g", 1, [(0, 0, 0, 0)], [(0, 9, 0)]))
    b.apply(0, c.AllowLimit([("g", 1, 1, 1, 9, 0, T * 1000, None, None)]))
    first = b.lease(limit=2)
    b.extend(first[0].token, 60_000)
    b.ack(first[0].token, [[first[0].ranges[0][0], 1]], at=10)
    b.apply(20, c.Nack([(first[0].token, None, 500, "boom")]))
    second = b.lease(limit=2, at=30)
    for lease in second:
        b.apply(40, c.Nack([(lease.token, None, None, "dead", True, None, DEAD)]))
    dead = [letter.offset for letter in b.dead()]
    b.apply(50, c.RedriveDead("g", dead[:1]))
    b.apply(50, c.PurgeDead("g", dead[1:]))
    b.apply(60, c.Cancel([by_id(ids[2])]))
    pairs = ["v" * 5000, "w", "x"]
    b.send(*pairs, keys=["ada", "bob", "ada"], unique=["i", "i", "i"], due=[95_000] * 3, at=60, on_conflict=c.REPLACE)
    b.apply(65, c.Move([((c.TARGET_KEY, b"i", None, b"bob"), 96_000, True)]))
    b.apply(66, c.Cancel([(c.TARGET_KEY, b"i", None, b"ada"), (c.TARGET_KEY, b"i", None, b"eve")]))
    late = _ids(b.send("late", keys=[None], due=[90_000], unique=["w"], at=60))
    b.apply(70, c.Move([(by_id(late[0]), 1_000, True)]))
    b.update((c.TARGET_KEY, b"w"), "other", at=75)
    b.append("x", "y", at=80)
    b.lease(limit=2, at=90, consumer="gone")
    b.apply(95, c.Release("g", "gone"))
    b.apply(100, c.Lease("g", T + 100, (c.Grant("e", 2, 30_000, 1),)))
    b.apply(110, c.Reclaim("g", "e", 2, 30_000))
    b.apply(115, c.ConfigureGroup("g", {"max_attempts": 2}))
    b.apply(116, c.PauseGroup("g", True))
    b.apply(117, c.PauseGroup("g", True, T + 30_000))
    b.apply(117, c.PauseGroup("g", False))
    b.apply(117, c.PausePart("g", b"k", T + 40_000))
    b.apply(117, c.PausePart("g", b"k", None))
    b.apply(117, c.PausePart("g", ordering_hash(b"ada"), FOREVER))
    b.apply(117, c.PauseByLease([(offsets.token(1, 0), ids[0], "group", T + 118, "g")]))
    b.apply(117, c.PauseLonger("g", None, T + 119))
    b.apply(117, c.PauseLimit("unknown", T + 119, "an operator", False))
    b.apply(118, c.Hold("reader", bytes(16), 60_000))
    b.apply(119, c.TakeDigest(5), c.Touch(["g", "nothing"]))
    b.apply(120, c.Configure(b.machine.settings | {"retention_ms": 1_000}))
    b.apply(40_000, c.Expire())
    b.apply(40_001, c.Hold("reader", None))
    b.trim(45_000)
    b.apply(50_000, c.Skipped(SKIP_ID, b"digest of others", 77, 1, sequence_of(3), 5))
    b.apply(50_001, c.Append(batch_of(["s"]), 77, 1, sequence_of(4)))
    b.apply(50_002, c.Seek("g", "earliest"))
    b.lease(limit=3, at=50_010)
    b.apply(50_020, c.RaiseLevel(KNOWN.highest))
    b.apply(50_030, c.DropGroup("h"))
    b.trim(60_000)


def _jobs(b: Bench) -> None:
    """Run bulk work in steps: jobs and seeks."""
    b.open()
    b.send(*[f"m{at}" for at in range(6)], keys=["x", "y"] * 3, due=[80_000] * 6)
    b.start_job("cancel", key_prefix=b"x")
    b.start_job("move", key_prefix=b"y", shift_ms=5_000)
    b.trim(10)
    stopped = b.start_job("cancel", at=20)
    b.apply(20, c.StopJob(stopped))
    b.append("dies", at=30)
    b.reject(b.one(at=30).token, at=30)
    b.start_job("redrive", at=40)
    b.trim(50)
    b.lease(limit=5, at=60)


def _clock(b: Bench) -> None:
    """Set back a clock that was far ahead."""
    b.open()
    b.append("a", "b")
    b.lease(limit=1)
    b.append("far", at=7_200_000)
    b.lease(limit=1, at=7_200_000)
    b.apply(1_000, c.ClockReset(T + 1_000))
    b.apply(1_001, c.TakeDigest(1))
    b.trim(1_002)
    b.append("after", at=1_003)
    b.lease(limit=9, at=2_000)


def _keys(b: KeyBench) -> None:
    """Run commands on a compacted topic."""
    b.open()
    for at, key in enumerate("abcab"):
        b.set(key, f"v{at}", at=at)
    b.set("c", None, at=9)
    b.set("t", "short", at=10, ttl=100)
    leases = b.lease(limit=3, at=20)
    b.ack(leases[0].token, at=30)
    b.apply(40, c.Configure(b.machine.settings))
    b.trim(5_000)
    b.lease(limit=9, at=40_000)
    b.apply(70_000, c.Expire())


def _ranked(b: RankedBench) -> None:
    """Run commands on a fair topic."""
    b.open()
    b.add("a", "b", "c", tenant=["t1", "t2", "t1"], priority=[1, 2, 3])
    leases = b.lease(limit=1) + b.lease(limit=1)
    b.apply(5, c.Nack([(leases[0].token, None, None, "again", True, {Column.PRIORITY.value: 4})]))
    b.ack(leases[1].token, at=6)
    later = b.add("d", tenant="t3", due=[90_000], at=10)
    b.apply(11, c.Move([(by_id(later[0]), 50, True, 2)]))
    b.apply(12, c.Append(batch_of(["e"], unique=["u"], due=[70_000]), on_conflict=c.REJECT, split=True))
    b.apply(13, c.Cancel([(c.TARGET_KEY, b"u")]))
    b.take(3, at=2_000)
    b.apply(60_000, c.Expire())
    b.trim(70_000)


def _schedules(b: Bench) -> None:
    """Make every kind of change of a schedule."""
    b.open()
    settings = {"every_ms": SCHEDULE_MS, "anchor_ms": T}
    fields = {Column.VALUE.value: b"tick"}
    b.apply(0, c.PutSchedules([("s", settings, fields, 0, None, T + 1_000, T + 1_000, False)]))

    def seen() -> tuple[int, int | None]:
        found = b.machine.schedules.find("s", b.view)
        assert found is not None
        return found.version, found.expected_ms

    b.apply(1_000, c.FireSchedules([("s", *seen(), T + 2_000, T + 2_000, 0)]))
    b.apply(1_100, c.TriggerSchedules([("s", b"token")]))
    b.apply(1_200, c.PauseSchedules([("s", *seen(), True, None, None)]))
    b.apply(1_300, c.PauseSchedules([("s", *seen(), False, T + 3_000, T + 3_000)]))
    b.lease(limit=5, at=1_400)
    b.append("far", at=7_200_000)
    b.apply(1_500, c.ClockReset(T + 1_500))
    b.trim(1_600)
    stored, _ = schedule_queries.page(b.view, "", None, 2)
    b.apply(1_700, c.PlanSchedules(replan(stored, T + 1_700), None))
    b.apply(4_000, c.FireSchedules([("s", *seen(), T + 5_000, T + 5_000, 0)]))
    b.lease(limit=5, at=4_100)
    b.apply(4_200, c.DeleteSchedules([("s",)]))


def _outbox(b: Any) -> None:
    """Move dead letters to another topic, and ack with a send."""
    sender: Any = b
    OutboxBench.forward_to(sender, TO)
    b.open()
    b.append("a", "b", "e", "f")
    leases = b.lease(limit=4)
    token = leases[0].token
    b.apply(1, c.Nack([(token, [[leases[0].ranges[0][0], 1]], None, "boom")]))
    epoch = b.status().outbox.batches[HERE]
    b.apply(2, c.OutboxRefused(*HERE, epoch, None))
    b.apply(3, c.OutboxSent(*HERE, b.status().outbox.batches[HERE]))
    rest = b.held()
    sends = [(TO, 0, None, False, {Column.VALUE.value: b"then"}), (None, None, 10, True, {Column.VALUE.value: b"here"})]
    one = [[(int.from_bytes(leases[0].ranges[0][0], "big") + (1 << 12)).to_bytes(16, "big"), 1]]
    b.apply(4, c.AckThen(rest[0].token, one, sends))
    b.apply(5, c.OutboxRefused(*HERE, b.status().outbox.batches[HERE], "no such topic"))
    b.apply(6, c.Append(batch_of(["from others"]), reserved_producer(9), 1, sequence_of(1)))
    b.lease(limit=3, at=1_000)
    b.trim(2_000)


def _restore(source: Bench, settings: dict[str, Any]) -> Sequence[c.Entry]:
    chunks = chunks_of(rows_of(source), 20)
    opened = {name: value for name, value in settings.items() if name != "restoring"}
    commands: list[c.Command] = [
        c.RaiseLevel(KNOWN.highest),
        c.RestoreBegin(RESTORE, []),
        *[c.RestoreRows(RESTORE, number, chunk) for number, chunk in enumerate(chunks)],
        c.TakeDigest(3),
        c.RestoreEnd(RESTORE, len(chunks)),
        c.Configure(opened),
        c.RaiseLevel(KNOWN.highest),
        c.PauseGroup("g", False),
        c.Lease("g", T + 70_000, (c.Grant("c", 5, 30_000),)),
        c.Append(batch_of(["after"])),
        c.Upkeep(),
        c.Clock(),
    ]
    return tuple([c.Entry(T + 70_000, (command,)) for command in commands])
