"""The command `python manage.py run_worker`."""

import signal
import sys
from contextlib import suppress

from django.core.management.base import BaseCommand

from invoices.mails import client
from invoices.worker import work


class Command(BaseCommand):
    help = "Send mails when they are due. SIGTERM or Ctrl-C lets running handlers end."

    def handle(self, **options: object) -> None:
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
        with suppress(KeyboardInterrupt), client() as connected:
            work(connected)
