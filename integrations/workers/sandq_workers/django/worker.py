"""The worker: threads that run the tasks of queues.

A message is leased while its task runs, and the client extends the lease. If a worker is killed, its tasks are
delivered again when their leases end.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from traceback import format_exception
from typing import Any, Final, TypeVar

from django.db import close_old_connections
from django.utils import timezone

from sandq.errors import InvalidRequest, Retriable
from sandq.sync import Message
from sandq_workers.django import records
from sandq_workers.django.api import (
    TaskContext,
    TaskError,
    TaskResultStatus,
    normalize_json,
    task_finished,
    task_started,
)
from sandq_workers.django.backend import SandqBackend
from sandq_workers.feed import Feed, Terms
from sandq_workers.key_topic import naps

log = logging.getLogger("sandq.workers")

_NAP_MOST_S: Final = 5.0
"""Longest pause between two attempts to reach the broker."""
_PATIENCE_S: Final = 60.0
"""How long a worker tries to store a result. After that it gives the task back."""
_GIVE_BACK_DELAY: Final = "5s"
_HOST_CHARS: Final = 40
R = TypeVar("R")


class Worker:
    """Runs the tasks of queues in up to `threads` threads, until `stop` is called."""

    def __init__(self, backend: SandqBackend, queues: Sequence[str], threads: int) -> None:
        self.id = f"{socket.gethostname()[:_HOST_CHARS]}-{os.getpid()}"
        self._backend = backend
        self._queues = queues
        self._threads = threads
        # A SimpleQueue, because a signal handler may put into it at any moment.
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._is_stopping = False

    def stop(self) -> None:
        """Let `run` return once the running tasks have ended. May be called from a signal handler."""
        self._is_stopping = True
        self._wakes.put(None)

    def run(self) -> None:
        """Run tasks until `stop` is called. Raises the error if the broker refuses the subscription."""
        feed = self._open()
        if feed is None:
            return
        stopped = threading.Event()
        relay = self._start_relay(stopped)
        log.info("worker %s runs tasks of %s", self.id, ", ".join(self._queues))
        with ThreadPoolExecutor(self._threads, thread_name_prefix="sandq-task") as pool:
            while not self._is_stopping and feed.error is None:
                while (found := feed.take()) is not None:
                    pool.submit(self._run, feed, found[1])
                self._wakes.get()
            feed.retire()
        stopped.set()
        if relay is not None:
            relay.join()
        if feed.error is not None and not self._is_stopping:
            raise feed.error

    def _open(self) -> Feed | None:
        """Subscribe to the topics of the queues; wait for the broker. Return None if the worker is stopped."""
        backend = self._backend
        terms = Terms(
            queues={backend.topic(name): name for name in self._queues},
            group=backend.settings.group,
            credit=self._threads,
            lease=backend.settings.lease,
        )
        pauses = naps(_NAP_MOST_S)
        is_away = False
        while not self._is_stopping:
            try:
                for name in self._queues:
                    backend.create_topic(name)
                return Feed(backend.client, terms, lambda: self._wakes.put(None))
            except Retriable as error:
                if not is_away:
                    log.warning("the broker cannot be reached, and the worker waits for it: %s", error)
                is_away = True
            try:
                self._wakes.get(timeout=next(pauses))
            except queue.Empty:
                continue
        return None

    def _start_relay(self, stopped: threading.Event) -> threading.Thread | None:
        if not self._backend.settings.outbox:
            return None
        from sandq_workers.django.relay import relay_until

        relay = threading.Thread(target=relay_until, args=(self._backend, stopped), name="sandq-outbox", daemon=True)
        relay.start()
        return relay

    def _run(self, feed: Feed, message: Message) -> None:
        """Run the task of a message, and settle the message."""
        close_old_connections()
        try:
            self._settle(message)
        except Retriable as error:
            log.warning("the broker is away, and the task of message %s is given back: %s", message.id, error)
            message.give_back(delay=_GIVE_BACK_DELAY)
        except Exception as error:  # it counts as an attempt, so that the message is a dead letter in the end
            log.exception("the task of message %s is tried again", message.id)
            message.nack(error=error)
        finally:
            close_old_connections()
            feed.settled()

    def _settle(self, message: Message) -> None:
        try:
            record = records.decoded(message.value)
        except records.UnknownTask as error:
            log.error("message %s becomes a dead letter: %s", message.id, error)
            message.dead(error)
            return
        name = record["id"]
        stored = _patiently(lambda: self._backend.stored(name))
        record = record if stored is None else stored
        if record["status"] == TaskResultStatus.SUCCESSFUL:
            message.ack()  # an earlier worker was killed between the result and the ack
            return
        try:
            result = records.result_of(record, self._backend.alias)
        except records.UnknownTask as error:
            self._refuse(message, record, error)
            return
        self._begin(result)
        try:
            self._call(result)
        except BaseException as error:
            self._fail(message, result, error)
            return
        try:
            self._save(result)
        except InvalidRequest as error:  # the value is too large
            records.set_fields(result, _return_value=None)
            self._fail(message, result, error)
            return
        task_finished.send_robust(type(self._backend), task_result=result)
        message.ack()

    def _begin(self, result: Any) -> None:
        now = timezone.now()
        result.worker_ids.append(self.id)
        records.set_fields(
            result,
            status=TaskResultStatus.RUNNING,
            started_at=result.started_at or now,
            last_attempted_at=now,
            finished_at=None,
        )
        self._save(result)
        task_started.send_robust(type(self._backend), task_result=result)

    def _call(self, result: Any) -> None:
        """Run a task. Raises what the task raises, and TypeError if JSON has not what it returns."""
        first = (TaskContext(task_result=result),) if result.task.takes_context else ()
        value = normalize_json(result.task.call(*first, *result.args, **result.kwargs))
        records.set_fields(result, _return_value=value, status=TaskResultStatus.SUCCESSFUL, finished_at=timezone.now())

    def _fail(self, message: Message, result: Any, error: BaseException) -> None:
        """Store the error of a task. The task is run again if it has attempts left, else it is a dead letter."""
        kind = type(error)
        text = "".join(format_exception(error))
        path = f"{kind.__module__}.{kind.__qualname__}"
        result.errors.append(TaskError(exception_class_path=path, traceback=text))
        is_last = len(result.errors) >= self._backend.settings.max_attempts
        status = TaskResultStatus.FAILED if is_last else TaskResultStatus.READY
        records.set_fields(result, status=status, finished_at=timezone.now() if is_last else None)
        self._save(result)
        if is_last:
            task_finished.send_robust(type(self._backend), task_result=result)
            message.dead(f"{path}: {error}")
        else:
            log.warning("task %s (%s) failed, and is tried again", result.id, result.task.module_path, exc_info=error)
            message.nack(error=f"{path}: {error}")

    def _refuse(self, message: Message, record: dict[str, Any], error: Exception) -> None:
        """Make a message whose task does not exist a dead letter. Another program may have the task, and read why."""
        log.error("task %s becomes a dead letter: %s", record["id"], error)
        cause = error.__cause__ or error
        record["errors"].append(
            {"class": f"{type(cause).__module__}.{type(cause).__qualname__}", "traceback": str(error)}
        )
        record |= {"status": str(TaskResultStatus.FAILED.value), "finished_at": timezone.now().isoformat()}
        data = json.dumps(record, separators=(",", ":")).encode()
        _patiently(lambda: self._backend.save(record["id"], data))
        message.dead(error)

    def _save(self, result: Any) -> None:
        data = records.encoded(result)
        _patiently(lambda: self._backend.save(result.id, data))


def _patiently(call: Callable[[], R]) -> R:
    """Repeat a call while the broker is away, for up to a minute. Raises the last error."""
    ends_at = time.monotonic() + _PATIENCE_S
    pauses = naps(_NAP_MOST_S)
    while True:
        try:
            return call()
        except Retriable:
            if time.monotonic() >= ends_at:
                raise
            time.sleep(next(pauses))
