"""Tests of sandctl schedule create --jsonl: lines that are not JSON are refused before any schedule is created."""

from __future__ import annotations

from typing import Any

import pytest

GOOD = b'{"name": "daily", "cron": "0 8 * * *", "text": "hello"}\n'


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (b'{"name": "a", "every": "1h", "text": NaN}', "NaN is not a number"),
        (b'{"name": "a", "name": "b", "every": "1h", "text": ""}', "name"),
        (b'{"name": "a", "every": "1h", "text": "", "priority": 1e999}', "1e999"),
        (b'{"name": "a"', "line 2"),
        (b"\xff", "line 2"),
        (b'{"name": "a", "every": "1h", "txt": ""}', "txt"),
    ],
)
def test_schedule_lines_that_are_not_strict_json_are_refused(ctl: Any, line: bytes, says: str) -> None:
    result = ctl("schedule", "create", "t", "--jsonl", input=GOOD + line)
    assert result.exit_code == 1, result.output
    assert "line 2: " in result.stderr and says in result.stderr and "nothing was created" in result.stderr
