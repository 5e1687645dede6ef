"""The worker: it sends the e-mails that are due. Any number of workers share them: `python -m reminders.worker`."""

from __future__ import annotations

import signal

import anyio
import sandq

from reminders.broker import connect

TEXTS = {"soon": "Your trial ends on {ends}.", "ended": "Your trial has ended."}


async def send_mail(to: str, text: str, message_id: str) -> None:
    """Replace this function by a call of your e-mail provider.

    A message may come twice, for example after a crash: give `message_id` to the provider as the idempotency key."""
    print(f"to {to}: {text}", flush=True)


async def work(client: sandq.Client) -> None:
    """Send due reminders, ten at a time, until cancelled. Unfinished e-mails then have 30 s to end."""
    users = client.kv("users")

    async def remind(message: sandq.Message) -> None:
        """Send a reminder. If this raises an error, the reminder is tried again later."""
        reminder = message.json()
        entry = await users.get(reminder["user"])
        if entry is None or entry.json()["paid"]:  # a payment came while the reminder was scheduled
            return
        user = entry.json()
        await send_mail(user["email"], TEXTS[reminder["reminder"]].format(ends=user["ends"]), message.id)

    await client.run("reminders", "mailer", remind)


async def main() -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with connect() as client, anyio.create_task_group() as tasks:
            tasks.start_soon(work, client)
            await anext(signals)
            tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main)
