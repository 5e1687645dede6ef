"""The connection to sandq, and the topics: shared by the application and the worker."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import timedelta

import sandq
from sandq.errors import TopicExists

REMINDERS = {"soon": timedelta(days=3), "ended": timedelta(0)}
"""Each reminder of a trial: how long before the end of the trial it is sent."""


@asynccontextmanager
async def connect() -> AsyncIterator[sandq.Client]:
    """Connect to the broker (BROKER=HOST:PORT), and create the topics that do not exist yet."""
    async with sandq.connect(os.environ.get("BROKER", "127.0.0.1:7170")) as client:
        with suppress(TopicExists):
            await client.admin.create_topic("users", kind="compacted")
        with suppress(TopicExists):
            await client.admin.create_topic("failed-reminders")
        with suppress(TopicExists):
            await client.admin.create_topic(
                "reminders",
                max_attempts=5,
                backoff={"kind": "exponential", "first": "1m", "factor": 5, "cap": "12h"},
                dead_letter_topic="failed-reminders",
                dedup_window="7d",
            )
        yield client


def name_of(user: str, reminder: str) -> str:
    """Return the unique key of a reminder: by it, the reminder is found, replaced and cancelled."""
    return f"{user}/{reminder}"
