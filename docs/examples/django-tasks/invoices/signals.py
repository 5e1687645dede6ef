"""Keep the messages in step with the rows: after each commit that changes a user or an invoice.

A transaction that is rolled back sends nothing. With `robust=True`, an error of sandq is logged and does not fail the
request, because the row is committed already. (Django cannot log the error of a `functools.partial`: use a function.)
"""

from django.conf import settings
from django.db import transaction
from django.db.models.signals import post_delete, post_save
from django.dispatch import receiver

from invoices.mails import plan_due_mail, send_welcome
from invoices.models import Invoice


@receiver(post_save, sender=settings.AUTH_USER_MODEL)
def on_user_saved(instance, created, raw, **_):
    if created and not raw:  # raw: from a file of `loaddata`
        user_id = instance.pk
        transaction.on_commit(lambda: send_welcome(user_id), robust=True)


@receiver((post_save, post_delete), sender=Invoice)
def on_invoice_changed(instance, **_):
    invoice_id = instance.pk  # Django clears it after a deletion
    transaction.on_commit(lambda: plan_due_mail(invoice_id), robust=True)
