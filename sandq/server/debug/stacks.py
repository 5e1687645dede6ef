"""What the threads and the tasks of this process are doing now. No values: only modules, functions and lines."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from itertools import islice
from types import CodeType, FrameType
from typing import Any, Final

import trio

FRAMES: Final = 40
"""Of a thread, the innermost first."""
TASK_FRAMES: Final = 12
TASKS: Final = 2000
"""More are only counted."""


def threads() -> list[dict[str, Any]]:
    """Each thread: `name`, `stack`, the innermost frame first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = [(names.get(ident) or f"thread {ident}", frame) for ident, frame in sys._current_frames().items()]
    return [{"name": name, "stack": stack_of(frame)} for name, frame in sorted(found, key=lambda one: one[0])]


def stack_of(frame: FrameType | None) -> list[str]:
    """The frames of a thread, the innermost first."""
    return list(islice(_outwards(frame), FRAMES))


def _outwards(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        yield _place(frame.f_globals.get("__name__"), frame.f_code, frame.f_lineno)
        frame = frame.f_back


def tasks(most: int = TASKS) -> tuple[list[dict[str, Any]], int]:
    """Each task of the event loop: `name`, `depth` below the root, `stack`, the innermost frame first (of the one that
    runs none); and how many there are. Called from the event loop."""
    found: list[dict[str, Any]] = []
    count = 0
    root = trio.lowlevel.current_root_task()
    line = [(root, 0)] if root is not None else []
    while line:
        task, depth = line.pop()
        count += 1
        if count <= most:
            found.append({"name": _short(task.name), "depth": depth, "stack": _task_stack(task)})
        for nursery in reversed(task.child_nurseries):
            line += [
                (child, depth + 1) for child in sorted(nursery.child_tasks, key=lambda one: one.name, reverse=True)
            ]
    return found, count


def _task_stack(task: trio.lowlevel.Task) -> list[str]:
    if task is trio.lowlevel.current_task():
        return []
    places = [_place(frame.f_globals.get("__name__"), frame.f_code, line) for frame, line in task.iter_await_frames()]
    return places[: -TASK_FRAMES - 1 : -1]


def _place(module: object, code: CodeType, line: int) -> str:
    return f"{module}.{code.co_qualname}:{line}"


def _short(name: str) -> str:
    return name.removeprefix("sandq.")
