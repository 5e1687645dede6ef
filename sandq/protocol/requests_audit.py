"""Requests about the audit log of the node that is asked.

AUDIT_LIST    [lines [text of JSON...], position str, lost u64]     lost: lines that this node could not keep
AUDIT_NOTE    []
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from sandq.protocol.frames import Type
from sandq.protocol.request import Bounds, Request, characters

LINES_MOST: Final = 1000
"""Of one answer."""
POSITION_CHARS: Final = 40
TEXT_CHARS: Final = 300
"""Of each text in a note."""
_PARTS_MOST: Final = 10


def _check_about(value: Mapping[str, Any]) -> str | None:
    if len(value) > _PARTS_MOST:
        return f"{len(value)} members; {_PARTS_MOST} is the limit"
    if not all(type(name) is str and type(text) in (str, int) for name, text in value.items()):
        return "text or numbers by their names are expected"
    return None


class AuditList(Request, type=Type.AUDIT_LIST):
    """The last lines of the node's audit log, the oldest first; with `after`, a position that was told, those behind
    it."""

    last: Annotated[int, Bounds(1, LINES_MOST)]
    after: Annotated[str, characters(1, POSITION_CHARS)] | None


class AuditNote(Request, type=Type.AUDIT_NOTE):
    """Note what a gateway refused whom it asks for (ON_BEHALF); `call` and `call_id` are of its own API."""

    call: Annotated[str, characters(1, TEXT_CHARS)]
    about: Annotated[Mapping[str, Any], _check_about]
    result: Annotated[str, characters(1, 40)]
    call_id: Annotated[str, characters(0, TEXT_CHARS)]
