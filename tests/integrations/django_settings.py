"""The settings of the Django project of `test_django_tasks.py`. The test sets SITE_URL and SITE_DB."""

from __future__ import annotations

import os
from typing import Any

SECRET_KEY = "tests"
USE_TZ = True
INSTALLED_APPS = ["sandq_workers.django"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["SITE_DB"]}}
_OPTIONS: dict[str, Any] = {
    "url": os.environ["SITE_URL"],
    "lease": "2s",
    "max_attempts": 2,
    "settings": {"backoff": {"kind": "none"}},
}
_BACKEND = {"BACKEND": "sandq_workers.django.SandqBackend", "QUEUES": []}
TASKS = {
    "default": {**_BACKEND, "OPTIONS": _OPTIONS},
    "outbox": {**_BACKEND, "OPTIONS": {**_OPTIONS, "outbox": True, "outbox_interval": 0.02}},
}
