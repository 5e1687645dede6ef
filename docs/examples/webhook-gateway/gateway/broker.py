"""The connection to sandq, and the topics: shared by the application and the sender."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import sandq
from sandq.errors import TopicExists, UnknownTopic


@asynccontextmanager
async def connect() -> AsyncIterator[sandq.Client]:
    """Connect to the broker (BROKER=HOST:PORT), and create the topics that do not exist yet."""
    async with sandq.connect(os.environ.get("BROKER", "127.0.0.1:7170")) as client:
        try:
            await client.admin.topic("tenants")
        except UnknownTopic:
            await create_topics(client)
        yield client


async def create_topics(client: sandq.Client) -> None:
    """Create the topics at the first start. A start that was interrupted, or a second program, may do so, too."""
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
    # Last: if this topic exists, everything does, and the operator may have changed the limits.
    with suppress(TopicExists):
        await client.admin.create_topic("tenants", kind="compacted")


def key_of(tenant: str, url: str = "") -> str:
    """Return the key of the webhooks to a URL. Without a URL, it is the beginning of the keys of the tenant.

    The space ends the name of the tenant, which has none."""
    return f"{tenant} {url}"
