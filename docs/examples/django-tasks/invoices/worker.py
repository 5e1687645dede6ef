"""The worker: a function for each kind of message."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from smtplib import SMTPRecipientsRefused

import sandq
from django.conf import settings
from django.contrib.auth import get_user_model
from django.core.mail import send_mail
from django.db import close_old_connections

from invoices.mails import GROUP, TOPIC, plan_due_mail
from invoices.models import Invoice

SCHEDULES = [
    {"name": "plan-due-mails", "json": {"mail": "plan"}, "cron": "0 3 * * *", "zone": settings.TIME_ZONE},
]
"""Schedules of the topic: the nightly job."""


def work(client: sandq.sync.Client) -> None:
    """Handle messages until the client is closed or the process is stopped."""
    client.schedules(TOPIC).create_many(SCHEDULES)
    # A refused recipient stays refused: no further attempts. After any other error, the back-off of the topic applies.
    client.run(TOPIC, GROUP, handle, concurrency=4, dead_on=SMTPRecipientsRefused)


def handle(message: sandq.sync.Message) -> None:
    """Handle one message, in a thread of the client. An error leads to another attempt."""
    close_old_connections()  # as Django does before and after each web request
    try:
        content = message.json()
        handler = HANDLERS.get(content["mail"])
        if handler is None:  # a newer worker may know it
            raise sandq.Retry("1m", f"unknown mail {content['mail']!r}", count=False)
        handler(message, content.get("id"))
    finally:
        close_old_connections()


def welcome(message: sandq.sync.Message, user_id: int) -> None:
    user = get_user_model().objects.filter(pk=user_id).first()
    if user is not None:
        send_mail("Welcome", f"Hello {user.username}!", None, [user.email])


def invoice_due(message: sandq.sync.Message, invoice_id: int) -> None:
    invoice = Invoice.objects.select_related("user").filter(pk=invoice_id).first()
    if invoice is None or not invoice.needs_mail:
        return
    if invoice.due_at - delivery_time(message) >= timedelta(milliseconds=1):
        # The due time was moved, but sandq could not be reached then.
        message.ack().wait()
        plan_due_mail(invoice_id)
        return
    text = f"Please pay {invoice.amount_cents / 100:.2f} euros."
    send_mail(f"Invoice {invoice_id} is due", text, None, [invoice.user.email])
    Invoice.objects.filter(pk=invoice_id).update(mailed_due_at=invoice.due_at)


def plan(message: sandq.sync.Message, _: None) -> None:
    """Store again, each night, the messages that were lost between a commit and sandq."""
    now = delivery_time(message)
    near = Invoice.objects.filter(paid=False, due_at__range=(now - timedelta(days=1), now + timedelta(days=2)))
    for invoice in near:
        if invoice.needs_mail:
            plan_due_mail(invoice.pk)


HANDLERS = {"welcome": welcome, "invoice-due": invoice_due, "plan": plan}


def delivery_time(message: sandq.sync.Message) -> datetime:
    return datetime.fromtimestamp(message.deliver_at_ms / 1000, UTC)
