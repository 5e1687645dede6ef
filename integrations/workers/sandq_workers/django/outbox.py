"""The outbox: a table in which tasks are stored in the caller's transaction, and the relay that sends them.

The relay sends a row, then deletes it. If it is killed in between, or two relays read the same row, the row is sent
again, which changes nothing in the broker (`SandqBackend.send`).
"""

from __future__ import annotations

import logging
import threading
from typing import Any, Final

from django.db import DatabaseError, close_old_connections

from sandq.errors import InvalidRequest, SandqError
from sandq_workers.django import records
from sandq_workers.django.backend import SandqBackend
from sandq_workers.django.models import OutboxTask

log = logging.getLogger("sandq.workers")

_ROWS: Final = 100
"""Rows that are read at once."""


def write(backend: SandqBackend, result: Any) -> None:
    """Store a task in the caller's transaction."""
    record = records.encoded(result).decode()
    OutboxTask.objects.using(backend.settings.database).create(task_id=result.id, backend=backend.alias, record=record)


def find(backend: SandqBackend, task_id: str) -> dict[str, Any] | None:
    """Return the record of a task that is not sent yet; None if there is none."""
    row = _rows(backend).filter(task_id=task_id).first()
    return None if row is None else records.decoded(row.record)


def relay(backend: SandqBackend) -> int:
    """Send all rows of a backend, and return their number. Raises the errors of the database and of sandq's client.

    A row that the broker refuses stays in the table with the error, and does not delay the others.
    """
    count = 0
    while rows := list(_rows(backend).filter(error="").order_by("id")[:_ROWS]):
        for row in rows:
            try:
                backend.send(records.decoded(row.record), row.record.encode())
            except (InvalidRequest, records.UnknownTask) as error:
                log.error("task %s of the outbox was refused: %s", row.task_id, error)
                _rows(backend).filter(id=row.id).update(error=str(error) or type(error).__name__)
            else:
                _rows(backend).filter(id=row.id).delete()
                count += 1
    return count


def relay_until(backend: SandqBackend, stopped: threading.Event) -> None:
    """Send rows every `outbox_interval` seconds, until `stopped` is set. Errors are logged, and the rows stay."""
    while not stopped.wait(backend.settings.outbox_interval):
        close_old_connections()
        try:
            relay(backend)
        except (SandqError, DatabaseError) as error:
            log.warning("the outbox waits: %s", error)
        finally:
            close_old_connections()


def _rows(backend: SandqBackend) -> Any:
    return OutboxTask.objects.using(backend.settings.database).filter(backend=backend.alias)
