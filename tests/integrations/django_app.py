"""The tasks of `test_django_tasks.py`."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from sandq_workers.django.api import task


def note(line: str, path: str) -> None:
    """Append a line, which is one write."""
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)


@task
def add(a: Any, b: Any) -> Any:
    """Return the sum."""
    return a + b


@task
async def later(a: int) -> int:
    """Return the number, in a coroutine."""
    return a


@task(takes_context=True)
def again(context: Any) -> int:
    """Fail the first time."""
    if context.attempt == 1:
        raise RuntimeError("not yet")
    return int(context.attempt)


@task
def broken() -> None:
    """Fail always."""
    raise KeyError("broken")


@task
def odd() -> object:
    """Return what JSON has not."""
    return object()


@task
def large() -> str:
    """Return more than a message may have."""
    return "x" * 8_500_000


@task
def say(word: str, path: str) -> None:
    """Note a word."""
    note(word, path)


@task
def held(word: str, path: str, gate: str) -> None:
    """Note the begin, wait until the file `gate` exists, and note the end."""
    note(f"{word} begins", path)
    while not Path(gate).exists():
        time.sleep(0.02)
    note(f"{word} ends", path)
