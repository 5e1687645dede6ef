"""Messages and records as JSON objects, for HTTP and `sandctl -o json`.

    {"text": "hello"}                     the value: UTF-8 text,
    {"value": "aGVsbG8="}                 or base64,
    {"json": {"order": 7}}                or JSON, sent as its compact text, with the header content-type
    {"value": null}                       in a compacted topic: delete the key
    "key": "k" | "key_base64": "aw=="     optional
    "headers": {"a": "text", "n": 1, "b": {"base64": "aw=="}}
    "deliver_at": "2030-01-31T08:00:00Z" | epoch milliseconds, or "delay": "90s" | seconds, or "delay_ms": 1500
    "ttl": "1h" | seconds                 optional: how long after its delivery time an unheld message is dead
    "unique_key": "order-7" | "unique_key_base64": "aw=="
    "priority": -3, "tenant": "acme"      in priority and fair topics
    "max_attempts": 20 | "none", "backoff": {"kind": "fixed", "first": "1h", "cap": "1h"}, "cost": 1200
    "push": {"url": "https://shop.example/hooks", "method": "POST", "headers": {...}, "timeout": "30s",
             "callback": "done", "failure_callback": "failed"}

A value whose headers mark it as JSON is written as `json`, so that JSON input becomes JSON output. The JSON of a
message can be used to produce it again: fields that only a broker sets (offset, id, state, ...) are ignored. Times
(`..._ms`) are written as RFC 3339 (`..._at`), durations as text.
"""

from __future__ import annotations

import base64
import binascii
import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sandq.client.arguments import did_you_mean
from sandq.client.consumer.lease_api import LeasedMessage
from sandq.client.consumer.message import Message
from sandq.client.messages.stored_message import DeadLetter, Life, StoredMessage
from sandq.model.dead_letter_settings import DEAD, DEAD_LIMITS, ON_EXPIRY
from sandq.model.errors import InvalidRequest
from sandq.model.group_limits import GROUP_LIMITS, limits_of
from sandq.model.headers import headers_or_none
from sandq.model.json_values import MISSING, json_bytes, shown_json, with_json_type
from sandq.model.message_targets import PUSH_TARGETS, PushTarget
from sandq.model.nack_ends import MAX_SNOOZES
from sandq.model.names import COMPACTED, FAIR, PRIORITY, TIMER
from sandq.model.outbox import DEAD_LETTER, DEAD_LETTER_TOPIC
from sandq.model.partitioning import PARTITION_DELIMITER
from sandq.model.rates import as_mapping, rate_text
from sandq.model.retries import parse_rules
from sandq.model.times import duration_ms, format_duration, format_instant, instant_ms
from sandq.model.topic_limits import AUTO, LIMITS, MAX_LEASE_MS, MAX_MESSAGE_BYTES, PRECISION_MS, REQUEST_RATES
from sandq.protocol.replies import TopicRecord

if TYPE_CHECKING:
    from sandq.client.admin.group_consumers import GroupConsumer
    from sandq.client.admin.group_pauses import PausedPart
    from sandq.client.kv.entries import Change, Entry
    from sandq.client.producer.batches import Receipt

__all__ = [
    "KNOWN",
    "REPORTED_FIELDS",
    "at_once",
    "blocked_by_key_of_rows",
    "change_json",
    "consumer_json",
    "content_fields",
    "dead_json",
    "encoded",
    "entry_json",
    "group_limits_json",
    "group_limits_of_rows",
    "headers_fields",
    "history_json",
    "key_fields",
    "message_errors",
    "message_json",
    "named_limit_json",
    "outcome_fields",
    "pause_json",
    "rank_fields",
    "read_headers",
    "read_key",
    "read_message",
    "read_value",
    "settings_json",
    "stored_json",
    "text_or_none",
    "topic_json",
    "value_fields",
    "when",
    "why_json",
]

REPORTED_FIELDS = frozenset(
    (
        *("offset", "id", "topic", "partition", "attempt", "created_at", "lease_token", "lease_until"),  # leased
        *("state", "due_at", "moves", "moved_at", "size"),  # stored
        *("group", "reason", "attempts", "error", "dead_at", "history", "life", "lives", "not_forwarded"),  # dead
    )
)
"""Fields that a broker reports. Producers do not set them."""
_VALUES = ("text", "value", "json")
_COMPACTED = {
    "lease_ms": "lease_ms",
    "max_attempts": "max_attempts",
    MAX_SNOOZES: MAX_SNOOZES,
    MAX_MESSAGE_BYTES: MAX_MESSAGE_BYTES,
    **{name: name for name in DEAD_LIMITS},
    MAX_LEASE_MS: MAX_LEASE_MS,
    **{name: name for name in REQUEST_RATES},
    "backoff": "backoff",
    "group_ttl_ms": "group_ttl_ms",
    "key_ttl_ms": "ttl_ms",
    "history_ms": "history_ms",
    "tombstone_retention_ms": "tombstone_retention_ms",
    PARTITION_DELIMITER: PARTITION_DELIMITER,
}
"""Settings in the record of a compacted topic, with the names under which they are set."""
_NEVER_SET = ("ordering", "rank")
"""Keys in the record of a priority or fair topic that its kind determines."""
_TIMES = ("deliver_at", "delay", "delay_ms", "ttl")
_WHEN = ("deliver_at", "delay", "delay_ms")
_RANKS = ("priority", "tenant")
_RULES = ("max_attempts", "backoff", "cost")
_KEYS = ("key", "unique_key")
KNOWN = frozenset(
    (*_VALUES, *_KEYS, *(f"{name}_base64" for name in _KEYS), "headers", "push", *_TIMES, *_RANKS, *_RULES)
)
"""Fields that a producer may set."""


def read_message(found: object) -> dict[str, Any]:
    """Return the arguments of `Producer.send` for a JSON object.

    Raises InvalidRequest with the wrong fields; `mistakes` of the error lists all mistakes.
    """
    if not isinstance(found, dict):
        raise InvalidRequest("a message: a JSON object is expected")
    arguments: dict[str, Any] = {}
    wrong = [error for _, error in _read_parts(found, arguments)]
    if wrong:
        raise wrong[0] if len(wrong) == 1 else _combine(wrong)
    return arguments


def message_errors(found: Mapping[str, Any]) -> list[tuple[str, InvalidRequest]]:
    """Return all mistakes in a JSON message that can be found without the topic: (field, error)."""
    arguments: dict[str, Any] = {}
    wrong = list(_read_parts(found, arguments))
    for name, check in (("delay", duration_ms), ("ttl", duration_ms), ("deliver_at", instant_ms)):
        try:
            if arguments.get(name) is not None:
                check(arguments[name])
        except InvalidRequest as error:
            wrong.append((name, error))
    for name in _RULES:
        try:
            parse_rules(*[arguments.get(rule) if rule == name else None for rule in _RULES])
        except InvalidRequest as error:
            wrong.append((name, error))
    return wrong


UNKNOWN_REPORTED: Final = 20
"""Maximum number of unknown fields that are reported, because the search for similar names is expensive."""


def _read_parts(found: Mapping[str, Any], arguments: dict[str, Any]) -> Iterator[tuple[str, InvalidRequest]]:
    """Read a message field by field into `arguments`; yield the mistakes."""
    if "headers_base64" in found:
        text = "headers_base64: these headers are not a map with text keys, which brokers reject: leave them out"
        yield "headers_base64", InvalidRequest(text)
    for name in heapq.nsmallest(UNKNOWN_REPORTED, found.keys() - KNOWN - REPORTED_FIELDS - {"headers_base64"}):
        meant = did_you_mean(name, KNOWN) or f" (the fields are {', '.join(sorted(KNOWN))})"
        yield name, InvalidRequest(f"{name}: no such field of a message{meant}")
    try:
        arguments["value"] = read_value(found)
    except InvalidRequest as error:
        yield "value", error
    for name in _KEYS:
        try:
            key = read_key(found, name)
        except InvalidRequest as error:
            yield name, error
        else:
            if key is not None:
                arguments[name] = key
    if found.get("headers") is not None:
        try:
            arguments["headers"] = read_headers(found["headers"])
        except InvalidRequest as error:
            yield "headers", error
    if found.get("push") is not None:
        try:
            push = PushTarget.of(found["push"])
            push.text()
            arguments["push"] = push
        except InvalidRequest as error:
            yield "push", error
    if "json" in found and "value" in arguments:
        arguments["headers"] = with_json_type(arguments.get("headers"))
    times = [name for name in _WHEN if found.get(name) is not None]
    if len(times) > 1:
        yield times[1], InvalidRequest(f"{' and '.join(times)}: one of them, not both")
    for name in (*_TIMES, *_RANKS, *_RULES):
        if found.get(name) is not None:
            arguments[name] = found[name]


def _combine(wrong: Sequence[InvalidRequest]) -> InvalidRequest:
    texts = [error.message for error in wrong]
    return InvalidRequest("; ".join(texts), mistakes=texts)


def at_once(arguments: dict[str, Any], now_ms: int) -> dict[str, Any]:
    """Return a message's arguments for a compacted topic. Leave out a delivery time that has passed.

    The JSON of a consumed message has such a time.
    """
    try:
        is_over = "deliver_at" in arguments and instant_ms(arguments["deliver_at"]) <= now_ms
    except InvalidRequest:
        return arguments  # the send will refuse it
    return {name: value for name, value in arguments.items() if name != "deliver_at"} if is_over else arguments


def outcome_fields(receipt: Receipt) -> dict[str, Any]:
    """Return the outcome of a stored message as JSON; {} if its unique key could not conflict or the outcome is
    unknown."""
    outcome = receipt.outcome if receipt.may_conflict else None
    return {} if outcome is None else {name: value for name, value in outcome._asdict().items() if value is not None}


def read_value(found: Mapping[str, Any]) -> bytes | None:
    """Return the value, given in one of three forms; None for a deletion (`"value": null`)."""
    given = [name for name in _VALUES if name in found]
    if len(given) != 1:
        raise InvalidRequest(f"one of text, value and json is expected, not {' and '.join(given) or 'none'}")
    name = given[0]
    if name == "json":
        return json_bytes(found["json"])
    if name == "value" and found["value"] is None:
        return None
    if not isinstance(found[name], str):
        raise InvalidRequest(f"{name}: text is expected")
    return _decoded("value", found["value"]) if name == "value" else _utf8("text", found["text"])


def read_key(found: Mapping[str, Any], name: str) -> bytes | None:
    """Return a key, given as text or in base64; None if there is none."""
    encoded = f"{name}_base64"
    if found.get(name) is None:
        return None if found.get(encoded) is None else _decoded(encoded, found[encoded])
    if found.get(encoded) is not None:
        raise InvalidRequest(f"{name} and {encoded}: one of them, not both")
    if not isinstance(found[name], str):
        raise InvalidRequest(f"{name}: text is expected")
    return _utf8(name, found[name])


def read_headers(found: object) -> dict[str, Any]:
    """Return headers; bytes are written as `{"base64": "..."}`."""
    if not isinstance(found, dict):
        raise InvalidRequest("headers: an object is expected")
    headers = {}
    for name, value in found.items():
        _utf8(f"headers.{name!r:.60}", name)
        if isinstance(value, dict) and value.keys() == {"base64"}:
            value = _decoded(f"headers.{name}", value["base64"])
        elif isinstance(value, str):
            _utf8(f"headers.{name}", value)
        headers[name] = value
    return headers


def _utf8(name: str, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name}: it holds half a surrogate pair, which UTF-8 cannot") from None


def _decoded(name: str, text: object) -> bytes:
    if not isinstance(text, str):
        raise InvalidRequest(f"{name}: base64 text is expected")
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"{name}: not base64: {error}") from None


# Writing.


def entry_json(entry: Entry, *, value: bool = True, as_text: bool = False) -> dict[str, Any]:
    """Return a key of a compacted topic and its value. `value`: include value and headers.

    `as_text`: never return the value as `json`.
    """
    cell = None if as_text else entry.headers_bytes
    return {
        **key_fields("key", entry.key),
        **(value_fields(entry.value, cell) | content_fields(None, entry.headers_bytes) if value else {}),
        "version": entry.version,
        "expires_at": when(entry.expires_ms),
        "partition": entry.partition,
    }


def change_json(change: Change) -> dict[str, Any]:
    """Return a change of a key; a deletion has `"value": null`."""
    return {
        **key_fields("key", change.key),
        **value_fields(change.value, change.headers_bytes),
        **content_fields(None, change.headers_bytes),
        "deleted": change.deleted,
        "version": change.version,
        "created_at": format_instant(change.created_ms),
        "partition": change.partition,
    }


def topic_json(record: TopicRecord) -> dict[str, Any]:
    """Return a topic. Its settings have the names and units with which callers set them."""
    return {
        "name": record.name,
        "kind": record.kind,
        "partitions": len(record.partitions),
        "replicas": record.replicas,
        "leaders": [row.leader for row in record.partitions],
        "settings": settings_json(record.settings, record.kind),
        **({"group_limits": limits} if (limits := group_limits_json(record.settings)) else {}),
        **({"owner": record.owner} if record.owner is not None else {}),
        "warnings": record.warnings,
    }


def group_limits_json(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the limits of a topic's groups, by group."""
    return {name: limit.shown() for name, limit in sorted(limits_of(settings).items())}


def group_limits_of_rows(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the state of one group's limits over all partitions, from its rows. None if the group has no limits.

    `given`: number of messages in flight that the partitions may have.
    """
    known = [(row, row["limits"]) for row in rows if row.get("limits")]
    if not known:
        return None
    home = next((limits for row, limits in known if row["partition"] == 0), None)
    # A partition that has not received a share of a named limit yet does not know its definition.
    first = next((limits for _, limits in known if limits.get("rate") or limits.get("max_in_flight")), known[0][1])
    found = {name: first.get(name) for name in ("max_in_flight", "rate", "burst")}
    found |= {name: first[name] for name in ("unit", "limit") if name in first}
    in_flight, given = sum(row["leased"] for row in rows), None
    if "limit" not in first and home is not None and home.get("given") is not None:
        own = next(row["leased"] for row, _ in known if row["partition"] == 0)
        given = home["given"] + max(home["allowed"], own)
    return found | {"in_flight": in_flight, "given": given}


def blocked_by_key_of_rows(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the number of messages of one group that wait for other messages of their keys, from its rows. None if
    there is no limit per key."""
    known = [row["blocked_by_key"] for row in rows if row.get("blocked_by_key") is not None]
    return sum(known) if known else None


def _without_empty_rate(rule: dict[str, Any]) -> dict[str, Any]:
    """Return the rule of a tenant, without a rate and burst that are not set."""
    return {name: value for name, value in rule.items() if value is not None or name not in ("rate", "burst")}


def settings_json(record: Mapping[str, Any], kind: str = TIMER) -> dict[str, Any]:
    """Return settings of a record with the names and units with which callers set them."""
    is_of_topic = "lease_ms" in record
    if kind == COMPACTED:
        record = {name: record[key] for key, name in _COMPACTED.items() if key in record}
    elif kind in (PRIORITY, FAIR):
        record = {key: value for key, value in record.items() if key not in _NEVER_SET}
    found: dict[str, Any] = {}
    for key, value in record.items():
        if key in (GROUP_LIMITS, DEAD_LETTER):
            continue  # limits of groups are set separately; DEAD_LETTER is for the replicas only
        if isinstance(value, Mapping):
            found[key] = settings_json(value)
        elif key == "tenants" and isinstance(value, list):
            found[key] = {pattern: _without_empty_rate(rule) for pattern, rule in as_mapping(value).items()}
        elif key.endswith("_ms"):
            found[key.removesuffix("_ms")] = format_duration(value) if isinstance(value, int) else value
        elif key.endswith("_us"):
            found[key.removesuffix("_us")] = rate_text(value)
        elif key.endswith("_permille"):
            found[key.removesuffix("_permille")] = value / 1000
        else:
            found[key] = value
        if key == "max_attempts" and is_of_topic:
            # A setting without a limit has no entry in the record.
            found[MAX_SNOOZES] = record.get(MAX_SNOOZES)
            limits = (
                *(LIMITS if kind != COMPACTED else (MAX_MESSAGE_BYTES, MAX_LEASE_MS)),
                *REQUEST_RATES,
                *DEAD_LIMITS,
            )
            found |= {name.removesuffix("_ms").removesuffix("_us"): None for name in limits if name not in record}
        if key == "tombstone_retention_ms":
            found[PARTITION_DELIMITER] = record.get(PARTITION_DELIMITER)
        if key == "dedup_window_ms":
            found[DEAD_LETTER_TOPIC] = record.get(DEAD_LETTER_TOPIC)  # as above
            found[ON_EXPIRY] = record.get(ON_EXPIRY, DEAD)
            found[PUSH_TARGETS] = record.get(PUSH_TARGETS, False)
            if PRECISION_MS not in record:
                found["precision"] = AUTO
    return found


def message_json(message: Message | LeasedMessage) -> dict[str, Any]:
    """Return a delivered message."""
    headers = message.headers_bytes
    record = value_fields(None if message.deleted else message.value, headers) | content_fields(message.key, headers)
    record |= rank_fields(message.priority, message.tenant)
    record |= {
        "deliver_at": format_instant(message.deliver_at_ms),
        "offset": message.offset,
        "id": message.id,
        "topic": message.topic,
        "partition": message.partition,
        "attempt": message.attempt,
        "created_at": format_instant(message.created_ms),
        "lease_token": message.lease_token,
    }
    if isinstance(message, LeasedMessage):
        record["lease_until"] = format_instant(message.lease_until_ms)
    return record


def stored_json(message: StoredMessage, *, value: bool, as_text: bool = False) -> dict[str, Any]:
    """Return a stored message in any state. `as_text`: the value is never `json`, and may be truncated."""
    content = _whole_characters(message.value, message.size) if as_text else message.value
    return {
        **(value_fields(content, None if as_text else message.headers_bytes) if value else {}),
        **content_fields(message.key, message.headers_bytes),
        **key_fields("unique_key", message.unique_key),
        **rank_fields(message.priority, message.tenant),
        **_rules_fields(message),
        **({} if message.ttl_ms is None else {"ttl": format_duration(message.ttl_ms)}),
        "deliver_at": when(message.deliver_at_ms),
        "id": message.id,
        "offset": message.offset,
        "topic": message.topic,
        "partition": message.partition,
        "state": message.state,
        "created_at": when(message.created_ms),
        "due_at": when(message.due_ms),
        "moves": message.moves,
        "moved_at": when(message.moved_ms),
        "size": message.size,
    }


def _rules_fields(message: StoredMessage | DeadLetter) -> dict[str, Any]:
    """Return the retry rules that a message has."""
    return {name: rule for name in _RULES if (rule := getattr(message, name)) is not None}


def _whole_characters(value: bytes | None, size: int) -> bytes | None:
    """Return a truncated value (of originally `size` bytes) without an incomplete UTF-8 character at its end."""
    if value is None or len(value) >= size:
        return value
    for lost in range(1, min(4, len(value))):
        lead = value[-lost]
        if lead >= 0xC0:
            need = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return value[:-lost] if lost < need else value
        if lead < 0x80:
            break
    return value


def dead_json(letter: DeadLetter, *, value: bool) -> dict[str, Any]:
    """Return a dead letter."""
    return {
        **(value_fields(letter.value, letter.headers_bytes) if value else {}),
        **content_fields(letter.key, letter.headers_bytes),
        **key_fields("unique_key", letter.unique_key),
        **rank_fields(letter.priority, letter.tenant),
        **_rules_fields(letter),
        "deliver_at": when(letter.deliver_at_ms),
        "id": letter.id,
        "offset": letter.offset,
        "topic": letter.topic,
        "group": letter.group,
        "partition": letter.partition,
        "reason": letter.reason,
        "attempts": letter.attempts,
        "error": letter.error,
        "dead_at": when(letter.dead_ms),
        "created_at": when(letter.created_ms),
        "size": letter.size,
        **_lives_json(letter.lives, letter.history),
        **({"not_forwarded": letter.not_forwarded} if letter.not_forwarded is not None else {}),
    }


def consumer_json(row: GroupConsumer) -> dict[str, Any]:
    """Return a consumer of a group."""
    return {
        **{name: value for name, value in row._asdict().items() if name not in ("since_ms", "leased_ms")},
        "since": when(row.since_ms),
        "leased_at": when(row.leased_ms),
    }


def pause_json(row: PausedPart) -> dict[str, Any]:
    """Return a paused tenant or key of a group. A long key has no name."""
    name = {"tenant": row.tenant} if row.key is None and row.tenant is not None else key_fields("key", row.key)
    return {"part": row.part, **name, "paused_until": when(row.until_ms), "partitions": row.partitions}


def named_limit_json(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of a named limit, with the end of its pause as an instant."""
    shown = dict(row)
    return shown | {"paused_until": when(shown.pop("paused_until_ms"))}


def why_json(found: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result of `why`. Each of its `groups` has a `reason`, a `history` and the former `lives`."""
    message = {name: value for name, value in found.items() if name != "groups"}
    return {**_readable(message), "groups": [_group_json(row) for row in found["groups"]]}


def _group_json(row: Mapping[str, Any]) -> dict[str, Any]:
    shown = {name: value for name, value in row.items() if name not in ("history", "lives")}
    return {**_readable(shown), **_lives_json(row.get("lives") or (), row.get("history") or ())}


def _lives_json(lives: Sequence[Life], history: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return the attempts with their lives, the number of the last life, and how the former lives ended."""
    last = lives[-1].life + 1 if lives else 1
    numbers = [life.life for life in lives for _ in life.history]
    numbers += [last] * (len(history) - len(numbers))
    return {
        "history": [history_json(row, life) for row, life in zip(history, numbers, strict=True)],
        "life": last,
        "lives": [
            {
                "life": life.life,
                "attempts": life.attempts,
                "reason": life.reason,
                "error": life.error,
                "dead_at": when(life.dead_ms),
                "redriven_at": when(life.redriven_ms),
            }
            for life in lives
        ],
    }


def history_json(row: Any, life: int = 1) -> dict[str, Any]:
    """Return one attempt: its life (1 until a redrive), consumer, times, and outcome."""
    attempt, consumer, leased_ms, ended_ms, outcome, error = row
    return {
        "life": life,
        "attempt": attempt,
        "consumer": consumer,
        "leased_at": when(leased_ms),
        "ended_at": when(ended_ms),
        "outcome": outcome,
        "error": error,
    }


def _readable(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Convert times (`..._ms`) to instants (`..._at`), the ttl to a duration, and keys to text. Ids are text
    already."""
    record: dict[str, Any] = {}
    for name, value in fields.items():
        if name in ("key", "unique_key"):
            record.update(key_fields(name, value))
        elif name == "ttl_ms":
            record["ttl"] = None if value is None else format_duration(value)
        elif name.endswith("_ms"):
            record[name.removesuffix("_ms").removesuffix("_at") + "_at"] = when(value)
        elif name == "headers_bytes":
            record.update(headers_fields(value))
        elif name not in ("value", "headers"):  # `headers_bytes` contains them
            record[name] = value
    return record


def when(ms: int | None) -> str | None:
    """Return a time in RFC 3339; None stays None."""
    return None if ms is None else format_instant(ms)


def value_fields(value: bytes | None, headers: bytes | None = None) -> dict[str, Any]:
    """Return the value as `json`, `text`, or `value` in base64; None, a deletion, as `"value": null`.

    `headers`: in their stored form. If they mark the value as JSON, and it can be parsed, the value is returned as
    JSON.
    """
    if value is None:
        return {"value": None}
    if headers is not None and (shown := shown_json(value, headers)) is not MISSING:
        return {"json": shown}
    text = text_or_none(value)
    return {"value": encoded(value)} if text is None else {"text": text}


def key_fields(name: str, key: bytes | None) -> dict[str, Any]:
    """Return a key as text, or in base64 if it is not UTF-8; {} if there is none."""
    if key is None:
        return {}
    text = text_or_none(key)
    return {f"{name}_base64": encoded(key)} if text is None else {name: text}


def content_fields(key: bytes | None, headers: bytes | None) -> dict[str, Any]:
    """Return key and headers, if there are any. `headers`: in their stored form."""
    return key_fields("key", key) | headers_fields(headers)


def headers_fields(cell: bytes | None) -> dict[str, Any]:
    """Return stored headers as `headers`, or as `headers_base64` if JSON cannot represent them; {} if there are
    none."""
    if not cell:
        return {}
    headers = headers_or_none(cell)
    if headers is None or any([_reads_as_bytes(value) for value in headers.values()]):
        return {"headers_base64": encoded(cell)}
    return {"headers": {name: _header(value) for name, value in headers.items()}} if headers else {}


def rank_fields(priority: int, tenant: str | None) -> dict[str, Any]:
    """Return priority and tenant if they are not the defaults."""
    fields: dict[str, Any] = {}
    if priority:
        fields["priority"] = priority
    if tenant is not None:
        fields["tenant"] = tenant
    return fields


def _reads_as_bytes(value: Any) -> bool:
    """Return whether a header's value contains a map that a JSON reader would take for bytes."""
    if isinstance(value, dict):
        return value.keys() == {"base64"} or any([_reads_as_bytes(part) for part in value.values()])
    return isinstance(value, list) and any([_reads_as_bytes(part) for part in value])


def _header(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"base64": encoded(value)}
    if isinstance(value, dict):
        return {name: _header(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_header(part) for part in value]
    # JSON has no representation of infinity and NaN.
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def text_or_none(data: bytes) -> str | None:
    """Return the data as UTF-8 text; None if it is not UTF-8."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def encoded(data: bytes) -> str:
    """Return the data in base64."""
    return base64.b64encode(data).decode()
