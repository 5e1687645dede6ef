"""Names of queues as names of topics and groups: reversible, and unchanged if the name is allowed in sandq.

A byte that is not allowed is written as `x-` and two hexadecimal digits: `celery@host` becomes `celeryx-40host`. The
same is done with the first byte of names that begin with a reserved prefix, and with the `x` of a literal `x-`.
"""

from __future__ import annotations

import re
from typing import Final

from sandq.errors import InvalidName

RESERVED: Final = ("sandq.", "kombu.")
"""Prefixes of topics that are not queues."""
_ALLOWED: Final = re.compile(rb"[A-Za-z0-9._-]")
_FIRST: Final = re.compile(rb"[A-Za-z0-9]")
_ESCAPED: Final = re.compile(rb"x-([0-9a-f]{2})")
_NAME_CHARS: Final = 249
"""Maximum length of the name of a topic or a group."""


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
