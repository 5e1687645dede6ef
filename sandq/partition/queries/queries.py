"""Queries about a partition: single messages and their histories, pages of messages, dead messages, forecasts.

Queries change only caches. Each call does a bounded amount of work. If more is left, the call returns where to
continue.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.model.dead_letter_settings import DROP, KEY_TTL_MS, ON_EXPIRY, expiry_rule
from sandq.model.outbox import Target
from sandq.model.pauses import pause_text
from sandq.model.retries import MessageRules
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.prefixes import Prefixes
from sandq.partition.base.rows import Fields, Range
from sandq.partition.base.view import View
from sandq.partition.groups import dead_letters
from sandq.partition.groups.group import Group
from sandq.partition.groups.part_pauses import Part, PausedPart
from sandq.partition.log.message_log import Found
from sandq.partition.outbox import encode_letters
from sandq.partition.pending.pending import DELAYED, READY
from sandq.partition.queries import backwards, ranked_queries
from sandq.partition.queries import fetch as log_fetch
from sandq.partition.queries.fetch import Extent, Fetched
from sandq.partition.queries.limit_reasons import limit_reason, limit_row
from sandq.partition.reader.pieces import Message, load_kept
from sandq.partition.reader.reader import AnswerReader, cursor_before
from sandq.partition.ready.queue_keys import FAIR
from sandq.partition.records.claim import ACKED, DEAD, LEASED, WAITING
from sandq.partition.records.holders import Holder
from sandq.partition.records.leases import History, Lease, Waiting
from sandq.partition.records.lives import Lives, load_lives, summary, whole_history
from sandq.partition.schedules import schedule_queries
from sandq.partition.shared_state import SLICE_ITEMS, SLICE_READS
from sandq.partition.state_machine import TimerPartition

LOOKED_AT = 1000
"""Maximum number of messages that one page reads, including messages that are not selected."""
PAGE_BYTES = 2 << 20
ROW_BYTES = 256
NEWEST = "newest"
"""Order of a page that begins with the highest offset."""
STATES = (DELAYED, READY, LEASED, WAITING, ACKED)
NO_CREDIT = "it waits for a consumer that may receive more"
UNITS_S = {"second": 1, "minute": 60, "hour": 3600}

Shown = dict[str, Any]
"""A message as a map (docs/protocol.md)."""
_OwnedRange = tuple[Range, int | None]
"""(messages, id of the group whose rows contain them, or None for the log)."""


class PartitionQueries:
    def __init__(self, machine: TimerPartition, view: View) -> None:
        """`view`: rows of the partition as of the query."""
        self._machine = machine
        self._view = view

    # -- one message ----------------------------------------------------------------------------------------------

    def get(self, target: c.Target) -> Shown | None:
        """Return a message with its value and state. None if this partition does not, or no longer, have it."""
        machine, view = self._machine, self._view
        message_id = machine.pending.id_of(target, machine.now_ms, view)
        if message_id is None:
            return None
        found = machine.log.find(message_id, view)
        if found is not None:
            message = machine.log.load(found, view)
            return self._shown(message, self._state(found.offset), values=True, found=found)
        moved = view.get(rows.MOVED + message_id)
        return self._get_own(rows.load_moved(moved).offset if moved is not None else message_id)

    def _get_own(self, offset: bytes) -> Shown | None:
        """Return a message that is only in a row of a group, no longer in the log. None if no group has it."""
        for group in self._machine.groups.by_id.values():
            row = self._view.get(rows.of_group(rows.KEPT, group.group_id, offset))
            if row is not None:
                message = load_kept(offset, row)
                return self._shown(message, self._state(offset), values=True)
            buried = dead_letters.find(group, offset, self._view)
            if buried is not None:
                message = Message(offset, buried.id, buried.created_ms, buried.fields)
                return self._shown(message, self._state(offset), values=True)
        return None

    def why(self, target: c.Target) -> Shown | None:
        """Return the history of a message: the message without its value, and its state in each group."""
        shown = self.get(target)
        if shown is None:
            return None
        shown["value"] = None
        shown["groups"] = [self._in_group(group, shown) for group in self._machine.groups.by_id.values()]
        return shown

    def _in_group(self, group: Group, shown: Shown) -> Shown:
        """Return the state of a message in a group, as a map (docs/protocol.md)."""
        offset = shown["offset"]
        state = self._machine.pending.state_in(group, offset, self._machine.now_ms, self._view)
        status: Shown = {
            "group": group.name,
            "state": state,
            "attempt": 0,
            "consumer": None,
            "token": None,
            "deadline_ms": None,
            "due_ms": None,
            "error": None,
            "history": [],
        }
        holder = group.holder_of(offset, self._view)
        lease = holder if isinstance(holder, Lease) else None
        waiting = holder if isinstance(holder, Waiting) else None
        if lease is not None:
            status |= {
                "attempt": lease.attempt,
                "consumer": lease.consumer,
                "token": lease.token,
                "deadline_ms": lease.deadline_ms,
                **self._history(group, holder, offset, lease.past_of(offset)),
            }
        elif waiting is not None:
            status |= {"attempt": waiting.attempt, "due_ms": waiting.due_ms, "error": waiting.error}
            status |= self._history(group, holder, offset, waiting.history)
        elif state == DEAD:
            buried = dead_letters.find(group, offset, self._view)
            assert buried is not None
            status |= {"attempt": buried.attempts, "error": buried.error}
            status |= _lives(buried.lives, buried.history, offset)
        elif state == ACKED:
            ended = self._machine.leases.acked_under(group, offset)
            if ended is not None:
                status |= {"attempt": ended.attempt, "consumer": ended.consumer}
        if isinstance(holder, Lease | Waiting) and holder.snoozes:
            status["snoozes"] = holder.snoozes
        if lease is not None and lease.reclaims:
            status["reclaims"] = lease.reclaims
        if state not in (ACKED, DEAD) and (expires_ms := self._expires_ms(group, holder, shown)) is not None:
            status |= {"expires_ms": expires_ms, ON_EXPIRY: self._expiry_rule(group)}
        status["reason"] = self._reason(group, status, shown)
        return status

    def _history(self, group: Group, holder: Holder | None, offset: bytes, history: History) -> Shown:
        """Return the attempts of a message that a group holds, including attempts of earlier lives."""
        row = None
        if holder is not None and holder.kept:
            row = self._view.get(rows.of_group(rows.KEPT, group.group_id, offset))
        return _lives(() if row is None else load_lives(load_kept(offset, row).lives), history, offset)

    def _expires_ms(self, group: Group, holder: Holder | None, shown: Shown) -> int | None:
        """Return when a message expires in a group, in ms. None if it does not. `holder`: as in `Group.holder_of`;
        `shown`: the message as a map."""
        ttl_ms: int | None = shown["ttl_ms"]
        if ttl_ms is None:
            ttl_ms = self._machine.settings["ttl_ms"]
        if ttl_ms is None or KEY_TTL_MS in self._machine.settings:
            return None
        kept = shown["offset"] in group.order.kept if holder is None else holder.kept
        row = self._view.get(rows.of_group(rows.KEPT, group.group_id, shown["offset"])) if kept else None
        is_immortal = row is not None and rows.is_immortal(row)
        return None if is_immortal else min(shown["deliver_ms"] + ttl_ms, offsets.U48_MAX)

    def _expiry_rule(self, group: Group) -> str:
        """Return whether expired messages become dead letters of a group, or are dropped."""
        return expiry_rule(self._machine.settings, group.settings)

    def _acked_reason(self, group: Group, status: Shown, shown: Shown) -> str:
        """Return why a group is done with a message. It was acked for certain only if the lease is still known."""
        ends = ["it was acked"]
        if status["consumer"] is None:
            expires_ms = self._expires_ms(group, None, shown)
            if group.dropped and expires_ms is not None and expires_ms <= self._machine.now_ms:
                ends.append("it expired and was dropped (on_expiry)")
            if group.removed:
                ends.append("it was a dead letter and was removed (dead_retention, max_dead_letters)")
        return ends[0] if len(ends) == 1 else f"{', or '.join(ends)}: the group keeps nothing that tells which"

    def _reason(self, group: Group, status: Shown, shown: Shown) -> str:
        """Return, as a sentence for people, why a message is in its state. `status`: its state in the group; `shown`:
        the message as a map."""
        state, offset = status["state"], shown["offset"]
        waiting = group.holder_of(offset, self._view)
        match state:
            case "delayed":
                return "its time has not come"
            case "leased":
                return f"consumer {status['consumer']} holds it"
            case "waiting":
                if (
                    isinstance(waiting, Waiting)
                    and waiting.expires_ms is not None
                    and waiting.expires_ms <= waiting.due_ms
                ):
                    end = "is dropped" if self._expiry_rule(group) == DROP else "dies"
                    return f"its ttl passes before its next attempt: it {end} then"
                return "it waits for its next attempt"
            case "dead":
                buried = dead_letters.find(group, offset, self._view)
                return (
                    f"it is dead: {buried.reason if buried is not None else ''}; redrive it to have it delivered again"
                )
            case "acked":
                return self._acked_reason(group, status, shown)
        if group.pause_reason() is not None:
            return f"the group is stopped: {group.pause_reason()}"
        if (key := group.order.paused_key_of(offset)) is not None:
            return f"its key is {pause_text(group.pauses.ends[key])}"
        if offset in group.order.blocked:
            return _blocked_reason(group, offset)
        if group.stall_reason() is not None:
            return f"the group takes nothing new: {group.stall_reason()}"
        if (held_up := limit_reason(group, self._machine.now_ms)) is not None:
            return held_up
        if group.ready is not None:
            reason = ranked_queries.why_ready(self._machine, group, group.ready, offset, self._view)
            if reason is not None:
                return reason
        return NO_CREDIT

    # -- pages ----------------------------------------------------------------------------------------------------

    def page(
        self,
        state: str | None,
        from_ms: int,
        until_ms: int,
        key_prefix: bytes | None,
        limit: int,
        after: bytes | None,
        values: bool,
        *,
        unique_key_prefix: bytes | None = None,
        order: str | None = None,
        value_bytes: int | None = None,
    ) -> tuple[list[Shown], bytes | None]:
        """Return messages of the log within a window of delivery times, in order, and the offset at which to continue.

        `order` NEWEST: descending from the highest offset below `after`. `value_bytes`: maximum bytes of each value.
        """
        is_newest = order == NEWEST
        choose = self._held if state in (LEASED, WAITING) else self._logged
        ranges, last = choose(state, from_ms, until_ms, after, is_newest)
        prefixes = Prefixes(key_prefix, unique_key_prefix)
        shown: list[Shown] = []
        size, passed = 0, after
        for looked_at, message in enumerate(self._load(ranges, from_ms, until_ms, is_newest)):
            if looked_at % SLICE_ITEMS == SLICE_ITEMS - 1:
                self._machine.shared.yield_now()
            if len(shown) >= limit or size >= PAGE_BYTES:
                return shown, passed if is_newest else cursor_before(message.offset)
            passed = message.offset
            found_state = self._state(message.offset)
            if state not in (None, found_state) or not prefixes.take(message.fields):
                continue
            one = self._shown(message, found_state, values=values)
            if value_bytes is not None and one["value"] is not None:
                one["value"] = one["value"][:value_bytes]
            shown.append(one)
            size += ROW_BYTES + len(message.fields.get(Column.KEY) or b"") + len(one["value"] or b"")
        return shown, last

    def _logged(
        self, state: str | None, from_ms: int, until_ms: int, after: bytes | None, is_newest: bool
    ) -> tuple[list[_OwnedRange], bytes | None]:
        """Return the next ranges of the log in the window, and the offset where they end. None: the end of the
        window.

        `after`: offset where the last page ended. An upper bound if `is_newest`, otherwise a lower bound.
        """
        machine = self._machine
        cursors = [group.cursor for group in machine.groups.by_id.values()]
        if state == DELAYED:
            from_ms = max(from_ms, machine.now_ms + 1)
        elif state == READY:
            until_ms = min(until_ms, machine.now_ms + 1)
        elif state == ACKED:
            # No message above all cursors is acked.
            until_ms = min(until_ms, offsets.deliver_ms(max(cursors, default=offsets.FIRST)) + 1)
        start = cursor_before(offsets.pack(min(from_ms, offsets.U48_MAX), 0, 0, 0))
        start = max(start, machine.log.state.trimmed)
        if is_newest:
            high = offsets.LAST if until_ms > offsets.U48_MAX else offsets.pack(max(until_ms, 0), 0, 0, 0)
            high = min(high, after or offsets.LAST)
            ranges, end = backwards.read(self._view, start, high, LOOKED_AT, 8 * PAGE_BYTES, machine.shared.yield_now)
            return [(one, None) for one in ranges], end
        start = max(start, after or offsets.FIRST)
        reader = AnswerReader(start, machine.shared.yield_now)
        ranges = reader.take(self._view, until_ms - 1, LOOKED_AT, 8 * PAGE_BYTES).ranges
        return [(one, None) for one in ranges], reader.cursor if ranges else None

    def _held(
        self, state: str | None, from_ms: int, until_ms: int, after: bytes | None, is_newest: bool
    ) -> tuple[list[_OwnedRange], bytes | None]:
        """Return messages that are leased or wait in some group, and where to continue. The caller applies the
        window."""
        held: dict[bytes, int | None] = {}
        for group in self._machine.groups.by_id.values():
            if state == WAITING:
                held.update(dict.fromkeys(self._spilled(group, from_ms, until_ms, after, is_newest), group.group_id))
            found = [(lease.kept, lease.select(lease.live)) for lease in group.leases.values()]
            if state == WAITING:
                found = [(entry.kept, list(entry.ranges)) for entry in group.waiting.values()]
            for kept, ranges in found:
                for base, length in ranges:
                    if from_ms <= offsets.deliver_ms(base) < until_ms:
                        held.update(dict.fromkeys(offsets.run(base, length), group.group_id if kept else None))
        if after is None:
            chosen = sorted(held, reverse=is_newest)
        elif is_newest:
            chosen = sorted([offset for offset in held if offset < after], reverse=True)
        else:
            chosen = sorted([offset for offset in held if offset > after])
        page = chosen[:LOOKED_AT]
        return [(Range(offset, 1), held[offset]) for offset in page], page[-1] if len(chosen) > len(page) else None

    def _spilled(self, group: Group, from_ms: int, until_ms: int, after: bytes | None, is_newest: bool) -> list[bytes]:
        """Return the next spilled messages of a group, one more than a page has. Arguments: as in `_held`."""
        start = cursor_before(offsets.pack(min(from_ms, offsets.U48_MAX), 0, 0, 0))
        stop = offsets.LAST if until_ms > offsets.U48_MAX else offsets.pack(max(until_ms, 0), 0, 0, 0)
        if is_newest:
            found = group.spilled.before(min(stop, after or stop), LOOKED_AT + 1, self._view)
            return [offset for offset in found if offset > start]
        found = group.spilled.after(max(start, after or start), LOOKED_AT + 1, self._view)
        return [offset for offset in found if offset < stop]

    def _load(self, ranges: list[_OwnedRange], from_ms: int, until_ms: int, is_newest: bool) -> Iterator[Message]:
        """Yield messages one by one, so that no message is read after the page is full."""
        for one, kept_of in ranges:
            if from_ms <= offsets.deliver_ms(one.base) < until_ms:
                found = self._machine.log.reader.messages(self._view, [one], kept_of)
                yield from reversed([*found]) if is_newest else found

    def dead_page(
        self,
        group_name: str,
        reason: str | None,
        limit: int,
        after: bytes | None,
        values: bool,
        *,
        from_ms: int = 0,
        until_ms: int = offsets.U48_MAX + 1,
        error: str | None = None,
        key_prefix: bytes | None = None,
        order: str | None = None,
    ) -> tuple[list[Shown], bytes | None]:
        """Return dead messages of a group in the order of their offsets, and the offset at which to continue. None: no
        more.

        `order`: as in `page`.
        """
        which = dead_letters.DeadFilter(reason, from_ms, until_ms, error, key_prefix)
        group = self._machine.groups.named(group_name)
        is_newest = order == NEWEST
        found = dead_letters.scan(group.group_id, after, LOOKED_AT, 8 * PAGE_BYTES, self._view, is_newest=is_newest)
        shown: list[Shown] = []
        size, passed = 0, after
        for message in found:
            if len(shown) >= limit or size >= PAGE_BYTES:
                return shown, passed if is_newest else cursor_before(message.offset)
            passed = message.offset
            if which.takes(message):
                shown.append(_shown_dead(message, values))
                size += len(message.fields.get(Column.VALUE) or b"") if values else ROW_BYTES
                size += ROW_BYTES * sum([len(life.history) for life in message.lives])
        return shown, found[-1].offset if found else None

    def fetch(self, *asked: Any) -> Fetched:
        """Return a page of the log. `asked`: arguments of `queries.fetch.fetch`."""
        return log_fetch.fetch(self._machine, self._view, *asked)

    def measure(self, *asked: Any) -> Extent:
        """Return the size of a part of the log. `asked`: arguments of `queries.fetch.measure`."""
        return log_fetch.measure(self._machine, self._view, *asked)

    def job(self, job_id: bytes) -> Shown:
        """Return a job. Raise NotFound if there is none."""
        return self._machine.jobs.find(job_id).shown()

    # -- outbox ---------------------------------------------------------------------------------------------------

    def outbox_batch(self, target: Target, epoch: int) -> bytes | None:
        """Return the batch that is being sent to another partition. Empty if all its letters were removed. None if the
        batch has ended."""
        outbox = self._machine.outbox
        batch = outbox.batch_of(target)
        if batch is None or batch.epoch != epoch:
            return None
        letters = [letter for _, letter in outbox.batch_letters(target, self._view)]
        return encode_letters(letters) if letters else b""

    # -- schedules ------------------------------------------------------------------------------------------------

    def schedules_due(self, until_ms: int, most: int) -> list[schedule_queries.Stored]:
        """Return the schedules that fire up to `until_ms`."""
        in_slices = partial(self._machine.shared.in_slices, most=SLICE_READS)
        return schedule_queries.due(self._view, until_ms, most, in_slices)

    def schedules_named(self, names: Sequence[str]) -> list[bytes | None]:
        """Return the row of each named schedule. None for a schedule that does not exist."""
        return schedule_queries.named(self._view, self._machine.shared.in_slices(names, SLICE_READS))

    def cancelled_occurrences(self, stored: Iterable[schedule_queries.Stored]) -> frozenset[str]:
        """Return the names of schedules whose next occurrence was stored ahead of its time, and then cancelled."""
        now_ms, log = self._machine.now_ms, self._machine.log
        return frozenset(
            [
                name
                for name, row in self._machine.shared.in_slices([*stored], SLICE_READS)
                if (made := schedule_queries.made_later(name, row, now_ms)) is not None
                and log.find_owned(made, self._view) is None
            ]
        )

    def schedule_page(
        self, prefix: str, after: str | None, most: int
    ) -> tuple[list[schedule_queries.Stored], str | None]:
        """Return schedules whose names begin with `prefix`, and the name after which to continue. None: no more."""
        return schedule_queries.page(self._view, prefix, after, most)

    # -- counts ---------------------------------------------------------------------------------------------------

    def group_rows(self) -> list[Shown]:
        """Return one map per group: its cursor, its numbers of messages, its settings, and why it takes nothing new."""
        now_s = self._machine.now_ms // 1000
        found = []
        for group in self._machine.groups.by_id.values():
            self._machine.shared.yield_now()
            second, taken = max(group.reader.taken, self._machine.log.state.gone)
            second, taken = max((second, taken), (offsets.deliver_ms(group.cursor) // 1000, 0))
            ready = self._count_between(second, now_s + 1) - taken + len(group.order.blocked)
            ready += group.ready.messages if group.ready is not None else 0
            waiting = group.spilled.messages
            for entry in group.waiting.values():
                count = entry.ranges.messages
                if entry.due_ms > self._machine.now_ms:
                    waiting += count
                else:
                    ready += count
            row = {
                "partition": self._machine.partition,
                "group": group.name,
                "cursor": group.cursor,
                # Set the partition number in the offset to this partition, so that a reader can start at it.
                "committed": offsets.of_partition(
                    min(group.done_below(), group.spilled.first or offsets.LAST), self._machine.partition
                ),
                "ready": max(ready, 0),
                "leased": sum(lease.live.bit_count() for lease in group.leases.values()),
                "waiting": waiting,
                "dead": group.dead.total(),
                "dead_reasons": {reason: count for reason, count in sorted(group.dead.items()) if count},
                "settings": group.settings or None,
                "dropped": group.dropped,
                "dead_removed": group.removed,
                "unfinished": group.unfinished,
                "expired": group.is_expired,
                # An idle group counts as used until the last of its messages is due.
                "touched_ms": min(group.touched_ms, self._machine.now_ms),
                "reason": group.stall_reason() or (limit_reason(group, self._machine.now_ms) if ready > 0 else None),
            }
            if group.paused_until_ms is not None:
                row["paused_until_ms"] = group.paused_until_ms
            if group.pauses.ends:
                row["paused_tenants"], row["paused_keys"] = group.pauses.tenants, group.pauses.keys
            if self._machine.shared.is_ordered:
                row["blocked_by_key"] = group.order.waiting
            if group.allowance is not None:
                row["limits"] = limit_row(group, group.allowance, self._machine.limits.ledger(group.name))
            if group.ready is not None and group.ready.rank == FAIR:
                row["tenants"] = ranked_queries.tenant_rows(group, group.ready, self._machine.now_ms)
            found.append(row)
        return found

    def held_by_consumer(self, group_name: str) -> dict[str, tuple[int, int]]:
        """By consumer of a group, return (number of leased messages, time in ms at which the oldest was leased).

        Raise UnknownGroup if there is no such group.
        """
        held: dict[str, tuple[int, int]] = {}
        for lease in self._machine.shared.in_slices([*self._machine.groups.named(group_name).leases.values()]):
            if messages := lease.live.bit_count():
                before, leased_ms = held.get(lease.consumer, (0, lease.leased_ms))
                held[lease.consumer] = before + messages, min(leased_ms, lease.leased_ms)
        return held

    def paused_parts(self, group_name: str, most: int, known: Container[Part] = ()) -> tuple[list[PausedPart], int]:
        """Return the first `most` paused tenants and keys of a group in `part_order`, and the number of the others.

        `known`: parts whose keys are not read. Raise UnknownGroup if there is no such group.
        """
        pauses = self._machine.groups.named(group_name).pauses
        parts, left_out = pauses.first(self._machine.now_ms, most)
        found = []
        for one in self._machine.shared.in_slices(parts, SLICE_READS):
            is_key = isinstance(one.part, int) and one.part not in known
            found.append(pauses.with_key(self._view, one) if is_key else one)
        return found, left_out

    def tenants(self) -> list[tuple[str, Shown]]:
        """Return (group name, state of a tenant of a fair topic) for each group and tenant, as in `group_rows`."""
        now_ms = self._machine.now_ms
        return [
            (group.name, row)
            for group in self._machine.groups.by_id.values()
            if group.ready is not None and group.ready.rank == FAIR
            for row in ranked_queries.tenant_rows(group, group.ready, now_ms)
        ]

    def forecast(self, unit_s: int, count: int, now_ms: int) -> tuple[list[tuple[int, int]], int]:
        """Return the messages due in each unit of time, and the number of later messages. Units: (start ms, messages),
        without empty units. The first unit contains `now_ms`."""
        first_s = now_ms // 1000 // unit_s * unit_s
        stop_s = first_s + count * unit_s
        now_s = now_ms // 1000
        buckets: dict[int, int] = {}
        counts = self._machine.log.counts
        ahead = self._count_between(counts.now_s + 1, now_s)
        for hour in counts.hours(now_s, stop_s, self._view):
            self._machine.shared.yield_now()
            for second, messages in hour:
                start_ms = (first_s + (second - first_s) // unit_s * unit_s) * 1000
                buckets[start_ms] = buckets.get(start_ms, 0) + messages
                if second > counts.now_s:
                    ahead += messages
        return sorted(buckets.items()), max(counts.later - ahead, 0)

    def _count_between(self, start_s: int, stop_s: int) -> int:
        """Return the result of `Counts.between`. Yield after each hour."""
        total = 0
        for hour in self._machine.log.counts.hours(start_s, stop_s, self._view):
            total += sum([messages for _, messages in hour])
            self._machine.shared.yield_now()
        return total

    # -- helpers --------------------------------------------------------------------------------------------------

    def _state(self, offset: bytes) -> str:
        """Return the state of a message over all groups."""
        return self._machine.pending.state_of(offset, self._machine.now_ms, self._view)

    def _shown(self, message: Message, state: str, *, values: bool, found: Found | None = None) -> Shown:
        """Return a message as a map. `values`: whether to include its value. `found`: its log row, if it has one."""
        moves, moved_ms = 0, None
        if found is not None:
            moves, moved_ms = found.moves, found.moved_ms
        elif message.id != message.offset:
            row = self._view.get(rows.MOVED + message.id)
            if row is not None:
                _, moves, moved_ms, _ = rows.load_moved(row)
        fields = message.fields
        return {
            "id": message.id,
            "offset": message.offset,
            "state": state,
            "created_ms": message.created_ms,
            "deliver_ms": offsets.deliver_ms(message.offset),
            "due_ms": offsets.deliver_ms(message.id),
            "value": fields.get(Column.VALUE) if values else None,
            "key": fields.get(Column.KEY),
            "headers": fields.get(Column.HEADERS),
            "ttl_ms": fields.get(Column.TTL_MS),
            "unique_key": fields.get(Column.UNIQUE_KEY),
            "moves": moves,
            "moved_ms": moved_ms,
            "size": len(fields.get(Column.VALUE) or b""),
            **_rank(fields),
            **_rules(fields),
        }


def _shown_dead(message: dead_letters.DeadMessage, values: bool) -> Shown:
    """Return a dead message as a map. `values`: whether to include its value."""
    fields = message.fields
    return {
        "id": message.id,
        "offset": message.offset,
        "attempts": message.attempts,
        "reason": message.reason,
        "error": message.error,
        "dead_ms": message.dead_ms,
        "created_ms": message.created_ms,
        "deliver_ms": offsets.deliver_ms(message.offset),
        "key": fields.get(Column.KEY),
        "headers": fields.get(Column.HEADERS),
        "value": fields.get(Column.VALUE) if values else None,
        "unique_key": fields.get(Column.UNIQUE_KEY),
        "size": len(fields.get(Column.VALUE) or b""),
        **_lives(message.lives, message.history, message.offset),
        **_rank(fields),
        **_rules(fields),
        **({"not_forwarded": message.forward} if isinstance(message.forward, str) else {}),
    }


def _lives(earlier: Lives, history: History, offset: bytes) -> Shown:
    """Return the attempts of all lives of a message, and, if there are earlier lives, how they ended.

    A lease may be granted before its message is due. An attempt is therefore shown to begin when the message was due,
    at the earliest.
    """
    due_ms = offsets.deliver_ms(offset)
    attempts = [
        [attempt, consumer, max(leased_ms, min(due_ms, ended_ms)), ended_ms, *more]
        for attempt, consumer, leased_ms, ended_ms, *more in whole_history(earlier, history)
    ]
    shown: Shown = {"history": attempts}
    return shown | {"lives": summary(earlier)} if earlier else shown


def _rank(fields: Fields) -> Shown:
    """Return the priority and the tenant of a message. Leave out a priority of 0 and a missing tenant."""
    rank: Shown = {}
    if priority := fields.get(Column.PRIORITY):
        rank["priority"] = priority
    if (tenant := fields.get(Column.TENANT)) is not None:
        rank["tenant"] = tenant.decode()
    return rank


def _rules(fields: Fields) -> Shown:
    """Return the rules of a message. Leave out those that it does not have."""
    return {name: rule for name, rule in MessageRules.of(fields)._asdict().items() if rule is not None}


def _blocked_reason(group: Group, offset: bytes) -> str:
    """Return why a blocked message is not leased. A message is blocked if its key had as many busy messages as its
    limit when the cursor passed it."""
    order = group.order
    if order.is_free(offset):
        return NO_CREDIT
    key = order.blocked[offset]
    if key in order.paused:
        return f"its key is {pause_text(group.pauses.ends[key])}"
    busy = order.busy_of(key)
    if order.limit == 1 or busy < order.limit:
        return "it waits for an earlier message of its key"
    return f"it waits for messages of its key: {busy} of {order.limit} are in flight"
