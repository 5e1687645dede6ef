"""A message as a line of JSON: what `consume -o jsonl` writes is what `produce --jsonl` reads.

    {"text": "hello"}                     the value: UTF-8 text,
    {"value": "aGVsbG8="}                 or base64,
    {"json": {"order": 7}}                or JSON, sent as its compact text
    "key": "k" | "key_base64": "aw=="     optional
    "headers": {"a": "text", "n": 1, "b": {"base64": "aw=="}}
    "deliver_at": "2030-01-31T08:00:00Z" | epoch milliseconds, or "delay": "90s" | seconds
    "ttl": "1h" | seconds                 optional: dead when nobody took it so long after its delivery time
    "unique_key": "order-7" | "unique_key_base64": "aw=="

`consume`, `message list --values` and `dead list --values` add what they know (offset, id, state, ...); `produce`
passes over that and refuses every other name.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sandq.client import LeasedMessage, Message

LINE_BYTES_MAX = 256 << 20
"""Nothing is read further to find the end of a line, or of a file that is one message."""
FROM_OTHERS = frozenset(
    (
        *("offset", "id", "topic", "partition", "attempt", "created_at", "lease_token"),  # consume
        *("state", "due_at", "moves", "moved_at", "size"),  # message list, get
        *("reason", "attempts", "error", "dead_at", "history"),  # dead list
    )
)
_VALUES = ("text", "value", "json")
_TIMES = ("deliver_at", "delay", "ttl")
_KEYS = ("key", "unique_key")
_KNOWN = frozenset((*_VALUES, *_KEYS, *(f"{name}_base64" for name in _KEYS), "headers", *_TIMES))


class BadLine(Exception):
    """A line that is no message; the text says why."""


def parse_line(line: bytes) -> dict[str, Any]:
    """A line's message as arguments of `Producer.send`; BadLine when it is none."""
    try:
        found = json.loads(line)
    except ValueError as error:  # JSONDecodeError, and UnicodeDecodeError
        raise BadLine(f"not JSON: {error}") from None
    except RecursionError:
        raise BadLine("not JSON: nested too deep") from None
    if not isinstance(found, dict):
        raise BadLine("a JSON object is expected")
    unknown = sorted(found.keys() - _KNOWN - FROM_OTHERS)
    if unknown:
        raise BadLine(f"{unknown[0]}: no such field of a message (this version knows {', '.join(sorted(_KNOWN))})")
    arguments: dict[str, Any] = {"value": _value(found)}
    for name in _KEYS:
        key = _key(found, name)
        if key is not None:
            arguments[name] = key
    if found.get("headers") is not None:
        arguments["headers"] = _headers(found["headers"])
    for name in _TIMES:
        if found.get(name) is not None:
            arguments[name] = found[name]
    return arguments


def _value(found: Mapping[str, Any]) -> bytes:
    given = [name for name in _VALUES if name in found]
    if len(given) != 1:
        raise BadLine(f"one of text, value and json is expected, not {' and '.join(given) or 'none'}")
    name = given[0]
    if name == "json":
        return json.dumps(found["json"], ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")
    if not isinstance(found[name], str):
        raise BadLine(f"{name}: text is expected")
    return _base64("value", found["value"]) if name == "value" else _utf8("text", found["text"])


def _key(found: Mapping[str, Any], name: str) -> bytes | None:
    encoded = f"{name}_base64"
    if found.get(name) is None:
        return None if found.get(encoded) is None else _base64(encoded, found[encoded])
    if found.get(encoded) is not None:
        raise BadLine(f"{name} and {encoded}: one of them, not both")
    if not isinstance(found[name], str):
        raise BadLine(f"{name}: text is expected")
    return _utf8(name, found[name])


def _headers(found: object) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise BadLine("headers: an object is expected")
    headers = {}
    for name, value in found.items():
        if isinstance(value, dict) and value.keys() == {"base64"}:
            value = _base64(f"headers.{name}", value["base64"])
        headers[name] = value
    return headers


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise BadLine(f"{name}: it holds half a surrogate pair, which UTF-8 cannot") from None


def _base64(name: str, text: object) -> bytes:
    if not isinstance(text, str):
        raise BadLine(f"{name}: base64 text is expected")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadLine(f"{name}: not base64: {error}") from None


def message_record(message: Message | LeasedMessage) -> dict[str, Any]:
    """A delivered message as an object for JSON."""
    from sandq.model.times import format_instant

    record = value_fields(message.value) | content_fields(message.key, message.headers)
    record["deliver_at"] = format_instant(message.deliver_at_ms)
    record["offset"] = message.offset
    record["id"] = message.id
    record["topic"] = message.topic
    record["partition"] = message.partition
    record["attempt"] = message.attempt
    record["created_at"] = format_instant(message.created_ms)
    record["lease_token"] = message.lease_token
    return record


def value_fields(value: bytes | None) -> dict[str, Any]:
    """The value as `text`, or as `value` when it is no UTF-8."""
    if value is None:
        return {}
    text = text_or_none(value)
    return {"value": encoded(value)} if text is None else {"text": text}


def key_fields(name: str, key: bytes | None) -> dict[str, Any]:
    """A key as text, or in base64 when it is no UTF-8; {} when there is none."""
    if key is None:
        return {}
    text = text_or_none(key)
    return {f"{name}_base64": encoded(key)} if text is None else {name: text}


def content_fields(key: bytes | None, headers: Mapping[str, Any] | None) -> dict[str, Any]:
    """Key and headers; those that are there."""
    fields = key_fields("key", key)
    if headers:
        fields["headers"] = {
            name: {"base64": encoded(value)} if isinstance(value, bytes) else value for name, value in headers.items()
        }
    return fields


def text_or_none(data: bytes) -> str | None:
    """UTF-8 text; None when it is none."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def encoded(data: bytes) -> str:
    """Base64."""
    return base64.b64encode(data).decode()
