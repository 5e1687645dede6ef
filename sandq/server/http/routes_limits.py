"""Routes of named limits, which groups of several topics share."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Request

from sandq.client.json_format import named_limit_json
from sandq.model.names import RULE
from sandq.server.http import bodies, responses
from sandq.server.http.gateway import Found, gateway_of
from sandq.server.http.strict import router_of

router = router_of("groups")
LIMIT = "/limits/{limit}"
LimitName = Annotated[str, Path(description=f"Name of a limit: {RULE}.")]


@router.get("/limits", operation_id="listLimits", response_model=responses.NamedLimits, summary="List named limits")
async def list_(request: Request) -> Found:
    return {"limits": [named_limit_json(one) for one in await gateway_of(request).client.admin.limits()]}


@router.get(LIMIT, operation_id="getLimit", response_model=responses.NamedLimitHeld, summary="Get a named limit")
async def show(request: Request, limit: LimitName) -> Found:
    """With its members, the groups that use it, in each partition."""
    return named_limit_json(await gateway_of(request).client.admin.limit(limit))


@router.put(LIMIT, operation_id="setLimit", status_code=204, summary="Create or replace a named limit")
async def set_(request: Request, limit: LimitName, body: bodies.LimitIn) -> None:
    """Groups of any topics that use it stay within it together. A group uses it after `PUT
    /topics/{topic}/groups/{group}/limits` with `{"limit": name}`."""
    await gateway_of(request).client.admin.set_limit(limit, **body.model_dump(exclude_none=True))


@router.post(f"{LIMIT}/pause", operation_id="pauseLimit", status_code=204, summary="Pause a named limit")
async def pause(request: Request, limit: LimitName, body: bodies.LimitPauseIn | None = None) -> None:
    """No group that uses it gets messages: until an instant, for a duration, or else until it is resumed. A new pause
    replaces an earlier one. 504 TIMED_OUT if partitions do not confirm the pause in time: `held` of `members` have, and
    the others follow."""
    given = body or bodies.LimitPauseIn()
    await gateway_of(request).client.admin.pause_limit(limit, until=given.until, for_=given.for_)


@router.post(f"{LIMIT}/resume", operation_id="resumeLimit", status_code=204, summary="Resume a named limit")
async def resume(request: Request, limit: LimitName) -> None:
    """Also ends a pause by a consumer. Messages that have become due meanwhile are delivered first."""
    await gateway_of(request).client.admin.resume_limit(limit)


@router.delete(LIMIT, operation_id="deleteLimit", status_code=204, summary="Delete a named limit")
async def delete(request: Request, limit: LimitName) -> None:
    """409 CONFLICT while a group uses it."""
    await gateway_of(request).client.admin.delete_limit(limit)
