"""A message of kombu as a message of sandq, and back.

The value is the body, so that `sandctl message get` shows it. One header, `kombu`, has the rest as JSON. Three
properties become options of the message, because the broker acts on them:

    headers.eta            deliver_at; workers get the message without it, else they would wait a second time
    properties.expiration  ttl, counted from the delivery time
    properties.priority    priority: 9 - p, in topics with priorities

The id of a task of Celery is the unique key of its message (`key_of`). The id can then be used to cancel or move the
task, and a message that is sent again after a lost reply replaces the first one. A task that is sent again under its id
while it runs, for a retry, is a new message, which the key names from then on (`on_conflict="debounce"`).
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from kombu.utils.json import dumps, loads

from sandq_workers.names import id_of_message, key_of

HEADER: Final = "kombu"
PRIORITY_MAX: Final = 9
"""The best priority in kombu. In sandq, lower numbers are delivered first."""
SCHEDULED: Final = "scheduled"
"""A field of the rest: the message comes from a schedule, so that the id of its task has yet to be made."""

Payload = dict[str, Any]
"""A message as kombu's virtual transports have it: body, headers, properties, content-type, content-encoding."""


class Outgoing(NamedTuple):
    """A message as sandq gets it."""

    value: bytes
    headers: dict[str, str]
    deliver_at_ms: int | None
    ttl_ms: int | None
    priority: int
    unique_key: str | None = None
    """The id of the task; None if this is no task."""

    def options(self, *, is_ranked: bool) -> dict[str, Any]:
        """Return the arguments of `produce`. `is_ranked`: whether the topic has priorities."""
        options: dict[str, Any] = {"headers": self.headers}
        if self.deliver_at_ms is not None:
            options["deliver_at"] = datetime.fromtimestamp(self.deliver_at_ms / 1000, UTC)
        if self.ttl_ms is not None:
            options["ttl"] = f"{self.ttl_ms}ms"
        if is_ranked:
            options["priority"] = self.priority
        if self.unique_key is not None:
            options |= {"unique_key": self.unique_key, "on_conflict": "debounce"}
        return options


def outgoing(payload: Payload, *, exchange: str, routing_key: str, now_ms: int) -> Outgoing:
    """Return the message to produce for a payload. The payload stays as it is."""
    headers: dict[str, Any] = dict(payload.get("headers") or {})
    properties: dict[str, Any] = dict(payload["properties"])
    eta_ms = eta_of(headers.get("eta"))
    if eta_ms is not None:
        headers["eta"] = None
    info: dict[str, Any] = properties.get("delivery_info") or {}
    properties["delivery_info"] = {**info, "exchange": exchange, "routing_key": routing_key}
    for name in ("delivery_tag", "body_encoding"):
        properties.pop(name, None)
    body = payload["body"]
    rest = {**payload, "headers": headers, "properties": properties, "is_text": isinstance(body, str)}
    del rest["body"]
    deliver_at_ms = eta_ms if eta_ms is not None and eta_ms > now_ms else None
    return Outgoing(
        value=body.encode("utf-8", "surrogateescape") if isinstance(body, str) else bytes(body),
        headers={HEADER: dumps(rest)},
        deliver_at_ms=deliver_at_ms,
        ttl_ms=ttl_of(properties.get("expiration"), wait_ms=0 if deliver_at_ms is None else deliver_at_ms - now_ms),
        priority=PRIORITY_MAX - priority_of(properties.get("priority")),
        unique_key=key_of(headers["id"]) if "task" in headers and headers.get("id") else None,
    )


def scheduled(message: Outgoing) -> Outgoing:
    """Return the message of a schedule. Each message that the schedule sends is a task of its own, and expires by its
    ttl, not at one instant."""
    rest = loads(message.headers[HEADER])
    rest = {**rest, "headers": {**rest["headers"], "expires": None}, SCHEDULED: True}
    return message._replace(headers={HEADER: dumps(rest)}, unique_key=None)


def incoming(value: bytes, headers: Mapping[str, Any] | None, *, tag: str, attempt: int, name: str) -> Payload:
    """Return the payload of a message. A message that kombu has not sent is a body of bytes without headers.

    `name`: topic and id of the message. The id of a task that a schedule has sent is made from it."""
    rest = _rest(headers)
    if rest.get(SCHEDULED):
        rest = _with_task_id(rest, str(id_of_message(name)))
    properties = _mapping(rest, "properties")
    info = {"exchange": "", "routing_key": "", **_mapping(properties, "delivery_info"), "redelivered": attempt > 1}
    return {
        "content-type": rest.get("content-type", "application/data"),
        "content-encoding": rest.get("content-encoding", "binary"),
        "headers": _mapping(rest, "headers"),
        "properties": {**properties, "delivery_tag": tag, "delivery_info": info},
        "body": value.decode("utf-8", "surrogateescape") if rest.get("is_text") else value,
    }


def _with_task_id(rest: dict[str, Any], task_id: str) -> dict[str, Any]:
    headers = {**_mapping(rest, "headers"), "id": task_id, "root_id": task_id}
    return {**rest, "headers": headers, "properties": {**_mapping(rest, "properties"), "correlation_id": task_id}}


def route_of(headers: Mapping[str, Any] | None) -> tuple[str, str]:
    """Return the exchange and the routing key of a message; empty ones if kombu has not sent it."""
    info = _mapping(_mapping(_rest(headers), "properties"), "delivery_info")
    return str(info.get("exchange") or ""), str(info.get("routing_key") or "")


def _rest(headers: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the fields of a message that are not its body; {} if kombu has not sent it. Never raises: a program that
    knows nothing of kombu may have sent the message, and the worker must survive it."""
    text = (headers or {}).get(HEADER)
    try:
        found = loads(text) if isinstance(text, (str, bytes)) else {}
    except (ValueError, TypeError, KeyError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _mapping(fields: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = fields.get(name)
    return found if isinstance(found, dict) else {}


def eta_of(eta: object) -> int | None:
    """Return an ETA in epoch ms; None if there is none, or if it is not a time (the worker then reports it)."""
    if not isinstance(eta, (str, datetime)) or not eta:
        return None
    try:
        time = eta if isinstance(eta, datetime) else datetime.fromisoformat(eta)
        aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
        # A message is never early: round up.
        return -int(-aware.timestamp() * 1000 // 1)
    except (ValueError, OverflowError):
        return None


def ttl_of(expiration: object, *, wait_ms: int) -> int | None:
    """Return the ttl of a message in ms. `expiration`: ms from now, as text; `wait_ms`: time until the delivery."""
    try:
        return max(1, int(str(expiration)) - wait_ms) if expiration is not None else None
    except ValueError:
        return None


def priority_of(priority: object) -> int:
    """Return a priority of kombu: 0 to 9, higher first."""
    try:
        return min(max(int(priority), 0), PRIORITY_MAX) if isinstance(priority, (int, float, str)) else 0
    except (ValueError, OverflowError):
        return 0
