"""The request that carries a message: its headers."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from sandq.client import Message
from sandq.model.headers import headers_or_none
from sandq.model.times import format_instant
from sandq.model.webhooks import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign

Headers = list[tuple[bytes, bytes]]

PREFIX: Final = "sandq-"
HEADER_PREFIX: Final = "sandq-header-"
"""Before the names of the message's own headers."""
HEADERS_BASE64: Final = "sandq-headers-base64"
"""Name of the header that carries the message's stored headers, if they are no map with text keys."""
CONTENT_TYPE: Final = "content-type"
OCTETS: Final = "application/octet-stream"
HEADER_BYTES_MOST: Final = 12_288
"""Of the message's own headers and its key together: many servers take 16 KiB of a request's head. What does not fit is
left out, and `sandq-left-out` counts it: a request that is refused for its head would have its message end as dead."""
HEADER_MOST_BYTES: Final = 8000
"""Of one of them: many servers take lines of 8 KiB."""
HEADERS_MOST: Final = 64
"""Of them: many servers take 100 headers in all."""
_NAME_SAFE: Final = "!#$&'*+-.^_`|~"
_VALUE_SAFE: Final = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"


def webhook_id(topic: str, partition: int, message_id: str) -> str:
    """Return what a receiver knows a message by: the same at each attempt, of no other message of the cluster. It has
    no dots, for those stand between the parts that are signed."""
    return f"{topic.replace('.', '%2E')}_{partition}_{message_id}"


def headers_of(message: Message, group: str, secrets: Sequence[str], now_s: int, agent: str) -> Headers:
    """Return the headers of the request for one attempt, but for Host and Content-Length."""
    cell = message.headers_bytes
    own = headers_or_none(cell or None)
    body = message.value or b""
    name = webhook_id(message.topic, message.partition, message.id)
    fixed = {
        "user-agent": agent,
        "accept-encoding": "identity",
        CONTENT_TYPE: _content_type(own or {}),
        ID_HEADER: name,
        TIMESTAMP_HEADER: str(now_s),
        SIGNATURE_HEADER: sign(secrets, name, now_s, body),
        "sandq-topic": message.topic,
        "sandq-group": group,
        "sandq-partition": str(message.partition),
        "sandq-message-id": message.id,
        "sandq-attempt": str(message.attempt),
        "sandq-deliver-at": format_instant(message.deliver_at_ms),
    }
    if message.deleted:
        fixed["sandq-deleted"] = "true"
    found = [(key.encode("ascii"), value.encode("ascii")) for key, value in fixed.items()]
    return found + _own_headers(message.key, own, cell)


def _own_headers(key: bytes | None, own: dict[str, Any] | None, cell: bytes | None) -> Headers:
    """Return the headers that users chose, as far as they fit: the key, and the headers of the message. `own`: None if
    `cell`, the stored headers, is no map; it is sent in base64 then."""
    wanted = [] if key is None else [("sandq-key", quote(key, safe=_VALUE_SAFE.strip()))]
    if own is None:
        wanted.append((HEADERS_BASE64, b64encode(cell or b"").decode()))
    wanted += [
        (HEADER_PREFIX + quote(str(header).lower(), safe=_NAME_SAFE), encoded(value))
        for header, value in (own or {}).items()
        if not (header.lower() == CONTENT_TYPE and _is_plain(value))
    ]
    found: Headers = []
    left, left_out = HEADER_BYTES_MOST, 0
    for header, value in wanted:
        size = len(header) + len(value) + 4
        if size > min(left, HEADER_MOST_BYTES) or len(found) == HEADERS_MOST:
            left_out += 1
            continue
        left -= size
        found.append((header.encode("ascii"), value.encode("ascii")))
    return found + ([(b"sandq-left-out", str(left_out).encode())] if left_out else [])


def encoded(value: object) -> str:
    """Write the value of a header: UTF-8, percent-encoded where it is not printable ASCII, and where it is a `%`."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_base64)
    data = value if isinstance(value, bytes) else str(value).encode(errors="replace")
    text = quote(data, safe=_VALUE_SAFE)
    # A server strips spaces at the ends.
    inner = text.strip(" ")
    start = len(text) - len(text.lstrip(" "))
    return text if inner == text else "%20" * start + inner + "%20" * (len(text) - len(inner) - start)


def _base64(data: bytes) -> dict[str, str]:
    """Return bytes inside a map or an array as JSON has them."""
    return {"base64": b64encode(data).decode()}


def _content_type(own: dict[str, Any]) -> str:
    for header, value in own.items():
        if header.lower() == CONTENT_TYPE and _is_plain(value):
            return value.strip() if isinstance(value, str) else value.decode("ascii").strip()
    return OCTETS


def _is_plain(value: object) -> bool:
    """Whether it can be a content type as it stands."""
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    return isinstance(value, str) and 0 < len(value.strip()) <= 255 and value.isascii() and value.isprintable()
