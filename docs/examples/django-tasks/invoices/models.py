"""The data of the app."""

from django.conf import settings
from django.db import models


class Invoice(models.Model):
    """An invoice. Its user gets a mail when it is due, unless it is paid before."""

    user = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE)
    amount_cents = models.PositiveIntegerField()
    due_at = models.DateTimeField()
    paid = models.BooleanField(default=False)
    mailed_due_at = models.DateTimeField(null=True, editable=False)
    """The due time for which the mail was sent. It prevents a second mail, for example after an edit of the amount."""

    @property
    def needs_mail(self) -> bool:
        return not self.paid and self.mailed_due_at != self.due_at
