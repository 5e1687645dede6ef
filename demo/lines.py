"""Any file as messages: one a line, as it stands; read as a stream, so a file may be of any size.

A line that is a JSON object may say more:

    {"text": "Water the ferns", "key": "Ada", "delay": "4.2s"}

`value` or `text` is the message then (text, or JSON that is sent in its compact form), `key` its key, and `deliver_at`
(RFC 3339, or epoch milliseconds) or `delay` (text like "90s", or seconds) its time. What of that is missing, or cannot
be used, is as for any other line: the value is the line, without its line feed, and the demo chooses the time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandq.errors import SandqError
from sandq.model.limits import DEFAULT
from sandq.model.times import duration_ms, instant_ms

LINE_BYTES = DEFAULT.message_bytes
_KEY_BYTES = DEFAULT.key_bytes
_BOM = b"\xef\xbb\xbf"


class BadInput(Exception):
    """The input cannot be used; the text names the file, and the line where it is one."""


@dataclass(frozen=True, slots=True)
class Line:
    """One line that is a message."""

    number: int
    """In the file, from 1, empty lines counted."""
    value: bytes
    key: bytes | None = None
    at_ms: int | None = None
    """When it wants to be delivered, or"""
    delay_ms: int | None = None
    """how long after it was sent. Neither: whenever the demo likes."""
    odd_time: bool = False
    """It names a time that cannot be read."""


@dataclass(slots=True)
class Survey:
    """What a file holds, found out before anything is started."""

    path: Path
    lines: int = 0
    empty: int = 0
    size_bytes: int = 0
    longest_bytes: int = 0
    timed: int = 0
    """Lines with a time of their own."""
    odd_times: int = 0
    latest_ms: int = 0
    """The furthest of those times, from now."""


def survey(path: Path, now_ms: int) -> Survey:
    """Read the file once; BadInput when it is none, or empty, or has a line that no message can hold."""
    found = Survey(path)
    for line in read(path):
        if line is None:
            found.empty += 1
            continue
        found.lines += 1
        found.size_bytes += len(line.value)
        found.longest_bytes = max(found.longest_bytes, len(line.value))
        found.odd_times += line.odd_time
        wanted_ms = line.delay_ms if line.at_ms is None else line.at_ms - now_ms
        if wanted_ms is not None:
            found.timed += 1
            found.latest_ms = max(found.latest_ms, wanted_ms)
    if not found.lines:
        only = f"its {found.empty:,} lines are empty" if found.empty else "it is empty"
        raise BadInput(f"{path}: nothing to send, {only}")
    return found


def read(path: Path) -> Iterator[Line | None]:
    """Line after line, None for an empty one; never more than one of them in memory."""
    try:
        if not path.is_file():
            raise BadInput(f"{path}: {'it is no regular file' if path.exists() else 'there is no such file'}")
        with path.open("rb") as file:
            number = 0
            while data := file.readline(LINE_BYTES + 2):
                number += 1
                data = data.removesuffix(b"\n")
                if len(data) > LINE_BYTES:
                    raise BadInput(f"{path}:{number}: the line is longer than a message can be ({LINE_BYTES:,} bytes)")
                yield parse(number, data) if data not in (b"", b"\r") else None
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None


def parse(number: int, data: bytes) -> Line:
    """The message of a line."""
    start = data.removeprefix(_BOM).lstrip()[:1] if number == 1 else data.lstrip()[:1]
    found = _object(data) if start == b"{" else None
    if found is None:
        return Line(number, data)
    at_ms, delay_ms, odd = _time(found)
    return Line(number, _value(found, data), _key(found.get("key")), at_ms, delay_ms, odd)


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):  # no UTF-8, no JSON, a number with thousands of digits
        return None
    return found if isinstance(found, dict) else None


def _value(found: dict[str, Any], data: bytes) -> bytes:
    for name in ("value", "text"):
        if found.get(name) is not None:
            value = _bytes(found[name])
            return data if value is None or len(value) > LINE_BYTES else value
    return data


def _key(key: object) -> bytes | None:
    found = None if key is None else _bytes(key)
    return found if found is not None and len(found) <= _KEY_BYTES else None


def _bytes(value: object) -> bytes | None:
    """Text as UTF-8, everything else as compact JSON; None when it holds half a surrogate pair."""
    try:
        if isinstance(value, str):
            return value.encode()
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return None


def _time(found: dict[str, Any]) -> tuple[int | None, int | None, bool]:
    """(instant, delay, whether there is one that cannot be read)."""
    try:
        if found.get("deliver_at") is not None:
            return instant_ms(found["deliver_at"]), None, False
        if found.get("delay") is not None:
            return None, duration_ms(found["delay"]), False
    except SandqError:
        return None, None, True
    return None, None, False
