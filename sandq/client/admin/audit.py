"""Combine the audit logs of all nodes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sandq.model.errors import InvalidRequest, ProtocolError
from sandq.model.names import check_name
from sandq.protocol.frames import Frame
from sandq.protocol.requests_audit import LINES_MOST

_LIST: Final = 5
"""Number of items of a reply: type, id, lines, position, lost."""


class AuditPage(NamedTuple):
    """Lines of the audit logs, oldest first.

    `position`: pass it as `after` to get later lines. `lost`: by node, the number of lines that the node could not
    store since it started; only for nodes that lost lines. `missing`: by node, the reason why its lines are missing.
    """

    lines: list[dict[str, Any]]
    position: str
    lost: dict[str, int]
    missing: dict[str, str]


class NodeReply(NamedTuple):
    """The reply of one node."""

    lines: list[dict[str, Any]]
    position: str
    lost: int


def check_last(last: object) -> int:
    """Return the requested number of lines. Raises InvalidRequest."""
    if type(last) is not int or not 1 <= last <= LINES_MOST:
        raise InvalidRequest(f"last: a whole number within 1..{LINES_MOST} is expected, not {last!r:.40}")
    return last


def positions_of(after: str | None) -> dict[str, str]:
    """Return the position in the log of each node. Raises InvalidRequest."""
    found = {}
    for part in after.split(",") if after else ():
        node, separator, position = part.partition("=")
        if not separator or not position:
            raise InvalidRequest(f"after: {part[:80]!r} is no position: use the position of an earlier answer")
        found[check_name("node", node)] = position
    return found


def parse_reply(frame: Frame) -> NodeReply:
    """Parse the reply to AUDIT_LIST. Raises ProtocolError."""
    if len(frame) < _LIST or [*map(type, frame[2:_LIST])] != [list, str, int]:
        raise ProtocolError("AUDIT_LIST reply: lines, a position and a number are expected")
    lines = []
    for text in frame[2]:
        try:
            line = json.loads(text)
        except (ValueError, TypeError):
            continue  # incomplete: the node was killed while it wrote the line
        if isinstance(line, dict):
            lines.append(line)
    return NodeReply(lines, *frame[3:_LIST])


def merge(
    replies: Mapping[str, NodeReply], before: Mapping[str, str], missing: dict[str, str], last: int | None
) -> AuditPage:
    """Merge the replies. `before`: positions of the last page, kept for nodes that do not reply now. `last`: number of
    lines; None for all."""
    lines = [line for found in replies.values() for line in found.lines]
    lines.sort(key=lambda line: str(line.get("time")))
    positions = {**before, **{node: found.position for node, found in replies.items()}}
    return AuditPage(
        lines if last is None else lines[-last:],
        ",".join(f"{node}={position}" for node, position in sorted(positions.items())),
        {node: found.lost for node, found in sorted(replies.items()) if found.lost},
        missing,
    )
