"""Routes of the keys of a compacted topic: read, put, delete, list, watch."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import anyio
from fastapi import Header, Path, Query, Request
from fastapi.responses import Response

from sandq.client import Change, Entry, Watch
from sandq.client.json_format import change_json, entry_json, key_fields
from sandq.client.kv import NOW, KeyRange
from sandq.model.errors import InvalidRequest, NotFound
from sandq.model.offsets import from_text, unpack
from sandq.model.times import duration_ms
from sandq.server.http import bodies, problems, responses
from sandq.server.http.gateway import Found, gateway_of, run_waiting, while_connected
from sandq.server.http.ndjson import DEFAULT_LIMIT, NDJSON, PAGE_BYTES, Limit, as_ndjson, page_of, wants_ndjson
from sandq.server.http.paths import bytes_of, is_known, key_of, only, refuse, text_of, version_of
from sandq.server.http.positions import position_text, start_of
from sandq.server.http.routes_messages import AsText
from sandq.server.http.routes_topics import TopicName
from sandq.server.http.strict import router_of

router = router_of("keys")

KEY = "/topics/{topic}/keys/{key:key}"
STALE_MS = "sandq-stale-ms"
WAIT_MS_MOST = 60_000

_ETAG = {"ETag": {"description": "The version, in quotes.", "schema": {"type": "string"}}}
_CHANGED: dict[int | str, dict[str, Any]] = {
    200: {"headers": _ETAG},
    412: {
        "model": problems.Problem,
        "description": "VERSION_CHANGED: the key has a different `version` (null: no value), which is also the ETag.",
    },
}
_READ: dict[int | str, dict[str, Any]] = {
    200: {"headers": _ETAG},
    304: {"description": "It still has a version of If-None-Match."},
    404: {"model": problems.Problem, "description": "NOT_FOUND: the key has no value, or the topic does not exist."},
}
KeyName = Annotated[str, Path(description="The key, percent-encoded; slashes need not be encoded.", min_length=1)]
Encoding = Annotated[
    Literal["text", "base64"], Query(description="How keys are encoded in this request: as text, or in base64url.")
]
Consistency = Annotated[
    Literal["linearizable", "stale"],
    Query(description="`stale`: any replica may answer; the header Sandq-Stale-Ms says how far it may be behind."),
]
IfMatch = Annotated[str | None, Header(alias="If-Match", description='Only if the key has this version: `"01HN..."`.')]
IfNoneMatch = Annotated[str | None, Header(alias="If-None-Match", description="`*`: only if the key has no value yet.")]
Prefix = Annotated[str | None, Query(description="Only keys that begin with this.")]


@router.get(
    "/topics/{topic}/keys",
    operation_id="listKeys",
    response_model=responses.KeyPage,
    responses=NDJSON,
    summary="List keys in order",
)
async def list_(
    request: Request,
    response: Response,
    topic: TopicName,
    prefix: Prefix = None,
    start: Annotated[str | None, Query(description="Begin at this key: `next` of the previous page.")] = None,
    stop: Annotated[str | None, Query(description="End before this key.")] = None,
    limit: Limit = None,
    values: Annotated[bool, Query(description="Include values and headers.")] = False,
    encoding: Encoding = "text",
    consistency: Consistency = "linearizable",
) -> Any:
    """Returns a page, over all partitions; with `Accept: application/x-ndjson` all keys, one per line."""
    bounds = _bounds(prefix, start, stop, encoding)
    lines = wants_ndjson(request)
    limit = DEFAULT_LIMIT if limit is None and not lines else limit

    def shown(entry: Entry) -> Found:
        return entry_json(entry, value=values)

    keys = gateway_of(request).client.kv(topic)
    rows = keys.scan(**bounds, limit=limit if lines or limit is None else limit + 1, consistency=consistency)
    if lines and consistency == "stale":
        raise InvalidRequest("consistency: stale is only for pages: with lines, the age is not known in advance")
    if lines or limit is None:
        return await as_ndjson(request, rows, shown)
    page, following = await page_of(rows, limit)
    if consistency == "stale":
        response.headers[STALE_MS] = str(rows.stale_ms)
    next_ = None if following is None else text_of("next", following.key, encoding)
    return {"keys": [shown(entry) for entry in page], "next": next_}


@router.get(
    KEY, operation_id="getKey", response_model=responses.Entry, responses=_READ, summary="Get the value of a key"
)
async def get(
    request: Request,
    response: Response,
    topic: TopicName,
    key: KeyName,
    encoding: Encoding = "text",
    consistency: Consistency = "linearizable",
    as_text: AsText = False,
    if_none_match: Annotated[
        str | None, Header(alias="If-None-Match", description="Versions that the client has: 304 if one is current.")
    ] = None,
) -> Any:
    """The value after all writes that were acknowledged before; with `stale`, the value as some replica knows it."""
    refuse(request, "If-Match", "it is for PUT and DELETE")
    name = key_of(request, key, encoding)
    keys = gateway_of(request).client.kv(topic)
    headers: dict[str, str] = {}
    if consistency == "stale":
        found = await keys.get_many([name], consistency="stale")
        entry, headers[STALE_MS] = found[0], str(found.stale_ms)
    else:
        entry = await keys.get(name)
    if entry is None:
        missing = NotFound(f"topic {topic!r} has no value for this key", topic=topic, **key_fields("key", name))
        answer = problems.of_error(request, missing)
        answer.headers.update(headers)
        return answer
    headers["etag"] = f'"{entry.version}"'
    if is_known(only(request, "If-None-Match"), entry.version):
        return Response(status_code=304, headers=headers)
    response.headers.update(headers)
    return entry_json(entry, as_text=as_text)


@router.put(KEY, operation_id="putKey", response_model=responses.Put, responses=_CHANGED, summary="Put a value")
async def put(
    request: Request,
    response: Response,
    topic: TopicName,
    key: KeyName,
    body: bodies.PutIn,
    encoding: Encoding = "text",
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Found:
    """The response comes once the value is stored safely."""
    name = key_of(request, key, encoding)
    expected, new = only(request, "If-Match"), only(request, "If-None-Match")
    if expected is not None and new is not None:
        raise InvalidRequest("If-Match and If-None-Match: give one of them, not both")
    if new not in (None, "*"):
        raise InvalidRequest("If-None-Match: with PUT it is *, for a key without a value; use If-Match for a version")
    keys, arguments = gateway_of(request).client.kv(topic), body.arguments()
    if expected is not None:
        version = await keys.cas(name, expected=version_of("If-Match", expected), **arguments)
    elif new is not None:
        version = await keys.cas(name, expected=None, **arguments)
    else:
        version = await keys.put(name, **arguments)
    response.headers["etag"] = f'"{version}"'
    return {**key_fields("key", name), "version": version, "partition": unpack(from_text(version)).partition}


@router.delete(
    KEY,
    operation_id="deleteKey",
    response_model=responses.Deleted,
    responses={412: _CHANGED[412]},
    summary="Delete a key",
)
async def delete(
    request: Request, topic: TopicName, key: KeyName, encoding: Encoding = "text", if_match: IfMatch = None
) -> Found:
    """Succeeds also for a key without a value, unless If-Match names a version."""
    refuse(request, "If-None-Match", "it is for GET and PUT")
    name, expected = key_of(request, key, encoding), only(request, "If-Match")
    version = None if expected is None else version_of("If-Match", expected)
    return {"version": await gateway_of(request).client.kv(topic).delete(name, expected=version)}


@router.get(
    "/topics/{topic}/changes",
    operation_id="watchKeys",
    response_model=responses.Changes,
    summary="Wait for changes of keys",
)
async def changes(
    request: Request,
    topic: TopicName,
    after: Annotated[str | None, Query(description="`position` of the last response, `earliest` or a version.")] = None,
    prefix: Prefix = None,
    wait: Annotated[str, Query(description="Maximum time to wait for the first change, up to a minute.")] = "10s",
    limit: Limit = None,
    latest: Annotated[bool, Query(description="Skip writes that a later write of the same key replaced.")] = False,
    encoding: Encoding = "text",
) -> Found:
    """Without `after`, returns the current position at once. 410 HISTORY_GONE if changes after `after` were compacted:
    start again from the list of `/keys`, or use `latest=true`."""
    wait_ms = duration_ms(wait)
    if wait_ms > WAIT_MS_MOST:
        raise InvalidRequest(f"wait: at most {WAIT_MS_MOST // 1000}s")
    start = NOW if after is None else start_of(after)
    begin = b"" if prefix is None else bytes_of("prefix", prefix, encoding)
    keys = gateway_of(request).client.kv(topic)

    async def work() -> Found:
        """Return the changes since a position; without one, only the current position."""
        found: list[Change] = []
        async with keys.watch(prefix=begin, start=start, latest=latest) as watch:
            if after is not None:
                found = await _gathered(watch, wait_ms / 1000, limit or DEFAULT_LIMIT)
            return {"changes": [change_json(one) for one in found], "position": position_text(watch.position)}

    return await (while_connected if after is None else run_waiting)(request, work)


async def _gathered(watch: Watch, wait_s: float, limit: int) -> list[Change]:
    """Return the first change within `wait_s`, and those that have arrived with it."""
    found: list[Change] = []
    size = 0
    with anyio.move_on_after(wait_s):
        while len(found) < limit and size < PAGE_BYTES:
            change = watch.take_arrived()
            if change is None:
                if found:
                    break
                change = await anext(watch)
            found.append(change)
            size += len(change.value or b"") + len(change.key)
    return found


def _bounds(prefix: str | None, start: str | None, stop: str | None, encoding: str) -> dict[str, Any]:
    """Return the bounds of a scan. A prefix can be combined with the `next` of a page."""
    first = None if start is None else bytes_of("start", start, encoding)
    last = None if stop is None else bytes_of("stop", stop, encoding)
    if prefix is None:
        return {"start": first, "stop": last}
    if last is not None:
        raise InvalidRequest("prefix and stop: give one of them, not both")
    begin = bytes_of("prefix", prefix, encoding)
    if first is None:
        return {"prefix": begin}
    return {"start": max(first, begin), "stop": KeyRange.of_prefix(begin).stop}
