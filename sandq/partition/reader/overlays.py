"""Overlays: changed values of a message, which override the values in its batch row.

A producer may change the priority, the value or the headers of a message in a batch row. The changes are stored in rows
of their own, which override the batch row. A message with a log row of its own needs no overlay.

Rows: `OVERLAY` and the offset: `[priority]`, or `[priority | nil, bytes]`. If it has `bytes`, the row `UPDATED` and the
offset contains all fields of the message, in this many bytes. Both rows are deleted with the message.
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
    """The overlay of a message."""

    priority: int | None = None
    """Priority that overrides the message's fields. None: not overridden."""
    size: int = 0
    """Size of the overlaid fields, in bytes. 0 if the fields of the batch row apply."""


Overlays = dict[bytes, Overlay]
"""Overlays by offset."""


def put_priority(step: Step, offset: bytes, priority: int) -> Overlay:
    """Override the priority of a message in a batch row."""
    return _put(step, offset, Overlay(priority, (of(step.view, offset) or Overlay()).size))


def put_fields(step: Step, offset: bytes, fields: Fields) -> tuple[int, int]:
    """Override the fields of a message in a batch row with `fields`, which must be complete. Return (their bytes,
    increase over the bytes of the previous overlay)."""
    before = of(step.view, offset) or Overlay()
    packed = rows.pack(fields)
    step.view.put(rows.UPDATED + offset, packed)
    _put(step, offset, Overlay(before.priority, len(packed)))
    return len(packed), len(packed) - before.size


def _put(step: Step, offset: bytes, overlay: Overlay) -> Overlay:
    """Store the overlay of a message, and return it."""
    priority, size = overlay
    step.view.put(rows.OVERLAY + offset, rows.pack(priority, size) if size else rows.pack(priority))
    step.view.has_overlays = True
    return overlay


def of(view: View, offset: bytes) -> Overlay | None:
    """Return the overlay of a message. None if there is none."""
    if not are_there(view):
        return None
    value = view.get(rows.OVERLAY + offset)
    return None if value is None else _load(value)


def between(view: View, first: bytes, length: int) -> Overlays:
    """Return the overlays of the `length` messages from `first` on, which must be in one row."""
    if view.has_overlays is False:  # the usual case
        return {}
    return among(view, first, offsets.shift(first, length - 1))


def among(view: View, first: bytes, last: bytes) -> Overlays:
    """Return overlays like `between`, for messages that may be in several rows."""
    if not are_there(view):
        return {}
    found = view.scan(rows.OVERLAY + first, rows.after(rows.OVERLAY + last), limit=_ALL, max_bytes=_ALL)
    return {key[1:]: _load(value) for key, value in found}


def laid_over(view: View, others: Overlays, offset: bytes, fields: Fields) -> Fields:
    """Return the fields of a message with its overlay applied. `fields`: as in the row; `others`: result of `between`
    for the row."""
    other = others.get(offset)
    if other is None:
        return fields
    if other.size:
        packed = view.get(rows.UPDATED + offset)
        assert packed is not None, "an overlay with a size has a row of fields"
        fields = rows.unpack(packed)[0]
    return fields if other.priority is None else fields | {Column.PRIORITY: other.priority}


def drop(step: Step, first: bytes, length: int) -> int:
    """Delete the overlays of `length` messages from `first` on, whose log row was deleted. Return the bytes of the
    deleted fields."""
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
    """Return the bytes of overlaid fields of `length` messages from `first` on."""
    return sum([other.size for other in between(view, first, length).values()])


def are_there(view: View) -> bool:
    """Return whether there may be any overlays."""
    if view.has_overlays is None:
        view.has_overlays = bool(view.scan(*rows.tag_bounds(rows.OVERLAY), limit=1, max_bytes=1))
    return view.has_overlays


def _load(value: bytes) -> Overlay:
    """Return the overlay in the value of its row."""
    return Overlay(*rows.unpack(value))
