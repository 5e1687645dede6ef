"""The reminders of the demo, if you give no file with --input: one per line.

    {"id": "r-0001", "customer": "Ada Moreau", "text": "Water the ferns", "in": "4.2s"}

`id` identifies a reminder. `in` is its delay after it is scheduled: text ("900ms", "4.2s", "1m"), or an int in
milliseconds. `customer` (or `key`) is optional; reminders of one customer go to one partition. Other fields are kept,
because the message is the whole line.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.lines import BadInput
from sandq.errors import SandqError
from sandq.model.times import duration_ms

SCHEDULE_PART = 0.4
"""Share of the demo's time in which reminders are scheduled. The last reminders are due at the end of the demo."""
LONGEST_S = 40.0
SHORTEST_S = 2.0


@dataclass(frozen=True, slots=True)
class Reminder:
    id: str
    key: str | None
    delay_ms: int
    value: bytes


@dataclass(frozen=True, slots=True)
class Plan:
    """The plan: reminders are scheduled evenly over `schedule_s`, with their delays multiplied by `scale`."""

    total_s: float
    schedule_s: float
    scale: float


def read_reminders(path: Path) -> list[Reminder]:
    """Read reminders from a file. Raises BadInput if a line is not a valid reminder."""
    try:
        with path.open("rb") as lines:
            return parse_reminders(lines, str(path))
    except OSError as error:
        raise BadInput(f"{path}: {error.strerror}") from None


def parse_reminders(lines: Iterable[bytes], name: str) -> list[Reminder]:
    """Read reminders from lines. Empty lines are skipped."""
    found: list[Reminder] = []
    seen: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            reminder = _parse(line.strip())
            if reminder.id in seen:
                raise BadInput(f"id {reminder.id!r} is that of line {seen[reminder.id]} already")
        except BadInput as error:
            raise BadInput(f"{name}:{number}: {error}") from None
        seen[reminder.id] = number
        found.append(reminder)
    if not found:
        raise BadInput(f"{name}: no reminders in the file; a line looks like " + EXAMPLE)
    return found


EXAMPLE = '{"id": "r-1", "customer": "Ada", "text": "Water the ferns", "in": "4.2s"}'


def _parse(line: bytes) -> Reminder:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # includes JSONDecodeError and UnicodeDecodeError
        raise BadInput(f"not JSON: {error}") from None
    if not isinstance(record, dict):
        raise BadInput(f"a JSON object is expected, like {EXAMPLE}")
    for name in ("id", "text"):
        if not isinstance(record.get(name), str) or not record[name]:
            raise BadInput(f"{name}: text is expected, not {json.dumps(record.get(name))[:60]}")
    key = record.get("customer", record.get("key"))
    if key is not None and not isinstance(key, str):
        raise BadInput(f"customer: text is expected, not {json.dumps(key)[:60]}")
    return Reminder(record["id"], key, _delay_ms(record), line)


def _delay_ms(record: dict[str, Any]) -> int:
    if "in" not in record:
        raise BadInput('in: the delay is missing; give text like "4.2s", or milliseconds')
    delay = record["in"]
    if isinstance(delay, str):
        try:
            return duration_ms(delay)
        except SandqError as error:
            raise BadInput(f"in: {error.message}") from None
    if type(delay) is int and 0 <= delay < 2**40:
        return delay
    raise BadInput(f'in: text like "4.2s" or whole milliseconds are expected, not {json.dumps(delay)[:60]}')


def plan(reminders: Sequence[Reminder], seconds: float | None) -> Plan:
    """Return the plan for these reminders within `seconds`.

    With None, the delays stay, unless the demo would then take longer than `LONGEST_S`."""
    longest_s = max(reminder.delay_ms for reminder in reminders) / 1000
    due_part = 1 - SCHEDULE_PART
    if seconds is None:
        total_s = min(LONGEST_S, max(SHORTEST_S, longest_s / due_part))
        scale = min(1.0, total_s * due_part / longest_s) if longest_s else 1.0
    else:
        total_s = seconds
        scale = total_s * due_part / longest_s if longest_s else 1.0
    return Plan(total_s, total_s * SCHEDULE_PART, scale)
