"""Send the tasks of the outbox. A worker does the same, so this command is for programs whose workers are elsewhere."""

from __future__ import annotations

import signal
import threading
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from sandq.errors import SandqError
from sandq_workers.django.management.commands.sandq_worker import backend_of


class Command(BaseCommand):
    """Runs the relay in this process."""

    help = "Send the tasks of the outbox, until SIGTERM or Ctrl-C."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("--backend", default="default", help="alias of the backend in TASKS (default: default)")
        parser.add_argument("--once", action="store_true", help="end after the tasks that are stored now")

    def handle(self, *_: Any, **options: Any) -> None:
        """Run the relay."""
        backend = backend_of(options["backend"])
        if not backend.settings.outbox:
            raise CommandError(f"TASKS[{backend.alias!r}] does not have the option outbox")
        from sandq_workers.django.relay import relay, relay_until

        if options["once"]:
            try:
                self.stdout.write(f"{relay(backend)} tasks were sent")
            except SandqError as error:
                raise CommandError(str(error)) from error
            return
        stopped = threading.Event()
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)  # the thread below inherits it
        thread = threading.Thread(target=relay_until, args=(backend, stopped), name="sandq-outbox")
        thread.start()
        try:
            signal.sigwait(numbers)
        finally:
            stopped.set()
            thread.join()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
