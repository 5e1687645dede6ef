"""Read the stacks of the threads and tasks of this process: modules, functions and lines, but no values."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from itertools import islice
from types import CodeType, FrameType
from typing import Any, Final

import trio

FRAMES: Final = 40
"""Maximum number of frames of a thread, from the innermost on."""
TASK_FRAMES: Final = 12
"""Maximum number of frames of a task, from the innermost on."""
TASKS: Final = 2000
"""Maximum number of tasks in a dump. Further tasks are only counted."""


def threads() -> list[dict[str, Any]]:
    """Return the threads: `name`, and `stack` with the innermost frame first."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    found = [(names.get(ident) or f"thread {ident}", frame) for ident, frame in sys._current_frames().items()]
    return [{"name": name, "stack": stack_of(frame)} for name, frame in sorted(found, key=lambda one: one[0])]


def stack_of(frame: FrameType | None) -> list[str]:
    """Return the frames of a thread, innermost first."""
    return list(islice(_positions_outwards(frame), FRAMES))


def _positions_outwards(frame: FrameType | None) -> Iterator[str]:
    """Yield the position in the code of each frame, innermost first."""
    while frame is not None:
        yield _position(frame.f_globals.get("__name__"), frame.f_code, frame.f_lineno)
        frame = frame.f_back


def tasks(most: int = TASKS) -> tuple[list[dict[str, Any]], int]:
    """Return the tasks of the event loop, and their number. Call it on the event loop.

    Each task has a `name`, its `depth` below the root, and its `stack`, innermost frame first. The stack of the running
    task is empty."""
    found: list[dict[str, Any]] = []
    count = 0
    root = trio.lowlevel.current_root_task()
    pending = [(root, 0)] if root is not None else []
    while pending:
        task, depth = pending.pop()
        count += 1
        if count <= most:
            found.append({"name": _short(task.name), "depth": depth, "stack": _task_stack(task)})
        for nursery in reversed(task.child_nurseries):
            pending += [
                (child, depth + 1) for child in sorted(nursery.child_tasks, key=lambda one: one.name, reverse=True)
            ]
    return found, count


def _task_stack(task: trio.lowlevel.Task) -> list[str]:
    """Return the frames of a task, innermost first; empty for the running task."""
    if task is trio.lowlevel.current_task():
        return []
    found = [_position(frame.f_globals.get("__name__"), frame.f_code, line) for frame, line in task.iter_await_frames()]
    return found[: -TASK_FRAMES - 1 : -1]


def _position(module: object, code: CodeType, line: int) -> str:
    """Return a position in the code: module, function and line."""
    return f"{module}.{code.co_qualname}:{line}"


def _short(name: str) -> str:
    """Return the name of a task without the package."""
    return name.removeprefix("sandq.")
