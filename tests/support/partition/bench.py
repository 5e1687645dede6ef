"""Run a timer partition in memory: commands in, results and rows out. Every entry is encoded and decoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.model.nack_ends import DEAD, SNOOZE
from sandq.model.names import TIMER
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.rows import Range
from sandq.partition.base.view import Bounds, Row, View
from sandq.partition.groups import dead_letters
from sandq.partition.log.appends import Stored
from sandq.partition.partition_status import Status
from sandq.partition.reader.look_aheads import LookAheads
from sandq.partition.reader.pieces import Message, MessageReader
from sandq.partition.records.dead_index import DeadIndex
from sandq.partition.records.leases import Lease
from sandq.partition.state_machine import TimerPartition
from sandq.storage.stores import MemoryStores
from tests.support.partition.loaded_partition import CHECKS_LOADING, LoadedPartition

T = 1_800_000_000_000
"""Time of the first entry, in ms. Other times in tests are ms after T."""
ALL = 1 << 30
FOREVER_MS = offsets.U48_MAX
STEPS = 10_000
"""Maximum number of upkeeps in a loop: more than any test needs."""

DEFAULTS = {"lease": "30s", "max_attempts": 3, "backoff": {"kind": "fixed", "first": "1s", "jitter_percent": 0}}
"""Default settings of topics in tests."""

Cell = str | bytes | int | None


def batch_of(
    values: Sequence[str],
    *,
    due: Sequence[int] | None = None,
    relative: bool = False,
    keys: Sequence[str | None] | None = None,
    ttls: Sequence[int | None] | None = None,
    unique: Sequence[str | None] | None = None,
    attempts: Sequence[int | None] | None = None,
    backoffs: Sequence[bytes | None] | None = None,
    costs: Sequence[int | None] | None = None,
) -> bytes:
    """Return an encoded batch. `due`: ms after T (or, if relative, after the entry's time). `attempts`, `backoffs`,
    `costs`: the messages' own rules."""
    columns: dict[int, Any] = {Column.VALUE: [value.encode() for value in values]}
    if due is not None:
        columns[Column.DELIVER_MS] = list(due) if relative else [T + ms for ms in due]
    for column, cells in ((Column.KEY, keys), (Column.UNIQUE_KEY, unique)):
        if cells is not None:
            columns[column] = [None if cell is None else cell.encode() for cell in cells]
    if ttls is not None:
        columns[Column.TTL_MS] = list(ttls)
    if attempts is not None:
        columns[Column.MAX_ATTEMPTS] = list(attempts)
    if backoffs is not None:
        columns[Column.BACKOFF] = list(backoffs)
    if costs is not None:
        columns[Column.COST] = list(costs)
    return encode(columns, relative=relative)


def by_id(message_id: bytes) -> c.Target:
    return (c.TARGET_ID, message_id)


def by_key(unique_key: str) -> c.Target:
    return (c.TARGET_KEY, unique_key.encode())


class CountedStores(MemoryStores):
    """Counts reads. Each read may load a whole block of the store, which is as large as its largest row."""

    reads = 0
    scans = 0
    """Number of scans, which are also counted as reads."""

    def get(self, key: bytes) -> bytes | None:
        self.reads += 1
        return super().get(key)

    def scan(self, *args: Any, **options: Any) -> list[Row]:
        self.reads += 1
        self.scans += 1
        return super().scan(*args, **options)

    def vacant(self, ranges: Sequence[Bounds]) -> list[bool]:
        before, scans = self.reads, self.scans
        found = super().vacant(ranges)
        self.reads, self.scans = before + 1, scans
        return found


class Bench:
    """Applies entries. If the partition claims that an entry needs no disk, checks that the entry reads no rows."""

    kind = TIMER
    machine_class: type[TimerPartition] = TimerPartition

    def __init__(self, *, look_aheads: LookAheads | None = None, **settings: Any) -> None:
        """`look_aheads`: the look-aheads of the node."""
        self.look_aheads = look_aheads if look_aheads is not None else LookAheads()
        self.settings = parse_settings(DEFAULTS | settings, self.kind).record()
        self.stores = CountedStores()
        self.view = View(self.stores)
        self.machine = self.machine_class.load(0, self.settings, self.view, self.look_aheads)
        self.index = 0
        self.jobs = 0
        self.written = 0
        """Bytes of the changes that the last entry made."""
        self.needed_no_disk = False
        """Whether the partition claimed that the last entry needs no disk."""
        self.restarts = False
        """Whether the partition is loaded from its rows before each entry. A test sets this."""
        self.checks_loading = CHECKS_LOADING
        """Whether a partition that was just loaded must do the same. Not in a test that changes or counts what is in
        memory."""

    def apply(self, at: int, *commands: c.Command) -> list[Any]:
        """Apply one entry with the time T + at and write its rows."""
        if self.restarts:
            self.restart()
        loaded = LoadedPartition(self.machine_class, self.stores, self._first_settings) if self.checks_loading else None
        self.index += 1
        entry = c.Entry.decode(c.Entry(T + at, commands).encode())
        self.needed_no_disk, before = self.machine.needs_no_disk(entry), self.stores.reads
        results = self.machine.apply(self.index, entry, self.view)
        if self.needed_no_disk:
            self.machine.status(self.view)
            assert self.stores.reads == before, f"{commands} read rows"
        self.machine = self.machine.successor or self.machine
        self.machine.write_state(self.view)
        changes = self.view.drain()
        self.written = sum(len(key) + len(value or b"") for key, value in changes)
        self.stores.write(changes)
        if loaded is not None:
            loaded.check(self.index, entry, results, self.stores)
        for result in results:
            self._check_plain(result if isinstance(result, list) else [])
        return results

    def _check_plain(self, leases: list[Any]) -> None:
        """Check that the cached rows of leases equal the stored rows. Drop them, as a leader does after delivery."""
        for lease in leases:
            if isinstance(lease, Lease) and lease.plain is not None:
                assert lease.plain == [self.view.get(rows.log_key(base)) for base, _ in lease.ranges]
                lease.plain = None

    def restart(self) -> None:
        """Load the partition from its rows, without its memory."""
        self.view = View(self.stores)
        self.machine = self.machine_class.load(0, self._first_settings, self.view, self.look_aheads)

    @property
    def _first_settings(self) -> dict[str, Any]:
        """The settings with which a partition is loaded: rows have them after the first entry."""
        return {} if self.index else self.settings

    # -- commands, one per entry ----------------------------------------------------------------------------------

    def open(self, group: str = "g", start: c.Position = "earliest", at: int = 0) -> int:
        result: int = self.apply(at, c.OpenGroup(group, start))[0]
        return result

    def append(self, *values: str, at: int = 0, due: Sequence[int] | None = None, relative: bool = False) -> Any:
        """Append messages; return (base, count) of a batch row, or 16 bytes per message.

        `due`: ms after T (or, if relative, after the entry's time)."""
        made = self.apply(at, c.Append(batch_of(values, due=due, relative=relative)))[0]
        return made.offsets if isinstance(made, Stored) else made

    def send(
        self, *values: str, at: int = 0, on_conflict: int = c.REJECT, span: int | None = None, **columns: Any
    ) -> Stored:
        """Append messages as single-message rows, so that they can have keys, ttls and unique keys. `span`: the maximum
        wait of DEBOUNCE, or the window of a rule that throttles, in ms."""
        batch = batch_of(values, **columns)
        made = self.apply(at, c.Append(batch, on_conflict=on_conflict, split=True, span_ms=span))[0]
        assert isinstance(made, Stored)
        return made

    def put(self, value: str, at: int = 0, due: int | None = None, **columns: Any) -> bytes:
        """Append one message and return its offset.

        The names of columns are in the singular: key, ttl, unique, attempts, backoff, cost; on_conflict."""
        named = {
            "key": "keys",
            "ttl": "ttls",
            "unique": "unique",
            "attempts": "attempts",
            "backoff": "backoffs",
            "cost": "costs",
        }
        given = {named[name]: [cell] for name, cell in columns.items() if name in named}
        on_conflict = columns.get("on_conflict", c.REJECT)
        return self.send(value, at=at, due=None if due is None else [due], on_conflict=on_conflict, **given).offsets

    def lease(
        self, limit: int = 100, *, at: int = 0, ahead: int = 0, consumer: str = "c", group: str = "g", ms: int = 30_000
    ) -> list[Lease]:
        command = c.Lease(group, T + at + ahead, (c.Grant(consumer, limit, ms),))
        result: list[Lease] = self.apply(at, command)[0]
        return result

    def one(self, **lease: Any) -> Lease:
        """Lease messages and return the lease. Fails unless there is exactly one lease."""
        leases = self.lease(**lease)
        assert len(leases) == 1
        return leases[0]

    def ack(self, token: int, what: c.What = None, at: int = 0) -> Any:
        return self.apply(at, c.Ack([(token, what)]))[0][0]

    def nack(
        self, token: int, what: c.What = None, at: int = 0, delay: int | None = None, error: str | None = None
    ) -> Any:
        return self.apply(at, c.Nack([(token, what, delay, error)]))[0][0]

    def reject(self, token: int, what: c.What = None, at: int = 0, error: str | None = None) -> Any:
        return self.apply(at, c.Nack([(token, what, None, error, True, None, DEAD)]))[0][0]

    def snooze(
        self, token: int, what: c.What = None, at: int = 0, delay: int | None = None, error: str | None = None
    ) -> Any:
        return self.apply(at, c.Nack([(token, what, delay, error, True, None, SNOOZE)]))[0][0]

    def extend(self, token: int, ms: int = 30_000, at: int = 0) -> int | None:
        result: int | None = self.apply(at, c.Extend([(token, ms)]))[0][0]
        return result

    def expire(self, at: int) -> int:
        result: int = self.apply(at, c.Expire())[0]
        return result

    def release(self, consumer: str = "c", at: int = 0, group: str = "g") -> int:
        result: int = self.apply(at, c.Release(group, consumer))[0]
        return result

    def reclaim(self, epoch: int, *, at: int = 0, consumer: str = "c", group: str = "g", ms: int = 30_000) -> Any:
        """Return (number of renewed leases, number of leases that are left to renew), or the error."""
        return self.apply(at, c.Reclaim(group, consumer, epoch, ms))[0]

    def held(self, consumer: str = "c", group: str = "g") -> list[Lease]:
        """Return the live leases of a consumer."""
        return self.machine.leases.live_of(group, consumer)

    def cancel(self, target: c.Target | bytes, at: int = 0) -> Any:
        """Cancel a message and return the outcome. `bytes`: the message with this id."""
        named = by_id(target) if isinstance(target, bytes) else target
        return self.apply(at, c.Cancel([named]))[0][0]

    def move(self, target: c.Target | bytes, to: int, at: int = 0, *, relative: bool = False) -> Any:
        """Move a message and return the outcome. `to`: ms after T (or, if relative, after the entry's time)."""
        named = by_id(target) if isinstance(target, bytes) else target
        return self.apply(at, c.Move([(named, to if relative else T + to, relative)]))[0][0]

    def update(self, target: c.Target | bytes, value: str | None = None, at: int = 0, *, headers: Any = None) -> Any:
        """Change the value, the (packed) headers, or both, of a message, and return the outcome."""
        named = by_id(target) if isinstance(target, bytes) else target
        given = {Column.VALUE.value: None if value is None else value.encode(), Column.HEADERS.value: headers}
        change = {column: cell for column, cell in given.items() if cell is not None}
        result = self.apply(at, c.Move([(named, None, False, None, change)]))[0]
        if isinstance(result, Exception):
            raise result
        return result[0]

    def seek(self, to: c.Position, at: int = 0, group: str = "g") -> bytes:
        """Seek, and finish the seek with upkeeps. Return the cursor. If `to` is an int, it is ms after T."""
        cursor = self.apply(at, c.Seek(group, T + to if isinstance(to, int) else to))[0]
        if not isinstance(cursor, bytes):
            raise cursor
        self.trim(at)
        return cursor

    def start_job(self, kind: str, at: int = 0, **arguments: Any) -> bytes:
        """Start a job and return its id. By default the job matches everything."""
        given: dict[str, Any] = {"from_ms": 0, "until_ms": FOREVER_MS, "dry_run": False} | arguments
        if kind in ("cancel", "move"):
            given = {"key_prefix": None} | given
        else:
            given = {"group": "g", "reason": None} | given
            if kind == "redrive":
                given = {"rate": None} | given
        self.jobs += 1
        job_id = self.jobs.to_bytes(16, "big")
        started = self.apply(at, c.StartJob(job_id, kind, given))[0]
        if isinstance(started, Exception):
            raise started
        return job_id

    def job(self, kind: str, at: int = 0, **arguments: Any) -> tuple[int, int, int]:
        """Run a job to its end; return (matched, done, too_late)."""
        job_id = self.start_job(kind, at, **arguments)
        self.trim(at)
        shown = self.machine.jobs.find(job_id).shown()
        assert shown["state"] == "done"
        return shown["matched"], shown["done"], shown["too_late"]

    def upkeep(self, at: int = 0) -> None:
        self.apply(at, c.Upkeep())

    def trim(self, at: int = 0) -> None:
        """Apply upkeeps until none is due at this time."""
        for _ in range(STEPS):
            due_ms = self.status().upkeep_ms
            if due_ms is None or due_ms > max(T + at, self.machine.now_ms):
                return
            self.upkeep(at)
        raise AssertionError(f"upkeep stays due: {STEPS} steps did not end it")

    # -- state ----------------------------------------------------------------------------------------------------

    def read(self, ranges: Sequence[Range], kept_of: int | None = None) -> list[Message]:
        return list(MessageReader().messages(self.view, ranges, kept_of))

    def messages(self, lease: Lease) -> list[Message]:
        """Return the messages that a lease delivers."""
        return self.read(lease.ranges, lease.group_id if lease.kept else None)

    def values(self, leases: Sequence[Lease]) -> list[str]:
        return [m.fields[Column.VALUE].decode() for lease in leases for m in self.messages(lease)]

    def rows(self, tag: bytes) -> list[tuple[bytes, bytes]]:
        return self.view.scan(tag, bytes([tag[0] + 1]), limit=ALL, max_bytes=ALL)

    def everything(self) -> list[tuple[bytes, bytes]]:
        """Return all stored rows."""
        return self.stores.scan(b"\x00", b"\xff")

    def status(self) -> Status:
        return self.machine.status(self.view)

    def dead(self, group: str = "g") -> list[dead_letters.DeadMessage]:
        """Return the dead messages of a group, and check the counts in its row and the index by time of death."""
        found = self.machine.groups.named(group)
        listed = dead_letters.scan(found.group_id, None, ALL, ALL, self.view)
        assert +found.dead == {r: n for r in found.dead if (n := sum(m.reason == r for m in listed))}
        removable = {(m.dead_ms, m.offset) for m in listed if not m.is_waiting_to_be_sent}
        assert {*DeadIndex(found.group_id).oldest(self.view, ALL)} == removable
        return listed

    def state_of(self, offset: bytes, group: str = "g") -> str:
        """Return the state of a message: delayed, ready, leased, waiting, acked, dead or gone.

        The state is computed from the rows and the groups, independently of the answers of the partition."""
        found = self.machine.groups.named(group)
        for lease in found.leases.values():
            mask, foreign = lease.mask_of([[offset, 1]])
            if not foreign and mask & lease.live:
                return "leased"
        for entry in found.waiting.values():
            if any(
                base <= offset < base[:12] + (int.from_bytes(base[12:], "big") + (length << 12)).to_bytes(4, "big")
                for base, length in entry.ranges
            ):
                return "waiting"
        if self.view.get(rows.of_group(rows.DEAD, found.group_id, offset)) is not None:
            return "dead"
        if offset in found.order.blocked:
            return "ready"
        if offset <= found.cursor or offset in found.gaps:
            return "acked"
        in_log = self.machine.log.find(offset, self.view)
        if self.view.get(rows.TOMBSTONE + offset) is not None or in_log is None or in_log.offset != offset:
            return "gone"
        return "ready" if offsets.deliver_ms(offset) <= self.machine.now_ms else "delayed"
