"""Unique keys: a producer's own names for its pending messages, unique within what routes the message.

In a fair topic that is the tenant. Elsewhere it is the key of a message that has one: the pair (key, unique key) is the
name. A unique key without a key routes its message itself.

Row of a key: `[state, id, sender | nil, forgotten at ms | nil]`. A key is *held* until a group makes an attempt at its
message, then *attempted* until every other group has passed the message too: from then on it is *delivered*, and still
refuses another one for `dedup_window`. One whose message was cancelled is free, and is remembered so that a repeated
cancel is answered as the first time.

A group passes a message also by a seek, by its end, or by being made above it, and no key is looked up then: that an
attempted one has been passed by all is found by whoever asks for it next, or when the message leaves the log.

The sender is `[producer id, epoch, sequence, position in the batch]`: a producer that sends a batch again because it
had no answer meets its own message, which is no conflict. What becomes of a message whose key is taken says
`resolve_conflict`.
"""

from __future__ import annotations

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
"""What becomes of a message whose key stands for another one: it is stored; so it is, and the other one is cancelled
if it is pending; it is not stored, and answered with the id of the other one; it is refused."""

DELIVERED_STATE: Final = "delivered"
Sender = tuple[int, int, int, int]
_DEFAULT_TENANT: Final = DEFAULT_TENANT.encode()


class Named(NamedTuple):
    """What a unique key stands for."""

    state: int
    id: bytes
    sender: Sender | None
    row_key: bytes
    """Of its row."""


def resolve_conflict(named: Named, claim: Claim | None, on_conflict: int, sender: Sender | None) -> int:
    """Decide about a message whose unique key stands for another one: `STORED`, `REPLACES`, `IGNORED` or `REFUSED`.
    `on_conflict`: what its producer wants. `claim`: on the other message; None: it is nowhere any more."""
    if named.state == CANCELLED:
        return STORED
    if sender is not None and named.sender == sender:
        return IGNORED  # it is this very message, sent again
    is_settled = claim is None or claim.is_settled
    if named.state == HELD and is_settled:
        return STORED  # no group leased it, and all passed it over (a seek, a start at the latest)
    if on_conflict in (c.REJECT, c.IGNORE):
        return REFUSED if on_conflict == c.REJECT else IGNORED
    if is_settled:
        return STORED if on_conflict == c.REPLACE else REFUSED
    assert claim is not None
    # That nobody ever leased it is known: a group that is above it passed it over.
    is_free = claim.refusal is None or (named.state == HELD and claim.refusal == ACKED)
    return REPLACES if is_free else REFUSED


def claimed_state(offset: bytes | None, claim: Claim | None, now_ms: int) -> str:
    """How the message is that has a unique key, which stands at this offset, with what groups made of it; None: it is
    nowhere any more."""
    if claim is None or offset is None:
        return DELIVERED_STATE
    if claim.refusal is not None:
        return claim.refusal
    return WAITING if claim.waiting else state_of(offset, now_ms)


def state_of(offset: bytes | None, now_ms: int) -> str:
    """How the message is that keeps a unique key: it is pending at this offset, or None."""
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
        """Return the message that a unique key stands for, or None if it is free. `tenant`: None stands for `default`.
        `key_digest`: of the key within which it is unique."""
        row_key = self._row_key(unique_key, tenant, key_digest)
        row = view.get(row_key)
        if row is None:
            return None
        state, message_id, sender, forgotten_ms = rows.unpack(row)
        if forgotten_ms is not None and forgotten_ms <= now_ms:
            return None
        return Named(state, message_id, None if sender is None else tuple(sender), row_key)

    def hold(
        self,
        step: Step,
        unique_key: bytes,
        tenant: bytes | None,
        message_id: bytes,
        sender: Sender | None,
        *,
        key_digest: bytes | None = None,
    ) -> None:
        """Note that the message of this id is pending under the unique key. `key_digest` is as for `find`."""
        row_key = self._row_key(unique_key, tenant, key_digest)
        step.view.put(row_key, rows.pack(HELD, message_id, sender, None))

    def mark_delivered(self, step: Step, group: Group, entry: LogEntry) -> None:
        """A group leases the message of a log entry, or it dies there: once every group has passed it, the key refuses
        others for `dedup_window` still."""
        view = step.view
        extra = entry.extra
        if extra is None or extra.unique_key is None:
            return
        row_key = self._row_key(extra.unique_key, extra.tenant, extra.key_digest)
        if not self._groups.is_pending_elsewhere(group, entry.first, view):
            self._end(step, row_key, extra.id, (HELD, ATTEMPTED), DELIVERED, self._window_ms)
        elif (named := self._named(row_key, extra.id, (HELD,), step.now_ms, view)) is not None:
            view.put(row_key, rows.pack(ATTEMPTED, extra.id, named.sender, None))

    def end_attempted(self, step: Step, named: Named) -> bool:
        """Refuse others for `dedup_window` still: every group has passed the message of an attempted key by now.
        Whether there is such a window."""
        window_ms = self._window_ms
        self._end(step, named.row_key, named.id, (ATTEMPTED,), DELIVERED, window_ms)
        return window_ms > 0

    def mark_cancelled(self, step: Step, extra: Extra) -> None:
        """Free the key, and remember it so that a repeated cancel is answered likewise."""
        if extra.unique_key is not None:
            states = (HELD, ATTEMPTED, DELIVERED)
            row_key = self._row_key(extra.unique_key, extra.tenant, extra.key_digest)
            self._end(step, row_key, extra.id, states, CANCELLED, CANCEL_MEMORY_MS)

    def release(self, step: Step, extra: Extra, offset: bytes) -> None:
        """Let go of the key of a message that leaves the log, and no group keeps: free it, if no group ever leased it
        (a seek passed it)."""
        if extra.unique_key is None:
            return
        row_key = self._row_key(extra.unique_key, extra.tenant, extra.key_digest)
        if self._shared.is_ordered and self._groups.is_blocked(offset):
            return  # a group has it yet to take, from a row of its own
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
    ) -> None:
        """Bring the key into another state for `window_ms`, and then forget it, if it is in one of `states`."""
        named = self._named(row_key, message_id, states, step.now_ms, step.view)
        if named is None:
            return
        if window_ms:
            self._expiring_rows.put(step, row_key, step.now_ms + window_ms, state, message_id, named.sender)
        else:
            step.view.delete(row_key)

    @staticmethod
    def _named(row_key: bytes, message_id: bytes, states: tuple[int, ...], now_ms: int, view: View) -> Named | None:
        """Return what a row says of a message if it is in one of these states; None if another message has the unique
        key by now, or another group had leased this one before."""
        row = view.get(row_key)
        if row is None:
            return None
        state, named_id, sender, forgotten_ms = rows.unpack(row)
        is_forgotten = forgotten_ms is not None and forgotten_ms <= now_ms
        if state not in states or named_id != message_id or is_forgotten:
            return None
        return Named(state, named_id, sender, row_key)
