"""The audit logs of all nodes, put together."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from sandq.model.errors import InvalidRequest, ProtocolError
from sandq.model.names import check_name
from sandq.protocol.frames import Frame
from sandq.protocol.requests_audit import LINES_MOST

_LIST: Final = 5
"""Items of a reply: type, id, lines, position, lost."""


class AuditPage(NamedTuple):
    """Lines of the audit logs, the oldest first. `position`: gives those that come later, as `after`. `lost`: how many
    lines each node could not keep since it started, of nodes that lost some; `missing`: why nothing is told of a
    node."""

    lines: list[dict[str, Any]]
    position: str
    lost: dict[str, int]
    missing: dict[str, str]


class NodeLines(NamedTuple):
    """What one node told."""

    lines: list[dict[str, Any]]
    position: str
    lost: int


def check_last(last: object) -> int:
    """How many lines are asked for. Raises InvalidRequest."""
    if type(last) is not int or not 1 <= last <= LINES_MOST:
        raise InvalidRequest(f"last: a whole number within 1..{LINES_MOST} is expected, not {last!r:.40}")
    return last


def positions_of(after: str | None) -> dict[str, str]:
    """By node. Raises InvalidRequest."""
    found = {}
    for part in after.split(",") if after else ():
        node, separator, position = part.partition("=")
        if not separator or not position:
            raise InvalidRequest(f"after: {part[:80]!r} is no position: give one that was told")
        found[check_name("node", node)] = position
    return found


def told_by(frame: Frame) -> NodeLines:
    """The reply to AUDIT_LIST."""
    if len(frame) < _LIST or [*map(type, frame[2:_LIST])] != [list, str, int]:
        raise ProtocolError("AUDIT_LIST reply: lines, a position and a number are expected")
    lines = []
    for text in frame[2]:
        try:
            line = json.loads(text)
        except (ValueError, TypeError):
            continue  # half of it was written when a node was killed
        if isinstance(line, dict):
            lines.append(line)
    return NodeLines(lines, *frame[3:_LIST])


def together(
    told: Mapping[str, NodeLines], before: Mapping[str, str], missing: dict[str, str], last: int | None
) -> AuditPage:
    """`before`: positions of nodes of which nothing may be told now; `last`: so many of all lines, None: all."""
    lines = [line for found in told.values() for line in found.lines]
    lines.sort(key=lambda line: str(line.get("time")))
    positions = {**before, **{node: found.position for node, found in told.items()}}
    return AuditPage(
        lines if last is None else lines[-last:],
        ",".join(f"{node}={position}" for node, position in sorted(positions.items())),
        {node: found.lost for node, found in sorted(told.items()) if found.lost},
        missing,
    )
