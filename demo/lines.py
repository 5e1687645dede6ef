"""Any file as messages: one per line, unchanged. The file is read as a stream, so it may have any size.

A line that is a JSON object may give more:

    {"text": "Water the ferns", "key": "Ada", "delay": "4.2s"}

`value` or `text` is then the message: text, or JSON that is sent in its compact form. `key` is its key. Its time is
`deliver_at` (RFC 3339, or epoch milliseconds) or `delay` (text like "90s", or seconds). If the message is missing or
unusable, the value is the line without its line feed. If the time is missing or unusable, the demo chooses the time.
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
    """The input cannot be used. The text names the file, and the line if the error is in a line."""


@dataclass(frozen=True, slots=True)
class Line:
    """A line that is a message."""

    number: int
    """Number in the file, from 1; empty lines count."""
    value: bytes
    key: bytes | None = None
    at_ms: int | None = None
    """Requested time, or None."""
    delay_ms: int | None = None
    """Requested delay after sending, in ms, or None. If `at_ms` is None, too, the demo chooses the time."""
    odd_time: bool = False
    """True if the line has a time that cannot be parsed."""


@dataclass(slots=True)
class Survey:
    """The result of reading a file once, before the node starts."""

    path: Path
    lines: int = 0
    empty: int = 0
    size_bytes: int = 0
    longest_bytes: int = 0
    timed: int = 0
    """Number of lines with their own time."""
    odd_times: int = 0
    latest_ms: int = 0
    """Latest of the times in the file, in ms from now."""


def survey(path: Path, now_ms: int) -> Survey:
    """Read the file once. Raises BadInput if it is missing or empty, or if a line is too long for a message."""
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
    """Yield each line, or None for an empty line. Only one line is in memory at a time."""
    try:
        if not path.is_file():
            raise BadInput(f"{path}: {'it is not a regular file' if path.exists() else 'there is no such file'}")
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
    """Return the message of a line."""
    start = data.removeprefix(_BOM).lstrip()[:1] if number == 1 else data.lstrip()[:1]
    found = _object(data) if start == b"{" else None
    if found is None:
        return Line(number, data)
    at_ms, delay_ms, odd = _time(found)
    return Line(number, _value(found, data), _key(found.get("key")), at_ms, delay_ms, odd)


def _object(data: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):  # the line is not UTF-8 or not JSON, or has a number with thousands of digits
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
    """Return text as UTF-8, and everything else as compact JSON. None if `value` has a lone surrogate."""
    try:
        if isinstance(value, str):
            return value.encode()
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        return None


def _time(found: dict[str, Any]) -> tuple[int | None, int | None, bool]:
    """Return (instant in epoch ms, delay in ms, whether the time cannot be parsed)."""
    try:
        if found.get("deliver_at") is not None:
            return instant_ms(found["deliver_at"]), None, False
        if found.get("delay") is not None:
            return None, duration_ms(found["delay"]), False
    except SandqError:
        return None, None, True
    return None, None, False
