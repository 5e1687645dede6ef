"""Celery on sandq, beyond the transport: tasks that wait, results, and periodic tasks.

    from sandq_workers.celery import cancel, move, why

`result_backend = "sandq://127.0.0.1:7170"` stores results (`backend`), and `beat_scheduler =
"sandq_workers.celery.beat:SandqScheduler"` stores periodic tasks as schedules (`beat`).
"""

from __future__ import annotations

from sandq_workers.celery.tasks import cancel as cancel
from sandq_workers.celery.tasks import move as move
from sandq_workers.celery.tasks import why as why
