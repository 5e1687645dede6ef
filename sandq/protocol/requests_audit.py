"""Requests for the audit log of the node that receives them.

AUDIT_LIST    [lines [text of JSON...], position str, lost u64]     lost: lines that this node could not keep
AUDIT_NOTE    []
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

from sandq.protocol.frames import Type
from sandq.protocol.request import Bounds, Request, characters

LINES_MOST: Final = 1000
"""Maximum number of lines in one reply."""
POSITION_CHARS: Final = 40
TEXT_CHARS: Final = 300
"""Maximum number of characters of each text in a note."""
_PARTS_MOST: Final = 10


def _check_about(value: Mapping[str, Any]) -> str | None:
    if len(value) > _PARTS_MOST:
        return f"{len(value)} members; {_PARTS_MOST} is the limit"
    if not all(type(name) is str and type(text) in (str, int) for name, text in value.items()):
        return "text or numbers by their names are expected"
    return None


class AuditList(Request, type=Type.AUDIT_LIST):
    """Return the last lines of the node's audit log, the oldest first. `after`: a position of an earlier reply; return
    only lines after this position."""

    last: Annotated[int, Bounds(1, LINES_MOST)]
    after: Annotated[str, characters(1, POSITION_CHARS)] | None


class AuditNote(Request, type=Type.AUDIT_NOTE):
    """Record that a gateway refused a request of the caller that it acts for (ON_BEHALF). `call` and `call_id` belong
    to the gateway's own API."""

    call: Annotated[str, characters(1, TEXT_CHARS)]
    about: Annotated[Mapping[str, Any], _check_about]
    result: Annotated[str, characters(1, 40)]
    call_id: Annotated[str, characters(0, TEXT_CHARS)]
