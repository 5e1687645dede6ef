"""A source of schedules that the cluster keeps and fires: no `taskiq scheduler` has to run, and several do no harm.

A schedule with `cron` or `interval` is a schedule of the queue's topic. One with `time` is a message with this delivery
time, and its unique key is the id of its task: the id of the schedule, unless the caller chose an id for the task.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from taskiq import BrokerMessage, ScheduledTask, ScheduleSource, TaskiqMessage
from taskiq.labels import prepare_label

import sandq
from sandq.errors import InvalidRequest, NotFound, TooLate, UnknownTopic
from sandq_workers.names import key_of
from sandq_workers.taskiq.broker import SandqBroker, time_ms

log = logging.getLogger("sandq.workers")

PREFIX: Final = "taskiq"
_ID: Final = "taskiq-schedule"
"""The header of the message of a schedule with `time`: the id of the schedule."""
_LABEL: Final = "schedule"
"""The label of a task with its schedules."""
_HOUR: Final = timedelta(hours=1)


class SandqScheduleSource(ScheduleSource):
    """Stores schedules in the queues of a broker. `prefix`: of the names of schedules, so that sources can share a
    queue."""

    def __init__(self, broker: SandqBroker, *, prefix: str = PREFIX) -> None:
        self._broker = broker
        self._prefix = prefix

    async def get_schedules(self) -> list[ScheduledTask]:
        """Return no schedules: `taskiq scheduler` has nothing to send. `stored` returns them."""
        return []

    async def add_schedule(self, schedule: ScheduledTask) -> None:
        """Store a schedule. One that has its id is changed. Raises InvalidRequest if sandq cannot express it."""
        message = self._message(schedule)
        if schedule.cron is None and schedule.interval is None:
            assert schedule.time is not None, "Taskiq checks it"
            await self._broker.store(
                message, deliver_at=time_ms(schedule.time), headers={_ID: f"{self._prefix}/{schedule.schedule_id}"}
            )
            return
        queue_name = self._broker.queue_of(schedule.labels)
        row = {
            "name": self._name(schedule.schedule_id),
            "value": message.message,
            **times_of(schedule),
            **self._broker.rank(schedule.labels),
        }

        async def create(client: sandq.Client) -> object:
            return await client.schedules(self._broker.topic(queue_name)).create_many([row])

        await self._broker.with_topic(queue_name, create)

    async def delete_schedule(self, schedule_id: str) -> None:
        """Delete a schedule, and the message that it has stored ahead. It is no error if there is none, or if a worker
        has the message already."""
        client = await self._broker.clients.get()
        for queue_name in self._broker.known_queues:
            topic = self._broker.topic(queue_name)
            with suppress(UnknownTopic):
                await self._delete(client.schedules(topic), schedule_id)
                await self._cancel(client.messages(topic), schedule_id)

    async def _delete(self, schedules: sandq.Schedules, schedule_id: str) -> None:
        name = self._name(schedule_id)
        async for row in schedules.list(prefix=name):  # `get` needs the tenant
            if row.name == name:
                with suppress(NotFound):
                    await schedules.delete(name, tenant=row.tenant)

    async def _cancel(self, messages: sandq.Messages, schedule_id: str) -> None:
        with suppress(NotFound, TooLate):
            await messages.cancel(unique_key=key_of(schedule_id))
            return
        # The caller chose the id of the task, which is the key; or the message has a tenant.
        async for message in messages.list(state="delayed"):
            if (message.headers or {}).get(_ID) == f"{self._prefix}/{schedule_id}":
                with suppress(NotFound, TooLate):
                    await messages.cancel(message.id)

    async def stored(self) -> list[ScheduledTask]:
        """Return the schedules with `cron` or `interval` of this source."""
        client, found = await self._broker.clients.get(), []
        for queue_name in self._broker.known_queues:
            with suppress(UnknownTopic):
                rows = client.schedules(self._broker.topic(queue_name)).list(prefix=f"{self._prefix}/")
                found += [task async for row in rows if (task := self._task(row)) is not None]
        return found

    async def store_labels(self) -> list[str]:
        """Store the schedules in the labels `schedule` of the broker's tasks, and delete those that the labels no
        longer have. Return their ids.

        Call it at each deployment, instead of a `LabelScheduleSource`. Repeating the call is safe. The id is
        `schedule_id` of the label, or made of the name of the task and the position in its label. Schedules with `time`
        are refused with InvalidRequest: each call would send their tasks again.
        """
        wanted = {one.schedule_id: one for one in self._labelled()}
        for one in wanted.values():
            await self.add_schedule(one)
        for one in await self.stored():
            if one.labels.get("from_label") and one.schedule_id not in wanted:
                await self.delete_schedule(one.schedule_id)
        return list(wanted)

    def _labelled(self) -> list[ScheduledTask]:
        found = []
        for task_name, task in sorted(self._broker.get_all_tasks().items()):
            labels = {name: value for name, value in task.labels.items() if name != _LABEL}
            for position, entry in enumerate(task.labels.get(_LABEL, [])):
                fields = {"schedule_id": f"{task_name}/{position}", "args": [], "kwargs": {}, **entry}
                if fields.get("time") is not None:
                    raise InvalidRequest(f"task {task_name}: the label schedule has a time; use schedule_by_time")
                fields["labels"] = {**entry.get("labels", {}), **labels, "from_label": True}
                found.append(ScheduledTask(task_name=task_name, **fields))
        return found

    def _name(self, schedule_id: str) -> str:
        return f"{self._prefix}/{schedule_id}"

    def _message(self, schedule: ScheduledTask) -> BrokerMessage:
        """Return the message of a schedule. The id of the task counts if `time` is set: each message that the schedule
        sends otherwise gets an id when it is received."""
        labels = {name: value for name, value in schedule.labels.items() if name != "delay"}
        prepared = {
            name: prepare_label(value) for name, value in {**labels, "schedule_id": schedule.schedule_id}.items()
        }
        message = TaskiqMessage(
            task_id=schedule.task_id or schedule.schedule_id,
            task_name=schedule.task_name,
            labels={name: text for name, (text, _) in prepared.items()},
            labels_types={name: kind for name, (_, kind) in prepared.items()},
            args=schedule.args,
            kwargs=schedule.kwargs,
        )
        return self._broker.formatter.dumps(message)

    def _task(self, row: sandq.Schedule) -> ScheduledTask | None:
        """Return the schedule in a row; None if another program made it, and Taskiq cannot read its message."""
        try:
            message = self._broker.formatter.loads(row.value)
            message.parse_labels()
        except ValueError:
            log.warning("schedule %s of %s has a message that cannot be decoded", row.name, row.topic)
            return None
        return ScheduledTask(
            task_name=message.task_name,
            labels=message.labels,
            args=message.args,
            kwargs=message.kwargs,
            schedule_id=row.name.removeprefix(f"{self._prefix}/"),
            cron=row.cron,
            cron_offset=row.zone if row.cron is not None else None,
            interval=None if row.every_ms is None else timedelta(milliseconds=row.every_ms),
        )


def times_of(schedule: ScheduledTask) -> dict[str, Any]:
    """Return the times of a schedule as arguments of sandq. Raises InvalidRequest if sandq cannot express them."""
    if schedule.cron is None:
        return {"every": schedule.interval}
    fields = schedule.cron.split()
    if len(fields) == 5 and not any(field.startswith("*") for field in (fields[2], fields[4])):
        raise InvalidRequest(
            f"cron {schedule.cron!r}: in Taskiq, both the day of the month and the day of the week must match, while "
            "one of them is enough in sandq: use one of the fields"
        )
    return {"cron": schedule.cron, "zone": _zone(schedule.cron_offset)}


def _zone(offset: str | timedelta | None) -> str:
    if not offset:
        return "UTC"
    if isinstance(offset, str):
        return offset
    if offset % _HOUR or not -12 <= offset // _HOUR <= 14:
        raise InvalidRequest(f"cron_offset {offset}: full hours of -12 to 14 or the name of a time zone are expected")
    return f"Etc/GMT{-(offset // _HOUR):+d}"  # the sign of these names is that of POSIX
