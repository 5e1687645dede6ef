"""Task results as JSON: the values of the messages, of the outbox, and of the keys of the results topic.

A message has the whole record, so that a worker can run a task whose stored result has expired.
"""

from __future__ import annotations

import json
from datetime import datetime
from types import NoneType
from typing import Any, Final

from django.utils.module_loading import import_string

from sandq_workers.django.api import Task, TaskError, TaskResult, TaskResultStatus

_TIMES: Final = ("enqueued_at", "started_at", "finished_at", "last_attempted_at")
_KINDS: Final[dict[str, Any]] = {
    **dict.fromkeys(("id", "task", "queue", "status"), str),
    "priority": int,
    "run_after": (str, NoneType),
    **dict.fromkeys(("args", "errors", "worker_ids"), list),
    "kwargs": dict,
}
"""Types of fields that are used before the task is known."""
MOST_ID_CHARS: Final = 64
"""Django's limit for the id of a task."""
_TRACEBACK_CHARS: Final = 20_000
"""Maximum length of a stored traceback. Its end is kept."""


class UnknownTask(Exception):
    """A message names a task that this program does not have, or no longer accepts."""


def encoded(result: Any) -> bytes:
    """Return the record of a result as JSON. Raises TypeError if it has a value that JSON has not."""
    task = result.task
    record = {
        "id": result.id,
        "task": task.module_path,
        "queue": task.queue_name,
        "priority": task.priority,
        "run_after": _text(task.run_after),
        "args": result.args,
        "kwargs": result.kwargs,
        "status": str(result.status.value),
        **{name: _text(getattr(result, name)) for name in _TIMES},
        "errors": [
            {"class": error.exception_class_path, "traceback": error.traceback[-_TRACEBACK_CHARS:]}
            for error in result.errors
        ],
        "worker_ids": result.worker_ids,
        "return_value": result._return_value,
    }
    return json.dumps(record, separators=(",", ":")).encode()


def decoded(data: bytes | str) -> dict[str, Any]:
    """Return a record. Raises UnknownTask if the data is not a record."""
    try:
        record = json.loads(data)
        for name, kind in _KINDS.items():
            if not isinstance(record[name], kind):
                raise TypeError(f"{name} has the wrong type")
        if not 1 <= len(record["id"]) <= MOST_ID_CHARS:
            raise ValueError(f"the id must have 1 to {MOST_ID_CHARS} characters")
        _time(record["run_after"])
        return dict(record)
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise UnknownTask(f"the message is not a task of Django: {error!r}") from error


def result_of(record: dict[str, Any], backend: str) -> Any:
    """Return the result of a record. Raises UnknownTask if the program has no such task."""
    path = record["task"]
    try:
        task = import_string(path)
        if not isinstance(task, Task):
            raise TypeError(f"it is {type(task).__name__}")
        task = task.using(
            priority=record["priority"],
            queue_name=record["queue"],
            run_after=_time(record["run_after"]),
            backend=backend,
        )
        result: Any = TaskResult(
            task=task,
            id=record["id"],
            status=TaskResultStatus(record["status"]),
            **{name: _time(record[name]) for name in _TIMES},
            args=record["args"],
            kwargs=record["kwargs"],
            backend=backend,
            errors=[
                TaskError(exception_class_path=error["class"], traceback=error["traceback"])
                for error in record["errors"]
            ],
            worker_ids=list(record["worker_ids"]),
        )
    except Exception as error:  # an import runs the code of a module
        raise UnknownTask(f"{path} is not a task that can run: {type(error).__name__}: {error}") from error
    set_fields(result, _return_value=record["return_value"])
    return result


def set_fields(result: Any, **values: Any) -> None:
    """Change a result, which is frozen for its users."""
    for name, value in values.items():
        object.__setattr__(result, name, value)


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat()


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
