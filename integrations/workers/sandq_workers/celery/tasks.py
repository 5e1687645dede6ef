"""Cancel, move and explain tasks that wait in the broker, by their ids."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any

from celery import Celery, current_app
from celery.exceptions import ImproperlyConfigured

from sandq.errors import NotFound
from sandq_workers.kombu.session import Session, acquire, release
from sandq_workers.kombu.transport import Transport


@contextmanager
def session_of(app: Celery | None) -> Iterator[Session]:
    """Use the session of an application's broker; None: of the current application. Raises ImproperlyConfigured if the
    broker is another product."""
    app = app or current_app._get_current_object()
    with app.connection_for_write() as connection:
        transport = connection.transport
        if not isinstance(transport, Transport):
            raise ImproperlyConfigured(f"the broker of the application is {connection.as_uri()}, not sandq")
        session = acquire(transport.address())
    try:
        yield session
    finally:
        release(session)


def cancel(task_id: str, *, app: Celery | None = None) -> str:
    """Cancel a task that waits in the broker: no worker gets it. Return "cancelled", or why it cannot be cancelled any
    more: "leased" (a worker has it), "acked", "dead" or "gone".

    `app.control.revoke` does this, too. It also tells the workers, and stores the state REVOKED as the result. Raises
    NotFound if no queue knows the task.
    """
    with session_of(app) as session:
        outcome = session.cancel(task_id)
    if outcome is None:
        raise _unknown(task_id)
    return outcome


def move(
    task_id: str, *, eta: datetime | None = None, countdown: float | None = None, app: Celery | None = None
) -> None:
    """Change the time of a task that waits in the broker, to `eta` or `countdown` seconds from now.

    Raises TooLate if a worker has it already, or it is done; NotFound if no queue knows it.
    """
    with session_of(app) as session:
        if not session.move(task_id, deliver_at=eta, delay=countdown):
            raise _unknown(task_id)


def why(task_id: str, *, app: Celery | None = None) -> dict[str, Any]:
    """Return the `queue` of a task, and the fields of `Messages.why`, which explain what it waits for.

    Raises NotFound if no queue knows the task.
    """
    with session_of(app) as session:
        found = session.why(task_id)
    if found is None:
        raise _unknown(task_id)
    return found


def _unknown(task_id: str) -> NotFound:
    return NotFound(f"no queue of the application knows the task {task_id!r}: it is done, or was never sent")
