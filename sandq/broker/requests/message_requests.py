"""Answer requests of producers and operators for stored messages, groups and bulk jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeVar

import msgpack
import trio

from sandq.broker.broker import Broker
from sandq.broker.event_loop import TimeSlice
from sandq.broker.leader.partition_leader import PartitionLeader
from sandq.broker.reads.fan_out import answers_of, call_all, read_all
from sandq.broker.reads.linearizable_reads import PAGE_WORK, Output, no_bytes
from sandq.broker.reads.partition_time import PartitionTime
from sandq.broker.replication.in_parts import submit_in_parts
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.requests import Done
from sandq.broker.requests.group_consumers import ConsumerTable
from sandq.broker.requests.group_pauses import PauseTable
from sandq.model import health, offsets
from sandq.model.batch_format import Column
from sandq.model.caller import ANONYMOUS, Caller
from sandq.model.errors import (
    Conflict,
    InvalidRequest,
    InvalidTime,
    NotFound,
    SandqError,
    TooLarge,
    UnknownGroup,
    UnknownPartition,
)
from sandq.model.key_limits import key_limit
from sandq.model.logger import get_logger
from sandq.model.members import incarnation_of, node_of
from sandq.model.names import (
    COMPACTED,
    DEFAULT_TENANT,
    FAIR,
    LIMITS_TOPIC,
    NOT_OF_DEFAULT,
    NOT_WITHOUT_KEY,
    check_name,
)
from sandq.model.pauses import FOREVER, PAUSES_MAX, incomplete_pause, pause_end_ms
from sandq.model.settings import parse_group_settings
from sandq.model.times import LEAST_INSTANT_MS
from sandq.model.topic_limits import MAX_MESSAGE_BYTES
from sandq.model.unfinished import unfinished_conflict
from sandq.partition import commands as c
from sandq.partition.clock_reset import NOT_AHEAD
from sandq.partition.groups.part_pauses import command_part
from sandq.partition.produce_validation import check_headers, check_not_far, most_value_bytes
from sandq.partition.queries.fetch import Extent, Fetched
from sandq.partition.queries.queries import UNITS_S, PartitionQueries
from sandq.partition.records.claim import Outcome
from sandq.protocol.request import PartitionRequest
from sandq.protocol.requests_admin import (
    CHECK,
    FORCE,
    ClockReset,
    ConsumerList,
    DeadList,
    DeadPurge,
    DeadRedrive,
    GroupDelete,
    GroupList,
    GroupPause,
    GroupSeek,
    GroupUpdate,
    Hold,
    PauseList,
    TopicStats,
)
from sandq.protocol.requests_log import Fetch, Measure
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
    MoveItem,
    Target,
    Why,
)

T = TypeVar("T")
log = get_logger("sandq.broker")


FORECAST_WORK = 8
"""Units of work of the forecast of one partition (see `linearizable_reads.VISIT_WORK`).

A forecast is expensive, so a visit of the apply thread runs only a few forecasts."""
WHY_WORK = 16
"""Units of work of explaining the state of one message in every group (see `VISIT_WORK`)."""
TARGET_WORK: Final = 4096
"""Cost of looking up a message and changing its state: the size in bytes of a batch that costs the same."""
ROWS_AT_ONCE: Final = 64
"""Number of group rows that are packed before the time slice is checked."""
ROW_WORK: Final = 4
"""Units of work of one group row in a time slice."""
ROW_BYTES = 256
"""Approximate bytes of a row of an answer in addition to its values."""


class MessageRequests:
    """Answers requests for messages, groups and bulk jobs of the partitions that this node leads."""

    def __init__(self, broker: Broker, output: Output) -> None:
        """`output`: the output of the connection. The bytes that are read for answers are charged to it."""
        self._broker = broker
        self._output = output
        self._time = PartitionTime(broker.clock)
        self._listing = trio.Lock()
        """Locked while groups are listed for this connection, so that each connection has at most one list in
        progress."""

    # -- pending messages -----------------------------------------------------------------------------------------

    def cancel(self, request: Cancel, caller: Caller, done: Done) -> None:
        """Cancel messages. `done` gets an outcome for each target."""
        host = self._host(request)
        targets = request.targets
        self._check_names(request, targets)
        count, keys_bytes = len(targets), _bytes_of_keys(targets)
        size, work = 64 + 96 * count + keys_bytes, TARGET_WORK * max(count, 1) + keys_bytes
        host.submit(c.Cancel(targets), done, size=size, work=work, line=caller.line)

    def move(self, request: Move, caller: Caller, done: Done) -> None:
        """Move or update messages. `done` gets an outcome for each item.

        If moves exceed the budget of one entry, the next entries do the rest. Updates are never continued in this way:
        doing all of them could take longer than the client waits. Raise InvalidTime."""
        items: Sequence[Any] = request.items
        moves = request.read()
        if any([move.priority is not None for move in moves]):
            self._broker.check_ranked(request.topic)
        now_ms, own = self._broker.clock.now_ms(), self._broker.limits_of(request.topic, caller)
        for position, (_, at_ms, relative, *_) in enumerate(moves):
            if not relative and at_ms is not None and at_ms < LEAST_INSTANT_MS:
                raise InvalidTime(f"item {position}: {at_ms} looks like seconds; milliseconds are expected")
            if at_ms is not None:
                check_not_far(at_ms if relative else at_ms - now_ms, self._broker.limits.delay_days, own)
        updated_bytes = 0
        if any([move.changes for move in moves]):
            items, updated_bytes = self._with_updates(request, caller)
        host = self._host(request)
        targets = [move.target for move in moves]
        self._check_names(request, targets)
        count = len(items)
        more_bytes = updated_bytes + _bytes_of_keys(targets)
        size, work = 64 + 128 * count + more_bytes, TARGET_WORK * max(count, 1) + more_bytes
        command = c.Move(items)
        if command.has_updates:
            host.submit(command, done, size=size, work=work, messages=count, line=caller.line)
        else:
            submit_in_parts(host, command, done, size=size, work=work, line=caller.line)

    def _with_updates(self, request: Move, caller: Caller) -> tuple[Sequence[Sequence[Any]], int]:
        """Return the items of a move with the new values and headers of their messages, and the total bytes of these
        values and headers.

        Raise InvalidRequest, TooLarge."""
        limits, own = self._broker.limits, self._broker.limits_of(request.topic, caller)
        if self._broker.catalog.topic(request.topic).record.kind == COMPACTED:
            raise InvalidRequest(
                f"topic {request.topic!r} is a compacted topic: messages cannot be updated; put the key's new value",
                topic=request.topic,
            )
        value_bytes = most_value_bytes(limits, own)
        value_limit = "message_bytes" if value_bytes == limits.message_bytes else MAX_MESSAGE_BYTES
        bounds = (("value", value_limit, value_bytes), ("headers", "headers_bytes", limits.headers_bytes))
        total = len(request.cells)
        for position, move in enumerate(request.read()):
            for name, limit, most in bounds:
                size = move.changes.get(name, 0)
                if size > most:
                    raise TooLarge(
                        f"item {position}: {name} has {size} bytes, at most {most} are allowed",
                        limit=limit,
                        maximum=most,
                        size=size,
                    )
        if total > limits.batch_bytes:
            raise TooLarge(
                f"values and headers of {total} bytes; at most {limits.batch_bytes} are allowed: send them in parts",
                limit="batch_bytes",
                maximum=limits.batch_bytes,
                size=total,
            )
        items = request.with_cells()
        for position, item in enumerate(items):
            if cell := MoveItem(*item).changes.get(Column.HEADERS):
                try:
                    check_headers(cell, own)
                except InvalidRequest as error:
                    raise InvalidRequest(f"item {position}: {error.message}") from None
        return items, total

    def _check_names(self, request: PartitionRequest, targets: Sequence[Target]) -> None:
        """Check how the targets name their messages.

        In a fair topic, a name must have no key. In any other topic, a name must have no tenant. Otherwise raise
        InvalidRequest. For the parts of a target, see `protocol.requests_messages.Target`."""
        if all([len(target) == 2 for target in targets]):
            return
        kind = self._broker.catalog.topic(request.topic).record.kind
        if kind == FAIR and any([len(target) > 3 for target in targets]):
            raise InvalidRequest(
                f"topic {request.topic!r} is a fair topic: a unique key is unique within the tenant there; name the "
                "tenant and leave out the key",
                topic=request.topic,
            )
        if kind != FAIR and any([len(target) == 3 for target in targets]):
            raise InvalidRequest(
                f"topic {request.topic!r} is a {kind} topic: only messages of fair topics have tenants",
                topic=request.topic,
            )

    async def get(self, request: Get, caller: Caller) -> dict[str, Any]:
        """Return a message and its state."""
        self._check_names(request, [request.target])
        await self._time.advance_for_states(self._host(request))
        shown = await self._ask(request, lambda queries: queries.get(request.target), _bytes_of_message)
        return self._found(request, shown)

    async def why(self, request: Why, caller: Caller) -> dict[str, Any]:
        """Return a message, with the reason of its state in each group."""
        self._check_names(request, [request.target])
        await self._time.advance_for_states(self._host(request))
        shown = await self._ask(request, lambda queries: queries.why(request.target), no_bytes, WHY_WORK)
        answer = self._found(request, shown)
        leader = self._broker.catalog.partition(request.topic, request.partition)
        for group in answer["groups"]:
            group["consumers"] = leader.consumers(group["group"])
            if group["state"] == "ready":
                is_pushed = (request.topic, group["group"]) in self._broker.metadata.pushes
                group["reason"] += self._why_no_share(leader, group["group"])
                group["reason"] += health.why_ready(group["consumers"], is_pushed=is_pushed)
        return answer

    def _why_no_share(self, leader: PartitionLeader, name: str) -> str:
        """Return a suffix of the reason of ready messages that wait for a named limit, if the home of the limit does
        not work. Otherwise return an empty text."""
        status = leader.raft_group.status
        group = status.groups.get(name)
        if group is None or group.limit is None or not any(group.limit.holds_up(self._broker.clock.now_ms())):
            return ""
        if status.limits is None or status.limits.allowances[name].name is None:
            return ""
        problem = self._broker.limit_pauses.home_problem()
        return "" if problem is None else f"; {problem}"

    def _found(self, request: Get | Why, shown: dict[str, Any] | None) -> dict[str, Any]:
        """Return `shown`, the message that was found. Raise NotFound if `shown` is None."""
        if shown is not None:
            return shown
        text = "there is no such message here (any more)"
        kind, _, *within = request.target
        if kind == BY_ID or within:
            raise NotFound(text)
        if self._broker.catalog.topic(request.topic).record.kind == FAIR:
            raise NotFound(text + NOT_OF_DEFAULT, tenant=DEFAULT_TENANT)
        raise NotFound(text + NOT_WITHOUT_KEY)

    async def page(self, request: List, caller: Caller) -> tuple[list[dict[str, Any]], bytes | None]:
        """Return a page of messages, and the position at which the next page starts; None after the last page."""
        await self._time.advance_for_states(self._host(request))

        def page(queries: PartitionQueries) -> tuple[list[dict[str, Any]], bytes | None]:
            return queries.page(
                request.state,
                request.from_ms,
                request.until_ms,
                request.key_prefix,
                request.limit,
                request.after,
                request.values,
                unique_key_prefix=request.unique_key_prefix,
                order=request.order,
                value_bytes=request.value_bytes,
            )

        return await self._ask(request, page, _bytes_of_page, PAGE_WORK)

    async def dead_page(self, request: DeadList, caller: Caller) -> tuple[list[dict[str, Any]], bytes | None]:
        """Return a page of dead letters, and the position at which the next page starts; None after the last page."""

        def page(queries: PartitionQueries) -> tuple[list[dict[str, Any]], bytes | None]:
            return queries.dead_page(
                request.group,
                request.reason,
                request.limit,
                request.after,
                request.values,
                from_ms=request.from_ms,
                until_ms=request.until_ms,
                error=request.error,
                key_prefix=request.key_prefix,
                order=request.order,
            )

        return await self._ask(request, page, _bytes_of_page, PAGE_WORK)

    async def each_dead(self, request: DeadRedrive | DeadPurge, caller: Caller) -> list[Outcome]:
        """Redrive or purge dead letters by their ids. Return an outcome for each id.

        Raise UnknownGroup. Raise Unavailable while the group cannot do so, for example during a seek."""
        make = c.RedriveDead if isinstance(request, DeadRedrive) else c.PurgeDead
        count = len(request.ids)
        size, work = 64 + 20 * count, TARGET_WORK * count
        command = make(request.group, request.ids)
        outcomes: list[Outcome] = await self._host(request).call(command, caller.line, size=size, work=work)
        return outcomes

    async def fetch(self, request: Fetch, caller: Caller) -> tuple[int, Fetched]:
        """Return the topic's number and a page of the log. If `pending` is not set, the page ends at the closed
        time."""
        await self._close_log(request)
        number = self._broker.catalog.topic(request.topic).record.number
        return number, await self._ask(request, lambda queries: queries.fetch(*request[2:]), _bytes_fetched, PAGE_WORK)

    async def measure(self, request: Measure, caller: Caller) -> tuple[int, Extent]:
        """Return the topic's number, and the extent (size) of the messages that `fetch` would return."""
        await self._close_log(request)
        number = self._broker.catalog.topic(request.topic).record.number
        return number, await self._ask(request, lambda queries: queries.measure(*request[2:]), no_bytes, PAGE_WORK)

    async def _close_log(self, request: Fetch | Measure) -> None:
        """Close the log up to the end of the requested range. Raise InvalidRequest, Overloaded, StorageFailed."""
        host = self._host(request)
        parts = offsets.unpack(request.start)
        if parts.place and parts.partition != request.partition:
            raise InvalidRequest(
                f"offset {offsets.to_text(request.start)} is of partition {parts.partition}, not of {request.partition}"
            )
        await self._time.advance_for_log(host, None if request.end is None else offsets.deliver_ms(request.end) + 1)

    def _host(self, request: PartitionRequest) -> RaftGroup:
        """Return the Raft group of the requested partition."""
        return self._broker.catalog.partition(request.topic, request.partition).raft_group

    async def forecast(
        self, request: Forecast, caller: Caller
    ) -> tuple[int, list[tuple[int, int]], int, list[tuple[int, int]], bool]:
        """Return how many messages become due in each unit of time.

        The result has five parts. First, the current time in ms. Second, (start in ms, messages) for each unit of time
        with messages. Third, the number of later messages. Fourth, such pairs for messages that schedules will create.
        Fifth, True if all schedules were counted."""
        now_ms = self._broker.clock.now_ms()
        total, scheduled = Counter[int](), Counter[int]()
        later, is_complete = 0, True
        unit_s = UNITS_S[request.unit]
        unit_ms = unit_s * 1000
        first_ms = now_ms // unit_ms * unit_ms
        outlooks = self._broker.schedule_outlooks
        for leader in self._broker.led(request.topic):
            await self._time.advance_for_states(leader.raft_group)
            buckets, more = await self._ask_partition(
                request.topic,
                leader.partition,
                lambda queries: queries.forecast(unit_s, request.count, now_ms),
                no_bytes,
                FORECAST_WORK,
            )
            later += more
            total.update(dict(buckets))
            outlook = await outlooks.ask(leader.raft_group, self._output, first_ms, unit_ms, request.count)
            scheduled.update(outlook.messages)
            is_complete = is_complete and outlook.is_complete
        return now_ms, sorted(total.items()), later, sorted(scheduled.items()), is_complete

    # -- jobs -----------------------------------------------------------------------------------------------------

    async def start_job(self, request: JobStart, caller: Caller) -> dict[str, Any]:
        """Start a bulk job, and return its state."""
        arguments = dict(request.arguments)
        if arguments.get("to_ms", LEAST_INSTANT_MS) < LEAST_INSTANT_MS:
            raise InvalidTime(f"to_ms {arguments['to_ms']} looks like seconds; milliseconds are expected")
        far_ms = max(arguments.get("to_ms", 0) - self._broker.clock.now_ms(), arguments.get("shift_ms", 0))
        check_not_far(far_ms, self._broker.limits.delay_days, self._broker.limits_of(request.topic, caller))
        if "priority" in arguments:
            self._broker.check_ranked(request.topic)
        host = self._host(request)
        job: dict[str, Any] = await host.call(c.StartJob(request.job_id, request.kind, arguments))
        return job

    async def stop_job(self, request: JobStop, caller: Caller) -> dict[str, Any]:
        """Stop a bulk job, and return its state."""
        host = self._host(request)
        job: dict[str, Any] = await host.call(c.StopJob(request.job_id))
        return job

    async def job(self, request: JobStatus, caller: Caller) -> dict[str, Any]:
        """Return the state of a bulk job."""
        return await self._ask(request, lambda queries: queries.job(request.job_id))

    # -- groups ---------------------------------------------------------------------------------------------------

    async def groups(self, request: GroupList, caller: Caller) -> tuple[int, list[bytes]]:
        """Return the number of rows, and the rows in MessagePack. There is one row per group and partition.

        One answer may have tens of thousands of rows. So the rows are packed in time slices, and the node limits how
        many lists are in progress. A list begins once the client accepts data, and then does not wait for the client
        any more."""
        await self._output.wait_for_capacity()
        async with self._listing, self._broker.listing:
            packed, count, time_slice = list[bytes](), 0, TimeSlice()
            for leader in self._broker.led(request.topic):
                await self._time.advance_for_states(leader.raft_group)
                rows = await self._broker.reads.ask(
                    self._broker.catalog.partition(request.topic, leader.partition).raft_group,
                    lambda replica: replica.queries.group_rows(),
                    work=PAGE_WORK,
                )
                count += len(rows)
                for start in range(0, len(rows), ROWS_AT_ONCE):
                    some = rows[start : start + ROWS_AT_ONCE]
                    for row in some:
                        if row["reason"] is not None:
                            row["reason"] += self._why_no_share(leader, row["group"])
                    packed.append(_packed_groups(some, leader))
                    await time_slice.spend(ROW_WORK * len(some))
            return count, packed

    async def consumers(self, request: ConsumerList, caller: Caller) -> tuple[list[dict[str, Any]], int]:
        """Return rows for the consumers of a group in the partitions that this node leads, and the number of omitted
        rows.

        Raise UnknownGroup."""
        group, table = request.group, ConsumerTable()
        await self._output.wait_for_capacity()
        async with self._listing, self._broker.listing:
            for leader in await self._with_group(request.topic, group):
                held = await self._broker.reads.ask(
                    leader.raft_group, lambda replica: replica.queries.held_by_consumer(group), work=PAGE_WORK
                )
                table.add(leader.subscriptions(group), held)
        return table.rows()

    async def pauses(self, request: PauseList, caller: Caller) -> tuple[list[dict[str, Any]], int]:
        """Return rows for the paused tenants and keys of a group in the partitions that this node leads, and the number
        of omitted rows.

        Raise UnknownGroup."""
        group, table = request.group, PauseTable()
        await self._output.wait_for_capacity()
        async with self._listing, self._broker.listing:
            for leader in await self._with_group(request.topic, group):
                parts, left_out = await self._broker.reads.ask(
                    leader.raft_group,
                    lambda replica: replica.queries.paused_parts(group, PAUSES_MAX, table.keys),
                    work=PAGE_WORK,
                )
                table.add(parts, left_out)
        return table.rows()

    async def seek(self, request: GroupSeek, caller: Caller) -> list[tuple[int, bytes]]:
        """Move the cursor of a group, and return the new cursor of each partition.

        If `to` is an offset, move only the cursor of that offset's partition."""
        topic, group, to = request
        chosen = await self._with_group(topic, group)
        if isinstance(to, bytes):
            partition = offsets.unpack(to).partition
            count = len(self._broker.catalog.topic(topic).record.partitions)
            if partition >= count:
                raise UnknownPartition(f"topic {topic!r} has no partition {partition}; it has {count}", topic=topic)
            chosen = [leader for leader in chosen if leader.partition == partition]
        cursors = await call_all([(leader.raft_group, c.Seek(group, to)) for leader in chosen])
        return [(leader.partition, cursor) for leader, cursor in zip(chosen, cursors, strict=True)]

    async def delete_group(self, request: GroupDelete, caller: Caller) -> int | None:
        """Delete a group. In mode CHECK, only return its number of unfinished messages.

        If the group has consumers, raise Conflict. If the group has unfinished messages, raise Conflict, except in mode
        FORCE."""
        group, mode = request.group, request.mode
        chosen = await self._with_group(request.topic, group)
        consumers = max(leader.consumers(group) for leader in chosen)
        if consumers:
            raise Conflict(f"group {group!r} has {consumers} consumers: end them first", group=group)
        statuses = [leader.raft_group.status for leader in chosen]
        unfinished: int = sum([found.unfinished for status in statuses if (found := status.groups.get(group))])
        if mode == CHECK:
            return unfinished
        if unfinished and mode != FORCE:
            raise unfinished_conflict(group, unfinished)
        # Each partition checks again, because the group may have leased messages in the meantime.
        commands = [c.DropGroup(group, mode != FORCE)] * len(chosen)
        await call_all([(leader.raft_group, command) for leader, command in zip(chosen, commands, strict=True)])
        return None

    async def update_group(self, request: GroupUpdate, caller: Caller) -> None:
        """Change the settings of a group."""
        record = parse_group_settings(request.settings, self._broker.catalog.topic(request.topic).record.settings)
        chosen = await self._with_group(request.topic, request.group)
        await call_all([(leader.raft_group, c.ConfigureGroup(request.group, record)) for leader in chosen])

    async def pause_group(self, request: GroupPause, caller: Caller) -> None:
        """Pause or resume a group, or one tenant or key of it. In the topic `sandq.limits`, a group is a named limit.

        Raise InvalidTime for an end that has passed, or is too far ahead; InvalidRequest that names the partitions if
        some have too many paused tenants and keys; NotFound if there is no such limit."""
        if request.topic == LIMITS_TOPIC:
            await self._pause_limit(request, caller)
            return
        group, done, refused = request.group, set[PartitionLeader](), dict[int, str]()
        until_ms = pause_end_ms(request.until_ms, request.for_ms, self._broker.clock.now_ms())
        command: c.Command = c.PauseGroup(group, request.paused, until_ms)
        part = request.tenant if request.key is None else command_part(request.key)
        if part is not None:
            # Messages of a key may be in several partitions: producers may choose, and partitions may be added.
            self._check_parts(request)
            end_ms = FOREVER if until_ms is None else until_ms
            command = c.PausePart(group, part, end_ms if request.paused else None)
        # Repeat: the group may be created in more partitions meanwhile.
        while more := [each for each in await self._with_group(request.topic, group) if each not in done]:
            results = await answers_of([(leader.raft_group, command) for leader in more])
            done.update(more)
            for leader, result in zip(more, results, strict=True):
                if isinstance(result, InvalidRequest) and result.details.get("limit") == "paused_parts":
                    refused[leader.partition] = result.message
                elif isinstance(result, SandqError):
                    raise result
        if refused:
            raise incomplete_pause(len(done), refused=refused, reason=next(iter(refused.values())))

    async def _pause_limit(self, request: GroupPause, caller: Caller) -> None:
        """Pause or resume a named limit."""
        if request.tenant is not None or request.key is not None:
            raise InvalidRequest("a named limit is paused as a whole: give no tenant and no key")
        until_ms = pause_end_ms(request.until_ms, request.for_ms, self._broker.clock.now_ms())
        end_ms = (FOREVER if until_ms is None else until_ms) if request.paused else 0
        by = "an operator" if caller.principal == ANONYMOUS else f"operator {caller.principal}"
        command = c.PauseLimit(check_name("limit", request.group), end_ms, by, is_longer=False)
        (leader,) = self._broker.led(request.topic)
        await self._broker.limit_pauses.change(leader, command)

    def _check_parts(self, request: GroupPause) -> None:
        """Raise InvalidRequest if the topic has no tenants, or does not limit keys, although the request names one."""
        record = self._broker.catalog.topic(request.topic).record
        if request.tenant is not None and record.kind != FAIR:
            raise InvalidRequest(
                f"topic {request.topic!r} is a {record.kind} topic: only a fair topic has tenants; pause the group"
            )
        if request.key is not None and key_limit(record.settings) is None:
            raise InvalidRequest(
                f"topic {request.topic!r} has neither `ordering: key` nor `max_in_flight_per_key`, so that none of its "
                "keys can be paused; pause the group"
            )

    async def _with_group(self, topic: str, group: str) -> list[PartitionLeader]:
        """Return the partitions that this node leads and in which the group exists.

        Raise UnknownTopic, UnknownGroup, NotLeader."""
        check_name("group", group)
        found = []
        led = self._broker.led(topic)
        await read_all([leader.raft_group for leader in led])
        for leader in led:
            if leader.raft_group.status.groups.get(group) is not None:
                found.append(leader)
        if not found:
            raise UnknownGroup(f"topic {topic!r} has no group {group!r}", topic=topic, group=group)
        return found

    async def hold(self, request: Hold, caller: Caller) -> bytes:
        """Set a hold on the log of a partition. Return the offset up to which the log has been trimmed."""
        host = self._host(request)
        command = c.Hold(check_name("hold", request.name), request.offset, request.ttl_ms or 0)
        trimmed: bytes = await host.call(command)
        return trimmed

    async def reset_clock(self, request: ClockReset, caller: Caller) -> dict[str, Any]:
        """Set the clock of a partition back to this node's clock.

        Return `outcome`, and the partition's `floor_ms`, `now_ms` and `clock_epoch`. If this node's clock is in alarm,
        raise Conflict."""
        host, clock = self._host(request), self._broker.clock.status()
        if clock.alarm:
            raise Conflict(
                f"the clock of this node, which leads the partition, is in alarm ({clock.reason}), so the "
                "partition's clock is not set back to it: correct the clock, or let another node lead"
            )
        answer: dict[str, Any] = await host.call(c.ClockReset(clock.guarded_ms))
        if answer["outcome"] != NOT_AHEAD:
            log.warning("a partition's clock is set back", topic=request.topic, partition=request.partition, **answer)
        return answer

    async def topic_stats(self, request: TopicStats, caller: Caller) -> list[dict[str, Any]]:
        """Return the statistics of the partitions that this node leads."""
        led, guarded_ms = self._broker.led(request.topic), self._broker.clock.now_ms()
        await read_all([leader.raft_group for leader in led])
        return [_stats(leader, guarded_ms) | self._outbox(leader) for leader in led]

    def _outbox(self, leader: PartitionLeader) -> dict[str, Any]:
        """Return the fields about the outbox of a partition; an empty dict if the partition has no outbox."""
        status = leader.raft_group.status.outbox
        if status is None:
            return {}
        topics = {topic.number: topic.name for topic in self._broker.metadata.topics.values()}
        stuck = [
            {
                "topic": topics.get(target.topic),
                "partition": target.partition,
                "tries": found.tries,
                "error": found.error,
            }
            for target, found in self._broker.outbox.stuck(leader).items()
        ]
        return {"outbox": status.messages, "outbox_stuck": stuck}

    async def _ask(
        self,
        request: PartitionRequest,
        question: Callable[[PartitionQueries], T],
        size: Callable[[T], int] = no_bytes,
        work: int = 1,
    ) -> T:
        """Query the requested partition."""
        return await self._ask_partition(request.topic, request.partition, question, size, work)

    async def _ask_partition(
        self,
        topic: str,
        partition: int,
        question: Callable[[PartitionQueries], T],
        size: Callable[[T], int] = no_bytes,
        work: int = 1,
    ) -> T:
        """Query a partition that this node leads, on the apply thread.

        The answer includes everything that was acknowledged before this call. `size(answer)`: bytes of the answer, if
        it may be large. `work`: units of work (see `VISIT_WORK`)."""
        host = self._broker.catalog.partition(topic, partition).raft_group
        return await self._broker.reads.ask(
            host, lambda replica: question(replica.queries), 1, self._output, size, work
        )


def _bytes_of_keys(targets: Sequence[Target]) -> int:
    """Return the total bytes of the keys by which targets name their messages."""
    return sum([len(target[3]) for target in targets if len(target) > 3])


def _packed_groups(rows: Sequence[dict[str, Any]], leader: PartitionLeader) -> bytes:
    """Return the rows of groups as concatenated MessagePack values."""
    packer = msgpack.Packer(autoreset=False)
    for row in rows:
        lag = row["ready"] + row["leased"] + row["waiting"]
        packer.pack(row | {"lag": lag, "consumers": leader.consumers(row["group"])})
    packed: bytes = packer.bytes()
    return packed


def _bytes_fetched(fetched: Fetched) -> int:
    """Return the bytes of a page of the log."""
    return sum([len(piece.batch) + len(piece.offsets) for piece in fetched.pieces])


def _bytes_of_page(page: tuple[list[dict[str, Any]], bytes | None]) -> int:
    """Return the approximate bytes of a page of messages."""
    return sum([_bytes_of_message(row) for row in page[0]])


def _bytes_of_message(row: dict[str, Any] | None) -> int:
    """Return the approximate bytes of one message in an answer."""
    values = row.values() if row is not None else ()
    return ROW_BYTES + sum([len(value) for value in values if isinstance(value, (bytes, str))])


def _stats(leader: PartitionLeader, guarded_ms: int) -> dict[str, Any]:
    """Return the statistics of a partition that this node leads."""
    status = leader.raft_group.status
    return {
        "partition": leader.partition,
        "messages": status.messages,
        "delayed": status.later,
        "dead": status.dead,
        "keys": status.keys,
        "bytes": status.bytes,
        "floor_ms": status.floor_ms,
        "now_ms": status.now_ms,
        "ahead_ms": max(status.floor_ms - guarded_ms, 0),
        "clock_epoch": status.clock_epoch,
        "clock_reset": status.reset,
        "applied_index": status.applied_index,
        "groups": len(status.groups),
        "holds": [hold._asdict() for hold in status.holds],
        "members": _members(leader.raft_group),
    }


def _members(host: RaftGroup) -> list[dict[str, Any]]:
    """Return a row for each member of a Raft group that this node leads.

    `behind`: number of committed entries that the member lacks."""
    group = host.group
    voters, learners = host.members
    rows = []
    for member in (*voters, *learners):
        # Count only committed entries: a member need not have the others yet.
        behind = 0 if member == group.member else max(0, group.commit_index - group.match_index(member))
        row = {
            "node": node_of(member),
            "incarnation": incarnation_of(member),
            "voter": member in voters,
            "behind": behind,
        }
        sending = host.sending.get(member)
        if sending is not None:
            row |= {"snapshot_sent": sending.sent_bytes, "snapshot_bytes": sending.total_bytes}
        rows.append(row)
    return rows
