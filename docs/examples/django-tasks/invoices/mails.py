"""Send mails later: messages of sandq that name a mail and the row that it is about.

A message has no copy of the row. The worker reads the row when the mail is due, so it never sends old data.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import Final

import sandq
from django.conf import settings
from sandq.errors import DuplicateKey, NotFound, TooLate, TopicExists

from invoices.models import Invoice

TOPIC: Final = "mails"
GROUP: Final = "mailer"
SETTINGS: Final = {
    "max_attempts": 8,
    # A failed mail is tried again after 1, 4, 16 and 64 minutes, and then every four hours.
    "backoff": {"first": "1m", "factor": 4, "cap": "4h"},
    # For this time after a mail was sent, its unique key is remembered.
    "dedup_window": "7d",
}


_clients: dict[tuple[object, ...], sandq.sync.Client] = {}


def client() -> sandq.sync.Client:
    """Return the client of this process, which all threads share. It connects when it is first used."""
    # A client does not survive a fork, for example of gunicorn: the child connects again.
    key = (os.getpid(), *settings.BROKER)
    if key not in _clients:
        connected = _connect()
        if _clients.setdefault(key, connected) is not connected:  # another thread was faster
            connected.close()
    return _clients[key]


def _connect() -> sandq.sync.Client:
    connected = sandq.sync.connect(*settings.BROKER, name=f"shop-{os.getpid()}", timeout=settings.BROKER_TIMEOUT)
    try:
        with suppress(TopicExists):
            connected.admin.create_topic(TOPIC, **SETTINGS)
    except BaseException:
        connected.close()
        raise
    return connected


def send_welcome(user_id: int) -> None:
    """Send the welcome mail of a user now. A repetition within `dedup_window` sends nothing."""
    message = {"mail": "welcome", "id": user_id}
    key = f"welcome-{user_id}"
    client().produce(TOPIC, json=message, unique_key=key, on_conflict="ignore", timeout=settings.BROKER_TIMEOUT)


def plan_due_mail(invoice_id: int) -> None:
    """Store, move or cancel the message of an invoice, so that it agrees with the row. It may be called repeatedly."""
    invoice = Invoice.objects.filter(pk=invoice_id).first()
    message = {"mail": "invoice-due", "id": invoice_id}
    key = f"invoice-due-{invoice_id}"
    # TooLate and DuplicateKey: a worker handles this message now, or has sent the mail. The nightly job checks.
    if invoice is not None and invoice.needs_mail:
        with suppress(DuplicateKey):
            client().produce(
                TOPIC,
                json=message,
                unique_key=key,
                deliver_at=invoice.due_at,
                on_conflict="replace",
                timeout=settings.BROKER_TIMEOUT,
            )
    else:
        with suppress(NotFound, TooLate):
            client().messages(TOPIC).cancel(unique_key=key, timeout=settings.BROKER_TIMEOUT)
