"""What a message that stands in a log row with others has otherwise than that row says: another priority, or another
value and headers. A row beside the log says so, and goes before what the shared row says. A message with a log row of
its own has all of that there.

Rows: `OVERLAY` and the offset, `[priority]`, or `[priority | nil, bytes]`: then all fields of the
message, so many bytes of them, are in the row `UPDATED` and the offset. Both go with the message.
"""

from __future__ import annotations

from typing import NamedTuple

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.partition.base import rows
from sandq.partition.base.rows import Fields
from sandq.partition.base.step import Step
from sandq.partition.base.view import View

_ALL = 1 << 40


class Overlay(NamedTuple):
    """What is beside the row of a message."""

    priority: int | None = None
    """None: as the message's fields say."""
    size: int = 0
    """Bytes of its fields; 0: they are those of the row that it shares."""


Overlays = dict[bytes, Overlay]
"""By offset."""


def put_priority(step: Step, offset: bytes, priority: int) -> Overlay:
    """Give a message another priority than the row has that it shares."""
    return _put(step, offset, Overlay(priority, (of(step.view, offset) or Overlay()).size))


def put_fields(step: Step, offset: bytes, fields: Fields) -> tuple[int, int]:
    """Give a message other fields than the row has that it shares, all of which are given. Their bytes, and how many
    more these are than it had beside its row."""
    before = of(step.view, offset) or Overlay()
    packed = rows.pack(fields)
    step.view.put(rows.UPDATED + offset, packed)
    _put(step, offset, Overlay(before.priority, len(packed)))
    return len(packed), len(packed) - before.size


def _put(step: Step, offset: bytes, overlay: Overlay) -> Overlay:
    priority, size = overlay
    step.view.put(rows.OVERLAY + offset, rows.pack(priority, size) if size else rows.pack(priority))
    step.view.has_overlays = True
    return overlay


def of(view: View, offset: bytes) -> Overlay | None:
    """Return what a message has beside its row; None: nothing."""
    if not are_there(view):
        return None
    value = view.get(rows.OVERLAY + offset)
    return None if value is None else _load(value)


def between(view: View, first: bytes, length: int) -> Overlays:
    """Return what those messages of a row have beside it that have something: of so many of them, from `first` on."""
    if view.has_overlays is False:  # most often
        return {}
    return among(view, first, offsets.shift(first, length - 1))


def among(view: View, first: bytes, last: bytes) -> Overlays:
    """As `between`, of messages of several rows."""
    if not are_there(view):
        return {}
    found = view.scan(rows.OVERLAY + first, rows.after(rows.OVERLAY + last), limit=_ALL, max_bytes=_ALL)
    return {key[1:]: _load(value) for key, value in found}


def laid_over(view: View, others: Overlays, offset: bytes, fields: Fields) -> Fields:
    """Return the fields of a message of a row with what `between` found beside that row."""
    other = others.get(offset)
    if other is None:
        return fields
    if other.size:
        packed = view.get(rows.UPDATED + offset)
        assert packed is not None, "an overlay that has a size has fields"
        fields = rows.unpack(packed)[0]
    return fields if other.priority is None else fields | {Column.PRIORITY: other.priority}


def drop(step: Step, first: bytes, length: int) -> int:
    """Forget those of messages that stand in their row no more: so many, from `first` on. How many bytes of fields went
    with them."""
    view = step.view
    if length > 1:
        found = between(view, first, length)
    else:
        other = of(view, first)
        found = {} if other is None else {first: other}
    for offset, other in found.items():
        view.delete(rows.OVERLAY + offset)
        if other.size:
            view.delete(rows.UPDATED + offset)
    return sum([other.size for other in found.values()])


def size_between(view: View, first: bytes, length: int) -> int:
    """Return how many bytes of fields are beside a row, of so many of its messages, from `first` on."""
    return sum([other.size for other in between(view, first, length).values()])


def are_there(view: View) -> bool:
    """Return whether there may be some at all."""
    if view.has_overlays is None:
        view.has_overlays = bool(view.scan(*rows.tag_bounds(rows.OVERLAY), limit=1, max_bytes=1))
    return view.has_overlays


def _load(value: bytes) -> Overlay:
    return Overlay(*rows.unpack(value))
