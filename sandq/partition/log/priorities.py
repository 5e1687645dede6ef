"""Another priority of a message that stands in a log row with others: a row of its own says it, and goes before what
that one says. A message with a log row of its own has its priority there.

Rows: `PRIORITY` and the offset. They go with the message.
"""

from __future__ import annotations

from sandq.model import offsets
from sandq.model.batch import Column
from sandq.partition import rows
from sandq.partition.rows import Fields
from sandq.partition.view import View

_ALL = 1 << 40


def put(view: View, offset: bytes, priority: int) -> None:
    """Give a message another priority than the row has that it shares."""
    view.put(rows.PRIORITY + offset, rows.pack(priority))
    view.has_priorities = True


def of(view: View, offset: bytes) -> int | None:
    """Return the priority that a message has beside its row; None: what that says counts."""
    if not are_there(view):
        return None
    value = view.get(rows.PRIORITY + offset)
    return None if value is None else _load(value)


def between(view: View, first: bytes, length: int) -> dict[bytes, int]:
    """Return the priorities, by offset, of those messages of a row that have another one than it says: of so many of
    them, from `first` on."""
    if view.has_priorities is False:  # most often
        return {}
    return among(view, first, offsets.shift(first, length - 1))


def among(view: View, first: bytes, last: bytes) -> dict[bytes, int]:
    """As `between`, of messages of several rows."""
    if not are_there(view):
        return {}
    found = view.scan(rows.PRIORITY + first, rows.after(rows.PRIORITY + last), limit=_ALL, max_bytes=_ALL)
    return {key[1:]: _load(value) for key, value in found}


def laid_over(others: dict[bytes, int], offset: bytes, fields: Fields) -> Fields:
    """Return the fields of a message with the priority that `between` found for it."""
    priority = others.get(offset)
    return fields if priority is None else fields | {Column.PRIORITY: priority}


def drop(view: View, first: bytes, length: int) -> None:
    """Forget those of messages that stand in their row no more: so many, from `first` on."""
    if length > 1:
        for offset in between(view, first, length):
            view.delete(rows.PRIORITY + offset)
    elif of(view, first) is not None:
        view.delete(rows.PRIORITY + first)


def are_there(view: View) -> bool:
    """Return whether there may be some at all."""
    if view.has_priorities is None:
        view.has_priorities = bool(view.scan(*rows.tag_bounds(rows.PRIORITY), limit=1, max_bytes=1))
    return view.has_priorities


def _load(value: bytes) -> int:
    priority: int = rows.unpack(value)[0]
    return priority
