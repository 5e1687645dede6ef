"""The worker: it sends the e-mails that are due. Any number of workers share them: `python -m reminders.worker`."""

from __future__ import annotations

import signal
from datetime import datetime
from typing import Any

import anyio
import sandq
from sandq.errors import Conflict

from reminders.broker import REMINDERS, connect

TEXTS = {"soon": "Your trial ends on {ends}.", "ended": "Your trial has ended."}


async def send_mail(to: str, text: str, mail_id: str) -> None:
    """Replace this function by a call of your e-mail provider.

    After a crash between sending and storing it, a mail is sent again: give `mail_id` to the provider as the
    idempotency key."""
    print(f"to {to}: {text}", flush=True)


async def work(client: sandq.Client) -> None:
    """Send due reminders, ten at a time, until cancelled. Unfinished e-mails then have 30 s to end."""
    users = client.kv("users")

    async def remind(message: sandq.Message) -> None:
        """Send a reminder. If this raises an error, the reminder is tried again later."""
        found = message.json()
        name, kind = found["user"], found["reminder"]
        entry = await users.get(name)
        if entry is None or entry.json()["paid"]:  # a payment came while the reminder was scheduled
            return
        user = entry.json()
        ends = user["ends"]
        if user["sent"].get(kind) == ends:
            return
        if found["ends"] != ends:
            # Two requests have changed the date at once, and this reminder is of the one that was stored first.
            at = datetime.fromisoformat(ends) - REMINDERS[kind]
            await message.ack(then=[sandq.Outgoing(json=found | {"ends": ends}, deliver_at=at)])
            return
        await send_mail(user["email"], TEXTS[kind].format(ends=ends), f"{name}/{kind}/{ends}")
        await note_sent(users, name, kind, ends)

    await client.run("reminders", "mailer", remind)


async def note_sent(users: sandq.Keys, name: str, kind: str, ends: str) -> None:
    """Store that a mail was sent, so that a repeated request does not schedule it again."""
    while (entry := await users.get(name)) is not None:
        user: dict[str, Any] = entry.json()
        try:
            await users.cas(name, json=user | {"sent": user["sent"] | {kind: ends}}, expected=entry.version)
        except Conflict:  # a request has changed the user meanwhile: read it again
            continue
        return


async def main() -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with connect() as client, anyio.create_task_group() as tasks:
            tasks.start_soon(work, client)
            await anext(signals)
            tasks.cancel_scope.cancel()


if __name__ == "__main__":
    anyio.run(main)
