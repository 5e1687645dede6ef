"""The outbox: a table in which tasks are stored in the caller's transaction. `relay` sends them."""

from __future__ import annotations

from typing import Any, NamedTuple

from sandq_workers.django import records
from sandq_workers.django.models import OutboxTask


class Outbox(NamedTuple):
    """The rows of one backend."""

    database: str
    """Alias of the database."""
    backend: str
    """Alias of the backend in TASKS."""

    @property
    def rows(self) -> Any:
        """All rows, as a QuerySet."""
        return OutboxTask.objects.using(self.database).filter(backend=self.backend)

    def write(self, result: Any) -> None:
        """Store a task in the caller's transaction."""
        record = records.encoded(result).decode()
        OutboxTask.objects.using(self.database).create(task_id=result.id, backend=self.backend, record=record)

    def find(self, task_id: str) -> dict[str, Any] | None:
        """Return the record of a task that is not sent yet; None if there is none."""
        row = self.rows.filter(task_id=task_id).first()
        return None if row is None else records.decoded(row.record)
