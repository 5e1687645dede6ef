"""Choose which requests the audit log records, and which of their fields. Values, keys, headers and secrets are never
recorded."""

from __future__ import annotations

from typing import Any, Final

from sandq.protocol.frames import Frame, Type
from sandq.protocol.request import REQUESTS
from sandq.protocol.requests_admin import CHECK

ACTS: Final = frozenset(
    {
        *(Type.MOVE, Type.CANCEL, Type.JOB_START, Type.JOB_STOP),
        *(Type.TOPIC_CREATE, Type.TOPIC_DELETE, Type.TOPIC_UPDATE),
        *(Type.GROUP_SEEK, Type.GROUP_DELETE, Type.GROUP_UPDATE, Type.GROUP_PAUSE, Type.GROUP_LIMIT, Type.GROUP_PUSH),
        *(Type.HOLD, Type.DEAD_REDRIVE, Type.DEAD_PURGE),
        *(Type.CLUSTER_INIT, Type.CLUSTER_CLOCK, Type.NODE_CHANGE, Type.TRANSFER, Type.REBUILD, Type.CLOCK_RESET),
        *(Type.FINALIZE, Type.LOG_LEVEL, Type.DEBUG_DUMP, Type.ENTRY_SKIP),
        *(Type.SCHEDULE_PUT, Type.SCHEDULE_CHANGE),
        *(Type.IDENTITY_PUT, Type.IDENTITY_DELETE, Type.ROLE_PUT, Type.ROLE_DELETE),
        *(Type.BACKUP_ACCESS, Type.BACKUP_BEGIN, Type.RESTORE_TOPIC, Type.RESTORE_BEGIN, Type.RESTORE_END),
        *(Type.RESTORE_OPEN, Type.BACKUP_LOG),
    }
)
"""Types of requests that change managed objects, the cluster or its users, or that read everything."""
FREQUENT: Final = frozenset({Type.MOVE, Type.CANCEL, Type.SCHEDULE_PUT, Type.SCHEDULE_CHANGE, Type.HOLD})
"""Recorded types that applications may send frequently."""
_SHOWN: Final = frozenset(
    {
        *("topic", "name", "group", "partition", "node", "action", "kind", "partitions", "replicas", "paused"),
        *("principal", "grants", "is_new", "level", "dry_run", "entry", "commands", "force", "mode"),
    }
)
"""Fields of a request that are recorded."""
_CHANGES: Final = ("grants", "add", "remove", "expires_ms", "quota")
"""Changes of an identity that are recorded. Changes of its credentials are not."""


_ASKING: Final = {Type.CLUSTER_CLOCK: "show", Type.LOG_LEVEL: None}
"""By request type: value of the first field with which a request only reads. Such a request is not recorded."""
_DELETE_MODE: Final = 4
"""Position of `mode` in GROUP_DELETE. A deletion that only checks is not recorded."""
_LOG_PIN: Final = 5
"""Position of `pin` in BACKUP_LOG. Only the first read of a log has no pin, and only the first read is recorded: all
further reads would fill the audit log."""


def is_act(frame: Frame) -> bool:
    """Return whether a request is recorded even if it is not refused."""
    if frame[0] == Type.BACKUP_LOG:
        return frame[_LOG_PIN : _LOG_PIN + 1] == [None]
    if frame[0] == Type.GROUP_DELETE and frame[_DELETE_MODE : _DELETE_MODE + 1] == [CHECK]:
        return False
    return frame[0] in ACTS and not (frame[0] in _ASKING and frame[2:3] == [_ASKING[frame[0]]])


def name_of(kind: int) -> str:
    """Return the name of a request type, as in metrics and logs."""
    try:
        return Type(kind).name.lower()
    except ValueError:
        return str(kind)


def about(frame: Frame) -> dict[str, Any]:
    """Return the recorded fields of a request. The frame is not validated yet."""
    kind = frame[0]
    request = REQUESTS.get(kind)
    if request is None:
        return {}
    is_of_topics = name_of(kind).startswith("topic_")
    found = {}
    for field, value in zip(request.shape.fields, frame[2:], strict=False):
        if field.name in _SHOWN and value is not None and isinstance(value, str | int | list | dict):
            found["topic" if field.name == "name" and is_of_topics else field.name] = value
    changes = frame[4] if kind == Type.IDENTITY_PUT and len(frame) > 4 else None
    if isinstance(changes, dict):
        found |= {name: changes[name] for name in _CHANGES if name in changes}
    return found
