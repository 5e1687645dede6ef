"""Create the outbox table."""

from __future__ import annotations

from typing import Any, ClassVar

from django.db import migrations, models


class Migration(migrations.Migration):
    """The first migration."""

    initial = True
    dependencies: ClassVar[list[Any]] = []
    operations: ClassVar[list[Any]] = [
        migrations.CreateModel(
            name="OutboxTask",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("task_id", models.CharField(max_length=64, unique=True)),
                ("backend", models.CharField(max_length=255)),
                ("record", models.TextField()),
                ("error", models.TextField(blank=True, default="")),
            ],
            options={"db_table": "sandq_outbox"},
        ),
    ]
