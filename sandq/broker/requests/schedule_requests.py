"""Create, change, pause, trigger, delete, show and preview schedules.

This module reads a schedule, plans a change, and submits it. The partition applies the change only if the schedule is
still the same. If the schedule has changed or fired in between, this module reads it and plans again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final, TypeVar

import trio

from sandq.broker.broker import Broker
from sandq.broker.reads.linearizable_reads import PAGE_WORK, Output
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.replica import PartitionReplica
from sandq.model.batch import Batch, Column, peek
from sandq.model.batch_format import stored_bytes_of
from sandq.model.caller import Caller
from sandq.model.errors import InvalidRequest, SandqError, TooLarge, Unavailable
from sandq.model.headers import headers_pack, headers_unpack
from sandq.model.limits import FIXED, Limits
from sandq.model.names import COMPACTED, DEFAULT_TENANT, FAIR, check_not_internal, of_schedule
from sandq.model.partitioning import partition_for
from sandq.model.retries import MessageRules
from sandq.model.topic_limits import TopicLimits
from sandq.partition import commands as c
from sandq.partition.base.rows import Fields
from sandq.partition.produce_validation import BatchTarget, check_batch
from sandq.partition.reader.pieces import decode_fields
from sandq.partition.schedules.schedule import GRACE_MS, Schedule
from sandq.partition.schedules.schedule_queries import Stored
from sandq.partition.schedules.schedule_table import CHANGED, STALE, TAKEN, UNCHANGED
from sandq.protocol.requests_schedules import (
    DELETE,
    PAUSE,
    TRIGGER,
    ScheduleChange,
    ScheduleGet,
    ScheduleList,
    SchedulePreview,
    SchedulePut,
)
from sandq.schedules import planning, settings, zones
from sandq.schedules.planning import Plan
from sandq.schedules.recurrence import Recurrence

T = TypeVar("T")

EXISTS, CONFLICT, NOT_FOUND = "exists", "conflict", "not_found"
"""Outcomes that this module adds to those of the partition.

EXISTS: a schedule of this name exists already. CONFLICT: the schedule has another version than requested. NOT_FOUND:
there is no schedule of this name."""
ROUNDS_MOST: Final = 50
"""Maximum number of rounds for a request. Each round reads and plans the schedules that are not finished yet."""
WAITING_ROUNDS: Final = 25
"""Number of rounds in which a put leaves out schedules that are due, so that they can fire first.

If a due schedule were changed before it fires, its due occurrence would be lost. Later rounds change such schedules
anyway. Otherwise the change would never succeed: a schedule cannot fire if the disk is full, or if its time zone is
unknown."""
RETRY_S: Final = 0.02
"""Pause in s before a schedule is read again, because it is about to fire."""
COMMAND_ITEMS: Final = 256
"""Maximum number of items of one command."""
COMMAND_BYTES: Final = 512 << 10
"""Maximum bytes of one command."""
ITEM_BYTES: Final = 512
"""Approximate bytes of a schedule in addition to its message."""
PUT_FIELDS: Final = 8
"""Number of fields of an item of `PutSchedules`. Items of `PauseSchedules` have fewer fields."""
ITEM_WORK: Final = 8192
"""Cost of changing a schedule: the size in bytes of a batch that costs the same."""

_Row = dict[str, Any]
_Wanted = tuple[str, int | None, settings.Checked, Fields, bool | None]
"""A checked item of a put: name, required version (None: any; 0: no schedule yet), settings, message, paused (None:
unchanged)."""
_Planned = tuple[Any, ...]
"""An item of `PutSchedules` or `PauseSchedules`. Its first field is the name of the schedule."""
_Seen = tuple[str, int, int | None]
"""Name, version and next occurrence (ms) of a schedule at the time when it was read."""


class ScheduleRequests:
    """Answers requests for schedules of the partitions that this node leads."""

    def __init__(self, broker: Broker, output: Output) -> None:
        """`output`: the output of the connection, which is charged for the answers."""
        self._broker = broker
        self._output = output

    async def put(self, request: SchedulePut, caller: Caller) -> list[_Row]:
        """Create schedules or change their settings. Return an outcome for each item.

        If an item is invalid, raise InvalidRequest for the first such item, and change nothing."""
        check_not_internal(request.topic, "no messages can be sent to it")
        host, target = self._target(request.topic, request.partition)
        names = [item[0] for item in request.items]
        if len({*names}) < len(names):
            twice = next(name for at, name in enumerate(names) if name in names[:at])
            raise InvalidRequest(f"schedule {of_schedule(twice)[0]!r} is named twice in one request")
        now_ms = self._broker.clock.now_ms()
        own = self._broker.limits_of(request.topic, caller)
        check = partial(_checked, request.items, now_ms, self._broker.limits, target, own)
        wanted = {one[0]: one for one in await self._in_thread(check)}
        results: dict[str, _Row] = {}
        taken = set[_Seen]()
        for round_ in range(ROUNDS_MOST):
            left = [one for name, one in wanted.items() if name not in results]
            if not left:
                break
            seen = await self._named(host, [one[0] for one in left])
            self._check_count(host, len(left) - len(seen))
            now_ms = self._broker.clock.now_ms()
            # Let due schedules fire first (see `WAITING_ROUNDS`).
            due = (
                {name for name, old in seen.items() if _is_due(old, now_ms)} if round_ < WAITING_ROUNDS else set[str]()
            )
            left = [one for one in left if one[0] not in due]
            planned, finished = await self._in_thread(_plan_puts, left, seen, now_ms, taken)
            results |= finished
            if due:
                await trio.sleep(RETRY_S)
            taken |= await self._settle(host, caller, c.PutSchedules, planned, results)
        return self._answers(names, results)

    async def change(self, request: ScheduleChange, caller: Caller) -> list[_Row]:
        """Pause, resume, delete or trigger schedules. Return an outcome for each name."""
        host, _ = self._target(request.topic, request.partition)
        names = [*dict.fromkeys(request.names)]
        results: dict[str, _Row] = {}
        if request.action in (DELETE, TRIGGER):
            await self._change_named(host, caller, request, names, results)
            return self._answers(request.names, results)
        for _ in range(ROUNDS_MOST):
            left = [name for name in names if name not in results]
            if not left:
                break
            seen = await self._named(host, left)
            now_ms, paused = self._broker.clock.now_ms(), request.action == PAUSE
            planned, finished = await self._in_thread(_plan_pauses, left, seen, paused, now_ms)
            results |= finished
            await self._settle(host, caller, c.PauseSchedules, planned, results)
        return self._answers(request.names, results)

    async def _change_named(
        self, host: RaftGroup, caller: Caller, request: ScheduleChange, names: Sequence[str], results: dict[str, _Row]
    ) -> None:
        """Delete or trigger schedules, and add the outcomes to `results`.

        These changes need no plan, because they do not depend on the schedule's state."""
        deletes = request.action == DELETE
        kind = c.DeleteSchedules if deletes else c.TriggerSchedules
        for start in range(0, len(names), COMMAND_ITEMS):
            part = names[start : start + COMMAND_ITEMS]
            items = [(name,) if deletes else (name, request.token) for name in part]
            answers = await self._call(host, caller, kind(items), ITEM_BYTES * len(items))
            for name, found in zip(part, answers, strict=True):
                # The answer is (outcome, version) for a delete, and (outcome, message id) for a trigger.
                if isinstance(found, SandqError):
                    results[name] = _result(NOT_FOUND)
                elif deletes:
                    results[name] = _result(CHANGED, found[1])
                else:
                    results[name] = _result(found[0], message_id=found[1])

    async def get(self, request: ScheduleGet, caller: Caller) -> list[_Row | None]:
        """Return the schedules with these names; None for a name without a schedule."""
        host, _ = self._target(request.topic, request.partition)
        names = request.names

        def ask(replica: PartitionReplica) -> tuple[list[Stored], frozenset[str]]:
            """Return the stored schedules, and the names of schedules whose next message was cancelled (apply
            thread)."""
            rows = replica.queries.schedules_named(names)
            stored = [(name, row) for name, row in zip(names, rows, strict=True) if row is not None]
            return stored, replica.queries.cancelled_occurrences(stored)

        stored, cancelled = await self._broker.reads.ask(host, ask, 1, self._output, _size, len(names))
        found = await self._in_thread(self._all_shown, stored, cancelled, self._broker.clock.now_ms())
        shown = {row["name"]: row for row in found}
        return [shown.get(name) for name in names]

    async def page(self, request: ScheduleList, caller: Caller) -> tuple[list[_Row], str | None]:
        """Return a page of schedules, and the name after which the next page starts; None after the last page."""
        host, _ = self._target(request.topic, request.partition)
        prefix, limit, after = request.prefix, request.limit, request.after

        def ask(replica: PartitionReplica) -> tuple[list[Stored], frozenset[str], str | None]:
            stored, following = replica.queries.schedule_page(prefix, after, limit)
            return stored, replica.queries.cancelled_occurrences(stored), following

        stored, cancelled, following = await self._broker.reads.ask(host, ask, 1, self._output, _size, PAGE_WORK)
        now_ms = self._broker.clock.now_ms()
        return await self._in_thread(self._all_shown, stored, cancelled, now_ms), following

    @staticmethod
    def _all_shown(stored: Sequence[Stored], cancelled: AbstractSet[str], now_ms: int) -> list[_Row]:
        """Return schedules as rows of an answer. Runs on a thread."""
        return [_shown_at(Schedule.load(name, row), name in cancelled, now_ms) for name, row in stored]

    async def preview(self, request: SchedulePreview, caller: Caller) -> tuple[list[list[int]], str]:
        """Return when a schedule would fire, and the version of the time zone data.

        The times are (occurrence, delivery time) pairs in ms."""
        now_ms = self._broker.clock.now_ms() if request.after_ms is None else request.after_ms
        times = await self._in_thread(_preview, request, now_ms)
        return times, zones.data_version()

    # -- helpers --------------------------------------------------------------------------------------------------

    async def _in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        """Run a long computation on a thread. The computation must not use the state of this node."""
        return await trio.to_thread.run_sync(work, *arguments, limiter=self._broker.planning)

    def _target(self, topic: str, partition: int) -> tuple[RaftGroup, BatchTarget]:
        """Return the Raft group of a partition, and the data with which its messages are validated. Raise
        InvalidRequest."""
        opened = self._broker.catalog.topic(topic)
        if opened.record.kind == COMPACTED:
            raise InvalidRequest(
                f"topic {topic!r} is a compacted topic, which has no schedules; use a timer, priority or fair topic",
                topic=topic,
            )
        host = self._broker.catalog.partition(topic, partition).raft_group
        return host, opened.targets[partition]

    def _check_count(self, host: RaftGroup, more: int) -> None:
        """Raise TooLarge if `more` new schedules would exceed the limit of the partition."""
        most = self._broker.limits.schedules_per_partition
        if more and host.status.schedules + more > most:
            raise TooLarge(
                f"the partition has {host.status.schedules} schedules, and {most} is the limit "
                "(limits.schedules_per_partition): delete some, or raise it",
                limit="schedules_per_partition",
                maximum=most,
            )

    async def _named(self, host: RaftGroup, names: Sequence[str]) -> dict[str, Schedule]:
        """Return the existing schedules with these names, by name."""
        found = await self._broker.reads.ask(
            host, lambda replica: replica.queries.schedules_named(names), 1, self._output, _size_of_rows, len(names)
        )
        return {name: Schedule.load(name, row) for name, row in zip(names, found, strict=True) if row is not None}

    async def _settle(
        self,
        host: RaftGroup,
        caller: Caller,
        kind: type[c.PutSchedules] | type[c.PauseSchedules],
        planned: Sequence[_Planned],
        results: dict[str, _Row],
    ) -> set[_Seen]:
        """Submit the planned items, and record the results of finished items.

        If a schedule has changed meanwhile, its item gets no result, and the caller plans it again. If the next
        occurrence of a schedule is due, or a consumer has its message already (TAKEN), the caller must plan a later
        occurrence. Return the states of these schedules."""
        again, taken = False, set[_Seen]()
        for part, size in _parts(planned):
            answers = await self._call(host, caller, kind(part), size)
            for item, found in zip(part, answers, strict=True):
                if isinstance(found, SandqError):
                    results[item[0]] = _result(NOT_FOUND)
                elif found[0] in (STALE, TAKEN):
                    again = True
                    if found[0] == TAKEN:
                        taken.add(_seen_of(item))
                else:
                    results[item[0]] = _result(found[0], found[1], *_times_of(item))
        if again:
            await trio.sleep(RETRY_S)
        return taken

    async def _call(self, host: RaftGroup, caller: Caller, command: c.ScheduleCommand, size: int) -> list[Any]:
        """Submit a command, and return one answer per item."""
        count = len(command.items)
        size += 64
        work = size + ITEM_WORK * count
        answers: list[Any] = await host.call(command, caller.line, size=size, work=work, messages=2 * count)
        return answers

    @staticmethod
    def _answers(names: Sequence[str], results: dict[str, _Row]) -> list[_Row]:
        """Return the results in the order of the names. Raise Unavailable if a result is missing."""
        if any([name not in results for name in names]):
            raise Unavailable("schedules kept changing while they were read; ask again in a moment")
        return [results[name] for name in names]


def _checked(
    items: Sequence[Sequence[Any]], now_ms: int, limits: Limits, target: BatchTarget, own: TopicLimits | None
) -> list[_Wanted]:
    """Check the items of a put. Raise InvalidRequest."""
    wanted: list[_Wanted] = []
    for name, version, given, batch, paused in items:
        try:
            checked = settings.check(given, now_ms)
            fields = _message(name, batch, now_ms, limits, target, own)
        except Unavailable:
            raise  # perhaps `Unsure`, which the connection settles before it replies
        except SandqError as error:
            raise error.again(f"schedule {of_schedule(name)[0]!r}: {error.message}") from None
        wanted.append((name, version, checked, fields, paused))
    return wanted


def _message(
    name: str, batch: bytes, now_ms: int, limits: Limits, target: BatchTarget, own: TopicLimits | None
) -> Fields:
    """Check the message that a schedule sends, and return its fields. Raise InvalidRequest, TooLarge."""
    size = stored_bytes_of(batch)
    if size > FIXED.schedule_bytes:
        raise TooLarge(
            f"its message has {size} bytes, {FIXED.schedule_bytes} are allowed: it is stored once for each "
            "occurrence, so send a reference to large data"
        )
    if peek(batch).count != 1:
        raise InvalidRequest("a schedule has one message")
    checked = Batch.parse(batch)
    for column, name_of in ((Column.UNIQUE_KEY, "unique key"), (Column.DELIVER_MS, "delivery time")):
        if column in checked.columns:
            raise InvalidRequest(f"its message may not have a {name_of}: each occurrence is a separate message")
    check_batch(batch, now_ms, limits, target, own)
    (fields,) = decode_fields(checked)
    # Each occurrence adds its own headers to these headers. Check now that they can be decoded, not when the schedule
    # fires.
    headers_pack(headers_unpack(fields.get(Column.HEADERS)), max_bytes=limits.headers_bytes)
    tenant = fields.get(Column.TENANT, DEFAULT_TENANT.encode())
    if (of_schedule(name)[1] or DEFAULT_TENANT).encode() != tenant:
        raise InvalidRequest("the tenant of its message differs from the tenant in its name")
    routes = tenant if target.rank == FAIR else name.encode()
    wanted = partition_for(routes, target.initial_partitions)
    if wanted != target.partition:
        raise InvalidRequest(f"it belongs to partition {wanted}, not {target.partition}")
    key = fields.get(Column.KEY)
    if target.ordered and key is not None and key != name.encode():
        raise InvalidRequest(
            "the key of its message differs from its name: in a topic that orders by key they must be equal, so that "
            "all messages of the key are in one partition"
        )
    return fields


def _plan_puts(
    wanted: Sequence[_Wanted], seen: dict[str, Schedule], now_ms: int, taken: AbstractSet[_Seen] = frozenset()
) -> tuple[list[_Planned], dict[str, _Row]]:
    """Plan puts. Return the items that create or change schedules, and the results of schedules that need no change."""
    planned, results = list[_Planned](), dict[str, _Row]()
    for name, version, checked, fields, paused in wanted:
        old = seen.get(name)
        if old is None and version:
            results[name] = _result(NOT_FOUND)
            continue
        if old is not None:
            checked = checked.anchored(old.settings)
        if old is None:
            plan = Plan(None, None)
            if not paused:
                plan = planning.first(name, checked.recurrence, checked.settings, 0, now_ms)
            planned.append((name, checked.settings, fields, 0, None, plan.next_ms, plan.fire_ms, bool(paused)))
            continue
        if paused is None:
            paused = old.paused
        is_same = (old.settings, old.fields, old.paused) == (checked.settings, fields, paused)
        if is_same and version in (None, 0, old.version):
            results[name] = _result(UNCHANGED, old.version, old.expected_ms, old.fire_ms)
        elif version is not None and version != old.version:
            results[name] = _result(CONFLICT if version else EXISTS, old.version, old.expected_ms, old.fire_ms)
        else:
            is_other = Recurrence.from_record(old.recurrence) != checked.recurrence
            seen_as = old.version, old.expected_ms
            is_taken = (name, *seen_as) in taken
            plan = _replan(old, checked, paused, now_ms, is_other=is_other, is_taken=is_taken)
            planned.append((name, checked.settings, fields, *seen_as, plan.next_ms, plan.fire_ms, paused))
    return planned, results


def _is_due(schedule: Schedule, now_ms: int) -> bool:
    """Return whether a schedule's next occurrence should have fired by now."""
    return schedule.fire_ms is not None and schedule.fire_ms <= now_ms


def _replan(
    old: Schedule,
    checked: settings.Checked,
    paused: bool,
    now_ms: int,
    *,
    is_other: bool = False,
    is_taken: bool = False,
) -> Plan:
    """Return the next occurrence of a schedule that gets new settings.

    If the time of the current occurrence has come, this occurrence counts as fired. `is_other`: the recurrence changes.
    `is_taken`: the last attempt ended with TAKEN."""
    if paused:
        return Plan(None, None)
    is_due = is_taken or _is_due(old, now_ms)
    after_ms = max(now_ms, old.expected_ms or 0) if is_due else now_ms
    if not is_due and old.expected_ms is not None:
        # With jitter, an occurrence may fire later than its time. So an occurrence whose time is past may still have to
        # fire. If the new recurrence has the same occurrence, keep it.
        before_ms = old.expected_ms - 1
        if before_ms < now_ms and checked.recurrence.next_ms(before_ms) == old.expected_ms:
            after_ms = before_ms
    if not is_other:
        after_ms = max(after_ms, old.last_ms or 0)  # a clock that was ahead may have fired later occurrences
    done = [] if is_other else old.done
    return planning.first(old.name, checked.recurrence, checked.settings, old.fired + is_due, after_ms, done)


def _plan_pauses(
    names: Sequence[str], seen: dict[str, Schedule], paused: bool, now_ms: int
) -> tuple[list[_Planned], dict[str, _Row]]:
    """Plan to pause or resume schedules.

    Return the items of the command, and the results of schedules that need no change."""
    planned, results = list[_Planned](), dict[str, _Row]()
    for name in names:
        old = seen.get(name)
        if old is None:
            results[name] = _result(NOT_FOUND)
        elif old.paused == paused:
            results[name] = _result(UNCHANGED, old.version, old.expected_ms, old.fire_ms)
        else:
            recurrence = Recurrence.from_record(old.recurrence)
            plan = _replan(old, settings.Checked(old.settings, recurrence), paused, now_ms)
            planned.append((name, old.version, old.expected_ms, paused, plan.next_ms, plan.fire_ms))
    return planned, results


def _preview(request: SchedulePreview, now_ms: int) -> list[list[int]]:
    """Return the first occurrences after `now_ms`, as (occurrence, delivery time) pairs in ms."""
    checked = settings.check(request.settings, now_ms)
    times: list[list[int]] = []
    at_ms = now_ms
    while len(times) < request.count:
        plan = planning.first(request.name, checked.recurrence, checked.settings, len(times), at_ms)
        if plan.next_ms is None or plan.fire_ms is None:
            break
        times.append([plan.next_ms, plan.fire_ms])
        at_ms = plan.next_ms
    return times


def _parts(planned: Sequence[_Planned]) -> Iterator[tuple[list[_Planned], int]]:
    """Divide the items into parts, one part for each command. Yield each part with its size in bytes."""
    part, size = list[_Planned](), 0
    for item in planned:
        more = _size_of_item(item)
        if part and (len(part) == COMMAND_ITEMS or size + more > COMMAND_BYTES):
            yield part, size
            part, size = [], 0
        part.append(item)
        size += more
    if part:
        yield part, size


def _size_of_item(item: Sequence[Any]) -> int:
    """Return the approximate bytes of an item in a command."""
    fields = item[2] if len(item) > 2 and isinstance(item[2], dict) else {}
    return ITEM_BYTES + sum([len(value) for value in fields.values() if isinstance(value, bytes)])


def _seen_of(item: _Planned) -> _Seen:
    """Return the state of the schedule from which this item of a put or a pause was planned."""
    if len(item) == PUT_FIELDS:
        name, _, _, version, expected_ms, *_ = item
    else:
        name, version, expected_ms, *_ = item
    return name, version, expected_ms


def _times_of(item: _Planned) -> tuple[int | None, int | None]:
    """Return the next occurrence in an item of a put or a pause, and the time at which it fires, both in ms."""
    if len(item) == PUT_FIELDS:
        *_, next_ms, fire_ms, _ = item
    else:
        *_, next_ms, fire_ms = item
    return next_ms, fire_ms


def _result(
    outcome: str,
    version: int = 0,
    next_ms: int | None = None,
    fire_ms: int | None = None,
    message_id: bytes | None = None,
) -> _Row:
    """Return the row of an answer for one schedule of a request."""
    return {"outcome": outcome, "version": version, "next_ms": next_ms, "fire_ms": fire_ms, "id": message_id}


def _shown(schedule: Schedule) -> _Row:
    """Return a schedule as a row of an answer."""
    fields, tenant = schedule.fields, schedule.fields.get(Column.TENANT)
    rules = MessageRules.of(fields)
    return {
        "name": schedule.name,
        "version": schedule.version,
        "settings": schedule.settings,
        "value": fields[Column.VALUE],
        "key": fields.get(Column.KEY),
        "headers": fields.get(Column.HEADERS),
        "priority": fields.get(Column.PRIORITY, 0),
        "tenant": None if tenant is None else tenant.decode(),
        "ttl_ms": fields.get(Column.TTL_MS),
        "paused": schedule.paused,
        "next_ms": schedule.expected_ms,
        "fire_ms": schedule.fire_ms,
        "next_id": schedule.made,
        "fired": schedule.fired,
        "missed": schedule.missed,
        "created_ms": schedule.created_ms,
        "changed_ms": schedule.changed_ms,
        "history": schedule.history,
        **{name: rule for name, rule in rules._asdict().items() if rule is not None},
    }


def _shown_at(schedule: Schedule, is_cancelled: bool, now_ms: int) -> _Row:
    """Return a schedule as a row of an answer, with the next occurrence that will be delivered.

    If the message of the next occurrence was cancelled (`is_cancelled`), the row shows the following occurrence."""
    row = _shown(schedule)
    if not is_cancelled or schedule.expected_ms is None:
        return row
    fired, expected_ms = schedule.fired + 1, schedule.expected_ms
    try:
        recurrence = Recurrence.from_record(schedule.recurrence)
        plan = planning.following(
            schedule.name, recurrence, schedule.settings, fired, expected_ms, now_ms, schedule.done, GRACE_MS
        )
    except SandqError:
        return row  # this node does not know the time zone of the schedule, so the schedule cannot fire here either
    return row | {"next_ms": plan.next_ms, "fire_ms": plan.fire_ms, "next_id": None, "fired": fired}


def _size(page: tuple[list[Stored], Any] | tuple[list[Stored], Any, Any]) -> int:
    """Return the total bytes of the stored schedules in a page."""
    return sum([len(row) for _, row in page[0]])


def _size_of_rows(found: Sequence[bytes | None]) -> int:
    """Return the total bytes of these rows of stored schedules."""
    return sum([len(row) for row in found if row is not None])
