"""Routes of groups whose messages are pushed to URLs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import Request

from sandq.client.json_format import when
from sandq.model.errors import NotFound
from sandq.server.http import bodies, responses
from sandq.server.http.gateway import Found, gateway_of
from sandq.server.http.routes_groups import GROUP, GroupName
from sandq.server.http.routes_topics import TopicName
from sandq.server.http.strict import router_of

router = router_of("groups")


@router.get(
    "/topics/{topic}/pushes",
    operation_id="listPushes",
    response_model=responses.Pushes,
    summary="List the groups of a topic that are pushed",
)
async def list_(request: Request, topic: TopicName) -> Found:
    return {"pushes": [_shown(push) for push in await gateway_of(request).client.admin.pushes(topic)]}


@router.get(
    f"{GROUP}/push",
    operation_id="getPush",
    response_model=responses.Push,
    summary="Get the push settings and state of a group",
)
async def show(request: Request, topic: TopicName, group: GroupName) -> Found:
    for push in await gateway_of(request).client.admin.pushes(topic):
        if push["group"] == group:
            return _shown(push)
    raise NotFound(f"group {group!r} of topic {topic!r} is not pushed", topic=topic, group=group)


@router.put(
    f"{GROUP}/push",
    operation_id="setPush",
    response_model=responses.PushSettings,
    summary="Push the messages of a group to a URL",
)
async def set_(request: Request, topic: TopicName, group: GroupName, body: bodies.PushIn) -> Found:
    """Also changes an existing push: members that are not given stay. The group need not exist yet. Secrets are not
    shown again."""
    given = body.model_dump(exclude_unset=True)
    return {"group": group, **await gateway_of(request).client.admin.set_push(topic, group, **given)}


@router.delete(f"{GROUP}/push", operation_id="removePush", status_code=204, summary="Stop pushing a group")
async def remove(request: Request, topic: TopicName, group: GroupName) -> None:
    """The group keeps its position. No error if the group was not pushed."""
    await gateway_of(request).client.admin.remove_push(topic, group)


def _shown(push: Mapping[str, Any]) -> Found:
    """Return the push of a group as a JSON object."""
    nodes = [_with_error_at(node) for node in push["nodes"]]
    return {**_with_error_at(push), "nodes": nodes}


def _with_error_at(row: Mapping[str, Any]) -> Found:
    """Return a row with the time of its last error as text."""
    found = {name: value for name, value in row.items() if name != "error_ms"}
    return {**found, "error_at": when(row.get("error_ms"))}
