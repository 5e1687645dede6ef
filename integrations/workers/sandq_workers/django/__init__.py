"""Django tasks on sandq.

    TASKS = {"default": {
        "BACKEND": "sandq_workers.django.SandqBackend",
        "OPTIONS": {"url": "sandq://127.0.0.1:7170"},
    }}

`backend` sends tasks and reads their results. `worker` runs them (`manage.py sandq_worker`). `outbox` stores tasks in
the caller's transaction, and `relay` sends them (`manage.py sandq_outbox`). The commands need `sandq_workers.django` in
INSTALLED_APPS.
"""

from __future__ import annotations

from sandq_workers.django.backend import SandqBackend as SandqBackend
