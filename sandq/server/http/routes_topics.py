"""Routes of topics, and the forecast of their deliveries."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal

from fastapi import Path, Query, Request

from sandq.client.json_format import topic_json, when
from sandq.model.access import Right
from sandq.model.errors import InvalidSetting
from sandq.model.outbox import DEAD_LETTER_TOPIC
from sandq.protocol.requests_messages import BUCKETS_MAX
from sandq.server.http import bodies, responses
from sandq.server.http.caller import access_of, authorize
from sandq.server.http.gateway import Found, gateway_of, while_connected
from sandq.server.http.strict import router_of

router = router_of("topics")
TopicName = Annotated[str, Path(description="The topic's name.")]


@router.post(
    "/topics", operation_id="createTopic", status_code=201, response_model=responses.Topic, summary="Create a topic"
)
async def create(request: Request, body: bodies.TopicCreate) -> Found:
    """409 TOPIC_EXISTS if there is a topic with this name."""
    authorize(request, Right.MANAGE, body.name)
    client = gateway_of(request).client
    partitions, replicas = body.counts()
    settings = settings_of(body.settings)
    _authorize_dead_letters(request, settings)
    record = await client.admin.create_topic(
        body.name, kind=body.kind, partitions=partitions or 1, replicas=replicas, **settings
    )
    return topic_json(record)


@router.get("/topics", operation_id="listTopics", response_model=responses.Topics, summary="List all topics, by name")
async def list_(request: Request) -> Found:
    """Lists only topics on which the caller has some right."""
    records, access = await gateway_of(request).client.admin.list_topics(), access_of(request)
    return {"topics": [topic_json(record) for record in records if access is None or access.sees(record.name)]}


@router.get(
    "/topics/{topic}",
    operation_id="getTopic",
    response_model=responses.TopicHeld,
    summary="Get a topic and its contents",
)
async def show(request: Request, topic: TopicName) -> Found:
    admin = gateway_of(request).client.admin
    return {**topic_json(await admin.topic(topic)), "stats": await admin.stats(topic)}


@router.patch(
    "/topics/{topic}",
    operation_id="updateTopic",
    response_model=responses.Topic,
    summary="Change settings; add partitions or replicas",
)
async def update(request: Request, topic: TopicName, body: bodies.TopicUpdate) -> Found:
    """The number of partitions can only grow; then some keys are assigned to a different partition. Replicas are added
    and removed after the response: `/cluster/partitions` shows the progress."""
    partitions, replicas = body.counts()
    settings = settings_of(body.settings)
    _authorize_dead_letters(request, settings)
    admin = gateway_of(request).client.admin
    return topic_json(await admin.update_topic(topic, partitions=partitions, replicas=replicas, **settings))


@router.delete(
    "/topics/{topic}", operation_id="deleteTopic", status_code=204, summary="Delete a topic with all its messages"
)
async def delete(request: Request, topic: TopicName) -> None:
    await gateway_of(request).client.admin.delete_topic(topic)


@router.post(
    "/topics/{topic}/purge",
    operation_id="purgeTopic",
    response_model=responses.Job,
    summary="Remove all messages that are not leased",
)
async def purge(request: Request, topic: TopicName) -> Found:
    """Messages that are leased or waiting for redelivery stay. Stops if the client disconnects; messages that were
    removed by then are gone."""
    admin = gateway_of(request).client.admin
    return (await while_connected(request, lambda: admin.purge_topic(topic)))._asdict()


@router.get(
    "/topics/{topic}/forecast",
    operation_id="forecastTopic",
    response_model=responses.Forecast,
    summary="Forecast when messages become due",
)
async def forecast(
    request: Request,
    topic: TopicName,
    unit: Annotated[Literal["second", "minute", "hour"], Query()] = "minute",
    count: Annotated[int, Query(ge=1, le=BUCKETS_MAX, description="Number of units, from the current one on.")] = 60,
) -> Found:
    found = await gateway_of(request).client.admin.forecast(topic, unit, count)

    def shown(buckets: Iterable[tuple[int, int]]) -> list[Found]:
        return [{"start": when(start_ms), "messages": messages} for start_ms, messages in buckets]

    return {
        **{"now": when(found.now_ms), "unit": unit, "buckets": shown(found.buckets), "later": found.later},
        **{"scheduled": shown(found.scheduled), "complete": found.is_complete},
    }


def _authorize_dead_letters(request: Request, settings: dict[str, Any]) -> None:
    """Check that the caller may produce to the dead letter topic in the settings."""
    target = settings.get(DEAD_LETTER_TOPIC)
    if isinstance(target, str):
        authorize(request, Right.PRODUCE, target)


def settings_of(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings as keyword arguments. Raise InvalidSetting for names of the client's other parameters."""
    for name in ("self", "name", "topic", "group", "kind", "partitions", "replicas", "timeout"):
        if name in settings:
            raise InvalidSetting(f"{name}: this is not a setting")
    return settings
