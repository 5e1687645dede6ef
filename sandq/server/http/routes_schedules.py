"""Schedules: made, listed, changed, paused, triggered, deleted; what they are going to send."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query, Request

from sandq.client import Schedule, Schedules
from sandq.client.schedules import fire_json, schedule_json
from sandq.protocol.requests_schedules import TIMES_MOST
from sandq.server.http import answers_schedules as answers
from sandq.server.http import bodies_schedules as bodies
from sandq.server.http.gateway import Found, gateway_of, while_connected
from sandq.server.http.ndjson import DEFAULT_LIMIT, NDJSON, Limit, as_ndjson, page_of, wants_ndjson
from sandq.server.http.paths import segment_router
from sandq.server.http.routes_messages import AsText
from sandq.server.http.routes_topics import TopicName

router = segment_router("schedules")
ALL = "/topics/{topic}/schedules"
ONE = f"{ALL}/{{name}}"
ScheduleName = Annotated[str, Path(description="The schedule's name, percent-encoded, its slashes, too: `%2F`.")]
Tenant = Annotated[str | None, Query(description="In a fair topic: whose it is; otherwise `default`.")]


@router.get(
    ALL,
    operation_id="listSchedules",
    response_model=answers.SchedulePage,
    responses=NDJSON,
    summary="Schedules in the order of their names",
)
async def list_(
    request: Request,
    topic: TopicName,
    prefix: Annotated[str, Query(description="Those whose names begin so.")] = "",
    tenant: Annotated[str | None, Query(description="In a fair topic: only those of this tenant.")] = None,
    limit: Limit = None,
    after: Annotated[str | None, Query(description="`next` of the page before.")] = None,
    values: Annotated[bool, Query(description="With the values of their messages.")] = False,
) -> Any:
    """A page of them; with `Accept: application/x-ndjson` all there are, a line each."""
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
    response_model=answers.Schedule | answers.SchedulesStored,
    summary="Make a schedule, or many",
)
async def create(request: Request, topic: TopicName, body: bodies.MakeIn) -> Any:
    """409 CONFLICT when there is another one of this name; one that is the same is answered as it is. Of many
    (`schedules`), those that are there are changed to what is told."""
    schedules = gateway_of(request).client.schedules(topic)
    if isinstance(body, bodies.ScheduleIn):
        return schedule_json(await schedules.create(**body.arguments()))
    told = [one.arguments() for one in body.schedules]
    return (await while_connected(request, lambda: schedules.create_many(told)))._asdict()


@router.post(
    "/schedules/preview",
    operation_id="previewSchedule",
    response_model=answers.Fires,
    summary="When a schedule would fire",
)
async def preview(request: Request, body: bodies.PreviewIn) -> Found:
    """Without making it. Its name chooses by how much each occurrence is later, when there is a `jitter`."""
    schedules = gateway_of(request).client.schedules("none")  # a preview asks for no topic
    fires = await schedules.preview(**body.model_dump(exclude_unset=True))
    return {"next": [fire_json(fire, body.zone or "UTC") for fire in fires]}


@router.get(
    ONE,
    operation_id="getSchedule",
    response_model=answers.Schedule,
    summary="One schedule, how it stands, and what it did last",
)
async def show(
    request: Request, topic: TopicName, name: ScheduleName, tenant: Tenant = None, as_text: AsText = False
) -> Found:
    return schedule_json(await _of(request, topic).get(name, tenant=tenant), as_text=as_text)


@router.patch(ONE, operation_id="updateSchedule", response_model=answers.Schedule, summary="Change a schedule")
async def update(
    request: Request, topic: TopicName, name: ScheduleName, body: bodies.ScheduleUpdate, tenant: Tenant = None
) -> Found:
    """What is not named stays; null is as if it had never been told. A message whose time has come stays as it was, the
    next one is another one."""
    schedules, changes = _of(request, topic), body.arguments()
    return schedule_json(await schedules.update(name, tenant=tenant, **changes))


@router.delete(ONE, operation_id="deleteSchedule", status_code=204, summary="Delete a schedule")
async def delete(request: Request, topic: TopicName, name: ScheduleName, tenant: Tenant = None) -> None:
    """A message whose time has come stays; that of the next occurrence is cancelled."""
    await _of(request, topic).delete(name, tenant=tenant)


@router.get(
    f"{ONE}/next", operation_id="nextOccurrences", response_model=answers.Fires, summary="When a schedule fires next"
)
async def next_(
    request: Request,
    topic: TopicName,
    name: ScheduleName,
    count: Annotated[int, Query(ge=1, le=TIMES_MOST, description="So many occurrences at most.")] = 10,
    tenant: Tenant = None,
) -> Found:
    """None of one that is paused or has ended."""
    schedules = _of(request, topic)
    zone = (await schedules.get(name, tenant=tenant)).zone
    fires = await schedules.next(name, count, tenant=tenant)
    return {"next": [fire_json(fire, zone) for fire in fires]}


@router.post(
    f"{ONE}/pause",
    operation_id="pauseSchedule",
    status_code=204,
    summary="Let a schedule fire nothing, until it is resumed",
)
async def pause(request: Request, topic: TopicName, name: ScheduleName, tenant: Tenant = None) -> None:
    """What comes due meanwhile is left out."""
    await _of(request, topic).pause(name, tenant=tenant)


@router.post(f"{ONE}/resume", operation_id="resumeSchedule", status_code=204, summary="Let a schedule fire again")
async def resume(request: Request, topic: TopicName, name: ScheduleName, tenant: Tenant = None) -> None:
    """From the first occurrence from now on."""
    await _of(request, topic).resume(name, tenant=tenant)


@router.post(
    f"{ONE}/trigger",
    operation_id="triggerSchedule",
    response_model=answers.Triggered,
    summary="Send a schedule's message now",
)
async def trigger(request: Request, topic: TopicName, name: ScheduleName, tenant: Tenant = None) -> Found:
    """Beside all occurrences; also of one that is paused."""
    return {"id": await _of(request, topic).trigger(name, tenant=tenant)}


def _of(request: Request, topic: str) -> Schedules:
    return gateway_of(request).client.schedules(topic)
