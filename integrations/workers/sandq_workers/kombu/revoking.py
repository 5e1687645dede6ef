"""`app.control.revoke` of Celery, made durable.

Celery broadcasts a revocation to the workers, each of which remembers it: a worker that starts later runs the task.
Here, the broadcast also cancels the waiting message, and stores the state REVOKED, so that `get()` ends.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from typing import Any, Final

from kombu.utils.json import loads

from sandq.errors import NotFound, SandqError
from sandq_workers.kombu.envelope import Payload, incoming
from sandq_workers.kombu.session import Session
from sandq_workers.names import key_of

log = logging.getLogger("sandq.workers")

MAILBOX: Final = ".pidbox"
"""End of the names of the exchanges that broadcast commands to workers."""


def on_command(session: Session, payload: Payload) -> None:
    """Cancel the tasks that a command revokes. Other commands have no effect here.

    If it fails, the broadcast is sent nevertheless: workers that run will know of the revocation."""
    for task_id in _revoked(payload):
        try:
            task = _waiting_task(session, task_id)
            if session.cancel(task_id) == "cancelled" and task is not None:
                _store_revoked(task_id, task)
        except SandqError as error:
            log.warning("task %s is not cancelled in the broker: %s", task_id, error)


def _revoked(payload: Payload) -> Iterator[str]:
    """Return the ids of tasks that a command revokes."""
    try:
        command = loads(payload["body"])
    except (ValueError, TypeError):
        return
    if not isinstance(command, dict) or command.get("method") != "revoke" or command.get("destination"):
        return
    found = (command.get("arguments") or {}).get("task_id")
    for task_id in found if isinstance(found, list) else [found]:
        if isinstance(task_id, str):
            yield task_id


def _waiting_task(session: Session, task_id: str) -> Payload | None:
    """Return the message of a task that waits; None if no queue knows it."""
    for queue in session.queues():
        topic = session.topic(queue)
        try:
            message = session.client.messages(topic).get(unique_key=key_of(task_id))
        except NotFound:
            continue
        return incoming(message.value or b"", message.headers, tag="", attempt=1, name=f"{topic}/{message.id}")
    return None


def _store_revoked(task_id: str, task: Payload) -> None:
    """Store the state REVOKED in the result backend of the current application. A chord of the task fails."""
    celery = sys.modules.get("celery")
    if celery is None:
        return  # a program that uses kombu alone
    from celery.app.task import Context

    headers, embedded = task["headers"], _embedded(task)
    request = Context({**headers, **embedded, "delivery_info": task["properties"]["delivery_info"]})
    celery.current_app.backend.mark_as_revoked(
        task_id, "revoked", request=request, store_result=not headers.get("ignore_result")
    )


def _embedded(task: Payload) -> dict[str, Any]:
    """Return the fields of a task in its body that concern its result: its chord and its error callbacks."""
    if task["content-type"] != "application/json":
        return {}
    try:
        _, _, embedded = loads(task["body"])
    except (ValueError, TypeError):
        return {}
    return {name: embedded.get(name) for name in ("chord", "errbacks")} if isinstance(embedded, dict) else {}
