"""The paused tenants and keys of a group: merge the rows of all partition leaders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from sandq.model.errors import InvalidRequest, ProtocolError, SandqError
from sandq.model.pauses import KEY, PAUSES_MAX, REFUSED, TENANT, incomplete_pause
from sandq.protocol.frames import Frame

_REPLY: Final = 4
"""Number of items of a reply: type, id, rows, number of pauses that are left out."""
_FIELDS: Final[dict[str, tuple[type, ...]]] = {
    "tenant": (str, type(None)),
    "key": (bytes, type(None)),
    "key_hash": (int, type(None)),
    "until_ms": (int, type(None)),
    "partitions": (int,),
}
_Order = tuple[bool, str | int]


class PausedPart(NamedTuple):
    """A paused tenant or key of a group.

    `part`: "tenant" or "key". `tenant`: its name; the pause includes the tenants below it. `key`: None for a tenant,
    and for a key longer than 1,024 bytes, which is not stored with its pause. `until_ms`: latest end of the pause, over
    all partitions; None if it is paused until it is resumed. `partitions`: number of partitions in which it is paused.
    """

    part: str
    tenant: str | None
    key: bytes | None
    until_ms: int | None
    partitions: int


class GroupPauses(NamedTuple):
    """The paused tenants and keys of a group: tenants by name, then keys. `left_out`: there are at least this many
    further ones."""

    pauses: list[PausedPart]
    left_out: int


def pauses_of(frames: Iterable[Frame]) -> GroupPauses:
    """Merge the replies of all leaders. Raises ProtocolError."""
    found: dict[_Order, PausedPart] = {}
    least = 0
    for frame in frames:
        if len(frame) < _REPLY or type(frame[2]) is not list or type(frame[3]) is not int:
            raise ProtocolError(f"PAUSE_LIST reply: {str(frame[2:])[:100]}")
        least = max(least, len(frame[2]) + frame[3])
        for order, row in map(_paused_part, frame[2]):
            before = found.get(order)
            found[order] = row if before is None else _merged(before, row)
    # All leaders list the same order, so that the first ones of all are complete.
    shown = [row for _, row in sorted(found.items())[:PAUSES_MAX]]
    # The order of the hashes of keys means nothing to people.
    shown.sort(key=lambda row: (row.part == KEY, row.tenant or "", row.key is None, row.key or b""))
    return GroupPauses(shown, max(least, len(found)) - len(shown))


def merged_refusals(refusals: Sequence[InvalidRequest], total: int) -> SandqError:
    """Return one error for the partitions of all nodes that refused a pause. `total`: number of partitions of the
    topic. Raises ProtocolError."""
    refused: set[int] = set()
    for error in refusals:
        partitions = error.details[REFUSED]
        if type(partitions) is not list or not all(type(number) is int for number in partitions):
            raise ProtocolError(f"GROUP_PAUSE error: {str(error.details)[:100]}")
        refused.update(partitions)
    return incomplete_pause(max(total, len(refused)), refused=refused, reason=str(refusals[0].details.get("reason")))


def _paused_part(row: Any) -> tuple[_Order, PausedPart]:
    """Return the position of a part in the lists of leaders, and the part."""
    if type(row) is not dict or any([type(row.get(name)) not in types for name, types in _FIELDS.items()]):
        raise ProtocolError(f"PAUSE_LIST row: {str(row)[:100]}")
    tenant, key, key_hash, until_ms, partitions = [row[name] for name in _FIELDS]
    if (tenant is None) is (key_hash is None):
        raise ProtocolError(f"PAUSE_LIST row: {str(row)[:100]}")
    part = PausedPart(KEY if tenant is None else TENANT, tenant, key, until_ms, partitions)
    return (tenant is None, key_hash if tenant is None else tenant), part


def _merged(one: PausedPart, other: PausedPart) -> PausedPart:
    until_ms = None if one.until_ms is None or other.until_ms is None else max(one.until_ms, other.until_ms)
    return PausedPart(
        one.part,
        one.tenant,
        one.key if one.key is not None else other.key,
        until_ms,
        one.partitions + other.partitions,
    )
