"""Names of queues as names of topics and groups: reversible, and unchanged if the name is allowed in sandq. Ids of
tasks as unique keys.

A byte that is not allowed is written as `x-` and two hexadecimal digits: `celery@host` becomes `celeryx-40host`. The
same is done with the first byte of names that begin with a reserved prefix, and with the `x` of a literal `x-`.
"""

from __future__ import annotations

import hashlib
import re
import uuid
from typing import Final

from sandq.errors import InvalidName

RESERVED: Final = ("sandq.", "kombu.")
"""Prefixes of topics that are not queues."""
_ALLOWED: Final = re.compile(rb"[A-Za-z0-9._-]")
_FIRST: Final = re.compile(rb"[A-Za-z0-9]")
_ESCAPED: Final = re.compile(rb"x-([0-9a-f]{2})")
_NAME_CHARS: Final = 249
"""Maximum length of the name of a topic or a group."""

KEY_BYTES: Final = 200
"""Maximum length of a task's id that is the unique key itself. The key of a longer id is its hash."""


def encoded(name: str, *, prefix: str = "") -> str:
    """Return the name of the topic or group of a queue. Raises InvalidName if it is empty or too long."""
    data = name.encode("utf-8", "surrogatepass")
    is_reserved = name.startswith(RESERVED)
    parts = [prefix]
    for index in range(len(data)):
        byte = data[index : index + 1]
        is_escape = byte == b"x" and data[index + 1 : index + 2] == b"-"
        is_allowed = _ALLOWED.match(byte) if index else _FIRST.match(byte) and not is_reserved
        parts.append(byte.decode() if is_allowed and not is_escape else f"x-{byte.hex()}")
    found = "".join(parts)
    if not name or len(found) > _NAME_CHARS:
        raise InvalidName(
            f"queue name {name[:80]!r}: it has {len(found)} characters as a topic, and 1 to {_NAME_CHARS} are allowed"
        )
    return found


def decoded(topic: str, *, prefix: str = "") -> str:
    """Return the name of the queue whose topic or group this is."""
    data = topic.removeprefix(prefix).encode()
    return _ESCAPED.sub(lambda found: bytes.fromhex(found[1].decode()), data).decode("utf-8", "surrogatepass")


def key_of(task_id: object) -> str:
    """Return the unique key of a task."""
    text = str(task_id)
    data = text.encode("utf-8", "surrogatepass")
    return text if len(data) <= KEY_BYTES and text.isprintable() else f"sha256:{hashlib.sha256(data).hexdigest()}"


def id_of_message(name: str) -> uuid.UUID:
    """Return the id of a task that a schedule has sent. `name`: topic and id of its message, which are the same each
    time it is delivered."""
    return uuid.uuid5(uuid.NAMESPACE_URL, f"sandq:{name}")
