"""The broker of Taskiq: a queue is a topic, and all workers are one group of it.

The id of a task is the unique key of its message, unless the task has the label `unique_key`: `cancel`, `move` and
`why` use it. A message that is sent again under its key while it waits replaces the first one; a retry is stored in
addition, because a worker holds the first one (`on_conflict="debounce"`).
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeVar

from taskiq import AckableMessage, AsyncBroker, BrokerMessage
from taskiq.acks import parse_acknowledge_type

import sandq
from sandq.errors import (
    ClosedError,
    InvalidRequest,
    NotFound,
    Retriable,
    SandqError,
    TooLate,
    TopicExists,
    UnknownTopic,
)
from sandq_workers.key_topic import naps
from sandq_workers.names import encoded, id_of_message, key_of
from sandq_workers.taskiq.loop_clients import LoopClients
from sandq_workers.urls import masked, parse

log = logging.getLogger("sandq.workers")

GROUP: Final = "workers"
PREFETCH: Final = 100
"""Messages that a worker process holds: the number of tasks that `taskiq worker` runs at once by default."""
KINDS: Final = ("timer", "priority", "fair")
MAX_PRIORITY: Final = 9
_FROM_SCHEDULE: Final = "sandq-schedule"
"""The header of messages that a schedule of the broker has sent."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_CONNECT_NAP_MOST_S: Final = 5.0
R = TypeVar("R")
N = TypeVar("N", int, float)


class SandqBroker(AsyncBroker):
    """A broker for `taskiq worker`, and for programs that send tasks.

    `url`: see `sandq_workers.urls`. `queue_name`: the queue of tasks without the label `queue_name`.
    `additional_queues`: more queues that workers listen to. `prefetch`: maximum number of messages that a worker
    process holds. `kind`: of topics that are created, "timer", "priority" (for the label `priority`, 0 to
    `max_priority`, higher first) or "fair" (for the label `tenant`, too). `lease`: how long the messages of a killed
    worker stay leased. `settings`: of topics that are created.
    """

    def __init__(
        self,
        url: str = "sandq://127.0.0.1:7170",
        *,
        queue_name: str = "taskiq",
        additional_queues: Iterable[str] = (),
        prefetch: int = PREFETCH,
        kind: str = "timer",
        max_priority: int = MAX_PRIORITY,
        group: str = GROUP,
        lease: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__()
        if kind not in KINDS:
            raise InvalidRequest(f"kind {kind!r}: one of {', '.join(KINDS)} is expected")
        self.clients = LoopClients(parse(url))
        self.queue_name = queue_name
        self.queues = dict.fromkeys((queue_name, *additional_queues))
        """The queues that workers listen to, in this order."""
        self.known_queues = dict(self.queues)
        """The queues above, and those to which this process has sent tasks."""
        self.kind = kind
        self._url = masked(url)
        self._prefetch = prefetch
        self._max_priority = max_priority
        self._group = group
        self._lease = lease
        self._settings = dict(settings or {})
        self._subscriptions: list[sandq.Subscription] = []
        for name in self.queues:
            self.topic(name)

    def topic(self, queue_name: str) -> str:
        """Return the topic of a queue. Raises InvalidName."""
        return encoded(queue_name, prefix=self.clients.address.prefix)

    async def startup(self) -> None:
        """Connect. Raises ConnectionLost if no server replies; a worker waits for one in `listen` instead."""
        try:
            await self.clients.get()
        except Retriable as error:
            if not self.is_worker_process:
                raise
            log.warning("%s cannot be reached yet: %s", self._url, error)
        await super().startup()

    async def shutdown(self) -> None:
        """Give back the messages of tasks that still run, and close the client unless something else uses it."""
        subscriptions, self._subscriptions = self._subscriptions, []
        try:
            for subscription in subscriptions:
                await subscription.__aexit__(None, None, None)
            await super().shutdown()
        finally:
            await self.clients.release()

    async def kick(self, message: BrokerMessage) -> None:
        """Store a message with the options that its labels name. Returns once it is safely stored."""
        delay = message.labels.get("delay")
        times = {} if delay is None else {"delay_ms": max(math.ceil(_number("delay", delay, float) * 1000), 0)}
        await self.store(message, **times)

    async def store(self, message: BrokerMessage, **more: Any) -> None:
        """Store a message. `more`: arguments of `produce`. Raises InvalidRequest if a label is wrong."""
        key = message.labels.get("unique_key") or message.task_id
        options = {"unique_key": key_of(key), "on_conflict": "debounce", **self.rank(message.labels), **more}
        queue_name = self.queue_of(message.labels)

        async def produce(client: sandq.Client) -> str:
            return await client.produce(self.topic(queue_name), message.message, **options)

        await self.with_topic(queue_name, produce)

    def queue_of(self, labels: Mapping[str, Any]) -> str:
        """Return the queue that the labels of a task name."""
        return str(labels.get("queue_name") or self.queue_name)

    def rank(self, labels: Mapping[str, Any]) -> dict[str, Any]:
        """Return the options for the labels `priority` and `tenant`. Raises InvalidRequest if topics of this kind do
        not have them."""
        options: dict[str, Any] = {}
        for name, kinds in (("priority", KINDS[1:]), ("tenant", KINDS[2:])):
            if labels.get(name) is None:
                continue
            if self.kind not in kinds:
                raise InvalidRequest(
                    f"label {name}: the broker has the kind {self.kind!r}, and {' or '.join(kinds)} is expected"
                )
            options[name] = str(labels[name])
        if self.kind in KINDS[1:]:
            priority = _number("priority", options.get("priority", 0), int)
            options["priority"] = self._max_priority - min(max(priority, 0), self._max_priority)
        return options

    async def with_topic(self, queue_name: str, call: Callable[[sandq.Client], Awaitable[R]]) -> R:
        """Make a call; create the topic of the queue if it does not exist."""
        client = await self.clients.get()
        self.known_queues[queue_name] = None
        try:
            return await call(client)
        except UnknownTopic:
            await self._create_topic(client, queue_name)
            return await call(client)

    async def _create_topic(self, client: sandq.Client, queue_name: str) -> None:
        with suppress(TopicExists):
            await client.admin.create_topic(self.topic(queue_name), kind=self.kind, **self._settings)

    async def listen(self) -> AsyncGenerator[AckableMessage, None]:
        """Yield messages until the generator is closed. Their leases are extended until they are acked.

        Wait for the cluster if it cannot be reached, and create the topics of queues that do not exist. A message that
        cannot be decoded, or whose task is unknown, becomes a dead letter. After the generator is closed, messages stay
        leased, because Taskiq's worker still runs their tasks: `shutdown` gives them back.
        """
        pauses = naps(_CONNECT_NAP_MOST_S)
        while True:
            try:
                subscription = await self._subscribe()
            except (Retriable, UnknownTopic) as error:  # UnknownTopic: another process has just deleted it
                log.warning("%s cannot be consumed yet: %s", self._url, error)
                await asyncio.sleep(next(pauses))
                continue
            try:
                async for message in subscription:
                    data = self._data(message)
                    if data is not None:
                        yield AckableMessage(data=data, ack=_acking(message))
            except UnknownTopic as error:
                log.warning("the topic of a queue was deleted, and is created again: %s", error)
                self._subscriptions.remove(subscription)
                await subscription.__aexit__(None, None, None)
            except ClosedError:
                if subscription in self._subscriptions:
                    raise
                return  # `shutdown` was called
            finally:
                subscription.stop()

    async def _subscribe(self) -> sandq.Subscription:
        client = await self.clients.get()
        for queue_name in self.queues:
            await self._create_topic(client, queue_name)
        topics = [self.topic(queue_name) for queue_name in self.queues]
        subscription = client.subscribe(topics, group=self._group, credit=self._prefetch, lease=self._lease)
        await subscription.__aenter__()
        self._subscriptions.append(subscription)
        return subscription

    def _data(self, message: sandq.Message) -> bytes | None:
        """Return the message for Taskiq; None if it became a dead letter.

        Taskiq acks what it cannot decode and tasks that it does not know, and never settles a message with an unknown
        `ack_type`: all this is checked here.
        """
        data = message.value or b""
        try:
            found = self.formatter.loads(data)
            if _FROM_SCHEDULE in (message.headers or {}):
                found.task_id = id_of_message(f"{message.topic}/{message.id}").hex
                data = self.formatter.dumps(found).message
            found.parse_labels()
            parse_acknowledge_type(found.labels.get("ack_type", "manual"))
        except Exception as error:
            log.exception("message %s of %s cannot be decoded, and becomes a dead letter", message.id, message.topic)
            message.dead(error)
            return None
        if self.find_task(found.task_name) is None:
            log.error("the worker has no task %r: message %s becomes a dead letter", found.task_name, message.id)
            message.dead(f"the worker has no task {found.task_name!r}: its module may not be imported")
            return None
        return data

    # Tasks that wait.

    async def cancel(self, task_id: str, *, tenant: str | None = None) -> str:
        """Cancel a task that waits: no worker gets it. Return "cancelled", or why it cannot be cancelled any more:
        "leased", "acked", "dead" or "gone". Raises NotFound if no queue knows the task.

        Here, and in `move` and `why`, `task_id` is the label `unique_key` of a task that has it, and `tenant` is needed
        for tasks with that label.
        """

        async def cancel(messages: sandq.Messages, key: str) -> str:
            try:
                await messages.cancel(unique_key=key, tenant=tenant)
                return "cancelled"
            except TooLate as error:
                return str(error.details.get("state"))

        return await self._find(task_id, lambda _, messages, key: cancel(messages, key))

    async def move(
        self, task_id: str, *, delay: float | None = None, time: datetime | None = None, tenant: str | None = None
    ) -> None:
        """Change the time of a task that waits, to `time` or to `delay` seconds from now. Raises TooLate, NotFound."""
        deliver_at = None if time is None else time_ms(time)
        await self._find(
            task_id,
            lambda _, messages, key: messages.move(unique_key=key, delay=delay, deliver_at=deliver_at, tenant=tenant),
        )

    async def why(self, task_id: str, *, tenant: str | None = None) -> dict[str, Any]:
        """Return the `queue` of a task, and the fields of `Messages.why`, which explain what it waits for. Raises
        NotFound."""

        async def why(queue_name: str, messages: sandq.Messages, key: str) -> dict[str, Any]:
            return {"queue": queue_name, **await messages.why(unique_key=key, tenant=tenant)}

        return await self._find(task_id, why)

    async def _find(self, task_id: str, call: Callable[[str, sandq.Messages, str], Awaitable[R]]) -> R:
        """Return the result of a call for the first queue that knows the task."""
        client = await self.clients.get()
        for queue_name in self.known_queues:
            with suppress(NotFound):
                return await call(queue_name, client.messages(self.topic(queue_name)), key_of(task_id))
        raise NotFound(f"no queue of the broker knows the task {task_id!r}: it is done, or was never sent")


def time_ms(time: datetime) -> int:
    """Return an instant in epoch ms, rounded up: a message is never early. Naive times are UTC, as in Taskiq."""
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return -((_EPOCH - aware) // timedelta(milliseconds=1))


def _number(name: str, value: object, kind: Callable[[str], N]) -> N:
    try:
        found = kind(str(value))
        if math.isfinite(found):
            return found
    except ValueError:
        pass
    raise InvalidRequest(f"label {name}: a number is expected, not {value!r:.60}")


def _acking(message: sandq.Message) -> Callable[[], Awaitable[None]]:
    async def ack() -> None:
        """Ack the message, and wait until the ack is stored. If that fails, the task may run again."""
        try:
            await message.ack()
        except SandqError as error:
            log.warning(
                "message %s of %s is not acked, and may be delivered again: %s", message.id, message.topic, error
            )

    return ack
