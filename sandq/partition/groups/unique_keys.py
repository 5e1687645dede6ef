"""Unique keys: names that a producer gives to its pending messages, unique within the scope that routes the message.

In a fair topic, the scope is the tenant. In other topics, the scope is the message's key, if it has one: the pair (key,
unique key) is the name. If a message has no key, its unique key routes it.

Row of a unique key: `[state, id, sender | nil, expiry time in ms | nil]`. A unique key is *held* until a group makes an
attempt at its message. Then it is *attempted* until every other group has passed the message. From then on the key is
*delivered*, and stays taken for `dedup_window`. After a cancel, the unique key is free, but its row is kept for a
while, so that a repeated cancel gets the same reply.

Debounced messages that replace each other are a series. While the last one holds its key, the row also has the time of
the first one: `[held, id, sender | nil, time of the first message in ms, nil]`.

While a throttled message has its key, the row also has the window: `[state, id, sender | nil, start of the window in
ms, window in ms, expiry time in ms | nil]`. The key stays taken at least until the window ends, also if the message has
left the log by then. After a cancel, the row has no window. With THROTTLE_BOTH, the window of a message for the end of
an earlier window starts at that end, which may be ahead.

A group also counts as having passed a message after a seek, after its deletion, or if it was created above the message.
A seek, a deletion or a creation does not update the unique key. The next use of an attempted key, or the removal of the
message from the log, detects that all groups have passed the message.

The sender is `[producer id, epoch, sequence, position in the batch]`. If a producer sends a batch again because it got
no reply, the unique key belongs to its own message. The sender shows this, so it is no conflict. `resolve_conflict`
decides what happens to a message whose unique key is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from sandq.model import offsets
from sandq.model.names import DEFAULT_TENANT, FAIR
from sandq.partition import commands as c
from sandq.partition.base import rows
from sandq.partition.base.expiring_rows import CANCEL_MEMORY_MS, ExpiringRows
from sandq.partition.base.rows import Extra, LogEntry
from sandq.partition.base.step import Step
from sandq.partition.base.view import View
from sandq.partition.groups.group import Group
from sandq.partition.groups.group_table import GroupTable
from sandq.partition.records.claim import ACKED, WAITING, Claim
from sandq.partition.shared_state import SharedState

HELD, DELIVERED, CANCELLED, ATTEMPTED = 0, 1, 2, 3
STORED, REPLACES, IGNORED, REFUSED = 0, 1, 2, 3
"""Decisions about a new message whose unique key belongs to an older message. STORED: store the new one. REPLACES:
store the new one, and cancel the older one if it is pending. IGNORED: do not store the new one; reply with the id of
the older one. REFUSED: reject the new one."""

DELIVERED_STATE: Final = "delivered"
Sender = tuple[int, int, int, int]
_DEFAULT_TENANT: Final = DEFAULT_TENANT.encode()


class Window(NamedTuple):
    """The window of a throttled message."""

    start_ms: int
    length_ms: int

    def end_ms(self, now_ms: int) -> int:
        """Return the end of the window. A right clock has set its start to `length_ms` ahead at most."""
        return min(self.start_ms, now_ms + self.length_ms) + self.length_ms


def window_of(marks: Sequence[int]) -> Window | None:
    """Return the window in the row of a unique key. `marks`: the fields between the sender and the expiry time."""
    return Window(*marks) if len(marks) == len(Window._fields) else None


class Named(NamedTuple):
    """The message that a unique key belongs to."""

    state: int
    id: bytes
    sender: Sender | None
    row_key: bytes
    """Key of the row of the unique key."""
    first_ms: int | None = None
    """When the first message of a debounced series was stored, in ms. None if the message belongs to no series."""
    window: Window | None = None
    """The window of a throttled message. None if the message was not throttled."""


class Throttled(NamedTuple):
    """The decision about a message that is throttled."""

    resolution: int
    """`STORED`, `REPLACES` or `IGNORED`."""
    start_ms: int
    """Start of the window of the message that has the key from now on, in ms."""


def resolve_throttled(window: Window, command: c.Append, now_ms: int, *, is_free: bool) -> Throttled:
    """Decide about a message whose rule throttles. `window`: the window of the message that has the key. `is_free`:
    whether that message can be cancelled."""
    window_ms = command.window_ms or 0
    if command.on_conflict == c.THROTTLE:
        # A start far ahead was set by a wrong clock before a clock reset.
        start_ms = window.start_ms if window.start_ms <= now_ms + window.length_ms else now_ms
        return Throttled(IGNORED, start_ms) if now_ms < start_ms + window_ms else Throttled(STORED, now_ms)
    start_ms = min(window.start_ms, now_ms + window_ms)
    if now_ms >= start_ms + window_ms:
        return Throttled(STORED, now_ms)
    if now_ms < start_ms and is_free:
        return Throttled(REPLACES, start_ms)
    # If a message for the end of a window was leased before that end (after a move), its own window begins now.
    return Throttled(STORED, min(min(start_ms, now_ms) + window_ms, offsets.U48_MAX))


def resolve_conflict(named: Named, claim: Claim | None, on_conflict: int, sender: Sender | None) -> int:
    """Decide about a message whose unique key belongs to another message: `STORED`, `REPLACES`, `IGNORED` or `REFUSED`.

    `on_conflict`: the rule that its producer chose. If it throttles, the other message was not throttled, and the
    decision is that of IGNORE. `claim`: state of the other message; None if it no longer exists.
    """
    if named.state == CANCELLED:
        return STORED
    if sender is not None and named.sender == sender:
        return IGNORED  # it is the same message, sent again
    is_settled = claim is None or claim.is_settled
    if named.state == HELD and is_settled:
        return STORED  # never leased, but all groups passed over it (a seek, a start at the latest)
    if on_conflict == c.REJECT:
        return REFUSED
    if on_conflict in (c.IGNORE, c.THROTTLE, c.THROTTLE_BOTH):
        return IGNORED
    if is_settled:
        return REFUSED if on_conflict == c.REPLACE_PENDING else STORED
    return REPLACES if is_replaceable(named, claim) else STORED if on_conflict == c.DEBOUNCE else REFUSED


def is_replaceable(named: Named, claim: Claim | None) -> bool:
    """Return whether the message that has a unique key can be cancelled. `claim`: as in `resolve_conflict`."""
    if claim is None or claim.is_settled:
        return False
    # If the key is held, no group ever leased the message. So a claim of ACKED only means that a group passed over it.
    return claim.refusal is None or (named.state == HELD and claim.refusal == ACKED)


def claimed_state(offset: bytes | None, claim: Claim | None, now_ms: int) -> str:
    """Return the state of a message with a unique key. `offset` and `claim` are None if the message no longer
    exists."""
    if claim is None or offset is None:
        return DELIVERED_STATE
    if claim.refusal is not None:
        return claim.refusal
    return WAITING if claim.waiting else state_of(offset, now_ms)


def state_of(offset: bytes | None, now_ms: int) -> str:
    """Return the state of a message with a unique key: pending at this offset, or delivered (None)."""
    if offset is None:
        return DELIVERED_STATE
    return "delayed" if offsets.deliver_ms(offset) > now_ms else "ready"


class UniqueKeys:
    """Owns the rows of unique keys."""

    def __init__(self, shared: SharedState, groups: GroupTable, expiring_rows: ExpiringRows) -> None:
        self._shared = shared
        self._groups = groups
        self._expiring_rows = expiring_rows

    def find(
        self, unique_key: bytes, tenant: bytes | None, now_ms: int, view: View, *, key_digest: bytes | None = None
    ) -> Named | None:
        """Return the message that a unique key belongs to, or None if the key is free. `tenant`: None stands for
        `default`. `key_digest`: digest of the key within which the unique key is unique."""
        row_key = self._row_key(unique_key, tenant, key_digest)
        row = view.get(row_key)
        if row is None:
            return None
        state, message_id, sender, *marks, forgotten_ms = rows.unpack(row)
        if forgotten_ms is not None and forgotten_ms <= now_ms:
            return None
        first_ms = min(*marks, now_ms) if len(marks) == 1 else None  # a wrong clock may have set it
        return Named(state, message_id, None if sender is None else tuple(sender), row_key, first_ms, window_of(marks))

    def hold(
        self,
        step: Step,
        unique_key: bytes,
        tenant: bytes | None,
        message_id: bytes,
        sender: Sender | None,
        *,
        key_digest: bytes | None = None,
        marks: Sequence[int] = (),
    ) -> None:
        """Record that the unique key belongs to the pending message with this id. `key_digest`: as in `find`. `marks`:
        the time of the first message of its series, or the fields of its window."""
        row_key = self._row_key(unique_key, tenant, key_digest)
        step.view.put(row_key, rows.pack(HELD, message_id, sender, *marks, None))

    def set_start(self, step: Step, named: Named, start_ms: int) -> None:
        """Change the start of the window of a throttled message, because a wrong clock has set it."""
        state, message_id, sender, _, length_ms, forgotten_ms = rows.unpack(step.view.get(named.row_key) or b"")
        step.view.put(named.row_key, rows.pack(state, message_id, sender, start_ms, length_ms, forgotten_ms))

    def mark_delivered(self, step: Step, group: Group, entry: LogEntry) -> None:
        """Note that a group leases the message of a log entry, or made it dead. If every group has passed the message,
        its unique key stays taken for `dedup_window`, and for its window."""
        view = step.view
        extra = entry.extra
        if extra is None or extra.unique_key is None:
            return
        row_key = self._row_key(extra.unique_key, extra.tenant, extra.key_digest)
        if not self._groups.is_pending_elsewhere(group, entry.first, view):
            self._end(step, row_key, extra.id, (HELD, ATTEMPTED), DELIVERED, self._window_ms)
        elif (named := self._named(row_key, extra.id, (HELD,), step.now_ms, view)) is not None:
            view.put(row_key, rows.pack(ATTEMPTED, extra.id, named.sender, *(named.window or ()), None))

    def end_attempted(self, step: Step, named: Named) -> bool:
        """Make an attempted key delivered, because every group has passed its message by now. Return whether the key
        stays taken, which is so if `dedup_window` is above zero, or a window of its own has not ended."""
        return self._end(step, named.row_key, named.id, (ATTEMPTED,), DELIVERED, self._window_ms)

    def mark_cancelled(self, step: Step, extra: Extra) -> None:
        """Free the unique key of a cancelled message, but keep its row for repeated cancels."""
        if extra.unique_key is not None:
            states = (HELD, ATTEMPTED, DELIVERED)
            row_key = self._row_key(extra.unique_key, extra.tenant, extra.key_digest)
            self._end(step, row_key, extra.id, states, CANCELLED, CANCEL_MEMORY_MS)

    def release(self, step: Step, extra: Extra, offset: bytes) -> None:
        """Release the unique key of a message that leaves the log and that no group keeps. If no group ever leased the
        message (a seek passed it), the key is free immediately, or at the end of its window."""
        if extra.unique_key is None:
            return
        row_key = self._row_key(extra.unique_key, extra.tenant, extra.key_digest)
        if self._shared.is_ordered and self._groups.is_blocked(offset):
            return  # a group has a copy of the message that is still pending
        self._end(step, row_key, extra.id, (ATTEMPTED,), DELIVERED, self._window_ms)
        self._end(step, row_key, extra.id, (HELD,), DELIVERED, 0)

    @property
    def _window_ms(self) -> int:
        window_ms: int = self._shared.settings["dedup_window_ms"]
        return window_ms

    def _row_key(self, unique_key: bytes, tenant: bytes | None, key_digest: bytes | None) -> bytes:
        """Return the key of the row of a unique key."""
        if self._shared.rank == FAIR:
            return rows.scoped_unique_key(tenant or _DEFAULT_TENANT, unique_key)
        return rows.UNIQUE + unique_key if key_digest is None else rows.keyed_unique_key(key_digest, unique_key)

    def _end(
        self, step: Step, row_key: bytes, message_id: bytes, states: tuple[int, ...], state: int, window_ms: int
    ) -> bool:
        """If a unique key is in one of `states`, change its state, and delete its row after `window_ms`. Unless the
        message was cancelled, keep the row until its own window ends, too. Return whether the row stays."""
        now_ms = step.now_ms
        named = self._named(row_key, message_id, states, now_ms, step.view)
        if named is None:
            return False
        until_ms, window = now_ms + window_ms, None if state == CANCELLED else named.window
        if window is not None:
            until_ms = max(until_ms, window.end_ms(now_ms))
        if until_ms > now_ms:
            self._expiring_rows.put(step, row_key, until_ms, state, message_id, named.sender, *(window or ()))
        else:
            step.view.delete(row_key)
        return until_ms > now_ms

    @staticmethod
    def _named(row_key: bytes, message_id: bytes, states: tuple[int, ...], now_ms: int, view: View) -> Named | None:
        """Return the message of a unique key's row. None if another message has the unique key by now, or if its state
        is not in `states`."""
        row = view.get(row_key)
        if row is None:
            return None
        state, named_id, sender, *marks, forgotten_ms = rows.unpack(row)
        is_forgotten = forgotten_ms is not None and forgotten_ms <= now_ms
        if state not in states or named_id != message_id or is_forgotten:
            return None
        return Named(state, named_id, sender, row_key, window=window_of(marks))
