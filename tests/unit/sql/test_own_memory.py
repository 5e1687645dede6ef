"""Tests that an SQL process ends only after a statement has left it without memory."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from sandq.sql import own_memory

MOST = 1600
NO_MEMORY = -1
"""A memory check that fails because no memory is left."""


class Ended(Exception):
    """Raised in place of the end of the process."""


@pytest.mark.parametrize(
    ("found", "checks"),
    [
        ((1400, 1501, 1501), 3),
        ((1501, 1500, 1501, 1501), 4),
        ((NO_MEMORY, 1600), 2),
        ((NO_MEMORY, 100, NO_MEMORY, NO_MEMORY), 4),
    ],
)
def test_process_ends_after_consecutive_checks_with_too_little_memory(
    found: tuple[int, ...], checks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes: list[int] = []
    taken: list[int] = []
    data: Iterator[int] = iter(found)

    def data_bytes() -> int:
        taken.append(next(data))
        if taken[-1] == NO_MEMORY:
            raise MemoryError
        return taken[-1]

    def end(code: int) -> None:
        codes.append(code)
        raise Ended

    monkeypatch.setattr(own_memory, "data_bytes", data_bytes)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    monkeypatch.setattr(os, "_exit", end)
    with pytest.raises(Ended):
        own_memory._watch(MOST)
    assert (codes, len(taken)) == ([own_memory.EXIT_NO_MEMORY], checks)


def test_process_at_its_bound_ends() -> None:
    code = (
        "import threading, sandq.sql.own_memory as m; m.CHECK_INTERVAL_S = 0.01; "
        "m.end_without_memory(m.data_bytes()); threading.Event().wait()"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == own_memory.EXIT_NO_MEMORY
