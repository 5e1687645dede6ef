"""A small task queue in the manner of Celery: functions become tasks that run later, elsewhere, and again if they fail.

    python docs/examples/worker.py --concurrency 4           # a worker; SIGTERM or Ctrl-C lets running tasks end
    python docs/examples/worker.py --say hello --in 5s       # elsewhere: run a task in five seconds

Any number of workers share the tasks. How often, and after what pauses, a task is tried again are settings of the
topic; a task that failed at its last attempt is a dead letter: `sandctl dead list tasks --group workers`.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Generic, ParamSpec, TypeVar

import sandq
from sandq.errors import TopicExists

P = ParamSpec("P")
R = TypeVar("R")

RETRY = {"kind": "exponential", "first": "1s", "cap": "5m"}


class Task(Generic[P, R]):
    """A function that can be called, or sent to a worker."""

    def __init__(self, tasks: Tasks, function: Callable[P, R]) -> None:
        self.tasks = tasks
        self.function = function
        self.name = function.__name__

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Run the task on the next free worker. Return the id of the message."""
        return self.tasks.send(self.name, args, kwargs)

    def apply_in(self, delay: timedelta | str, *args: P.args, **kwargs: P.kwargs) -> str:
        """Run the task after a delay: a timedelta, or text such as "90s". Return the id of the message."""
        return self.tasks.send(self.name, args, kwargs, delay=delay)

    def apply_at(self, when: datetime | str, *args: P.args, **kwargs: P.kwargs) -> str:
        """Run the task at a time: a datetime with a zone, or text such as "2030-01-31T08:00:00Z". Return the id."""
        return self.tasks.send(self.name, args, kwargs, deliver_at=when)


class Tasks:
    """The tasks that a worker knows, by name."""

    def __init__(self, client: Callable[[], sandq.sync.Client], topic: str = "tasks") -> None:
        self.client = client
        self.topic = topic
        self.known: dict[str, Callable[..., object]] = {}

    def task(self, function: Callable[P, R]) -> Task[P, R]:
        """Make a function a task (decorator)."""
        task = Task(self, function)
        self.known[task.name] = task
        return task

    def send(
        self,
        name: str,
        args: tuple[object, ...],
        kwargs: dict[str, object],
        *,
        delay: timedelta | str | None = None,
        deliver_at: datetime | str | None = None,
    ) -> str:
        """Send a task as JSON, not as a pickle: a worker runs only tasks of its own code."""
        payload = json.dumps({"args": args, "kwargs": kwargs})
        headers = {"task": name}
        return self.client().produce(self.topic, payload, headers=headers, delay=delay, deliver_at=deliver_at)

    def create(self) -> None:
        """Create the topic, unless it exists."""
        with suppress(TopicExists):
            self.client().admin.create_topic(self.topic, max_attempts=5, backoff=RETRY)

    def work(self, concurrency: int) -> None:
        """Run tasks until the process is stopped."""
        self.client().run(self.topic, "workers", self._handle, concurrency=concurrency, grace="30s")

    def _handle(self, message: sandq.sync.Message) -> None:
        task = self.known.get(message.headers.get("task", ""))
        if task is None:  # a newer worker may know it
            raise sandq.Retry("1m", f"unknown task {message.headers.get('task')!r}", count=False)
        call = json.loads(message.value)
        task(*call["args"], **call["kwargs"])


# The program: its tasks, and its command line.

options = argparse.ArgumentParser(description="A worker of the example task queue.")
options.add_argument("--server", default="127.0.0.1:7170", metavar="HOST:PORT")
options.add_argument("--concurrency", type=int, default=4, help="tasks at a time")
options.add_argument("--say", metavar="WORD", help="send a task instead of being a worker")
options.add_argument("--in", dest="delay", default="0s", metavar="TIME", help="with --say: delay, such as 5s")

_clients: list[sandq.sync.Client] = []
tasks = Tasks(lambda: _clients[0])


@tasks.task
def say(word: str) -> None:
    if word == "boom":
        raise RuntimeError("it went boom")
    print(word, flush=True)


def main() -> None:
    given = options.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(0))
    with suppress(KeyboardInterrupt), sandq.sync.connect(given.server) as client:
        _clients.append(client)
        tasks.create()
        if given.say is None:
            tasks.work(given.concurrency)
        else:
            say.apply_in(given.delay, given.say)


if __name__ == "__main__":
    main()
