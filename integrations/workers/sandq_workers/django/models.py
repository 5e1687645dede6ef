"""The outbox table."""

from __future__ import annotations

from django.db import models


class OutboxTask(models.Model):
    """A task that was stored in its caller's transaction, and is not in the broker yet."""

    task_id = models.CharField(max_length=64, unique=True)
    backend = models.CharField(max_length=255)
    """The alias of the backend in TASKS."""
    record = models.TextField()
    """The task as JSON."""
    error = models.TextField(default="", blank=True)
    """Why the broker refuses the task; the relay does not send it again. Empty: it was not refused."""

    class Meta:
        """The name of the table."""

        db_table = "sandq_outbox"

    def __str__(self) -> str:
        return str(self.task_id)
