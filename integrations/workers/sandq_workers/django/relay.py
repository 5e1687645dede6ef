"""The relay: sends the rows of the outbox, and deletes them.

If a relay is killed between sending a row and deleting it, or if two relays read the same row, the row is sent again.
The broker stores it once (`SandqBackend.send`).
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from django.db import DatabaseError, close_old_connections

from sandq.errors import InvalidRequest, SandqError
from sandq_workers.django import records
from sandq_workers.django.backend import SandqBackend

log = logging.getLogger("sandq.workers")

_ROWS: Final = 100
"""Rows that are read at once."""


def relay(backend: SandqBackend) -> int:
    """Send all rows of a backend, and return their number. Raises the errors of the database and of sandq's client.

    A row that the broker refuses stays in the table with the error, and does not delay the others.
    """
    outbox = backend.outbox()
    count = 0
    while rows := list(outbox.rows.filter(error="").order_by("id")[:_ROWS]):
        for row in rows:
            try:
                backend.send(records.decoded(row.record), row.record.encode())
            except (InvalidRequest, records.UnknownTask) as error:
                log.error("task %s of the outbox was refused: %s", row.task_id, error)
                outbox.rows.filter(id=row.id).update(error=str(error) or type(error).__name__)
            else:
                outbox.rows.filter(id=row.id).delete()
                count += 1
    return count


def relay_until(backend: SandqBackend, stopped: threading.Event) -> None:
    """Send rows every `outbox_interval` seconds, until `stopped` is set. Errors are logged, and the rows stay."""
    while not stopped.wait(backend.settings.outbox_interval):
        close_old_connections()
        try:
            relay(backend)
        except Exception as error:  # the thread goes on, whatever happens
            is_usual = isinstance(error, SandqError | DatabaseError)
            log.warning("the outbox waits: %s", error, exc_info=None if is_usual else error)
        finally:
            close_old_connections()
