"""Generate requests of every type by seed: valid ones that follow from earlier replies, and damaged ones.

A request begins as a valid one: from a template if its fields depend on each other, or from the example in
docs/protocol.md. Then up to three of its values are changed, at any depth: integers at boundaries, other types, missing
or extra items, batches with damaged columns and a correct checksum. The ids of messages, lease tokens and group numbers
of replies are used in later requests, so that many requests concern existing objects."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any, Final

import msgpack

from sandq.model.batch import Column, encode
from sandq.model.errors import SandqError
from sandq.model.pauses import PARTS
from sandq.model.settings import parse_settings
from sandq.partition.restore.restoring import encode_chunk
from sandq.protocol.frames import Type
from sandq.protocol.request import REQUESTS
from tests.support.partition.damaged_rows import COLUMNS, KINDS, NUMBERS, OTHERS, damaged, source_of
from tests.support.partition.restore_bench import rows_of
from tests.support.protocol_document import EXAMPLES, decode

TOPICS: Final = {"t": "timer", "ordered": "timer", "keys": "compacted", "prio": "priority", "fair": "fair"}
"""Topics that exist, unless a request deleted them, and their kinds."""
SETTINGS: Final[dict[str, dict[str, Any]]] = {
    "t": {"max_attempts": 2, "dead_letter_topic": "ordered"},
    "ordered": {"ordering": "key", "ttl": "1h"},
}
GROUPS: Final = ("g", "h")
KNOWN_MOST: Final = 64
U48: Final = 2**48 - 1
KEPT_RESTORES: Final = 6
"""Number of restored topics of one stream that exist at the same time."""
FAR_MS: Final = 1_900_000_000_000
NOT_SENT: Final = (Type.HELLO, Type.PROVE, Type.ON_BEHALF)
"""Types that are not sent: the first frame of a connection, and frames that only a gateway sends."""


class Requests:
    """A stream of requests. `now_ms`: approximate time of the node."""

    def __init__(self, seed: int, now_ms: int) -> None:
        self._rng = random.Random(seed)
        self._now_ms = now_ms
        self._ids: deque[bytes] = deque([bytes(16)], KNOWN_MOST)
        self._leases: deque[tuple[int, int, int]] = deque([(1, 0, 0)], KNOWN_MOST)
        """(group number, partition, token)."""
        self._exports: deque[tuple[str, int]] = deque([("t", 0)], KNOWN_MOST)
        self._next: deque[tuple[int, list[Any]]] = deque()
        """Requests that belong together, in their order."""
        self._restores = 0
        self._name = seed % 10**9
        self._examples: defaultdict[int, list[list[Any]]] = defaultdict(list)
        for name in EXAMPLES:
            kind, _, *fields = decode(name)
            if kind not in NOT_SENT:
                self._examples[kind].append(fields)
        self._templates: dict[int, Callable[[], list[Any]]] = {
            Type.PRODUCE: self._produce,
            Type.LEASE: self._lease,
            Type.SUBSCRIBE: self._subscribe,
            Type.ACK: lambda: self._settle(lambda token: [token, self._what()]),
            Type.NACK: lambda: self._settle(self._nack),
            Type.EXTEND: lambda: self._settle(lambda token: [token, self._number()]),
            Type.LEASE_PAUSE: lambda: self._settle(
                lambda token: [token, self._id(), self._rng.choice(PARTS), self._number(), self._group()]
            ),
            Type.ACK_THEN: self._ack_then,
            Type.MOVE: self._move,
            Type.CANCEL: lambda: [*self._place(), self._several(self._target)],
            Type.JOB_START: self._job,
            Type.DEAD_REDRIVE: lambda: [*self._place(), self._group(), self._several(self._id)],
            Type.DEAD_PURGE: lambda: [*self._place(), self._group(), self._several(self._id)],
            Type.GROUP_SEEK: lambda: [self._topic(), self._group(), self._start()],
            Type.GROUP_UPDATE: lambda: [self._topic(), self._group(), self._group_settings()],
            Type.GROUP_LIMIT: self._limit,
            Type.HOLD: lambda: [*self._place(), "reader", self._id(), 60_000],
            Type.SCHEDULE_PUT: self._schedules,
            Type.SCHEDULE_CHANGE: self._change,
            Type.TOPIC_CREATE: self._create,
            Type.TOPIC_UPDATE: lambda: [self._topic(), self._settings(), None, None],
            Type.RESTORE_TOPIC: self._restore,
            Type.BACKUP_READ: lambda: [*self._export(), None],
            Type.BACKUP_END: self._export,
            Type.KV_GET: lambda: ["keys", 0, False, [self._key()]],
        }
        self._kinds = [*self._examples, *10 * list(self._templates)]

    def next(self) -> tuple[int, list[Any]]:
        """Return the type and the fields of the next request."""
        if self._next:
            return self._next.popleft()
        rng = self._rng
        kind = rng.choice(self._kinds)
        template = self._templates.get(kind)
        is_plain = template is None or rng.random() < 0.1
        fields = self._about_topics(kind, rng.choice(self._examples[kind])) if is_plain else template()  # type: ignore[misc]
        for _ in range(rng.choice((0, 0, 0, 1, 1, 2, 3))):
            fields = self._changed(fields)
        return kind, fields

    def heard(self, asked: tuple[int, list[Any]] | None, frame: list[Any]) -> None:
        """Note ids, tokens and group numbers of a reply, for later requests. `asked`: the request of this reply."""
        if frame[0] == Type.DELIVER and len(frame) > 9:
            self._leases.append((frame[2], frame[3], frame[4]))
            self._ids.extend(_offsets_in(frame[5:12]))
        elif frame[0] == Type.ERROR and frame[2] == "UNKNOWN_TOPIC" and len(self._next) < len(TOPICS):
            name = self._rng.choice([*TOPICS])
            self._next.append((Type.TOPIC_CREATE, [name, TOPICS[name], 1, 1, SETTINGS.get(name, {})]))
        elif frame[0] == Type.REPLY and asked is not None:
            if asked[0] == Type.BACKUP_BEGIN and type(frame[2]) is dict:
                self._exports.append((asked[1][0], frame[2]["export"]))
            elif asked[0] in (Type.PRODUCE, Type.LIST, Type.DEAD_LIST, Type.MOVE):
                self._ids.extend(_offsets_in(frame[2:]))

    # -- parts ----------------------------------------------------------------------------------------------------

    def _topic(self) -> str:
        restored = [self._restored(number) for number in range(max(self._restores - 2, 0), self._restores)]
        return self._rng.choice([*TOPICS, *TOPICS, *restored])

    def _restored(self, number: int) -> str:
        """Return the name of a topic that is restored from a backup."""
        return f"r{self._name}-{number}"

    def _place(self) -> list[Any]:
        return [self._topic(), 0]

    def _group(self) -> str:
        return self._rng.choice(GROUPS)

    def _id(self) -> bytes:
        return self._rng.choice(self._ids)

    def _key(self) -> bytes:
        return b"k%d" % self._rng.randrange(5)

    def _number(self) -> int:
        return self._rng.choice((0, 1, 1000, 60_000, FAR_MS, U48 - 1, U48))

    def _several(self, one: Callable[[], Any]) -> list[Any]:
        return [one() for _ in range(self._rng.choice((1, 1, 2, 5)))]

    def _start(self) -> Any:
        return self._rng.choice(("earliest", "latest", self._now_ms, FAR_MS, self._id()))

    def _target(self) -> list[Any]:
        named = [1, self._key()]
        others = [*named, "a.b"], [*named, None, self._key()]
        return self._rng.choice(([0, self._id()], [0, self._id()], named, *others))

    def _what(self) -> Any:
        rng = self._rng
        ranges = [[self._id(), rng.choice((1, 2, 65_536, b"\x05", b"\xff" * 8192))] for _ in range(rng.choice((1, 3)))]
        return rng.choice((None, None, ranges))

    def _settle(self, item: Callable[[int], list[Any]]) -> list[Any]:
        number, partition, token = self._rng.choice(self._leases)
        return [number, partition, [item(token)]]

    def _nack(self, token: int) -> list[Any]:
        rng = self._rng
        delay = rng.choice((None, None, 0, 1000, U48))
        changes = rng.choice((None, {"priority": 3}, {"headers": b"\x80"}, {"headers": b"\xc1", "priority": -(2**31)}))
        return rng.choice(
            (
                [token, self._what(), delay, "no"],
                [token, None, None, None, False],
                [token, None, delay, None, True, changes or {"priority": 1}],
                [token, None, None, "no", True, None, 1],
                [token, None, delay, None, True, changes, rng.choice((0, 2))],
            )
        )

    def _columns(self, kind: str) -> dict[int, Any]:
        rng, count = self._rng, self._rng.choice((1, 1, 2, 7))
        columns: dict[int, Any] = {Column.VALUE: [rng.choice((b"", b"v", bytes(5000))) for _ in range(count)]}
        if kind == "compacted":
            columns[Column.KEY] = [self._key() for _ in range(count)]
            if rng.random() < 0.3:
                columns[Column.EXPECTED_VERSION] = [rng.choice((b"", self._id(), None)) for _ in range(count)]
            if rng.random() < 0.2:
                columns[Column.VALUE] = [None] * count
            return columns
        if rng.random() < 0.5:
            columns[Column.KEY] = [self._key() for _ in range(count)]
        if rng.random() < 0.3:
            columns[Column.UNIQUE_KEY] = [self._key() for _ in range(count)]
        if rng.random() < 0.3:
            columns[Column.TTL_MS] = [rng.choice((1, 1000, U48)) for _ in range(count)]
        if rng.random() < 0.4:
            times = (0, self._now_ms, self._now_ms + 500, self._now_ms + 60_000, self._now_ms + 3_600_000)
            columns[Column.DELIVER_MS] = [rng.choice(times) for _ in range(count)]
        if kind in ("priority", "fair") and rng.random() < 0.7:
            columns[Column.PRIORITY] = [rng.choice((-(2**31), 0, 1, 2**31 - 1)) for _ in range(count)]
        if kind == "fair" and rng.random() < 0.7:
            columns[Column.TENANT] = [rng.choice((b"a", b"a.b", b"c", None)) for _ in range(count)]
        if rng.random() < 0.2:
            columns[Column.HEADERS] = [rng.choice((b"\x80", b"\x81\xa1a\x01", b"\xc1")) for _ in range(count)]
        return columns

    def _batch(self, topic: str) -> bytes:
        """Return a batch for a topic. Some batches have an invalid cell, or a column of another kind of topic."""
        rng = self._rng
        columns = self._columns(TOPICS.get(topic, "timer"))
        if rng.random() < 0.15:
            column = rng.choice([*COLUMNS])
            cells = list(columns.get(column) or [None] * len(columns[Column.VALUE]))
            cells[0] = rng.choice(COLUMNS[column])
            columns[column] = cells
        try:
            batch = encode(columns, relative=Column.DELIVER_MS in columns and rng.random() < 0.1)
        except SandqError:
            return encode({Column.VALUE: [b"v"]})
        if rng.random() < 0.03:
            at = rng.randrange(len(batch))
            batch = batch[:at] + bytes([batch[at] ^ 1]) + batch[at + 1 :]
        return batch

    # -- templates ------------------------------------------------------------------------------------------------

    def _produce(self) -> list[Any]:
        rng, topic = self._rng, self._topic()
        producer = rng.choice(([0, 0, 0], [0, 0, 0], [7, 1, rng.randrange(1, 9)], [2**64 - 1, 1, 1], [9, 2**32 - 1, 1]))
        return [topic, 0, *producer, rng.choice((0, 1, 2, 3)), self._batch(topic)]

    def _lease(self) -> list[Any]:
        rng = self._rng
        lease_ms = rng.choice((None, 1000, 5000, 2**64 - 1, 0))
        return [
            self._topic(),
            self._group(),
            "me",
            rng.choice((1, 10, 1000)),
            0,
            lease_ms,
            "earliest",
            rng.random() < 0.1,
        ]

    def _subscribe(self) -> list[Any]:
        number, partition, token = self._rng.choice(self._leases)
        held = self._rng.choice(([], [[number, partition, token]]))
        epoch = self._rng.choice((None, 1, 2**63 - 1))
        number = self._rng.randrange(2**40, 2**41)
        return [
            number,
            self._topic(),
            self._group(),
            "me",
            5,
            self._rng.choice((None, 1000, U48)),
            self._start(),
            held,
            epoch,
            None,
        ]

    def _ack_then(self) -> list[Any]:
        number, partition, token = self._rng.choice(self._leases)
        request = [number, partition, token, self._what(), self._several(self._then)]
        if self._rng.random() < 0.5:
            return request
        end = self._rng.choice((None, 0, 1, 2, 3))
        return [*request, end, self._rng.choice((None, None, 0, U48)), self._rng.choice((None, "no"))]

    def _then(self) -> list[Any]:
        rng = self._rng
        at_ms = rng.choice((None, None, 0, 1000, self._now_ms + 1000, U48))
        message = {
            "value": b"then",
            "key": self._key(),
            "headers": b"\x80",
            "ttl_ms": 1000,
            "priority": 3,
            "tenant": "a",
        }
        named = {name: one for name, one in message.items() if rng.random() < 0.5}
        return [rng.choice((None, *TOPICS)), at_ms, at_ms is not None and rng.random() < 0.5, named]

    def _move(self) -> list[Any]:
        cells = b""
        items = []
        for _ in range(self._rng.choice((1, 1, 3))):
            at_ms = self._rng.choice((None, 0, 1000, self._now_ms, self._now_ms + 60_000, U48))
            item = [self._target(), at_ms, self._rng.random() < 0.4, self._rng.choice((None, 1)), {"value": 3}]
            item = item[: self._rng.choice((3, 4, 5))]
            cells += b"new" if len(item) > 4 else b""
            items.append(item)
        return [*self._place(), items, cells]

    def _job(self) -> list[Any]:
        rng, bounds = self._rng, {"from_ms": 0, "until_ms": U48, "dry_run": self._rng.random() < 0.2}
        kind = rng.choice(("cancel", "move", "redrive", "purge_dead"))
        if kind == "move":
            bounds |= rng.choice(({"to_ms": U48}, {"shift_ms": -U48}, {"shift_ms": 1000}, {"priority": 2**31 - 1}))
        elif kind != "cancel":
            bounds |= {"group": self._group()}
        if rng.random() < 0.3:
            bounds |= {"key_prefix": b"k"}
        return [*self._place(), rng.randbytes(16), kind, bounds]

    def _group_settings(self) -> dict[str, Any]:
        return self._rng.choice(({}, {"max_attempts": 1}, {"backoff": {"kind": "none"}}, {"max_in_flight_per_key": 1}))

    def _limit(self) -> list[Any]:
        limits = self._rng.choice(
            ({}, {"rate": "1000/s"}, {"max_in_flight": 5}, {"rate": 100_000, "burst": 1_000_000}, {"limit": "llm"})
        )
        topic, group = self._rng.choice(((self._topic(), self._group()), ("sandq.limits", "llm")))
        return [topic, group, limits]

    def _settings(self) -> dict[str, Any]:
        """Return settings of a topic, each with a value that may be valid."""
        rng = self._rng
        values: dict[str, Any] = {
            "lease": rng.choice(("1s", "12h")),
            "max_attempts": rng.choice((1, 3, None)),
            "backoff": {"kind": rng.choice(("exponential", "none")), "first": "1ms", "cap": "7d", "factor": 100},
            "ttl": rng.choice((None, "1ms", "366d")),
            "dedup_window": rng.choice((0, "7d")),
            "group_ttl": rng.choice(("1m", "366d", None)),
            "retention": rng.choice((0, "366d")),
            "max_delay": rng.choice((None, "366000d")),
            "ageing": rng.choice((None, "1s")),
            "precision": rng.choice(("auto", "1ms", "1s")),
            "tenants": rng.choice(({}, {"a": {"rate": "1/d"}, "*": {"max_in_flight": 1}})),
            "history": rng.choice((0, "1m")),
            "delete_on_ack": rng.random() < 0.5,
            "dead_letter_topic": rng.choice((None, *TOPICS)),
        }
        return {name: values[name] for name in rng.sample([*values], rng.choice((1, 1, 2, 4)))}

    def _create(self) -> list[Any]:
        name = self._rng.choice([*TOPICS])
        return [name, TOPICS[name], 1, 1, self._rng.choice((SETTINGS.get(name, {}), self._settings()))]

    def _schedules(self) -> list[Any]:
        rng, topic = self._rng, self._topic()
        columns = {column: cells[:1] for column, cells in self._columns("timer").items() if column in (1, 3, 5)}
        times = {"every_ms": rng.choice((1000, 60_000)), "jitter_ms": rng.choice((0, 500))}
        settings = rng.choice((times, {"cron": "* * * * *", "zone": "Europe/Berlin"}, times | {"overlap_group": "g"}))
        if rng.random() < 0.3:
            settings = settings | rng.choice(({"count": 3}, {"misfire": "all"}, {"start_ms": self._now_ms - 10**9}))
        return [
            topic,
            0,
            [[rng.choice(("s1", "s2")), None, settings, encode(columns), rng.choice((None, False, True))]],
        ]

    def _change(self) -> list[Any]:
        action = self._rng.choice(("pause", "resume", "delete", "trigger"))
        return [self._topic(), 0, action, ["s1", "s2"], self._rng.randbytes(16)]

    def _export(self) -> list[Any]:
        topic, export = self._rng.choice(self._exports)
        return [topic, 0, export]

    def _restore(self) -> list[Any]:
        """Return the first request of a restore and queue the others. Most rows are damaged."""
        rng = self._rng
        kind = rng.choice(KINDS)
        name, restore_id = self._restored(self._restores), "fuzz"
        if self._restores >= KEPT_RESTORES:
            self._next.append((Type.TOPIC_DELETE, [self._restored(self._restores - KEPT_RESTORES)]))
        self._restores += 1
        stored = rows_of(source_of(kind))
        if rng.random() < 0.8:
            stored = damaged(rng, stored)
        chunk = encode_chunk([part for row in stored for part in row])
        of = {"keys": "timer"}.get(kind, kind)
        record = parse_settings({"ordering": "key"} if kind == "keys" else {}, of).record()
        if rng.random() < 0.3:
            record = self._another(record)
        self._next.extend(
            [
                (Type.RESTORE_BEGIN, [name, 0, restore_id, [[9, 1], [11, 2]]]),
                (Type.RESTORE_ROWS, [name, 0, restore_id, 0, chunk]),
                (Type.RESTORE_END, [name, 0, restore_id, 1]),
                (Type.RESTORE_OPEN, [name, restore_id, None]),
                *[(Type.GROUP_PAUSE, [name, group, False]) for group in GROUPS],
            ]
        )
        return [name, of, 1, 1, 1, record, None, restore_id]

    # -- damage ---------------------------------------------------------------------------------------------------

    def _about_topics(self, kind: int, fields: list[Any]) -> list[Any]:
        """Return the fields of an example, with a topic and a group that exist."""
        names = [field.name for field in REQUESTS[kind].shape.fields]
        changed = list(fields)
        for at, name in enumerate(names[: len(fields)]):
            if name == "topic" and type(fields[at]) is str:
                changed[at] = self._topic()
            elif name == "group" and type(fields[at]) is str:
                changed[at] = self._group()
            elif name == "partition" and type(fields[at]) is int:
                changed[at] = 0
        return changed

    def _changed(self, fields: list[Any]) -> list[Any]:
        """Return the fields with the value at one random position replaced."""
        rng = self._rng
        if not fields or rng.random() < 0.05:
            return [*fields, rng.choice(OTHERS)] if rng.random() < 0.5 else fields[:-1]
        at = rng.randrange(len(fields))
        return [*fields[:at], self._another(fields[at]), *fields[at + 1 :]]

    def _another(self, value: Any) -> Any:
        rng = self._rng
        if isinstance(value, list) and value and rng.random() < 0.85:
            return self._changed(value)
        if isinstance(value, dict) and value and rng.random() < 0.85:
            name = rng.choice([*value])
            if rng.random() < 0.1:
                return {key: one for key, one in value.items() if key != name}
            return {**value, name: self._another(value[name])}
        if type(value) is int:
            return rng.choice((*NUMBERS, value + 1, value - 1, -value, rng.choice(OTHERS)))
        if type(value) is bool:
            return rng.choice((not value, rng.choice(OTHERS)))
        if type(value) is bytes and value and rng.random() < 0.5:
            at = rng.randrange(len(value))
            return value[:at] + bytes([value[at] ^ 1 << rng.randrange(8)]) + value[at + 1 :]
        if type(value) is str and rng.random() < 0.3:
            return rng.choice((*TOPICS, *GROUPS, value[:-1], value * 300, "earliest", "\0"))
        return rng.choice((*OTHERS, rng.choice(NUMBERS)))


def packed(kind: int, request_id: int, fields: list[Any]) -> bytes | None:
    """Return the bytes of a request; None if msgpack cannot encode it."""
    try:
        body = msgpack.packb([int(kind), request_id, *fields], use_bin_type=True)
    except (OverflowError, ValueError, TypeError):
        return None
    return len(body).to_bytes(4, "big") + body


def _offsets_in(value: Any, depth: int = 0) -> list[bytes]:
    """Return values that may be offsets, at any depth up to 4."""
    if type(value) is bytes:
        return (
            [value[at : at + 16] for at in range(0, min(len(value), 64), 16)] if value and not len(value) % 16 else []
        )
    if isinstance(value, list) and depth < 4:
        return [found for one in value[:8] for found in _offsets_in(one, depth + 1)]
    if isinstance(value, dict) and depth < 4:
        return [found for name in ("id", "offset") if name in value for found in _offsets_in(value[name], depth + 1)]
    return []
