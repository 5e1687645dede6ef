"""The backend of Django's tasks: a queue is a topic, and the id of a task is the unique key of its message.

Results are keys of one compacted topic. The record of a result is written before its message, and only if there is
none. So a task that is sent again, because the first reply was lost or by the relay of the outbox, is stored once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any, Final

from django.apps import apps
from django.core import checks
from django.core.exceptions import ImproperlyConfigured
from django.db import connections, transaction
from django.utils import timezone
from django.utils.crypto import get_random_string

from sandq.errors import InvalidName, TopicExists, UnknownTopic, VersionChanged
from sandq.sync import Client
from sandq_workers.django import records
from sandq_workers.django.api import (
    BaseTaskBackend,
    InvalidTask,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_enqueued,
)
from sandq_workers.django.options import DAY_S, Options, read
from sandq_workers.key_topic import KeyTopic
from sandq_workers.names import encoded

APP: Final = "sandq_workers.django"
_NO_DATABASE: Final = "django.db.backends.dummy"
_ID_CHARS: Final = 32
_LOWEST_PRIORITY: Final = 100
"""Django's highest priority is the lowest number in sandq, which is delivered first."""
_MOST_DAYS: Final = 3650
"""How far ahead a delivery time may be, in days; also the longest time to live that is given to a result."""


class SandqBackend(BaseTaskBackend):
    """Sends tasks to sandq, and reads their results."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.settings: Options
        self.settings, self._problems = read(params.get("OPTIONS", {}))
        self.supports_priority = self.settings.kind == "priority"
        self.keys = KeyTopic(self.settings.address, self.settings.results_topic)

    @property
    def client(self) -> Client:
        """The client of this process. Raises the errors of connecting."""
        return self.keys.client

    def topic(self, queue: str) -> str:
        """Return the topic of a queue."""
        return encoded(queue, prefix=self.settings.address.prefix)

    def create_topic(self, queue: str) -> None:
        """Create the topic of a queue unless it exists."""
        with suppress(TopicExists):
            self.client.admin.create_topic(self.topic(queue), kind=self.settings.kind, **self.settings.topic_settings)

    # Django's interface.

    def validate_task(self, task: Any) -> None:
        """Check that a task can be sent. Raises Django's error for invalid tasks."""
        super().validate_task(task)
        if task.run_after is not None and _aware(task.run_after) > timezone.now() + timedelta(days=_MOST_DAYS):
            raise InvalidTask(f"run_after may be at most {_MOST_DAYS} days ahead")

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        """Send a task, and return its result: now, after the commit of the caller's transaction, or by the outbox.

        Raises TypeError for arguments that JSON has not, ImproperlyConfigured, and the errors of sandq's client.
        """
        self._check_options()
        self.validate_task(task)
        result: Any = TaskResult(
            task=task,
            id=get_random_string(_ID_CHARS),
            status=TaskResultStatus.READY,
            enqueued_at=None,
            started_at=None,
            finished_at=None,
            last_attempted_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        if self.settings.outbox:
            records.set_fields(result, enqueued_at=timezone.now())
            self.outbox().write(result)
            task_enqueued.send(type(self), task_result=result)
        elif self.settings.enqueue_on_commit:
            transaction.on_commit(partial(self._send, result), using=self.settings.database)
        else:
            self._send(result)
        return result

    def get_result(self, result_id: str) -> Any:
        """Return the result with an id. Raises Django's TaskResultDoesNotExist, also if the program does not have the
        task any more; and ImproperlyConfigured, and the errors of sandq's client."""
        self._check_options()
        if not isinstance(result_id, str) or not 1 <= len(result_id) <= records.MOST_ID_CHARS:
            raise TaskResultDoesNotExist(result_id)
        # The table first: its row is deleted after the record is stored, so one of the two reads finds the task.
        unsent = self.outbox().find(result_id) if self.settings.outbox else None
        record = self.stored(result_id) or unsent
        if record is None:
            raise TaskResultDoesNotExist(result_id)
        try:
            return records.result_of(record, self.alias)
        except records.UnknownTask as error:
            raise TaskResultDoesNotExist(f"{result_id}: {error}") from error

    def check(self, **_: Any) -> Iterator[checks.CheckMessage]:
        """Return what is wrong with the setting, for `manage.py check`."""
        where = f"TASKS[{self.alias!r}]"
        for problem in self._problems:
            yield checks.Error(f"{where}: {problem}", id="sandq.E001")
        for queue in sorted(self.queues):
            try:
                if self.topic(queue) == self.keys.topic:
                    yield checks.Error(f"{where}: the queue {queue!r} is the topic of the results", id="sandq.E002")
            except InvalidName as error:
                yield checks.Error(f"{where}: {error}", id="sandq.E002")
        settings = self.settings
        if settings.outbox and not apps.is_installed(APP):
            hint = f"Add {APP!r} to INSTALLED_APPS, and run manage.py migrate."
            yield checks.Error(f"{where}: the option outbox needs the app {APP}", hint=hint, id="sandq.E003")
        engine = connections.settings.get(settings.database, {}).get("ENGINE", _NO_DATABASE)
        if (settings.outbox or settings.enqueue_on_commit) and engine == _NO_DATABASE:
            hint = "Set the option database, or enqueue_on_commit to False."
            text = f"{where}: DATABASES has no {settings.database!r}, whose transactions the backend would use"
            yield checks.Error(text, hint=hint, id="sandq.E004")

    # For the worker and the relay.

    def send(self, record: dict[str, Any], data: bytes) -> None:
        """Store a task in the broker, once: repeating the call is safe. Raises the errors of sandq's client."""
        name, run_after = record["id"], record["run_after"]
        now = timezone.now()
        due = None if run_after is None else _aware(datetime.fromisoformat(run_after))
        options: dict[str, Any] = {} if due is None or due <= now else {"deliver_at": due}
        if self.supports_priority:
            options["priority"] = _LOWEST_PRIORITY - record["priority"]
        try:
            ttl = self._ttl(0 if due is None else (due - now).total_seconds())
            self.keys.call(lambda keys: keys.cas(name, data, expected=None, ttl=ttl))
        except VersionChanged:
            found = self.stored(name)
            if found is not None and found["worker_ids"]:
                return  # an earlier call has stored the message, and a worker has received it
        produce = partial(
            self.client.produce, self.topic(record["queue"]), data, unique_key=name, on_conflict="ignore", **options
        )
        try:
            produce()
        except UnknownTopic:
            self.create_topic(record["queue"])
            produce()

    def outbox(self) -> Any:
        """Return the `Outbox` of this backend. Needs the app in INSTALLED_APPS."""
        # Django loads the models of an app after the module of the app, which imports this module.
        from sandq_workers.django.outbox import Outbox

        return Outbox(self.settings.database, self.alias)

    def stored(self, result_id: str) -> dict[str, Any] | None:
        """Return the stored record of a task; None if there is none."""
        entry = self.keys.call(lambda keys: keys.get(result_id))
        return None if entry is None else records.decoded(entry.value)

    def save(self, name: str, data: bytes) -> None:
        """Store the record of a task that a worker holds, or has finished."""
        self.keys.call(lambda keys: keys.put(name, data, ttl=self._ttl(0)))

    def _check_options(self) -> None:
        if self._problems:
            raise ImproperlyConfigured(f"TASKS[{self.alias!r}]: {'; '.join(self._problems)}")

    def _send(self, result: Any) -> None:
        records.set_fields(result, enqueued_at=timezone.now())
        data = records.encoded(result)
        self.send(records.decoded(data), data)
        task_enqueued.send(type(self), task_result=result)

    def _ttl(self, delay_s: float) -> str | None:
        """Return the time to live of a record whose task begins after a delay."""
        ttl_s = self.settings.ttl_s
        return None if ttl_s is None else f"{round(min(ttl_s + max(delay_s, 0), _MOST_DAYS * DAY_S) * 1000)}ms"


def _aware(time: datetime) -> datetime:
    return timezone.make_aware(time) if timezone.is_naive(time) else time
