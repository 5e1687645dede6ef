"""Build the headers of the request for a message."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Final
from urllib.parse import quote

from sandq.client import Message
from sandq.model.headers import headers_or_none
from sandq.model.message_targets import PUSH_HEADER, OwnHeaders
from sandq.model.times import format_instant
from sandq.model.webhooks import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, sign

Headers = list[tuple[bytes, bytes]]

PREFIX: Final = "sandq-"
HEADER_PREFIX: Final = "sandq-header-"
"""Prefix of the names of the message's own headers."""
HEADERS_BASE64: Final = "sandq-headers-base64"
"""Name of the header with the message's stored headers, if they are not a map with text keys."""
CONTENT_TYPE: Final = "content-type"
OCTETS: Final = "application/octet-stream"
HEADER_BYTES_MOST: Final = 12_288
"""Maximum total size of the message's own headers and its key: many servers accept 16 KiB of headers.

Headers that do not fit are left out, and `sandq-left-out` counts them: otherwise the server would reject the request,
and the message would become a dead letter.
"""
HEADER_MOST_BYTES: Final = 8000
"""Maximum size of one header of the message, in bytes: many servers accept lines of 8 KiB."""
HEADERS_MOST: Final = 64
"""Maximum number of headers of the message: many servers accept 100 headers in total."""
_NAME_SAFE: Final = "!#$&'*+-.^_`|~"
_VALUE_SAFE: Final = " !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~"


def webhook_id(topic: str, partition: int, message_id: str) -> str:
    """Return the id by which a receiver recognizes a message: the same for each attempt, unique in the cluster.

    It contains no dots, because dots separate the signed parts.
    """
    return f"{topic.replace('.', '%2E')}_{partition}_{message_id}"


def headers_of(
    message: Message, group: str, secrets: Sequence[str], now_s: int, agent: str, *, added: OwnHeaders = ()
) -> Headers:
    """Return the headers of the request for one attempt, without Host and Content-Length.

    `added`: headers of the push or of the message's target. They replace the content type and the agent.
    """
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
    fixed |= added
    found = [(key.encode("ascii"), value.encode("ascii")) for key, value in fixed.items()]
    left = HEADER_BYTES_MOST - sum([len(name) + len(value) + 4 for name, value in added])
    return found + _own_headers(message.key, own, cell, left)


def _own_headers(key: bytes | None, own: dict[str, Any] | None, cell: bytes | None, left: int) -> Headers:
    """Return the key and the headers of the message, as far as they fit into `left` bytes.

    The target of the message is left out: it may contain secrets for another receiver. `cell`: the stored headers.
    `own`: the headers as a map. None if the stored headers are not a map; they are then sent in base64, unless the name
    of the target is in them.
    """
    wanted = [] if key is None else [("sandq-key", quote(key, safe=_VALUE_SAFE.strip()))]
    has_target = own is None and PUSH_HEADER.encode() in (cell or b"")
    if own is None and not has_target:
        wanted.append((HEADERS_BASE64, b64encode(cell or b"").decode()))
    wanted += [
        (HEADER_PREFIX + quote(str(header).lower(), safe=_NAME_SAFE), encoded(value))
        for header, value in (own or {}).items()
        if not (header.lower() == CONTENT_TYPE and _is_plain(value)) and header != PUSH_HEADER
    ]
    found: Headers = []
    left_out = int(has_target)
    for header, value in wanted:
        size = len(header) + len(value) + 4
        if size > min(left, HEADER_MOST_BYTES) or len(found) == HEADERS_MOST:
            left_out += 1
            continue
        left -= size
        found.append((header.encode("ascii"), value.encode("ascii")))
    return found + ([(b"sandq-left-out", str(left_out).encode())] if left_out else [])


def encoded(value: object) -> str:
    """Encode the value of a header as UTF-8; percent-encode it where it is not printable ASCII or is a `%`."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (dict, list)):
        value = json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=_base64)
    data = value if isinstance(value, bytes) else str(value).encode(errors="replace")
    text = quote(data, safe=_VALUE_SAFE)
    # A server strips spaces at both ends.
    inner = text.strip(" ")
    start = len(text) - len(text.lstrip(" "))
    return text if inner == text else "%20" * start + inner + "%20" * (len(text) - len(inner) - start)


def _base64(data: bytes) -> dict[str, str]:
    """Return bytes inside a map or an array as JSON represents them."""
    return {"base64": b64encode(data).decode()}


def _content_type(own: dict[str, Any]) -> str:
    for header, value in own.items():
        if header.lower() == CONTENT_TYPE and _is_plain(value):
            return value.strip() if isinstance(value, str) else value.decode("ascii").strip()
    return OCTETS


def _is_plain(value: object) -> bool:
    """Return whether a value can be sent as a content type unchanged."""
    if isinstance(value, bytes):
        value = value.decode("latin-1")
    return isinstance(value, str) and 0 < len(value.strip()) <= 255 and value.isascii() and value.isprintable()
