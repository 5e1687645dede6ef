"""The connection to sandq, and the topics: shared by the application and the sender."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import sandq
from sandq.errors import TopicExists


@asynccontextmanager
async def connect() -> AsyncIterator[sandq.Client]:
    """Connect to the broker (BROKER=HOST:PORT), and create the topics that do not exist yet."""
    async with sandq.connect(os.environ.get("BROKER", "127.0.0.1:7170")) as client:
        with suppress(TopicExists):
            await client.admin.create_topic("tenants", kind="compacted")
        with suppress(TopicExists):
            await client.admin.create_topic(
                "webhooks",
                kind="fair",  # tenants take turns
                tenants={"*": {"max_in_flight": 10}},  # concurrent requests for each tenant
                max_attempts=6,
                backoff={"kind": "exponential", "first": "10s", "factor": 6, "cap": "6h"},
                ttl="7d",  # also for a tenant that is paused, or whose server answers 429 each time
                dedup_window="1d",
            )
            await client.admin.limit_group("webhooks", "senders", max_in_flight=200, rate="500/s")
        yield client


def key_of(tenant: str, url: str = "") -> str:
    """Return the key of the webhooks to a URL. Without a URL, it is the beginning of the keys of the tenant."""
    return f"{tenant} {url}"
