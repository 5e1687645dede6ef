"""Run tasks until SIGTERM or SIGINT."""

from __future__ import annotations

import signal
from typing import Any, Final

from django.core.management.base import BaseCommand, CommandError, CommandParser

from sandq.errors import SandqError
from sandq_workers.django.api import task_backends
from sandq_workers.django.backend import SandqBackend
from sandq_workers.django.worker import Worker

_THREADS: Final = 4


class Command(BaseCommand):
    """Runs a worker in this process."""

    help = "Run tasks. SIGTERM or Ctrl-C ends the worker after its running tasks; a second one ends it immediately."

    def add_arguments(self, parser: CommandParser) -> None:
        """Add the options."""
        parser.add_argument("--backend", default="default", help="alias of the backend in TASKS (default: default)")
        parser.add_argument(
            "--queue", action="append", dest="queues", metavar="NAME", help="a queue; repeatable (default: all QUEUES)"
        )
        parser.add_argument(
            "--threads", "--concurrency", type=int, default=_THREADS, metavar="N",
            help=f"maximum number of tasks that run at the same time (default: {_THREADS})",
        )  # fmt: skip

    def handle(self, *_: Any, **options: Any) -> None:
        """Run the worker."""
        backend = backend_of(options["backend"])
        queues = sorted(set(options["queues"] or backend.queues))
        unknown = [name for name in queues if backend.queues and name not in backend.queues]
        if not queues:
            raise CommandError("QUEUES of the backend is empty: name the queues with --queue")
        if unknown:
            raise CommandError(f"QUEUES of the backend does not have {', '.join(unknown)}")
        if options["threads"] < 1:
            raise CommandError("--threads must be at least 1")
        worker = Worker(backend, queues, options["threads"])
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = [signal.getsignal(number) for number in numbers]

        def stop(*_: object) -> None:
            for number in numbers:
                signal.signal(number, signal.SIG_DFL)
            worker.stop()

        for number in numbers:
            signal.signal(number, stop)
        self.stdout.write(f"worker {worker.id}: {', '.join(queues)}")
        self.stdout.flush()
        try:
            worker.run()
        except SandqError as error:
            raise CommandError(str(error)) from error
        finally:
            for number, handler in zip(numbers, before, strict=True):
                signal.signal(number, handler)


def backend_of(alias: str) -> SandqBackend:
    """Return the backend with an alias. Raises CommandError if it is not one of sandq."""
    if alias not in task_backends.settings:
        raise CommandError(f"TASKS has no backend {alias!r}")
    backend = task_backends[alias]
    if not isinstance(backend, SandqBackend):
        raise CommandError(f"TASKS[{alias!r}] is a {type(backend).__name__}, not a SandqBackend")
    return backend
