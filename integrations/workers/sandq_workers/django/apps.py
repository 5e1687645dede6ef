"""The Django app: the outbox table and the commands."""

from __future__ import annotations

from django.apps import AppConfig


class SandqConfig(AppConfig):
    """The app `sandq_workers.django`, with the label `sandq`."""

    name = "sandq_workers.django"
    label = "sandq"
    verbose_name = "sandq"
    default_auto_field = "django.db.models.BigAutoField"
