"""Implement stored messages for the fake server: a list of rows for each partition, and one state for each row."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from sandq.model import offsets
from sandq.model.batch import Batch, Column, encode
from sandq.model.errors import NotFound, UnknownGroup
from sandq.model.group_limits import limits_of, parse_limit, with_limit
from sandq.model.names import FAIR, LIMITS_TOPIC
from sandq.model.piece import Piece
from sandq.model.settings import parse_settings
from sandq.protocol.frames import Frame
from sandq.protocol.replies import Offsets, Partition, TopicRecord
from sandq.protocol.replies_messages import (
    CANCELLED,
    DONE,
    MOVED,
    NOT_FOUND,
    NOT_YET,
    RUNNING,
    STOPPED,
    TOO_LATE,
    UPDATED,
    DeadRecord,
    ForecastReply,
    JobRecord,
    MessageRecord,
    Outcome,
    encode_pieces,
)
from sandq.protocol.requests import (
    DEBOUNCE,
    IGNORE,
    REJECT,
    REPLACE,
    REPLACE_PENDING,
    THROTTLE,
    THROTTLE_BOTH,
    Produce,
)
from sandq.protocol.requests_admin import (
    CHECK,
    DeadList,
    DeadPurge,
    DeadRedrive,
    GroupDelete,
    GroupLimit,
    GroupPause,
    GroupSeek,
    GroupUpdate,
    LimitList,
    TopicUpdate,
)
from sandq.protocol.requests_log import Fetch
from sandq.protocol.requests_messages import (
    BY_ID,
    Cancel,
    Forecast,
    Get,
    JobStart,
    JobStatus,
    JobStop,
    List,
    Move,
    Target,
    Why,
)

NOW_MS = 1_700_000_000_000
PENDING = ("delayed", "ready")
HOUR_MS = 3_600_000


DIED_OF = "no"
"""Error of each dead message."""


@dataclass
class Stored:
    """A stored message."""

    value: bytes
    key: bytes | None
    headers: bytes | None
    offset: bytes
    state: str = "ready"
    token: int = 0
    attempt: int = 0
    id: bytes = b""
    unique_key: bytes | None = None
    ttl_ms: int | None = None
    moves: int = 0
    dead_reason: str = "nacked"
    priority: int | None = None
    tenant: bytes | None = None

    def __post_init__(self) -> None:
        self.id = self.id or self.offset

    def record(self, values: bool = True) -> MessageRecord:
        due_ms = offsets.deliver_ms(self.id)
        return MessageRecord(
            *(self.id, self.offset, self.state, NOW_MS, offsets.deliver_ms(self.offset), due_ms),
            self.value if values else None,
            *(self.key, self.headers, self.ttl_ms, self.unique_key),
            *(self.moves, NOW_MS if self.moves else None, len(self.value)),
            *self._rank(),
        )

    def dead_record(self, values: bool) -> DeadRecord:
        deliver_ms = offsets.deliver_ms(self.offset)
        history = [[1, "c-1", NOW_MS, NOW_MS + 5, "nacked", DIED_OF]]
        return DeadRecord(
            *(self.id, self.offset, 1, self.dead_reason, DIED_OF, NOW_MS + 5, NOW_MS, deliver_ms),
            *(self.key, self.headers, self.value if values else None, self.unique_key, len(self.value), history),
            *self._rank(),
        )

    def _rank(self) -> tuple[int, str | None]:
        return self.priority or 0, self.tenant.decode() if self.tenant is not None else None


@dataclass
class Job:
    """A job of one partition, with the messages that it has not handled yet."""

    record: JobRecord
    left: list[Stored]
    request: JobStart


class FakeMessages:
    """The part of `FakeServer` that implements messages.

    `do_x` answers a request of type X and returns the fields of the reply."""

    now_ms: int
    index: int
    topics: dict[str, TopicRecord]

    record: Callable[[str], TopicRecord]

    def __init__(self) -> None:
        self.stored: dict[tuple[str, int], list[Stored]] = defaultdict(list)
        self.produced: list[Produce] = []
        self.cancelled: dict[tuple[Any, ...], bytes] = {}  # message id by target
        self.jobs: dict[tuple[int, bytes], Job] = {}
        self.job_step = 1_000_000  # messages that a job handles between two requests for its status
        self.updates_at_once = 1_000_000  # messages that one request updates; further messages get NOT_YET
        self.page_rows = 1_000_000
        self.groups: dict[str, dict[str, Any]] = {"g": {}}
        self.closed_ms = NOW_MS + 1
        self.trimmed = offsets.FIRST

    def rows(self, topic: str, partition: int) -> list[Stored]:
        return sorted(self.stored[topic, partition], key=lambda row: row.offset)

    def row(self, request: Any, target: Target) -> Stored | None:
        kind, data, *within = target
        key = within[1] if len(within) > 1 else None
        is_fair = self.record(request.topic).kind == FAIR
        for row in self.stored[request.topic, request.partition]:
            if row.id == data if kind == BY_ID else row.unique_key == data and (is_fair or row.key == key):
                return row
        return None

    def found(self, request: Any) -> Stored:
        row = self.row(request, request.target)
        if row is None:
            raise NotFound("there is no such message")
        return row

    # Producing.

    def do_produce(self, connection: Any, frame: Frame) -> Any:
        request = Produce.parse(frame)
        self.record(request.topic)
        self.produced.append(request)
        batch = Batch.parse(request.batch)
        self.index += 1
        nulls: list[Any] = [None] * batch.count
        times = batch.int_column(Column.DELIVER_MS) or nulls
        columns = [batch.bytes_column(column) or nulls for column in (Column.KEY, Column.HEADERS, Column.UNIQUE_KEY)]
        ttls = batch.int_column(Column.TTL_MS) or nulls
        priorities = batch.int_column(Column.PRIORITY) or nulls
        tenants = batch.bytes_column(Column.TENANT) or nulls
        given: list[bytes] = []
        conflicts: dict[int, str] = {}
        rule = request.on_conflict if isinstance(request.on_conflict, int) else request.on_conflict[0]
        outcomes: dict[int, tuple[str, bytes | str]] | None = None if rule == REJECT else {}
        rows = zip(batch.values(), *columns, times, ttls, strict=True)
        for place, (value, key, headers, unique_key, time, ttl_ms) in enumerate(rows):
            deliver_ms = max(self.now_ms, (time or 0) + (self.now_ms if batch.relative else 0))
            offset = offsets.pack(deliver_ms, self.index, place, request.partition)
            state = "delayed" if deliver_ms > self.now_ms else "ready"
            row = Stored(value or b"", key, headers, offset, state, unique_key=unique_key, ttl_ms=ttl_ms)
            row.priority, row.tenant = priorities[place], tenants[place]
            taken = self.row(request, [1, unique_key, None, key]) if unique_key is not None else None
            replaces = rule in (REPLACE, REPLACE_PENDING, DEBOUNCE)
            if taken is not None and replaces and taken.state in PENDING:
                self.stored[request.topic, request.partition].remove(taken)
                assert outcomes is not None
                outcomes[place] = "replaced", taken.id
            elif taken is not None and rule == DEBOUNCE:
                assert outcomes is not None
                outcomes[place] = "stored", taken.state
            elif taken is not None and rule != REPLACE:
                given.append(taken.id)
                if rule not in (IGNORE, THROTTLE, THROTTLE_BOTH):
                    conflicts[place] = taken.state
                elif outcomes is not None:
                    outcomes[place] = "ignored", taken.state
                continue
            self.stored[request.topic, request.partition].append(row)
            given.append(offset)
        run = given == offsets.run(given[0], len(given))
        return Offsets(given[0], len(given), None if run else b"".join(given), conflicts, outcomes).fields()

    # Looking.

    def do_get(self, connection: Any, frame: Frame) -> Any:
        return (self.found(Get.parse(frame)).record().to_map(),)

    def do_list(self, connection: Any, frame: Frame) -> Any:
        request = List.parse(frame)
        rows = [
            row
            for row in self.rows(request.topic, request.partition)
            if row.state != "dead" and request.state in (None, row.state)
            if request.from_ms <= offsets.deliver_ms(row.offset) < request.until_ms
            if (row.key or b"").startswith(request.key_prefix or b"")
        ]
        page, following = self.page(rows, request)
        return [row.record(request.values).to_map() for row in page], following

    def page(self, rows: list[Stored], request: List | DeadList) -> tuple[list[Stored], bytes | None]:
        if request.order is not None:
            rows = [row for row in rows[::-1] if request.after is None or row.offset < request.after]
        else:
            rows = [row for row in rows if request.after is None or row.offset > request.after]
        count = min(request.limit, self.page_rows)
        return rows[:count], rows[count - 1].offset if len(rows) > count else None

    def do_why(self, connection: Any, frame: Frame) -> Any:
        row = self.found(Why.parse(frame))
        group = {"group": "g", "state": row.state, "attempt": row.attempt, "reason": "it waits for its time"}
        found = row.record().to_map() | {"groups": [group]}
        del found["value"]
        return (found,)

    def do_fetch(self, connection: Any, frame: Frame) -> Any:
        request = Fetch.parse(frame)
        rows = [
            row
            for row in self.rows(request.topic, request.partition)
            if request.start <= row.offset < (request.end or offsets.pack(self.closed_ms, 0, 0, 0))
        ]
        count = min(request.max_messages, self.page_rows)
        pieces = [self.piece(rows[:count])] if rows else []
        following = rows[count].offset if len(rows) > count else None
        connection.send(b"".join(encode_pieces(frame[1], (following, self.closed_ms, self.trimmed, 1), pieces)))

    @staticmethod
    def piece(rows: list[Stored]) -> Piece:
        batch = encode(
            {
                Column.VALUE: [row.value for row in rows],
                Column.KEY: [row.key for row in rows],
                Column.PRIORITY: [row.priority for row in rows],
                Column.TENANT: [row.tenant for row in rows],
            }
        )
        return Piece(b"".join(row.offset for row in rows), b"".join(row.id for row in rows), NOW_MS, None, batch)

    # Cancel and move.

    def do_cancel(self, connection: Any, frame: Frame) -> Any:
        request = Cancel.parse(frame)
        return ([self.cancel(request, target) for target in request.targets],)

    def cancel(self, request: Cancel, target: Target) -> Outcome:
        if tuple(target) in self.cancelled:
            return Outcome(CANCELLED, self.cancelled[tuple(target)])
        row = self.row(request, target)
        if row is None:
            return Outcome(NOT_FOUND, None)
        if row.state not in PENDING:
            return Outcome(TOO_LATE, row.state)
        self.stored[request.topic, request.partition].remove(row)
        self.cancelled[tuple(target)] = row.id
        return Outcome(CANCELLED, row.id)

    def do_move(self, connection: Any, frame: Frame) -> Any:
        request = Move.parse(frame)
        outcomes = []
        for at, (target, at_ms, relative, *others) in enumerate(request.with_cells()):
            if len(others) > 1 and at >= self.updates_at_once:
                outcomes.append(Outcome(NOT_YET, None))
                continue
            row = self.row(request, target)
            if row is None:
                outcomes.append(Outcome(NOT_FOUND, None))
            elif row.state not in PENDING:
                outcomes.append(Outcome(TOO_LATE, row.state))
            else:
                verdict = MOVED if len(others) < 2 else UPDATED
                if verdict == UPDATED:
                    row.value = others[1].get(Column.VALUE, row.value)
                    row.headers = others[1].get(Column.HEADERS, row.headers) or None
                if verdict == MOVED or at_ms is not None or others[0] is not None:
                    if at_ms is None:
                        at_ms = offsets.deliver_ms(row.offset)
                    self.move(row, at_ms + (self.now_ms if relative else 0), *others[:1])
                outcomes.append(Outcome(verdict, row.offset))
        return (outcomes,)

    def move(self, row: Stored, at_ms: int, priority: int | None = None) -> bytes:
        self.index += 1
        row.priority = row.priority if priority is None else priority
        deliver_ms = max(self.now_ms, at_ms)
        row.offset = offsets.pack(deliver_ms, self.index, 0, offsets.unpack(row.id).partition)
        row.state, row.moves = "delayed" if deliver_ms > self.now_ms else "ready", row.moves + 1
        return row.offset

    # Jobs.

    def do_job_start(self, connection: Any, frame: Frame) -> Any:
        request = JobStart.parse(frame)
        key = (request.partition, request.job_id)
        if key not in self.jobs:
            given = request.arguments
            states = PENDING if request.kind in ("cancel", "move") else ("dead",)
            matched = [
                row
                for row in self.rows(request.topic, request.partition)
                if row.state in states and given["from_ms"] <= offsets.deliver_ms(row.offset) < given["until_ms"]
                if (row.key or b"").startswith(given.get("key_prefix") or b"")
                if given.get("reason") in (None, row.dead_reason)
                if given.get("error") is None or given["error"] in DIED_OF
            ]
            record = JobRecord(request.job_id, request.kind, RUNNING, len(matched), 0, 0, NOW_MS, None)
            self.jobs[key] = Job(record, [] if given["dry_run"] else matched, request)
        return self.report(self.jobs[key], 0)

    def do_job_status(self, connection: Any, frame: Frame) -> Any:
        request = JobStatus.parse(frame)
        return self.report(self.job(request), self.job_step)

    def do_job_stop(self, connection: Any, frame: Frame) -> Any:
        job = self.job(JobStop.parse(frame))
        job.left = []
        job.record = job.record._replace(state=STOPPED, finished_ms=NOW_MS)
        return (job.record.to_map(),)

    def job(self, request: JobStatus | JobStop) -> Job:
        if (request.partition, request.job_id) not in self.jobs:
            raise NotFound("there is no such job")
        return self.jobs[request.partition, request.job_id]

    def report(self, job: Job, step: int) -> Any:
        for row in job.left[:step]:
            self.work(job.request, row)
        done = len(job.left[:step])
        job.left = job.left[step:]
        job.record = job.record._replace(done=job.record.done + done)
        if not job.left and job.record.state == RUNNING:
            job.record = job.record._replace(state=DONE, finished_ms=NOW_MS)
        return (job.record.to_map(),)

    def work(self, request: JobStart, row: Stored) -> None:
        if request.kind == "move":
            given = request.arguments
            at_ms = offsets.deliver_ms(row.offset) + given.get("shift_ms", 0)
            self.move(row, given.get("to_ms", at_ms), given.get("priority"))
        elif request.kind == "redrive":
            row.state = "ready"
        else:
            self.stored[request.topic, request.partition].remove(row)

    # Groups and topics.

    def of_topic(self, topic: str) -> Iterable[tuple[int, list[Stored]]]:
        for row in self.record(topic).partitions:
            yield row.partition, self.rows(topic, row.partition)

    def do_forecast(self, connection: Any, frame: Frame) -> Any:
        request = Forecast.parse(frame)
        unit_ms = {"second": 1000, "minute": 60_000, "hour": HOUR_MS}[request.unit]
        first_ms = self.now_ms - self.now_ms % unit_ms
        buckets: dict[int, int] = {}
        for _, rows in self.of_topic(request.topic):
            for row in rows:
                start_ms = max(offsets.deliver_ms(row.offset) // unit_ms * unit_ms, first_ms)
                buckets[start_ms] = buckets.get(start_ms, 0) + 1
        last_ms = first_ms + request.count * unit_ms
        later = sum(count for start_ms, count in buckets.items() if start_ms >= last_ms)
        shown = [row for row in sorted(buckets.items()) if row[0] < last_ms]
        return ForecastReply(self.now_ms, shown, later, (), True).fields()

    def do_dead_list(self, connection: Any, frame: Frame) -> Any:
        request = DeadList.parse(frame)
        self.group(request.group)
        rows = [
            row
            for row in self.rows(request.topic, request.partition)
            if row.state == "dead" and request.reason in (None, row.dead_reason)
            if request.error is None or request.error in DIED_OF
            if (row.key or b"").startswith(request.key_prefix or b"")
        ]
        page, following = self.page(rows, request)
        return [row.dead_record(request.values).to_map() for row in page], following

    def do_dead_redrive(self, connection: Any, frame: Frame) -> Any:
        return self.each_dead(DeadRedrive.parse(frame), "redriven")

    def do_dead_purge(self, connection: Any, frame: Frame) -> Any:
        return self.each_dead(DeadPurge.parse(frame), "purged")

    def each_dead(self, request: DeadRedrive | DeadPurge, verdict: str) -> Any:
        """Apply the verdict to each dead message. Messages beyond `page_rows` get the outcome `not_yet`."""
        self.group(request.group)
        rows = {row.id: row for row in self.rows(request.topic, request.partition)}
        outcomes: list[list[Any]] = []
        for place, one in enumerate(request.ids):
            row = rows.get(one)
            if place >= self.page_rows:
                outcomes.append(["not_yet", None])
            elif row is None:
                outcomes.append(["not_found", None])
            elif row.state != "dead":
                outcomes.append(["not_dead", row.state])
            else:
                outcomes.append([verdict, one])
                row.state = "ready"
                if verdict == "purged":
                    self.stored[request.topic, request.partition].remove(row)
        return (outcomes,)

    def dead_reasons(self, rows: list[Stored]) -> dict[str, int]:
        counts: dict[str, int] = {}
        for row in rows:
            if row.state == "dead":
                counts[row.dead_reason] = counts.get(row.dead_reason, 0) + 1
        return counts

    def group(self, name: str) -> dict[str, Any]:
        if name not in self.groups:
            raise UnknownGroup(f"there is no group {name!r}")
        return self.groups[name]

    def do_group_seek(self, connection: Any, frame: Frame) -> Any:
        request = GroupSeek.parse(frame)
        self.group(request.group)["to"] = request.to
        ms = request.to if isinstance(request.to, int) else self.now_ms
        return ([[number, offsets.pack(ms, 0, 0, number)] for number, _ in self.of_topic(request.topic)],)

    def do_group_delete(self, connection: Any, frame: Frame) -> Any:
        request = GroupDelete.parse(frame)
        group = self.group(request.group)
        if request.mode == CHECK:
            return (group.get("unfinished", 0),)
        del self.groups[request.group]
        return ()

    def do_group_update(self, connection: Any, frame: Frame) -> Any:
        request = GroupUpdate.parse(frame)
        self.group(request.group)["settings"] = dict(request.settings)
        return ()

    def do_group_pause(self, connection: Any, frame: Frame) -> Any:
        request = GroupPause.parse(frame)
        if request.topic == LIMITS_TOPIC:
            return ()  # a limit has no other effect here
        self.group(request.group)["paused"] = request.paused
        return ()

    def do_group_limit(self, connection: Any, frame: Frame) -> Any:
        request = GroupLimit.parse(frame)
        if request.topic == LIMITS_TOPIC:
            if LIMITS_TOPIC not in self.topics:
                self.add_topic(LIMITS_TOPIC)
            record = self.record(LIMITS_TOPIC)
            settings = with_limit(record.settings, request.group, 0, parse_limit(request.limits))
            self.topics[LIMITS_TOPIC] = record._replace(settings=settings)
            return ()
        self.group(request.group)["limits"] = request.limits
        return ()

    def do_limit_list(self, connection: Any, frame: Frame) -> Any:
        request = LimitList.parse(frame)
        state = {"given": 0, "given_burst": 0, "members": 0 if request.name is None else [], "unheard": 0}
        state |= {"paused": False, "paused_until_ms": None, "paused_by": None, "unpaused": 0}
        names = [name for name in limits_of(self.record(request.topic).settings) if request.name in (None, name)]
        return ([{"limit": name, **state} for name in names],)

    def do_topic_update(self, connection: Any, frame: Frame) -> Any:
        request = TopicUpdate.parse(frame)
        record = self.record(request.name)
        settings = {**record.settings, **request.settings}
        if "tenants" in request.settings:
            settings["tenants"] = parse_settings({"tenants": request.settings["tenants"]}, FAIR).record()["tenants"]
        record = record._replace(settings=settings, replicas=request.replicas or record.replicas)
        added = range(len(record.partitions), request.partitions or 0)
        first, here = record.partitions[0].group_number, self.node_id
        rows = [Partition(number, first + number, here, (here,)) for number in added]
        self.topics[request.name] = record._replace(partitions=[*record.partitions, *rows])
        return (self.topics[request.name].to_map(),)
