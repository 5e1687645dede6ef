"""Damage the rows of partitions by seed, restore partitions from them, and use these partitions.

The source partitions have rows of nearly every tag. Rows that pass the checks of a restore are in the log of every
replica. So no ordinary command may fail on these rows with an error that `apply` does not know."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from typing import Any

import msgpack

from sandq.model import offsets
from sandq.model.batch import Batch, Column, encode
from sandq.model.errors import InvalidRequest, SandqError
from sandq.model.group_limits import GROUP_LIMITS, parse_limit, with_limit
from sandq.model.outbox import DEAD_LETTER
from sandq.model.retries import pack_backoff
from sandq.model.stored_rows import check_rows
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.view import Row
from sandq.partition.restore.restoring import STATE_OF_BACKUP, encode_chunk
from tests.support.partition.bench import Bench, T
from tests.support.partition.key_bench import KeyBench
from tests.support.partition.ranked_bench import RankedBench
from tests.support.partition.restore_bench import begin, empty_like, end, open_up, put, rows_of
from tests.support.partition.spilling import spilling_all

KINDS = ("timer", "keys", "priority", "fair", "compacted")
LATER_MS = 3_600_000
NUMBERS = (
    0,
    1,
    2,
    5,
    255,
    65_535,
    2**31,
    2**32 - 1,
    2**47,
    2**48 - 1,
    2**48,
    2**62,
    2**63 - 1,
    2**64 - 1,
    -1,
    -(2**63),
)
OTHERS = (None, True, False, "", "x", b"", b"x", bytes(16), b"\xff" * 16, [], {}, [[]], {"a": 1}, {1: b"x"}, 1.5)
COLUMNS: dict[int, Sequence[Any]] = {
    Column.PRIORITY: (2**40, -(2**40), 0),
    Column.TENANT: (b"", b"\xff", b"a b", b"x" * 300),
    Column.TTL_MS: (0, 1),
    Column.UNIQUE_KEY: (b"", b"x" * 2000),
    Column.DELIVER_MS: (0, 2**48 - 1),
    Column.EXPECTED_VERSION: (b"x", bytes(16)),
    Column.KEY: (b"", b"other"),
    Column.HEADERS: (b"\xc1", b""),
}


@cache
def source_of(kind: str) -> Bench:
    """Return a partition that has rows of nearly every tag."""
    if kind == "compacted":
        return _keys()
    return _messages(kind)


def _messages(kind: str) -> Bench:
    common: dict[str, Any] = {"max_attempts": 2, "dedup_window": "1h"}
    bench: Bench
    if kind in ("priority", "fair"):
        more = {"tenants": {"a": {"rate": "1/s", "max_in_flight": 5}}} if kind == "fair" else {"ageing": "1m"}
        bench = RankedBench(kind, **common, **more)
    else:
        bench = Bench(**common, **({"ordering": "key"} if kind == "keys" else {}))
    limited = with_limit(bench.machine.settings, "limited", 2, parse_limit({"rate": "9/s", "max_in_flight": 5}))
    bench.checks_loading = False  # `spilling_all` changes the memory of one partition only
    bench.settings = limited | {DEAD_LETTER: [9, 1, "timer", "t"]}
    bench.apply(0, c.Configure(bench.settings))
    for group in ("g", "h", "limited"):
        bench.open(group)
    if kind == "timer":
        (row,) = bench.settings[GROUP_LIMITS][1].values()
        bench.apply(0, c.ShareLimit("limited", row[0], [], [(1, 1, 0)]))
    _fill(bench, kind)
    _settle(bench)
    return bench


def _columns(kind: str, count: int, **given: Sequence[Any]) -> dict[int, Any]:
    columns: dict[int, Any] = {Column.VALUE: [b"%d" % at for at in range(count)]}
    if kind == "fair":
        columns[Column.TENANT] = [(b"a", b"b.c", None)[at % 3] for at in range(count)]
    if kind in ("priority", "fair"):
        columns[Column.PRIORITY] = [at % 3 - 1 for at in range(count)]
    return columns | {Column[name.upper()]: list(cells) for name, cells in given.items()}


def _fill(bench: Bench, kind: str) -> None:
    def send(count: int, producer: int = 0, number: int = 0, *, split: bool = False, **given: Sequence[Any]) -> None:
        batch = encode(_columns(kind, count, **given))
        assert not isinstance(
            bench.apply(0, c.Append(batch, producer, number and 1, number, c.REJECT, split))[0], SandqError
        )

    keys = [b"k%d" % (at % 2) for at in range(6)]
    send(9, 7, 1)
    backoff = pack_backoff({"kind": "fixed", "first_ms": 9, "factor_permille": 1000, "cap_ms": 9, "jitter_percent": 0})
    rules = {"max_attempts": [2, 2, 0, None, None, None], "backoff": [None, None, backoff, backoff, None, None]}
    send(6, split=True, key=keys, ttl_ms=[600_000] * 6, **rules)
    send(3, split=True, unique_key=[b"u1", b"u2", b"u2"], key=[b"u1", b"k0", b"k1"])
    send(4, deliver_ms=[T + 60_000] * 4)
    send(3, split=True, unique_key=[b"v1", b"v2", b"v3"], deliver_ms=[T + 7_200_000 + at for at in range(3)])
    batch = _columns(kind, 1)
    batch[Column.VALUE] = [bytes(9000)]
    bench.apply(0, c.Append(encode(batch), split=True))
    bench.apply(0, c.Append(encode(batch | {Column.TTL_MS: [5_000_000]}), split=True))
    bench.apply(0, c.Cancel([(c.TARGET_KEY, b"v1")]))
    bench.apply(0, c.Move([((c.TARGET_KEY, b"v2"), T + 8_000_000, False)]))
    bench.apply(0, c.Hold("reader", bytes(16), 3_600_000))
    fields = {column: cells[0] for column, cells in _columns(kind, 1).items()}
    settings = {"every_ms": 60_000, "anchor_ms": T}
    bench.apply(0, c.PutSchedules([("tick", settings, fields, 0, None, T + 60_000, T + 60_000, False)]))
    bench.apply(0, c.TriggerSchedules([("tick", bytes(16))]))


def _settle(bench: Bench) -> None:
    leases = [lease for at in range(10) for lease in bench.lease(1, consumer=f"c{at}")]
    for at, lease in enumerate(leases):
        if at % 5 == 0:
            bench.ack(lease.token)
        elif at % 5 == 1:
            with spilling_all():
                bench.nack(lease.token, delay=5_000, error="later")
        elif at % 5 == 2:
            bench.reject(lease.token, error="no")
        elif at % 5 == 3:
            change = {Column.HEADERS.value: b"\x80"}
            bench.apply(0, c.Nack([(lease.token, None, 7_200_000, "other", True, change)]))
    bench.lease(4, group="h", consumer="other", ms=7_200_000)
    for lease in bench.lease(8, at=1000):
        bench.apply(1000, c.AckThen(lease.token, None, [(11, 0, None, False, {Column.VALUE: b"then"})]))
        break
    bench.start_job("cancel", 2000, key_prefix=b"zzz", from_ms=0, until_ms=T)
    outbox = bench.status().outbox
    for place, epoch in (outbox.batches if outbox is not None else {}).items():
        bench.apply(2000, c.OutboxRefused(*place, epoch, "no"))
    letters = bench.dead()
    if letters:
        bench.apply(2000, c.RedriveDead("g", [letters[-1].id]))
    for lease in bench.lease(2, at=2000, consumer="last"):
        bench.reject(lease.token, at=2000, error="no")
    bench.expire(70_000)
    listed = bench.view.scan(*rows.tag_bounds(rows.LOG), limit=64, max_bytes=1 << 20)
    ahead = [key[1:] for key, value in listed if offsets.deliver_ms(key[1:]) > T + 2000]
    for offset in ahead[:2]:
        change = {Column.VALUE: b"updated"}
        bench.apply(2000, c.Move([((c.TARGET_ID, offset), None, False, None, change)]))
    if bench.machine.shared.rank is not None:
        for offset in ahead[:2]:
            bench.apply(2000, c.Move([((c.TARGET_ID, offset), None, False, 9)]))


def _keys() -> Bench:
    bench = KeyBench(ttl="1h")
    bench.open()
    for at in range(12):
        bench.set(f"k{at % 5}", str(at), at=at)
    bench.set("gone", "x")
    bench.set("gone", None)
    bench.set_if("k1", "again", bytes(0))
    bench.write(("a", "1"), ("b", "2"), headers=[b"\x80", None], at=20)
    lease = bench.lease(4, at=30)[0]
    bench.nack(lease.token, delay=1000, at=40)
    bench.apply(40, c.Hold("reader", bytes(16), 3_600_000))
    bench.upkeep(50)
    return bench


# -- damage -----------------------------------------------------------------------------------------------------------


def damaged(rng: random.Random, stored: Sequence[Row]) -> list[Row]:
    """Return the rows, with one to three of them damaged."""
    found = list(stored)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        # Choose the tag first: there are many log rows, and few of the other tags.
        tag = rng.choice(sorted({key[:1] for key, _ in found}))
        at = rng.choice([number for number, (key, _) in enumerate(found) if key[:1] == tag])
        found[at : at + 1] = rng.choice(_DAMAGES)(rng, *found[at])
    return found


def _gone(rng: random.Random, key: bytes, value: bytes) -> list[Row]:
    return []


def _twice(rng: random.Random, key: bytes, value: bytes) -> list[Row]:
    """Repeat the row under another key."""
    changed = bytearray(key)
    changed[rng.randrange(1, len(key)) if len(key) > 1 else 0] ^= 1 << rng.randrange(8)
    return [(key, value), (bytes(changed), value)]


def _moved(rng: random.Random, key: bytes, value: bytes) -> list[Row]:
    return _twice(rng, key, value)[1:]


def _flipped(rng: random.Random, key: bytes, value: bytes) -> list[Row]:
    if not value:
        return [(key, b"x")]
    changed = bytearray(value)
    changed[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
    return [(key, bytes(changed))]


def _cut(rng: random.Random, key: bytes, value: bytes) -> list[Row]:
    return [(key, value[: rng.randrange(len(value) + 1)])]


def _field(rng: random.Random, key: bytes, value: bytes) -> list[Row]:
    """Change a value in the fields of the row. In a batch row, change a cell and correct the checksum."""
    tag = key[:1]
    if tag == rows.LOG:
        head, body = value[: rows.LOG_HEADER.size], value[rows.LOG_HEADER.size :]
        changed = _batch(rng, body) if value[0] == rows.KIND_BATCH else _packed(rng, body)
        return [(key, head + changed)]
    return [(key, _packed(rng, value))]


def _batch(rng: random.Random, body: bytes) -> bytes:
    try:
        batch = Batch.parse(body)
    except InvalidRequest:
        return body  # the batch was damaged before, so decoding fails
    columns: dict[int, Any] = {}
    for column in batch.columns:
        cells = batch.bytes_column(column) if column in (1, 2, 3, 7, 8, 9) else batch.int_column(column)
        columns[column] = list(cells or [])
    column = rng.choice([*COLUMNS])
    cells = columns.setdefault(column, [None] * batch.count)
    cells[rng.randrange(batch.count)] = rng.choice(COLUMNS[column])
    try:
        return encode(columns, relative=batch.relative)
    except InvalidRequest:
        return body


def _packed(rng: random.Random, value: bytes) -> bytes:
    try:
        fields = msgpack.unpackb(value, raw=False, strict_map_key=False)
    except (ValueError, msgpack.UnpackException):
        return value[:-1]
    changed = _changed(rng, fields)
    try:
        packed: bytes = msgpack.packb(changed, use_bin_type=True)
    except (OverflowError, ValueError):
        return value
    return packed


def _changed(rng: random.Random, value: Any) -> Any:
    """Return the value with a change at a random depth."""
    if isinstance(value, list) and value and rng.random() < 0.9:
        at = rng.randrange(len(value))
        if rng.random() < 0.1:
            return [*value[:at], *value[at + 1 :]] if rng.random() < 0.5 else [*value, rng.choice(OTHERS)]
        return [*value[:at], _changed(rng, value[at]), *value[at + 1 :]]
    if isinstance(value, dict) and value and rng.random() < 0.9:
        name = rng.choice([*value])
        if rng.random() < 0.1:
            return {key: one for key, one in value.items() if key != name}
        return {**value, name: _changed(rng, value[name])}
    if type(value) is int:
        near = (value + 1, value - 1, -value, value * 1000)
        return rng.choice((*NUMBERS, *near, *near, rng.choice(OTHERS)))
    if type(value) is bytes and value and rng.random() < 0.6:
        changed = bytearray(value)
        changed[rng.randrange(len(value))] ^= 1 << rng.randrange(8)
        return bytes(changed)
    return rng.choice((*OTHERS, rng.choice(NUMBERS)))


_DAMAGES = (_gone, _twice, _moved, _flipped, _cut, _field, _field, _field, _field, _field, _field)


# -- use of a damaged partition ---------------------------------------------------------------------------------------


def outcome_of(seed: int) -> str:
    """Return the result of `try_rows`, or "shut" if `apply` raises an unknown error.

    A node shuts the partition after such an error (ADR 46)."""
    try:
        return try_rows(seed)
    except Exception:
        return "shut"


def try_rows(seed: int) -> str:
    """Restore damaged rows and use the partition. Return the last step reached. Raises unknown errors of `apply`."""
    rng = random.Random(seed)
    kind = rng.choice(KINDS)
    source = source_of(kind)
    stored = damaged(rng, rows_of(source))
    chunk = encode_chunk([part for row in stored for part in row])
    topic = {"keys": "timer"}.get(kind, kind)
    try:
        check_rows(chunk, 0, topic)
    except InvalidRequest:
        return "refused at the door"
    made = empty_like(source)
    begin(made, LATER_MS)
    told = put(made, 0, chunk, LATER_MS)
    if isinstance(told, SandqError):
        return "refused as a chunk"
    told = end(made, 1, LATER_MS)
    if isinstance(told, SandqError):
        return "refused at the end"
    open_up(made, LATER_MS)
    use(rng, made)
    return "used"


def use(rng: random.Random, bench: Bench) -> None:
    """Run random commands of producers, consumers and operators, with restarts."""
    at = LATER_MS
    ids = [key[1:] for key, _ in bench.rows(rows.LOG)] + [key[1:] for key, _ in bench.rows(rows.MOVED)]
    ids += [key[5:] for key, _ in bench.rows(rows.DEAD)] + [bytes(16)]
    groups = [group.name for group in bench.status().groups] or ["g"]
    for name in groups:
        bench.apply(at, c.PauseGroup(name, False))
    schedules = [key[1:].decode() for key, _ in bench.rows(rows.SCHEDULE)] or ["tick"]
    tokens = [0]
    for job in range(1, 31):
        at += rng.choice((0, 1, 1000, 60_000, 3_600_000))
        group, message = rng.choice(groups), rng.choice(ids)
        target = rng.choice(((c.TARGET_ID, message), (c.TARGET_KEY, rng.choice((b"u1", b"v2", b"v3", b"new")))))
        commands: list[c.Command] = [
            c.Lease(group, T + at, (c.Grant("c", rng.choice((1, 5, 100)), 30_000),)),
            c.Lease(group, T + at, (c.Grant("c", 100, 30_000, 0, 2),)),
            c.Ack([(rng.choice(tokens), None)]),
            c.Nack([(rng.choice(tokens), None, rng.choice((None, 0, 5000)), "e")]),
            c.Nack([(rng.choice(tokens), None, None, "e", True, None, 1)]),
            c.Extend([(rng.choice(tokens), 60_000), (rng.choice(tokens), 60_000, [[message, 1]])]),
            c.Expire(),
            c.Upkeep(),
            c.Upkeep(),
            c.Upkeep(),
            c.Release(group, "c"),
            c.Cancel([target]),
            c.Seek(group, rng.choice(("earliest", "latest", T + at))),
            c.OpenGroup(rng.choice(("new", "g")), "earliest"),
            c.DropGroup(rng.choice(("new", group))),
            c.RedriveDead(group, [message]),
            c.PurgeDead(group, [message]),
            c.StartJob(job.to_bytes(16, "big"), "redrive", _of_dead(group) | {"rate": None}),
            c.StartJob(job.to_bytes(16, "big"), "purge_dead", _of_dead(group)),
            c.StartJob(job.to_bytes(16, "big"), "cancel", _RANGE | {"key_prefix": None}),
            c.StartJob(job.to_bytes(16, "big"), "move", _RANGE | {"key_prefix": None, "shift_ms": 1000}),
            c.Touch([group]),
            c.Hold("reader", None),
            c.ClockReset(T + at - 10_000),
        ]
        if isinstance(bench, KeyBench):
            writes = {Column.VALUE: [b"v"], Column.KEY: [rng.choice((b"k1", b"gone", b"new"))]}
            commands += [c.Append(encode(writes))] * 5
        else:
            columns = _columns("timer", 2, unique_key=[b"u1", b"v3"], key=[b"u1", b"v3"])
            commands += [
                c.Move([(target, T + at + 5000, False)]),
                c.Move([(target, None, False, None, {Column.VALUE: b"other"})]),
                c.Move([(target, None, False, 3)]),
                c.TriggerSchedules([(rng.choice(schedules), rng.randbytes(16))]),
                c.DeleteSchedules([(rng.choice(schedules),)]),
                c.FireSchedules([(rng.choice(schedules), 1, T + 60_000, T + at + 60_000, T + at + 60_000, 0)]),
                c.AckThen(rng.choice(tokens), None, [(None, None, None, False, {Column.VALUE: b"x"})]),
                c.AckThen(rng.choice(tokens), [[target[1], 1]], [(None, None, None, False, {Column.VALUE: b"y"})], 1),
            ]
            commands.append(c.Append(encode(columns), 7, 1, rng.choice((1, 2, 3)), rng.choice((0, 1, 2, 3)), True))
        outbox = bench.status().outbox
        for place, epoch in (outbox.batches if outbox is not None else {}).items():
            commands += [c.OutboxSent(*place, epoch), c.OutboxRefused(*place, epoch, rng.choice((None, "no")))]
        for command in rng.sample(commands, 3):
            (result,) = bench.apply(at, command)
            if isinstance(command, c.Lease) and isinstance(result, list):
                tokens += [lease.token for lease in result]
                for lease in result:
                    bench.messages(lease)
        bench.status()
        if rng.random() < 0.1:
            bench.restart()


_RANGE: dict[str, Any] = {"from_ms": 0, "until_ms": 2**48 - 1, "dry_run": False}


def _of_dead(group: str) -> dict[str, Any]:
    return _RANGE | {"group": group, "reason": None}


def tags_of_sources() -> set[bytes]:
    """Return the tags of all rows that are damaged here."""
    return {key[:1] for kind in KINDS for key, _ in rows_of(source_of(kind))} | {STATE_OF_BACKUP}
