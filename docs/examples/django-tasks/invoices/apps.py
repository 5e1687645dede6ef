"""The app: invoices, and the mails about them."""

from django.apps import AppConfig


class InvoicesConfig(AppConfig):
    name = "invoices"

    def ready(self) -> None:
        from invoices import signals  # noqa: F401
