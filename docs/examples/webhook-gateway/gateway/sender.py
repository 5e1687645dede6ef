"""The sender: it delivers the webhooks that are due. Any number of senders share them: `python -m gateway.sender`."""

from __future__ import annotations

import signal

import anyio
import httpx
import sandq

from gateway.broker import connect

PAUSE = "1m"
"""Time after which a webhook of a paused tenant is tried again."""
DAY_S = 86_400
"""The longest time that a receiver may ask for."""


async def work(client: sandq.Client, http: httpx.AsyncClient) -> None:
    """Deliver webhooks until cancelled. Unfinished requests then have 30 s to end."""
    tenants = client.kv("tenants")

    async def deliver(message: sandq.Message) -> None:
        """Send one webhook. If this raises an error of HTTP, it is tried again after the back-off."""
        entry = await tenants.get(message.tenant or "")
        if entry is None:
            raise sandq.Dead(f"there is no tenant {message.tenant}")
        tenant = entry.json()
        if tenant["paused"]:
            raise sandq.Retry(PAUSE, "the tenant is paused", count=False)
        webhook_id = f"{message.topic}_{message.partition}_{message.id}"  # the same for each attempt
        headers = sandq.sign_push(webhook_id, message.value, tenant["secret"]) | {"content-type": "application/json"}
        async with http.stream("POST", message.headers["url"], content=message.value, headers=headers) as response:
            if response.status_code == 410:
                raise sandq.Dead("410 gone")
            if response.status_code == 429:
                seconds = response.headers.get("retry-after", "")  # a date is ignored
                delay = min(int(seconds), DAY_S) if seconds.isdecimal() else None
                raise sandq.Retry(delay, "429 too many requests", count=False)
            response.raise_for_status()

    await client.run("webhooks", "senders", deliver, concurrency=100, timeout="30s")


async def main() -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with connect() as client, httpx.AsyncClient(timeout=10) as http, anyio.create_task_group() as tasks:
            tasks.start_soon(work, client, http)
            await anext(signals)
            tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main)
