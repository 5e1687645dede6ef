"""Routes of schedules, and of the messages that they will send."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query, Request

from sandq.client import Schedule, Schedules
from sandq.client.schedules import fire_json, schedule_json
from sandq.protocol.requests_schedules import TIMES_MOST
from sandq.server.http import bodies_schedules as bodies
from sandq.server.http import responses_schedules as responses
from sandq.server.http.caller import authorize_callbacks
from sandq.server.http.gateway import Found, gateway_of, while_connected
from sandq.server.http.ndjson import DEFAULT_LIMIT, NDJSON, Limit, as_ndjson, page_of, wants_ndjson
from sandq.server.http.paths import segment_router
from sandq.server.http.routes_messages import AsText
from sandq.server.http.routes_topics import TopicName

router = segment_router("schedules")
ALL = "/topics/{topic}/schedules"
ONE = f"{ALL}/{{name}}"
ScheduleName = Annotated[str, Path(description="Name of the schedule, percent-encoded: a slash is `%2F`.")]
Tenant = Annotated[str | None, Query(description="In a fair topic: the tenant; `default` if omitted.")]


@router.get(
    ALL,
    operation_id="listSchedules",
    response_model=responses.SchedulePage,
    responses=NDJSON,
    summary="List schedules by name",
)
async def list_(
    request: Request,
    topic: TopicName,
    prefix: Annotated[str, Query(description="Only schedules whose names begin with this.")] = "",
    tenant: Annotated[str | None, Query(description="In a fair topic: only schedules of this tenant.")] = None,
    limit: Limit = None,
    after: Annotated[str | None, Query(description="`next` of the previous page.")] = None,
    values: Annotated[bool, Query(description="Include the values of their messages.")] = False,
) -> Any:
    """Returns a page; with `Accept: application/x-ndjson` all schedules, one per line."""
    schedules = gateway_of(request).client.schedules(topic)

    def shown(schedule: Schedule) -> Found:
        return schedule_json(schedule, value=values)

    if wants_ndjson(request):
        rows = schedules.list(prefix=prefix, tenant=tenant, limit=limit, after=after)
        return await as_ndjson(request, rows, shown)
    limit = DEFAULT_LIMIT if limit is None else limit
    page, following = await page_of(schedules.list(prefix=prefix, tenant=tenant, limit=limit + 1, after=after), limit)
    return {"schedules": [shown(schedule) for schedule in page], "next": page[-1].id if following else None}


@router.post(
    ALL,
    operation_id="createSchedules",
    status_code=201,
    response_model=responses.Schedule | responses.SchedulesStored,
    summary="Create a schedule, or many",
)
async def create(request: Request, topic: TopicName, body: bodies.MakeIn) -> Any:
    """409 CONFLICT if a different schedule has this name; an equal one is returned. With many (`schedules`), existing
    ones are changed to the given values."""
    schedules = gateway_of(request).client.schedules(topic)
    if isinstance(body, bodies.ScheduleIn):
        given = body.arguments()
        authorize_callbacks(request, [given])
        return schedule_json(await schedules.create(**given))
    wanted = [one.arguments() for one in body.schedules]
    authorize_callbacks(request, wanted)
    return (await while_connected(request, lambda: schedules.create_many(wanted)))._asdict()


@router.post(
    "/schedules/preview",
    operation_id="previewSchedule",
    response_model=responses.Fires,
    summary="Preview when a schedule would fire",
)
async def preview(request: Request, body: bodies.PreviewIn) -> Found:
    """Does not create the schedule. With a `jitter`, the name determines the delay of each occurrence."""
    schedules = gateway_of(request).client.schedules("none")  # a preview needs no topic
    fires = await schedules.preview(**body.model_dump(exclude_unset=True))
    return {"next": [fire_json(fire, body.zone or "UTC") for fire in fires]}


@router.get(
    ONE,
    operation_id="getSchedule",
    response_model=responses.Schedule,
    summary="Get a schedule, its state and its last occurrences",
)
async def show(
    request: Request, topic: TopicName, name: ScheduleName, tenant: Tenant = None, as_text: AsText = False
) -> Found:
    return schedule_json(await _of(request, topic).get(name, tenant=tenant), as_text=as_text)


@router.patch(ONE, operation_id="updateSchedule", response_model=responses.Schedule, summary="Change a schedule")
async def update(
    request: Request, topic: TopicName, name: ScheduleName, body: bodies.ScheduleUpdate, tenant: Tenant = None
) -> Found:
    """Members that are not given stay; null resets one to its default. A message that is already due stays as it was;
    the next one is replaced."""
    schedules, changes = _of(request, topic), body.arguments()
    authorize_callbacks(request, [changes])
    return schedule_json(await schedules.update(name, tenant=tenant, **changes))


@router.delete(ONE, operation_id="deleteSchedule", status_code=204, summary="Delete a schedule")
async def delete(request: Request, topic: TopicName, name: ScheduleName, tenant: Tenant = None) -> None:
    """A message that is already due stays; the message of the next occurrence is cancelled."""
    await _of(request, topic).delete(name, tenant=tenant)


@router.get(
    f"{ONE}/next", operation_id="nextOccurrences", response_model=responses.Fires, summary="List the next occurrences"
)
async def next_(
    request: Request,
    topic: TopicName,
    name: ScheduleName,
    count: Annotated[int, Query(ge=1, le=TIMES_MOST, description="Maximum number of occurrences.")] = 10,
    tenant: Tenant = None,
) -> Found:
    """Empty if the schedule is paused or has ended."""
    schedules = _of(request, topic)
    zone = (await schedules.get(name, tenant=tenant)).zone
    fires = await schedules.next(name, count, tenant=tenant)
    return {"next": [fire_json(fire, zone) for fire in fires]}


@router.post(
    f"{ONE}/pause",
    operation_id="pauseSchedule",
    status_code=204,
    summary="Pause a schedule",
)
async def pause(request: Request, topic: TopicName, name: ScheduleName, tenant: Tenant = None) -> None:
    """Occurrences while it is paused are skipped."""
    await _of(request, topic).pause(name, tenant=tenant)


@router.post(f"{ONE}/resume", operation_id="resumeSchedule", status_code=204, summary="Resume a schedule")
async def resume(request: Request, topic: TopicName, name: ScheduleName, tenant: Tenant = None) -> None:
    """The schedule fires from its next occurrence on."""
    await _of(request, topic).resume(name, tenant=tenant)


@router.post(
    f"{ONE}/trigger",
    operation_id="triggerSchedule",
    response_model=responses.Triggered,
    summary="Send a schedule's message now",
)
async def trigger(request: Request, topic: TopicName, name: ScheduleName, tenant: Tenant = None) -> Found:
    """The message is sent in addition to all occurrences, even if the schedule is paused."""
    return {"id": await _of(request, topic).trigger(name, tenant=tenant)}


def _of(request: Request, topic: str) -> Schedules:
    """Return the client for the schedules of a topic."""
    return gateway_of(request).client.schedules(topic)
