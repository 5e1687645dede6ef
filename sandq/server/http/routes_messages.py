"""Routes of messages: produce, inspect, change and cancel them, and read the log of a partition."""

from __future__ import annotations

import json
import time
from typing import Annotated, Any, Final, Literal

from fastapi import Path, Query, Request
from fastapi.responses import Response
from pydantic import BeforeValidator
from pydantic_core import PydanticCustomError

from sandq.broker.event_loop import TimeSlice
from sandq.client import Client, Receipt, Receipts, StoredMessage, producer_of
from sandq.client.json_format import (
    at_once,
    content_fields,
    outcome_fields,
    rank_fields,
    stored_json,
    value_fields,
    when,
    why_json,
)
from sandq.client.producer import Producer, Ready, check_rank, delay_of
from sandq.model import offsets
from sandq.model.errors import InvalidRequest, SandqError, clear_tracebacks
from sandq.protocol.requests_messages import DEAD_ELSEWHERE, PREVIEW_BYTES_MAX
from sandq.server.http import bodies, responses
from sandq.server.http.caller import authorize_callbacks, check_delays
from sandq.server.http.gateway import Found, gateway_of, while_connected
from sandq.server.http.ndjson import DEFAULT_LIMIT, NDJSON, Limit, as_ndjson, page_of, wants_ndjson
from sandq.server.http.paths import bytes_of, segment_router
from sandq.server.http.routes_topics import TopicName

router = segment_router("messages")

MESSAGE_WORK: Final = 8
"""Units of work of a message, when many are produced."""
SENT_AT_ONCE: Final = 256
"""Number of messages that are handed to the producer, or encoded, in one time slice."""
PRODUCED: dict[int | str, dict[str, Any]] = {
    207: {"model": responses.StoredMany, "description": "Some were stored and some were not: see `results`."},
}
By = Annotated[Literal["id", "unique_key"], Query(description="How the message is identified.")]
Tenant = Annotated[
    str | None, Query(description="With `by=unique_key`, in a fair topic: the tenant; `default` if omitted.")
]
Key = Annotated[
    str | None,
    Query(description="With `by=unique_key`: the message's key, if it has one; omit it in a fair topic."),
]
MessageName = Annotated[
    str, Path(description="Id, or with `by=unique_key` the unique key, percent-encoded: a slash is `%2F`.")
]
Encoding = Annotated[
    Literal["text", "base64"],
    Query(description="With `by=unique_key`: `base64` if the unique key and the key are in base64url, for any bytes."),
]
Since = Annotated[str | None, Query(description="Only from this instant on (RFC 3339 or epoch milliseconds).")]
Until = Annotated[str | None, Query(description="Only before this instant.")]
KeyPrefix = Annotated[str | None, Query(description="Only messages whose key begins with this.")]
UniqueKeyPrefix = Annotated[str | None, Query(description="Only messages whose unique key begins with this.")]
After = Annotated[str | None, Query(description="Begin after this offset: `next` of the previous page.")]
Order = Annotated[
    Literal["oldest", "newest"],
    Query(description="Order by delivery time. `after` and `next` refer to the same order."),
]
AsText = Annotated[
    bool, Query(description="Return the value as `text` or `value`, even if it is JSON, so that digits stay unchanged.")
]


def _not_dead(state: Any) -> Any:
    """Refuse the state `dead`, which has a route of its own."""
    if state == "dead":
        raise PydanticCustomError("INVALID", "{problem}", {"problem": DEAD_ELSEWHERE})
    return state


State = Annotated[
    Literal["delayed", "ready", "leased", "waiting", "acked"] | None,
    BeforeValidator(_not_dead),
    Query(description="Dead messages are listed by group: `/topics/{topic}/groups/{group}/dead`."),
]


@router.get(
    "/topics/{topic}/messages",
    operation_id="listMessages",
    response_model=responses.Page,
    responses=NDJSON,
    summary="List messages in the order of delivery",
)
async def list_(
    request: Request,
    topic: TopicName,
    state: State = None,
    since: Since = None,
    until: Until = None,
    key_prefix: KeyPrefix = None,
    unique_key_prefix: UniqueKeyPrefix = None,
    limit: Limit = None,
    after: After = None,
    values: Annotated[bool, Query(description="Include the values.")] = False,
    value_bytes: Annotated[
        int | None,
        Query(
            ge=1,
            le=PREVIEW_BYTES_MAX,
            description="Return values, at most this many bytes of each: as `text`, or as `value` if these bytes are "
            "not UTF-8. `size` is that of the whole value.",
        ),
    ] = None,
    order: Order = "oldest",
) -> Any:
    """Returns a page; with `Accept: application/x-ndjson` all messages, one per line."""
    found = gateway_of(request).client.messages(topic)
    lines = wants_ndjson(request)
    limit = DEFAULT_LIMIT if limit is None and not lines else limit
    values = values or value_bytes is not None

    def shown(message: StoredMessage) -> Found:
        return stored_json(message, value=values, as_text=value_bytes is not None)

    rows = found.list(
        state=state,
        since=since,
        until=until,
        key_prefix=key_prefix,
        unique_key_prefix=unique_key_prefix,
        limit=limit if lines or limit is None else limit + 1,
        after=after,
        values=values,
        newest=order == "newest",
        value_bytes=value_bytes,
    )
    if lines or limit is None:
        return await as_ndjson(request, rows, shown)
    page, following = await page_of(rows, limit)
    return {"messages": [shown(message) for message in page], "next": page[-1].offset if following else None}


@router.delete(
    "/topics/{topic}/messages",
    operation_id="cancelMessages",
    response_model=responses.Job,
    summary="Cancel many pending messages",
)
async def cancel_all(
    request: Request,
    topic: TopicName,
    since: Since = None,
    until: Until = None,
    key_prefix: KeyPrefix = None,
    unique_key_prefix: UniqueKeyPrefix = None,
    dry_run: Annotated[bool, Query(description="Only count them.")] = False,
    all: Annotated[bool, Query(description="Required if no filter is given.")] = False,
) -> Found:
    """Stops if the client disconnects; messages that were cancelled by then stay so."""
    filters = {"since": since, "until": until, "key_prefix": key_prefix, "unique_key_prefix": unique_key_prefix}
    bodies.check_bulk(filters, everything=all, dry_run=dry_run, effect="cancel every pending message")
    found = gateway_of(request).client.messages(topic)
    result = await while_connected(
        request,
        lambda: found.cancel_all(
            since=since, until=until, key_prefix=key_prefix, unique_key_prefix=unique_key_prefix, dry_run=dry_run
        ),
    )
    return result._asdict()


@router.patch(
    "/topics/{topic}/messages",
    operation_id="moveMessages",
    response_model=responses.Job,
    summary="Reschedule many pending messages",
)
async def move_all(request: Request, topic: TopicName, body: bodies.MoveAllIn) -> Found:
    """Stops if the client disconnects; messages that were moved by then stay so."""
    found = gateway_of(request).client.messages(topic)
    arguments = body.chosen("move every pending message")
    return (await while_connected(request, lambda: found.move_all(**arguments)))._asdict()


@router.get(
    "/topics/{topic}/messages/{message}",
    operation_id="getMessage",
    response_model=responses.StoredMessage,
    summary="Get a message",
)
async def get(
    request: Request,
    topic: TopicName,
    message: MessageName,
    by: By = "id",
    tenant: Tenant = None,
    key: Key = None,
    encoding: Encoding = "text",
    as_text: AsText = False,
) -> Found:
    found = await gateway_of(request).client.messages(topic).get(**_named(message, by, tenant, key, encoding))
    return stored_json(found, value=True, as_text=as_text)


@router.get(
    "/topics/{topic}/messages/{message}/why",
    operation_id="explainMessage",
    response_model=responses.Why,
    summary="Explain what a message waits for",
)
async def why(
    request: Request,
    topic: TopicName,
    message: MessageName,
    by: By = "id",
    tenant: Tenant = None,
    key: Key = None,
    encoding: Encoding = "text",
) -> Found:
    return why_json(await gateway_of(request).client.messages(topic).why(**_named(message, by, tenant, key, encoding)))


@router.patch(
    "/topics/{topic}/messages/{message}",
    operation_id="updateMessage",
    response_model=responses.Changed,
    summary="Update or reschedule a pending message",
)
async def update(
    request: Request,
    topic: TopicName,
    message: MessageName,
    body: bodies.UpdateIn,
    by: By = "id",
    tenant: Tenant = None,
    key: Key = None,
    encoding: Encoding = "text",
) -> Found:
    """409 TOO_LATE (with its `state`) if a consumer has received it already."""
    messages, named = gateway_of(request).client.messages(topic), _named(message, by, tenant, key, encoding)
    delay = body.delay if body.delay_ms is None else delay_of(body.delay, body.delay_ms)
    where_to: dict[str, Any] = {"deliver_at": body.deliver_at, "delay": delay, "priority": body.priority}
    if changes := body.changes():
        authorize_callbacks(request, [changes])
        offset = await messages.update(**named, **changes, **where_to)
    elif all([value is None for value in where_to.values()]):
        raise InvalidRequest(
            "nothing to change: expected a value (text, value, json), headers, deliver_at, delay or priority"
        )
    else:
        offset = await messages.move(**named, **where_to)
    return {"id": message if by == "id" else (await messages.get(**named)).id, "offset": offset}


@router.delete(
    "/topics/{topic}/messages/{message}",
    operation_id="cancelMessage",
    response_model=responses.Changed,
    summary="Cancel a pending message",
)
async def cancel(
    request: Request,
    topic: TopicName,
    message: MessageName,
    by: By = "id",
    tenant: Tenant = None,
    key: Key = None,
    encoding: Encoding = "text",
) -> Found:
    """409 TOO_LATE (with its `state`) if a consumer has received it already."""
    return {"id": await gateway_of(request).client.messages(topic).cancel(**_named(message, by, tenant, key, encoding))}


def _named(message: str, by: str, tenant: str | None, key: str | None, encoding: str) -> dict[str, Any]:
    """Return the arguments of the client that identify a message. Raise InvalidRequest."""
    if by == "unique_key":
        named = {"unique_key": bytes_of("unique_key", message, encoding), "tenant": tenant}
        return named if key is None else named | {"key": bytes_of("key", key, encoding)}
    if encoding != "text":
        raise InvalidRequest("encoding: it applies to unique keys only, with by=unique_key")
    return {"id": message, "tenant": tenant, "key": key}


# These come last: a partition's number is in the position of words like `messages` in the routes above.


@router.post(
    "/topics/{topic}",
    operation_id="produce",
    status_code=201,
    response_model=responses.Stored | responses.StoredMany,
    responses=PRODUCED,
    summary="Produce one message, or many",
)
async def produce(request: Request, topic: TopicName, body: bodies.ProduceIn) -> Any:
    """The response comes once the message is stored safely. 409 DUPLICATE_KEY (with the `id` of the other message) if
    the `unique_key` is taken.

    Many messages are all checked before the first is stored. If none could be stored, the response is the error of the
    first.
    """
    return await _produce(request, topic, None, body)


@router.post(
    "/topics/{topic}/{partition:int}",
    operation_id="produceTo",
    status_code=201,
    response_model=responses.Stored | responses.StoredMany,
    responses=PRODUCED,
    summary="Produce to a given partition",
)
async def produce_to(
    request: Request,
    topic: TopicName,
    partition: Annotated[int, Path(ge=0, le=4095)],
    body: bodies.ProduceIn,
) -> Any:
    """As `POST /topics/{topic}`, but all messages are stored in this partition."""
    return await _produce(request, topic, partition, body)


@router.get(
    "/topics/{topic}/{partition:int}",
    operation_id="fetchPartition",
    response_model=responses.LogPage,
    responses=NDJSON,
    summary="Read a partition's log",
)
async def fetch(
    request: Request,
    topic: TopicName,
    partition: Annotated[int, Path(ge=0, le=4095)],
    start: Annotated[str | None, Query(description="Begin at this instant or offset.")] = None,
    end: Annotated[str | None, Query(description="End before this instant or offset.")] = None,
    limit: Limit = None,
) -> Any:
    """Returns messages that have become due, in order, including acked ones while they are retained. Leases nothing.

    With `Accept: application/x-ndjson` returns all of them, one per line.
    """
    client = gateway_of(request).client

    def shown(message: Any) -> Found:
        return {
            **value_fields(None if message.deleted else message.value, message.headers_bytes),
            **content_fields(message.key, message.headers_bytes),
            **rank_fields(message.priority, message.tenant),
            "deliver_at": when(message.deliver_at_ms),
            "offset": message.offset,
            "id": message.id,
            "topic": topic,
            "partition": partition,
            "created_at": when(message.created_ms),
        }

    if wants_ndjson(request):
        return await as_ndjson(request, client.fetch(topic, partition, start, end, limit=limit), shown)
    limit = DEFAULT_LIMIT if limit is None else limit
    page, following = await page_of(client.fetch(topic, partition, start, end, limit=limit + 1), limit)
    return {"messages": [shown(message) for message in page], "next": following.offset if following else None}


async def _produce(
    request: Request, topic: str, partition: int | None, body: bodies.MessagesIn | bodies.MessageIn
) -> Any:
    """Produce one message or many, and return where each is stored, or why it is not stored."""
    client, now_ms = gateway_of(request).client, time.time_ns() // 1_000_000
    if isinstance(body, bodies.MessageIn):
        given = [body.arguments()]
        check_delays(request, given)
        authorize_callbacks(request, given)
        (arguments,) = await _for_topic(client, topic, given, now_ms)
        receipt = await client.send(topic, **arguments, partition=partition)
        return _stored(await receipt, receipt)
    time_slice, messages = TimeSlice(), []
    for at, one in enumerate(body.messages):
        await time_slice.spend(MESSAGE_WORK)
        try:
            messages.append({**one.arguments(), "partition": partition})
        except InvalidRequest as error:
            raise _at(at, error) from None
    check_delays(request, messages)
    authorize_callbacks(request, messages)
    messages = await _for_topic(client, topic, messages, now_ms)
    producer = await producer_of(client, topic)
    has_outcomes = any([message["on_conflict"] != "reject" for message in messages])
    return await _send_many(producer, await _checked_messages(producer, messages), has_outcomes=has_outcomes)


def _at(position: int, error: InvalidRequest) -> InvalidRequest:
    """Return the error with the position of its message."""
    return error.again(f"messages.{position}: {error.message}")


async def _checked_messages(producer: Producer, messages: list[dict[str, Any]]) -> list[Ready]:
    """Check all messages before the first is sent. Raise InvalidRequest, which says which message is wrong."""
    time_slice, ready = TimeSlice(), []
    for at, message in enumerate(messages):
        await time_slice.spend(1)
        try:
            ready.append(producer.checks.message(**message))
        except InvalidRequest as error:
            raise _at(at, error) from None
    return ready


async def _for_topic(client: Client, topic: str, messages: list[dict[str, Any]], now_ms: int) -> list[dict[str, Any]]:
    """Return the messages as the kind of the topic requires.

    Raise InvalidRequest if the topic does not support a priority or a tenant. A message that was consumed from a
    compacted topic can be produced to one."""
    time_slice, changed, ranked = TimeSlice(), [], False
    for message in messages:
        changed.append(at_once(message, now_ms))
        ranked = ranked or "priority" in message or "tenant" in message
        await time_slice.spend(1)
    ranked = ranked and len(messages) > 1  # a single message is checked by the client
    if changed == messages and not ranked:
        return messages
    kind = (await client.admin.topic(topic)).kind
    if ranked:
        for at, message in enumerate(messages):
            await time_slice.spend(1)
            try:
                check_rank(topic, kind, message.get("priority"), message.get("tenant"))
            except InvalidRequest as error:
                raise InvalidRequest(f"messages.{at}: {error.message}") from None
    return changed if kind == "compacted" else messages


async def _send_many(producer: Producer, messages: list[Ready], *, has_outcomes: bool) -> Response:
    """Send messages, and return the response with their outcomes. `has_outcomes`: some have an `on_conflict`."""
    results: list[Found] = []
    first: SandqError | None = None
    time_slice = TimeSlice()
    sent: list[Receipts] = []
    for start in range(0, len(messages), SENT_AT_ONCE):
        if start:
            await time_slice.end()
        sent.append(await producer.send_ready(messages[start : start + SENT_AT_ONCE]))
    for receipts in sent:
        await time_slice.spend(2 * len(receipts))
        try:
            found = await receipts
            if has_outcomes:
                results += [_stored(offset, receipt) for offset, receipt in zip(found, receipts, strict=True)]
            else:
                results += [_stored(offset) for offset in found]
            continue
        except SandqError as error:
            clear_tracebacks(error)  # some messages were not stored: each receipt has its own outcome
        for receipt in receipts:
            try:
                results.append(_stored(await receipt, receipt))
            except SandqError as error:
                first = first or error
                results.append({"error": _error(error)})
                clear_tracebacks(error)
    failed = sum("error" in result for result in results)
    if first is not None and failed == len(results):
        raise first
    parts = []
    for start in range(0, len(results), SENT_AT_ONCE):
        if start:
            await time_slice.end()
        parts.append(json.dumps(results[start : start + SENT_AT_ONCE], ensure_ascii=False, separators=(",", ":"))[1:-1])
    answer = f'{{"stored":{len(results) - failed},"failed":{failed},"results":[{",".join(parts)}]}}'
    return Response(answer, 207 if failed else 201, media_type="application/json")


def _stored(offset: str, receipt: Receipt | None = None) -> Found:
    """Return the position of a message. If it has an `on_conflict`, add the outcome, as far as it is known."""
    stored = {"id": offset, "offset": offset, "partition": offsets.partition_of_text(offset)}
    return stored if receipt is None else stored | outcome_fields(receipt)


def _error(error: SandqError) -> Found:
    """Return an error as a JSON object."""
    return {**error.details, "code": error.code, "detail": error.message, "retriable": error.retriable}
