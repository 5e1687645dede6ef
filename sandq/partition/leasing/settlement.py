"""Settles leases: messages are acked or nacked, leases are extended, expire, or are given back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import Any, Final, NamedTuple

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.model.errors import TooLarge
from sandq.model.limits import FIXED
from sandq.model.nack_ends import DEAD, MAX_SNOOZES, SNOOZE
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.rows import Range
from sandq.partition.base.step import Step
from sandq.partition.groups.dead_letters import LEASE_EXPIRED, NACKED, REJECTED, Death
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_state import GroupState
from sandq.partition.groups.renewal import Change, renew_each
from sandq.partition.groups.unique_keys import UniqueKeys
from sandq.partition.leasing import retry
from sandq.partition.leasing.retry import Wait
from sandq.partition.records.leases import HISTORY_ATTEMPTS, HISTORY_ERROR_CHARS, Attempt, History, Lease, Waiting
from sandq.partition.records.packed_ranges import PackedRanges
from sandq.partition.shared_state import NOT_YET, SharedState

EXPIRE_MESSAGES = 10_000
EXPIRE_BYTES = 8 << 20
"""A command stops after it has copied this many bytes of dead messages."""
BACKOFF_GROWS = 1000
"""Maximum number of failures for which the back-off of snoozes grows."""
SNOOZED = "snoozed"
"""Reason in the history for an attempt that ended with a snooze and is not counted. See `dead_letters` for the other
reasons."""
CUT_SHARE: Final = 4
"""Divisor of the maximum number of waiting ranges, up to which each message gets its own jitter and its own range.

This holds for up to 2,500 messages of a group in a partition."""

Lost = list[list[Any]] | None
"""Result of an item of an ack or a nack. None: all of its messages are settled.

A list has the ranges `[[base, count], ...]` for which the lease was lost; it is empty if the whole lease was lost."""


class Part(NamedTuple):
    """The result of a nack item that was applied only in part. The caller must send the rest again."""

    left: list[list[Any]]
    """Ranges that were not nacked yet."""
    lost: Lost
    """Ranges of the item for which the lease was lost."""


class LeaseSettlement:
    def __init__(self, shared: SharedState, group_state: GroupState, unique: UniqueKeys) -> None:
        self._shared = shared
        self._groups = group_state.groups
        self._leases = group_state.leases
        self._waiting = group_state.waiting
        self._spilling = group_state.spilling
        self._ttl = group_state.ttl
        self._kept = group_state.kept
        self._dead = group_state.dead
        self._summaries = group_state.summaries
        self._unique = unique
        self._reader = group_state.reader

    def ack(self, step: Step, items: Sequence[tuple[int, c.What]]) -> list[Lost]:
        """Ack messages. `items`: as in the command `Ack`."""
        found, in_slices = self._leases.by_token.get, self._shared.in_slices
        return [
            [] if (lease := found(token)) is None else self._ack(step, lease, what) for token, what in in_slices(items)
        ]

    def outcome(self, token: int, what: c.What, *, is_ack: bool = True) -> tuple[Lost, bool]:
        """Return (result that an ack of one item would have now, whether the ack would settle any message).

        `is_ack` False: return this for a nack that sends messages. If such a nack has made a message dead, a repeated
        nack does not report it as lost."""
        lease = self._leases.by_token.get(token)
        if lease is None:
            return [], False
        mask, foreign = lease.mask_of(what)
        fresh = mask & lease.live
        if not is_ack:
            return _lost(lease, mask & ~fresh & ~(lease.left & lease.sent), foreign, what), bool(fresh)
        if what is None and (lease.acked | fresh) and not lease.revoked:
            return None, bool(fresh)
        return _lost(lease, mask & lease.left, foreign, what), bool(fresh)

    def has_sent(self, token: int, what: c.What) -> bool:
        """Return whether an ack or a nack that sent messages has settled any of these messages. The lease must
        exist."""
        lease = self._leases.by_token[token]
        return bool(lease.mask_of(what)[0] & lease.sent)

    def ack_sending(self, step: Step, token: int, what: c.What) -> list[Lost]:
        """Ack messages of one lease, which must exist, and remember that this ack sent messages."""
        self.note_sending(token, what)
        return self.ack(step, [(token, what)])

    def note_sending(self, token: int, what: c.What) -> None:
        """Remember that the ack or nack of messages sent messages. It must follow in the same command. The lease must
        exist."""
        lease = self._leases.by_token[token]
        lease.sent |= lease.mask_of(what)[0] & lease.live

    def makes_dead(self, item: c.NackItem) -> bool:
        """Return whether a nack without changes makes its messages dead. The lease must exist."""
        return self._copies(self._leases.by_token[item.token], None, item.end)

    def group_of(self, token: int) -> int:
        """Return the id of the group of a lease, which must exist."""
        return self._leases.by_token[token].group_id

    def _ack(self, step: Step, lease: Lease, what: c.What) -> Lost:
        """Ack messages of one lease."""
        mask, foreign = lease.mask_of(what)
        fresh = mask & lease.live
        if fresh:
            self._shared.totals.acked += fresh.bit_count()
            self._shared.settled += fresh.bit_count()
            group = self._groups.by_id[lease.group_id]
            if lease.kept or group.order.blocked or self._shared.is_ordered:
                self._kept.finish(step, group, lease.select(fresh), lease.kept)
            lease.acked |= fresh
            self._leases.store_progress(step, lease)
        if what is None and lease.acked and not lease.revoked:
            return None  # messages that this consumer nacked do not count as lost
        return _lost(lease, mask & lease.left, foreign, what)

    def nack(self, step: Step, items: Sequence[Sequence[Any]]) -> list[Lost | str | Part]:
        """Nack messages of the leases in `items`. Raise TooLarge, and change nothing, if the new headers of an item
        exceed what an entry may write."""
        named = [c.NackItem(*item) for item in items]
        self._check_headers(named)
        results: list[Lost | str | Part] = []
        put_off: set[int] = set()
        for item in self._shared.in_slices(named):
            # A later item for the same lease may concern the same messages, so it must not be applied before the rest
            # of this item.
            result = NOT_YET if item.token in put_off else self._nack(step, item)
            if result == NOT_YET or isinstance(result, Part):
                put_off.add(item.token)
            results.append(result)
        return results

    def _check_headers(self, items: Sequence[c.NackItem]) -> None:
        """Raise TooLarge if new headers exceed what an entry may write."""
        most = FIXED.entry_copied_bytes
        for item in items:
            headers = (item.changes or {}).get(Column.HEADERS.value, b"")
            lease = self._leases.by_token.get(item.token)
            if not headers or lease is None:
                continue
            count = (lease.mask_of(item.what)[0] & lease.live).bit_count()
            if count * len(headers) > most:
                raise TooLarge(
                    f"headers of {len(headers)} bytes for {count} messages: a nack may give {most} bytes of them; nack "
                    "fewer at once"
                )

    def _nack(self, step: Step, item: c.NackItem) -> Lost | str | Part:
        """Nack messages of a lease. If the nack writes messages again, do as much as the budget of the entry allows.
        Return NOT_YET if nothing is left of the budget."""
        token, what, delay_ms, error, is_begun, changes, end = item
        lease = self._leases.by_token.get(token)
        if lease is None:
            return []
        mask, foreign = lease.mask_of(what)
        fresh = done = mask & lease.live
        if fresh and is_begun and self._shared.is_budget_spent and self._copies(lease, changes, end):
            return NOT_YET
        if fresh and not is_begun:
            due_ms = step.now_ms + (delay_ms or 0)
            self._requeue(step, lease, fresh, due_ms, lease.attempt - 1, None, error, crashes=lease.crashes)
        elif fresh and end == DEAD:
            done = self._bury(step, lease, fresh, REJECTED, error)
        elif fresh:
            done = self._give_back(step, lease, fresh, Change.of(changes), end, delay_ms, error)
        lost = _lost(lease, mask & ~fresh, foreign, what)
        return lost if done == fresh else Part([[r.base, r.length] for r in lease.select(fresh & ~done)], lost)

    def _give_back(
        self,
        step: Step,
        lease: Lease,
        mask: int,
        change: Change | None,
        end: int,
        delay_ms: int | None,
        error: str | None,
    ) -> int:
        """Make nacked messages wait for their next attempt, or make them dead after their last attempt. Return the mask
        of the messages that were handled."""
        is_snooze = end == SNOOZE and self._may_snooze(lease)
        if not is_snooze and self._is_last(lease):
            mask = self._bury(step, lease, mask, NACKED, error, change)
            self._shared.totals.nacked += mask.bit_count()
            return mask
        if change is not None:
            mask = self._renew(step, lease, mask, change)
        if is_snooze:
            self._shared.totals.snoozed += mask.bit_count()
            self._retry(step, lease, mask, delay_ms, SNOOZED, error, change)
        else:
            self._shared.totals.nacked += mask.bit_count()
            self._retry_or_bury(step, lease, mask, delay_ms, NACKED, error, change)
        return mask

    def _renew(self, step: Step, lease: Lease, mask: int, change: Change) -> int:
        """Put changed messages into rows of the group, as far as the budget allows. Return the mask of these
        messages."""
        group, ranges = self._groups.by_id[lease.group_id], lease.select(mask)
        count = 0
        for size in renew_each(step, group, ranges, lease.kept, change, self._reader):
            self._shared.note_copied(size)
            count += 1
            if self._shared.is_budget_spent:
                break
        return _mask_of(lease, rows.first_of(ranges, count))

    def _copies(self, lease: Lease, changes: dict[int, int | bytes] | None, end: int) -> bool:
        """Return whether a nack writes messages again, because it changes them or makes them dead."""
        if changes or end == DEAD:
            return True
        return self._is_last(lease) and not (end == SNOOZE and self._may_snooze(lease))

    def _is_last(self, lease: Lease) -> bool:
        """Return whether this is the last attempt of the messages of a lease."""
        last = retry.max_attempts_of(lease.retry, self._groups.by_id[lease.group_id], self._shared.settings)
        return last is not None and lease.attempt >= last

    def extend(self, step: Step, token: int, lease_ms: int, begun: c.What) -> int | None:
        """Set the deadline of a lease, and return it in ms. None if the lease has ended. `begun`: messages that the
        consumer reports as begun; None: no report."""
        lease = self._leases.by_token.get(token)
        if lease is None or lease.ended or lease.revoked:
            return None
        self._leases.extend(step, lease, step.now_ms + lease_ms)
        if begun is not None:
            mask = lease.begun | (lease.mask_of(begun)[0] & lease.live)
            if mask != lease.begun:
                lease.begun = mask
                self._leases.store_progress(step, lease)
        return lease.deadline_ms

    def expire(self, step: Step) -> int:
        """End leases whose deadline has passed, and make expired messages at the heads of groups dead or drop them, up
        to about `EXPIRE_MESSAGES` in total. Return how many messages were given back, became dead or were dropped."""
        view, now_ms = step.view, step.now_ms
        expired = passed = 0
        enough_bytes = self._dead.buried_bytes + EXPIRE_BYTES

        def is_enough() -> bool:
            """Return whether this command has done enough, or spent the budget of its entry."""
            is_spent = self._shared.is_budget_spent
            return is_spent or expired + passed >= EXPIRE_MESSAGES or self._dead.buried_bytes >= enough_bytes

        while not is_enough() and (lease := self._leases.pop_overdue(step)) is not None:
            expired += self.expire_lease(step, lease, None)
            if not lease.ended:
                self._leases.watch_deadline(lease)
        for group in self._summaries.expired(now_ms, view):
            while not is_enough():
                at_ms = self._ttl.next_expiry_ms(group, view)
                if at_ms is None or at_ms > now_ms:
                    break
                if self._spilling.recall_due(step, group, now_ms):
                    passed += 1
                    continue
                ended = self._end_first_expired(step, group)
                expired += ended
                passed += not ended  # the head of the log was a gap
        return expired

    def expire_lease(self, step: Step, lease: Lease, error: str | None) -> int:
        """End a lease that its consumer did not settle in time.

        Messages that the consumer may have begun have used an attempt. All other messages are ready immediately. Return
        how many messages were given back or became dead. If the budget does not suffice for all dead messages, the next
        entry ends the rest.
        """
        lease.revoked = True
        charged = lease.charged
        crashes = 0 if not lease.handlers else 1 if lease.crashes >= FIXED.lease_reclaims else lease.crashes + 1
        spared = lease.live & ~charged
        if spared:
            # Requeue the spared messages before the charged ones, so that they are leased first: a charged message may
            # crash the next consumer, too.
            self._requeue(step, lease, spared, step.now_ms, lease.attempt - 1, None, None, crashes=crashes)
        done = spared.bit_count()
        if charged:
            ended = self._retry_or_bury(step, lease, charged, None, LEASE_EXPIRED, error, crashes=crashes)
            done += ended.bit_count()
        self._shared.totals.lease_expired += done
        return done

    def release(self, step: Step, command: c.Release) -> int:
        """Make all messages that a consumer holds ready, without counting the attempt. Return their number."""
        now_ms = step.now_ms
        self._groups.named(command.group)
        released = 0
        for lease in self._leases.live_of(command.group, command.consumer):
            if command.epoch not in (0, lease.epoch):
                continue
            released += lease.live.bit_count()
            lease.revoked = True
            self._requeue(step, lease, lease.live, now_ms, lease.attempt - 1, None, None, crashes=lease.crashes)
        self._shared.totals.released += released
        return released

    def give_back_all(self, step: Step) -> None:
        """Make all messages that any consumer holds ready, without counting the attempt. Clock resets use this, because
        afterwards the times of leases and messages no longer match the partition's time."""
        now_ms = step.now_ms
        for group in self._groups.by_id.values():
            for lease in list(group.leases.values()):
                lease.revoked = True
                for ranges, history, queue in self._with_history(step, lease, lease.live, None, None):
                    places, since_ms = PackedRanges(ranges), lease.since_ms
                    again = Waiting(now_ms, 0, lease.attempt - 1, None, places, since_ms, lease.kept, history=history)
                    again.queue, again.snoozes, again.crashes = queue, lease.snoozes, lease.crashes
                    again.retry = lease.retry
                    self._waiting.add(step, group, again)
                lease.left |= lease.live
                self._leases.store_progress(step, lease)
            group.generation += 1

    def _retry_or_bury(
        self,
        step: Step,
        lease: Lease,
        mask: int,
        delay_ms: int | None,
        reason: str,
        error: str | None,
        change: Change | None = None,
        *,
        crashes: int = 0,
    ) -> int:
        """Make the messages in `mask` wait for their next attempt, or make them dead after their last attempt.

        `change`: the change of the messages, which are in rows of the group already. `crashes`: as in `Waiting`. Return
        the mask of the messages that were handled.
        """
        if self._is_last(lease):
            return self._bury(step, lease, mask, reason, error, kept=lease.kept or change is not None)
        self._retry(step, lease, mask, delay_ms, reason, error, change, crashes=crashes)
        return mask

    def _bury(
        self,
        step: Step,
        lease: Lease,
        mask: int,
        reason: str,
        error: str | None,
        change: Change | None = None,
        *,
        kept: bool | None = None,
    ) -> int:
        """Make the messages in `mask` dead, as many as the budget allows, and return their mask. `kept`: the messages
        are in rows of the group; None: as in the lease. `change`: as in `DeadLetters.bury_some`."""
        group = self._groups.by_id[lease.group_id]
        kept = lease.kept if kept is None else kept
        done: list[Range] = []
        for ranges, history, _ in self._with_history(step, lease, mask, reason, error):
            death = Death(reason, lease.attempt, error, history)
            done += self._dead.bury_some(step, group, ranges, kept, death, change)
        mask = _mask_of(lease, done)
        lease.left |= mask
        self._leases.store_progress(step, lease)
        return mask

    def _may_snooze(self, lease: Lease) -> bool:
        """Return whether messages of the lease may be snoozed once more, without counting the attempt."""
        most: int | None = self._groups.by_id[lease.group_id].settings.get(
            MAX_SNOOZES, self._shared.settings.get(MAX_SNOOZES)
        )
        return most is None or lease.snoozes < most

    def _retry(
        self,
        step: Step,
        lease: Lease,
        mask: int,
        delay_ms: int | None,
        reason: str,
        error: str | None,
        change: Change | None,
        *,
        crashes: int = 0,
    ) -> None:
        """Make the messages in `mask` wait for `delay_ms`, or for the back-off if it is None. The back-off grows with
        each attempt, and with each consecutive snooze. `change`, `crashes`: as in `_retry_or_bury`."""
        group = self._groups.by_id[lease.group_id]
        is_snooze = reason == SNOOZED
        failures = min(lease.attempt + lease.snoozes, BACKOFF_GROWS) if is_snooze else lease.attempt
        due_of = None
        if delay_ms is None:
            wait = retry.wait_of(retry.backoff_of(lease.retry, group, self._shared.settings), failures)
            delay_ms = wait.delay_ms
            if wait.spread_ms:
                due_of = partial(_jittered, wait, group.group_id, failures, step.now_ms)
        attempt, due_ms = lease.attempt - is_snooze, step.now_ms + delay_ms
        self._requeue(step, lease, mask, due_ms, attempt, reason, error, change=change, due_of=due_of, crashes=crashes)

    def _requeue(
        self,
        step: Step,
        lease: Lease,
        mask: int,
        due_ms: int,
        attempt: int,
        reason: str | None,
        error: str | None,
        *,
        change: Change | None = None,
        due_of: Callable[[int], int] | None = None,
        crashes: int = 0,
    ) -> None:
        """Make the messages in `mask` wait until `due_ms`. `change`, `crashes`: as in `_retry_or_bury`.

        `due_of` returns when a message is due, given its offset as a number. If few ranges wait, ranges are split so
        that each message has its own due time. If many wait, each range has the due time of its first message, because
        too many ranges would halt the group.
        """
        kept = lease.kept or change is not None
        group = self._groups.by_id[lease.group_id]
        entries: list[Waiting] = []
        is_cut = due_of is not None and group.waiting_ranges + mask.bit_count() <= group.most_waiting // CUT_SHARE
        for ranges, history, queue in self._with_history(step, lease, mask, reason, error):
            by_due: dict[int, list[Range]] = {}
            for waiting in _singles(ranges) if is_cut else ranges:
                if due_of is not None:
                    due_ms = due_of(int.from_bytes(waiting.base, "big"))
                # A message may be leased and given back before its delivery time. It must not be due again before that
                # time.
                at_ms = min(max(due_ms, offsets.deliver_ms(waiting.base)), offsets.U48_MAX)
                by_due.setdefault(at_ms, []).append(waiting)
            for at_ms, together in by_due.items():
                places = PackedRanges(together)
                entry = Waiting(at_ms, 0, attempt, error, places, lease.since_ms, kept, history=history)
                entry.queue = queue if change is None else change.queue(queue)
                entry.snoozes, entry.crashes = lease.snoozes + (reason == SNOOZED), crashes
                entry.retry = lease.retry
                entries.append(entry)
        self._spilling.add(step, group, entries)
        lease.left |= mask
        self._leases.store_progress(step, lease)

    def _with_history(
        self, step: Step, lease: Lease, mask: int, reason: str | None, error: str | None
    ) -> list[tuple[list[Range], History, bytes | None]]:
        """Return the messages of `mask` in groups with equal history and ready queue. The history includes this attempt
        if it counts."""
        now: History = ()
        if reason is not None:
            short = None if error is None else error[:HISTORY_ERROR_CHARS]
            now = (Attempt(lease.attempt, lease.consumer, lease.leased_ms, step.now_ms, reason, short),)
        if not lease.past:
            return [(ranges, now, queue) for queue, ranges in lease.by_queue(mask)]
        found: dict[tuple[History, bytes | None], list[Range]] = {}
        for queue, ranges in lease.by_queue(mask):
            for base, length in ranges:
                # Split a range where the history changes. Never join two ranges: a range must lie within one log row.
                for history, part in groupby(offsets.run(base, length), lease.past_of):
                    same = list(part)
                    found.setdefault((history, queue), []).append(Range(same[0], len(same)))
        return [(ranges, _joined(history, now), queue) for (history, queue), ranges in found.items()]

    def _end_first_expired(self, step: Step, group: Group) -> int:
        """End the first expired messages of a group, as found by `MessageTtl.next_expiry_ms`: they become dead or are
        dropped. Return their number; 0 if the head of the log was a gap.

        The caller has checked that some message has expired. So if no waiting message has, it is the lowest ready entry
        or, without ready queues, the head of the log."""
        waiting = group.next_to_expire()
        if waiting is not None and waiting.expires_ms is not None and waiting.expires_ms <= step.now_ms:
            ended = self._dead.ended
            self._dead.end_expired(step, group, waiting)
            return self._dead.ended - ended
        if group.ready is not None and (first := group.ready.take_lowest(step)) is not None:
            self._unique.mark_delivered(step, group, first)
            self._dead.expire(step, group, [Range(first.first, first.length)], False)
            return first.length
        head = group.reader.head(step.view)
        assert head is not None
        if head.first in group.gaps:
            group.reader.advance_over_head()
            self._groups.store(step, group)
            return 0
        self._unique.mark_delivered(step, group, head)
        group.reader.advance_over_head()
        self._dead.expire(step, group, [Range(head.first, head.length)], False)
        return head.length


def _joined(history: History, now: History) -> History:
    """Append an attempt to a history. Keep only the last of consecutive snoozes, so that snoozes do not displace
    earlier attempts."""
    last = history[-1] if history else None
    if now and last and last.end == now[0].end == SNOOZED and last.number == now[0].number:
        history = history[:-1]
    return (*history, *now)[-HISTORY_ATTEMPTS:]


def _mask_of(lease: Lease, ranges: Sequence[Range]) -> int:
    """Return the mask of messages of a lease."""
    return lease.mask_of([[base, length] for base, length in ranges])[0]


def _lost(lease: Lease, mask: int, foreign: list[list[Any]], what: c.What) -> Lost:
    """Return the result of an item: `mask` and `foreign` are the messages for which the lease was lost."""
    if not mask and not foreign:
        return None
    if what is None and mask == (1 << lease.total) - 1:
        return []
    return [[r.base, r.length] for r in lease.select(mask)] + foreign


def _jittered(wait: Wait, group_id: int, attempt: int, now_ms: int, offset: int) -> int:
    """Return when a message that failed at `now_ms` is due again, in ms."""
    return now_ms + wait.of(offset, group_id, attempt)


def _singles(ranges: Sequence[Range]) -> Iterator[Range]:
    """Yield each message as a range of its own."""
    for base, length in ranges:
        if length == 1:
            yield Range(base, 1)
        else:
            for offset in offsets.run(base, length):
                yield Range(offset, 1)
