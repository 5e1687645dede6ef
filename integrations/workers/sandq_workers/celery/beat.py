"""Periodic tasks as schedules of sandq: `beat_scheduler = "sandq_workers.celery.beat:SandqScheduler"`.

`celery beat` then stores the entries of `beat_schedule` in the broker, which sends one message for each occurrence. No
process has to run for this, and several `celery beat` do no harm: call `store_schedules` once for each deployment, or
run `celery beat` as before. Entries that sandq cannot express run in the process of `celery beat`, as in Celery.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, Final, NamedTuple

from celery import Celery
from celery.beat import BeatLazyFunc, ScheduleEntry, Scheduler
from celery.schedules import crontab, schedule

from sandq.errors import InvalidRequest, UnknownTopic
from sandq_workers.kombu.envelope import Payload, outgoing, scheduled
from sandq_workers.kombu.session import Session
from sandq_workers.kombu.transport import Channel, Transport

log = logging.getLogger("sandq.workers")

_TIMES: Final = ("eta", "countdown")
"""Options of an entry that depend on the time at which Celery sends it."""
_FIELDS: Final = (
    ("minute", range(60)),
    ("hour", range(24)),
    ("day_of_month", range(1, 32)),
    ("month_of_year", range(1, 13)),
    ("day_of_week", range(7)),
)
"""Fields of an expression, with all their values."""


class Stored(NamedTuple):
    """The result of storing the entries of an application."""

    stored: int
    """Entries that are schedules of the broker."""
    own: dict[str, str]
    """Entries that run in the process of `celery beat`, with the reason."""


class SandqScheduler(Scheduler):
    """Stores periodic tasks as schedules when it starts."""

    data: dict[str, ScheduleEntry]
    """The entries that run in this process."""

    def setup_schedule(self) -> None:
        """Store the entries of the application. Keep those that sandq cannot express."""
        super().setup_schedule()
        found = _store(self)
        self.data = {name: entry for name, entry in self.data.items() if name in found.own}
        log.info("%d periodic tasks are schedules of the broker", found.stored)
        for name, reason in found.own.items():
            log.warning("periodic task %s runs in this process only: %s", name, reason)

    @property
    def info(self) -> str:
        """A line for the banner of `celery beat`."""
        return "    . schedules -> in the broker (sandctl schedule list)"


def store_schedules(app: Celery) -> Stored:
    """Store the entries of `beat_schedule` as schedules, and delete those that the application no longer has. Return
    which entries sandq cannot express: these need a `celery beat` that runs.

    Repeating the call is safe: an entry that has not changed keeps its times.
    """
    scheduler = SandqScheduler(app, lazy=True)
    Scheduler.setup_schedule(scheduler)
    with closing(scheduler):
        return _store(scheduler)


def _store(scheduler: SandqScheduler) -> Stored:
    connection = scheduler._ensure_connected()
    transport: Transport = connection.connection
    session, prefix = transport.session, f"beat/{scheduler.app.main or 'celery'}/"
    own: dict[str, str] = {}
    wanted: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for name, entry in scheduler.data.items():
        times = times_of(entry)
        if isinstance(times, str):
            own[name] = times
            continue
        for topic, message in _messages(scheduler, entry, transport):
            wanted[topic].append({"name": f"{prefix}{name}", **times, **message})
    stored = set()
    for topic, rows in wanted.items():
        for row in rows:
            name = row["name"].removeprefix(prefix)
            try:
                session.client.schedules(topic).create_many([row])
                stored.add(name)
            except InvalidRequest as error:
                own[name] = str(error)
    _delete_others(session, prefix, {topic: {row["name"] for row in rows} for topic, rows in wanted.items()}, own)
    return Stored(len(stored), own)


def _delete_others(session: Session, prefix: str, wanted: Mapping[str, set[str]], own: Mapping[str, str]) -> None:
    """Delete the schedules of entries that the application no longer has, or that Celery runs itself."""
    for queue in session.queues():
        topic = session.topic(queue)
        keep = {name for name in wanted.get(topic, ()) if name.removeprefix(prefix) not in own}
        schedules = session.client.schedules(topic)
        try:
            found = [one.name for one in schedules.list(prefix=prefix)]
        except UnknownTopic:
            continue
        for name in found:
            if name not in keep:
                schedules.delete(name)


class _Recording(Channel):
    """A channel that keeps what is published, and sends nothing."""

    def __init__(self, connection: Transport) -> None:
        super().__init__(connection)
        self.published: list[tuple[Payload, str, str]] = []

    def basic_publish(self, message: Payload, exchange: str, routing_key: str, **_: object) -> None:
        self.published.append((message, exchange or "", routing_key or ""))


def _messages(
    scheduler: SandqScheduler, entry: ScheduleEntry, transport: Transport
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Return the topics of a periodic task, each with the message of its schedule."""
    channel = _Recording(transport)
    scheduler.apply_async(entry, producer=scheduler.app.amqp.Producer(channel, auto_declare=False), advance=False)
    session = transport.session
    for payload, exchange, routing_key in channel.published:
        made = scheduled(outgoing(payload, exchange=exchange, routing_key=routing_key, now_ms=0))
        queues = session.bindings.route(exchange, routing_key).queues if exchange else (routing_key,)
        for queue in queues:
            yield session.topic(queue), {"value": made.value, **made.options(is_ranked=session.is_ranked(queue))}


def times_of(entry: ScheduleEntry) -> dict[str, Any] | str:
    """Return the times of an entry as the arguments of a schedule, or the reason why sandq cannot express them."""
    times = entry.schedule
    if any(option in entry.options for option in _TIMES):
        return "its options have an eta or a countdown"
    if any(isinstance(each, BeatLazyFunc) for each in (*(entry.args or ()), *(entry.kwargs or {}).values())):
        return "its arguments are computed for each run"
    if times.nowfun is not None:
        return "its schedule has a clock of its own"
    if isinstance(times, crontab):
        found = expression(times)
        zone = str(times.tz)
        return "it is for days of the month and of the week at once" if found is None else {"cron": found, "zone": zone}
    if type(times) is schedule and not times.relative:
        return {"every": times.run_every}
    return f"a schedule of the type {type(times).__name__} has no equivalent"


def expression(times: crontab) -> str | None:
    """Return the expression of a crontab; None if it restricts both the days of the month and the days of the week:
    then both must match in Celery, while one of them is enough in sandq, as in cron."""
    fields = []
    for name, all_values in _FIELDS:
        values = getattr(times, name)
        fields.append("*" if set(all_values) <= set(values) else ",".join(str(each) for each in sorted(values)))
    return None if fields[2] != "*" and fields[4] != "*" else " ".join(fields)
