"""Routes of consumer groups: leasing, settling, state, seek, dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

import anyio
from fastapi import Path, Query, Request
from fastapi.responses import Response

from sandq.client import DeadLetter, DeadOutcome, Held, Leases, Outgoing
from sandq.client.consumer import are_elsewhere
from sandq.client.json_format import (
    blocked_by_key_of_rows,
    consumer_json,
    dead_json,
    group_limits_of_rows,
    message_json,
    pause_json,
    settings_json,
    when,
)
from sandq.model.access import Right
from sandq.model.errors import InvalidRequest, LeaseLost, SandqError, UnknownGroup
from sandq.model.offsets import U48_MAX
from sandq.model.times import duration_ms
from sandq.server.http import bodies, responses
from sandq.server.http.caller import authorize, authorize_callbacks
from sandq.server.http.event_streams import EVENTS, GIVE_BACK_S, IN_FLIGHT_DEFAULT, Wanted, event_stream
from sandq.server.http.gateway import Found, gateway_of, run_waiting, while_connected
from sandq.server.http.ndjson import DEFAULT_LIMIT, NDJSON, Limit, as_ndjson, page_of, wants_ndjson
from sandq.server.http.routes_messages import After, KeyPrefix, Order
from sandq.server.http.routes_topics import TopicName, settings_of
from sandq.server.http.strict import router_of

router = router_of("groups")
GroupName = Annotated[str, Path(description="The consumer group's name.")]
Reason = Annotated[
    Literal["nacked", "lease_expired", "expired", "rejected", "undeliverable"] | None,
    Query(description="Reason why the messages are dead."),
]
GROUP = "/topics/{topic}/groups/{group}"
BY_IDS = responses.Job | responses.DeadOutcomes
"""Response to a request about dead letters: counts if it selects by filters, an outcome for each of `ids`."""
_COUNTS = ("lag", "ready", "leased", "waiting", "dead")
_OTHER_FIELDS = ("group", "settings", "touched_ms", "paused_until_ms")
"""Fields of the row of a group that its partitions do not show as they are."""


@router.post(
    f"{GROUP}/lease", operation_id="leaseMessages", response_model=responses.LeasedMessages, summary="Lease messages"
)
async def lease(request: Request, topic: TopicName, group: GroupName, body: bodies.LeaseIn | None = None) -> Found:
    """Lease messages that are ready now. If there are none, wait for the first ones, up to `wait`.

    If the group does not exist, it is created. If the client disconnects, or no response can be made, the messages are
    returned to the group.
    """
    options = body or bodies.LeaseIn()
    leases = gateway_of(request).client.leases(topic, group)
    found = await (run_waiting if options.wait else while_connected)(
        request,
        lambda: leases.take(
            options.max,
            wait=options.wait,
            lease=options.lease,
            start=options.start,
            ack=options.ack,
            partitions=options.partitions,
        ),
    )
    try:
        return {"messages": [message_json(message) for message in found], "without_leader": found.without_leader}
    except Exception:
        with anyio.CancelScope(shield=True), anyio.move_on_after(GIVE_BACK_S), suppress(SandqError):
            await leases.give_back([message.held for message in found])
        raise


@router.get(
    f"{GROUP}/stream",
    operation_id="streamMessages",
    response_class=Response,
    responses=EVENTS,
    summary="Stream messages as they become ready",
)
async def stream(
    request: Request,
    topic: TopicName,
    group: GroupName,
    max_in_flight: Annotated[
        int | None,
        Query(ge=1, description="Maximum number of unsettled messages of the client; 100 by default."),
    ] = None,
    lease: Annotated[str | None, Query(description="Duration of leases; by default the topic's setting.")] = None,
    start: Annotated[str, Query(description="Where a new group begins.")] = "earliest",
) -> Response:
    """Server-sent events that never end. `id` is the body with which `ack`, `nack` and `extend` identify the message,
    and `data` is the message as in the response of `lease`. When the client disconnects, unsettled messages are
    returned to the group. An `error` event is the last one."""
    most = gateway_of(request).stream_messages
    wanted = min(IN_FLIGHT_DEFAULT, most) if max_in_flight is None else max_in_flight
    if wanted > most:
        raise InvalidRequest(f"max_in_flight: at most {most} (limits.http_stream_messages), not {wanted}")
    client = gateway_of(request).client
    lease_ms: int = (await client.admin.topic(topic)).settings["lease_ms"] if lease is None else duration_ms(lease)
    return await event_stream(request, client.leases(topic, group), Wanted(wanted, lease_ms, start))


@router.post(
    f"{GROUP}/ack",
    operation_id="ackMessages",
    response_model=responses.Settled,
    summary="Ack messages: they are not delivered again",
)
async def ack(request: Request, topic: TopicName, group: GroupName, body: bodies.AckThenIn) -> Found:
    """409 LEASE_LOST if leases have ended: `lost` lists these, and `settled` counts the other messages.

    With `then`, a response of 200 means that each of these messages arrives exactly once. Otherwise none was sent, and
    nothing was acked. (409 CONFLICT if the messages had been acked before, without `then`.)"""
    held = body.held()
    then = _outgoing(request, topic, body.then)
    leases = gateway_of(request).client.leases(topic, group)
    lost = await leases.ack(held, then=then)
    if then is not None and lost:
        gateway_of(request).streams.settled(topic, lost)
        return _settled(leases, held, lost, 0)
    gateway_of(request).streams.settled(topic, held)
    return _settled(leases, held, lost)


def _outgoing(request: Request, topic: str, messages: Sequence[bodies.OutgoingIn] | None) -> list[Outgoing] | None:
    """Return the messages that an ack or a nack of messages of `topic` sends. Raise Forbidden, InvalidRequest."""
    for target in {one.topic or topic for one in messages or ()}:
        authorize(request, Right.PRODUCE, target)
    found = [one.outgoing() for one in messages or ()]
    authorize_callbacks(request, [{"headers": one.headers, "push": one.push} for one in found])
    return found or None


@router.post(
    f"{GROUP}/nack",
    operation_id="nackMessages",
    response_model=responses.Settled,
    summary="Nack messages: they are delivered again",
)
async def nack(request: Request, topic: TopicName, group: GroupName, body: bodies.NackIn) -> Found:
    """409 LEASE_LOST as for ack. With `if_dead`, these messages are sent if this nack makes the message dead."""
    held = body.held()
    leases = gateway_of(request).client.leases(topic, group)
    changes, if_dead = body.changes(), _outgoing(request, topic, body.if_dead)
    authorize_callbacks(request, [changes])
    terms: Found = {"delay": body.delay, "delay_ms": body.delay_ms, "error": body.error, "count": body.count}
    lost = await leases.nack(held, **terms, **changes, if_dead=if_dead)
    gateway_of(request).streams.settled(topic, held)
    return _settled(leases, held, lost)


@router.post(
    f"{GROUP}/dead",
    operation_id="rejectMessages",
    response_model=responses.Settled,
    summary="Reject messages: they become dead letters at once",
)
async def reject(request: Request, topic: TopicName, group: GroupName, body: bodies.RejectIn) -> Found:
    """Remaining attempts do not matter; the reason is `rejected`. 409 LEASE_LOST as for ack. With `then`, a response of
    200 means that each of these messages arrives exactly once. Otherwise none was sent."""
    held = body.held()
    leases = gateway_of(request).client.leases(topic, group)
    lost = await leases.dead(held, body.error, then=_outgoing(request, topic, body.then))
    gateway_of(request).streams.settled(topic, held)
    return _settled(leases, held, lost)


@router.post(f"{GROUP}/extend", operation_id="extendLeases", response_model=responses.Extended, summary="Extend leases")
async def extend(request: Request, topic: TopicName, group: GroupName, body: bodies.ExtendIn) -> Found:
    """Extends the whole lease of each message. 409 LEASE_LOST as for ack."""
    held = body.held()
    leases = gateway_of(request).client.leases(topic, group)
    until_ms = await leases.extend(held, body.lease)
    streams, lease_s = gateway_of(request).streams, duration_ms(body.lease) / 1000
    for (token, offset), ms in zip(held, until_ms, strict=True):
        if ms is None:
            streams.settled(topic, [(token, offset)])
        else:
            streams.extended(token, lease_s)
    ends = [ms for ms in until_ms if ms is not None]
    _settled(leases, held, [one for one, ms in zip(held, until_ms, strict=True) if ms is None])
    return {"lease_until": when(min(ends, default=None))}


@router.post(
    f"{GROUP}/pause-by-lease",
    operation_id="pauseByLease",
    response_model=responses.PausedByLease,
    summary="Pause the tenant, the key, the group or the named limit of a leased message",
)
async def pause_by_lease(request: Request, topic: TopicName, group: GroupName, body: bodies.LeasePauseIn) -> Found:
    """For at most an hour. A pause that ends later stays as it is. The pause of a group or tenant holds in all
    partitions of the topic, that of a key in the partition of the message, and that of a named limit for all groups
    that use it. 409 LEASE_LOST as for ack. 400 INVALID if a different group holds the lease. 504 TIMED_OUT if the
    leaders of some partitions do not answer, and 400 INVALID if partitions refuse the pause: `held` of `partitions` (of
    a limit: of `members`) have it, and repeating the request is safe."""
    leases = gateway_of(request).client.leases(topic, group)
    pauses = {
        "tenant": leases.pause_tenant,
        "key": leases.pause_key,
        "group": leases.pause_group,
        "limit": leases.pause_limit,
    }
    end_ms = await pauses[body.part](Held(body.lease_token, body.offset), for_=body.for_)
    return {"paused_until": None if end_ms == U48_MAX else when(end_ms)}


def _settled(
    leases: Leases,
    held: list[tuple[str, str | None]],
    lost: Iterable[tuple[str, str | None]],
    settled: int | None = None,
) -> Found:
    """Return the response for settled messages. Raise LeaseLost if some leases were lost. `settled`: number of
    settled messages; None: all messages that are not in `lost`."""
    gone = [Held(*one) for one in lost]
    settled = len(held) - len(gone) if settled is None else settled
    if gone:
        why = "their leases have ended"
        if are_elsewhere(leases, gone):
            why += f", or belong to a topic other than the current {leases.topic!r}"
        raise LeaseLost(
            f"{len(gone)} of {len(held)} messages are no longer leased: {why}; they may be delivered again",
            lost=[one._asdict() for one in gone],
            settled=settled,
        )
    return {"settled": settled}


@router.get(
    "/topics/{topic}/groups",
    operation_id="listGroups",
    response_model=responses.Groups,
    summary="List the groups of a topic, with their lag",
)
async def list_(request: Request, topic: TopicName) -> Found:
    rows = await gateway_of(request).client.admin.groups(topic)
    names = dict.fromkeys(row["group"] for row in rows)
    return {"groups": [_group(name, rows) for name in names]}


@router.get(GROUP, operation_id="getGroup", response_model=responses.Group, summary="Get a group")
async def show(request: Request, topic: TopicName, group: GroupName) -> Found:
    rows = await gateway_of(request).client.admin.groups(topic)
    if all(row["group"] != group for row in rows):
        raise UnknownGroup(f"topic {topic!r} has no group {group!r}", topic=topic, group=group)
    return _group(group, rows)


@router.get(
    f"{GROUP}/consumers",
    operation_id="listConsumers",
    response_model=responses.Consumers,
    summary="List the consumers of a group, and the messages they hold",
)
async def consumers(request: Request, topic: TopicName, group: GroupName) -> Found:
    """The leaders of the topic's partitions report who subscribes, and whose leases hold messages."""
    found = await gateway_of(request).client.admin.consumers(topic, group)
    return {"consumers": [consumer_json(row) for row in found.consumers], "left_out": found.left_out}


@router.get(
    f"{GROUP}/pauses",
    operation_id="listPauses",
    response_model=responses.Pauses,
    summary="List the paused tenants and keys of a group, with the ends of their pauses",
)
async def pauses(request: Request, topic: TopicName, group: GroupName) -> Found:
    """At most 1,000 of them. `getGroup` shows whether the whole group is paused."""
    found = await gateway_of(request).client.admin.pauses(topic, group)
    return {"pauses": [pause_json(row) for row in found.pauses], "left_out": found.left_out}


@router.patch(GROUP, operation_id="updateGroup", status_code=204, summary="Change a group's own settings")
async def update(request: Request, topic: TopicName, group: GroupName, body: bodies.GroupUpdate) -> None:
    admin = gateway_of(request).client.admin
    await admin.update_group(topic, group, **settings_of(body.settings))


@router.post(f"{GROUP}/pause", operation_id="pauseGroup", status_code=204, summary="Pause deliveries to a group")
async def pause(request: Request, topic: TopicName, group: GroupName, body: bodies.PauseIn | None = None) -> None:
    """Consumers keep the messages that they hold, and can ack them. The group stays paused across restarts, until an
    instant, for a duration, or else until it is resumed. A new pause replaces an earlier one."""
    given = body or bodies.PauseIn()
    await gateway_of(request).client.admin.pause_group(topic, group, **given.part(), until=given.until, for_=given.for_)


@router.post(f"{GROUP}/resume", operation_id="resumeGroup", status_code=204, summary="Resume deliveries to a group")
async def resume(request: Request, topic: TopicName, group: GroupName, body: bodies.ResumeIn | None = None) -> None:
    """Messages that have become due meanwhile are delivered first."""
    await gateway_of(request).client.admin.resume_group(topic, group, **(body or bodies.ResumeIn()).part())


@router.put(f"{GROUP}/limits", operation_id="limitGroup", status_code=204, summary="Limit a group, over all partitions")
async def limit(request: Request, topic: TopicName, group: GroupName, body: bodies.LimitsIn) -> None:
    """Replaces all limits of the group; `{}` removes them. The group need not exist yet."""
    await gateway_of(request).client.admin.limit_group(topic, group, **body.model_dump(exclude_none=True))


@router.delete(GROUP, operation_id="deleteGroup", status_code=204, summary="Delete a group and its dead letters")
async def delete(
    request: Request,
    topic: TopicName,
    group: GroupName,
    force: Annotated[bool, Query(description="Delete its unfinished messages, too: they are lost.")] = False,
) -> None:
    """409 CONFLICT while the group has consumers; without `force` also while it has messages that are leased, retrying
    or blocked by their keys."""
    await gateway_of(request).client.admin.delete_group(topic, group, force=force)


@router.post(f"{GROUP}/seek", operation_id="seekGroup", response_model=responses.Seeked, summary="Move a group")
async def seek(request: Request, topic: TopicName, group: GroupName, body: bodies.SeekIn) -> Found:
    """Everything from the given position on is delivered again. Messages before that count as acked."""
    cursors = await gateway_of(request).client.admin.seek_group(topic, group, body.to)
    return {"cursors": {str(partition): cursor for partition, cursor in cursors.items()}}


@router.get(
    f"{GROUP}/dead",
    operation_id="listDeadLetters",
    response_model=responses.DeadPage,
    responses=NDJSON,
    summary="List dead letters",
)
async def dead(
    request: Request,
    topic: TopicName,
    group: GroupName,
    reason: Reason = None,
    since: Annotated[str | None, Query(description="Dead at this instant or later.")] = None,
    until: Annotated[str | None, Query(description="Dead before this instant.")] = None,
    error: Annotated[str | None, Query(description="Part of the last error; case matters.")] = None,
    key_prefix: KeyPrefix = None,
    limit: Limit = None,
    after: After = None,
    values: Annotated[bool, Query(description="Include the values.")] = True,
    order: Order = "oldest",
) -> Any:
    """Returns a page; with `Accept: application/x-ndjson` all dead letters, one per line."""
    letters = gateway_of(request).client.dead(topic, group)

    def shown(letter: DeadLetter) -> Found:
        return dead_json(letter, value=values)

    def listed(limit: int | None) -> Any:
        """Return the dead letters that match, at most `limit`."""
        filters = {"reason": reason, "since": since, "until": until, "error": error, "key_prefix": key_prefix}
        return letters.list(**filters, limit=limit, after=after, values=values, newest=order == "newest")

    if wants_ndjson(request):
        return await as_ndjson(request, listed(limit), shown)
    limit = DEFAULT_LIMIT if limit is None else limit
    rows = listed(limit + 1)
    page, following = await page_of(rows, limit)
    return {"messages": [shown(letter) for letter in page], "next": page[-1].offset if following else None}


@router.post(
    f"{GROUP}/dead/redrive",
    operation_id="redriveDeadLetters",
    response_model=BY_IDS,
    summary="Redrive dead letters: deliver them again",
)
async def redrive(request: Request, topic: TopicName, group: GroupName, body: bodies.RedriveIn | None = None) -> Found:
    """Selects those that match, those of `ids` (with an outcome for each), or with `all` every dead letter.

    Stops if the client disconnects; messages that were redriven by then stay so."""
    letters = gateway_of(request).client.dead(topic, group)
    if body is not None and (ids := body.named()) is not None:
        return _outcomes(await while_connected(request, lambda: letters.redrive_ids(ids)))
    arguments = (body or bodies.RedriveIn()).chosen("redrive every dead letter of the group")
    return (await while_connected(request, lambda: letters.redrive(**arguments)))._asdict()


@router.post(
    f"{GROUP}/dead/purge", operation_id="purgeDeadLetters", response_model=BY_IDS, summary="Purge dead letters"
)
async def purge(request: Request, topic: TopicName, group: GroupName, body: bodies.DeadIn | None = None) -> Found:
    """Selects those that match, those of `ids`, or with `all` every dead letter, as redrive does.

    Stops if the client disconnects; messages that were purged by then are gone."""
    letters = gateway_of(request).client.dead(topic, group)
    if body is not None and (ids := body.named()) is not None:
        return _outcomes(await while_connected(request, lambda: letters.purge_ids(ids)))
    arguments = (body or bodies.DeadIn()).chosen("purge every dead letter of the group")
    return (await while_connected(request, lambda: letters.purge(**arguments)))._asdict()


def _outcomes(found: Sequence[DeadOutcome]) -> Found:
    """Return the response for redriven or purged dead letters."""
    results = [{name: value for name, value in one._asdict().items() if value is not None} for one in found]
    return {"done": sum(one.outcome in ("redriven", "purged") for one in found), "results": results}


def _group(name: str, rows: list[dict[str, Any]]) -> Found:
    """Return a group summed over all partitions, from its rows."""
    parts = [row for row in rows if row["group"] == name]
    settings = parts[0].get("settings")
    reasons = sorted({row["reason"] for row in parts if row.get("reason")})
    return {
        "group": name,
        **{count: sum(row[count] for row in parts) for count in _COUNTS},
        "consumers": max(row["consumers"] for row in parts),
        "settings": settings_json(settings) if settings else None,
        "blocked_by_key": blocked_by_key_of_rows(parts),
        "dropped": sum(row.get("dropped") or 0 for row in parts),
        "dead_removed": sum(row.get("dead_removed") or 0 for row in parts),
        "unfinished": sum(row.get("unfinished") or 0 for row in parts),
        "expired": any(row.get("expired") for row in parts),
        "limits": group_limits_of_rows(parts),
        "reason": "; ".join(reasons) or None,
        "paused_until": when(max((row.get("paused_until_ms") or 0 for row in parts), default=0) or None),
        "partitions": [_partition(row) for row in parts],
    }


def _partition(row: Mapping[str, Any]) -> Found:
    """Return the row of a group in one partition."""
    return {
        **{name: value for name, value in row.items() if name not in _OTHER_FIELDS},
        "touched_at": when(row.get("touched_ms")),
        **({"paused_until": when(row["paused_until_ms"])} if row.get("paused_until_ms") else {}),
    }
