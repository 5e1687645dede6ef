"""Bodies of requests. All mistakes are reported at once, with their paths; unknown members are mistakes, too.

In a list of messages, only the mistakes of the first wrong one are reported."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from sandq.client.consumer import SETTLE_ITEMS, Outgoing
from sandq.client.json_format import REPORTED_FIELDS, read_headers, read_key, read_message, read_value
from sandq.client.producer import delay_of
from sandq.model.errors import InvalidRequest, InvalidTime
from sandq.model.json_values import with_json_type
from sandq.model.limits import FIXED
from sandq.model.message_targets import HEADERS_MOST
from sandq.model.retries import MOST_ATTEMPTS, MOST_COST
from sandq.model.times import TIME_MAX_MS, duration_ms, instant_ms
from sandq.protocol.fields import PARTITION_MAX

MESSAGES_MAX = 10_000
"""Maximum number of messages in one request to produce."""
DEAD_IDS = 1000
"""Maximum number of dead letters that one request may name."""
MEMBERS_MAX = 64
"""Maximum number of members of an object, except for values of users. All valid objects have fewer."""
FILTERS = ("reason", "error", "key_prefix", "unique_key_prefix")
"""Members that select messages of a bulk request, in addition to `since` and `until`."""
INT_MAX = 2**53
"""Largest integer that every JSON parser represents exactly."""


def _checked(check: Callable[[Any], object]) -> AfterValidator:
    """Return a validator that reports an error of `check` like other mistakes, with its own code."""

    def validate(value: Any) -> Any:
        """Return the value, or raise the error of `check` as one of pydantic."""
        try:
            check(value)
        except InvalidTime as error:
            raise PydanticCustomError(error.code, "{problem}", {"problem": error.message}) from None
        return value

    return AfterValidator(validate)


# These types have names, so that generated clients have one type for each.
Duration = TypeAliasType(
    "Duration",
    Annotated[
        str | int | float,
        Field(
            union_mode="left_to_right",
            description='Seconds, or text: `"90s"`, `"5m"`, `"1h30m"`, `"250ms"`.',
            examples=["30s"],
        ),
        _checked(duration_ms),
    ],
)
Instant = TypeAliasType(
    "Instant",
    Annotated[
        str | int,
        Field(
            union_mode="left_to_right",
            description='RFC 3339 (`"2030-01-31T08:00:00Z"`), or milliseconds since 1970.',
            examples=["2030-01-31T08:00:00Z"],
        ),
        _checked(instant_ms),
    ],
)
Shift = TypeAliasType("Shift", Annotated[str | int | float, Field(union_mode="left_to_right", examples=["1h"])])
Start = TypeAliasType(
    "Start",
    Annotated[
        str | int,
        Field(union_mode="left_to_right", description='`"earliest"`, `"latest"`, an instant, or an offset.'),
    ],
)


_HEADER_TYPES = (str, int, float, bool, type(None), dict)


def check_members(given: Any) -> Any:
    """Return an object. Raise ValueError if it has too many members, or many headers of which at least one is wrong.

    Without this check, every mistake would be reported, and thousands of mistakes take long to report."""
    if isinstance(given, dict):
        if len(given) > MEMBERS_MAX:
            raise ValueError(f"it has {len(given)} members, more than any valid object ({MEMBERS_MAX})")
        headers = given.get("headers")
        if isinstance(headers, dict) and len(headers) > MEMBERS_MAX:
            for name, value in headers.items():
                if not isinstance(value, _HEADER_TYPES) or (isinstance(value, dict) and not _is_of_texts(value)):
                    raise ValueError(f"headers: {name[:80]!r} is not text, a number, true, false, null or base64")
    return given


def _is_of_texts(value: dict[str, Any]) -> bool:
    """Return whether all values of an object are text."""
    return all(isinstance(text, str) for text in value.values())


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    _few = model_validator(mode="before")(check_members)


# sandglass encodes kinds as numbers.
_KINDS = {0: "timer", 1: "compacted"}
_Kind = Annotated[
    Literal["timer", "compacted", "priority", "fair"],
    BeforeValidator(
        lambda value: _KINDS.get(value, value) if type(value) is int else value,
        json_schema_input_type=Literal["timer", "compacted", "priority", "fair", 0, 1],
    ),
]
_Count = Annotated[int, Field(ge=1, le=2**32 - 1)]


class Counts(Body):
    partitions: _Count | None = None
    replicas: _Count | None = None
    numPartitions: _Count | None = None
    replicationFactor: _Count | None = None

    @model_validator(mode="after")
    def _check_aliases(self) -> Self:
        """Refuse a number that is given under two names."""
        for ours, theirs in (("partitions", "numPartitions"), ("replicas", "replicationFactor")):
            if getattr(self, ours) is not None and getattr(self, theirs) is not None:
                raise ValueError(f"{ours} and {theirs} mean the same: give one of them")
        return self

    def counts(self) -> tuple[int | None, int | None]:
        """Return the numbers of partitions and replicas."""
        return self.partitions or self.numPartitions, self.replicas or self.replicationFactor


class TopicCreate(Counts):
    """A new topic. `numPartitions` and `replicationFactor` are aliases of `partitions` and `replicas`."""

    name: str
    kind: _Kind = Field(
        default="timer",
        description="`compacted`: keeps the last value of each key. `priority`: delivers the lowest priority first. "
        "`fair`: is shared among tenants.",
    )
    settings: dict[str, Any] = Field(
        default={},
        description="`lease`, `max_attempts`, `backoff`, `ttl`, `retention`, ...; in a compacted topic `history` and "
        "`tombstone_retention`, in a priority or fair one `ageing`, in a fair one `tenants`. docs/topics.md has all.",
    )


class TopicUpdate(Counts):
    """Changes of a topic. Members that are not given stay. `numPartitions` and `replicationFactor` are aliases of
    `partitions` and `replicas`."""

    settings: dict[str, Any] = {}

    @model_validator(mode="after")
    def _check_not_empty(self) -> TopicUpdate:
        """Refuse a body without changes."""
        if not self.settings and self.counts() == (None, None):
            raise ValueError("nothing to change: give settings, partitions or replicas")
        return self


class DrainIn(Body):
    """Options of a drain."""

    undo: bool = Field(default=False, description="Make it a regular node again.")


class FinalizeIn(Body):
    """Options of raising the feature level."""

    dry_run: bool = Field(default=False, description="Only return the levels.")


class LogLevelIn(Body):
    """A log level, and how long it is used."""

    level: Literal["debug", "info", "warning", "error"]
    for_: str | float | None = Field(
        default=None, alias="for", description='Text such as "10m", or seconds; at most a day.'
    )


class TransferIn(Body):
    """A partition, and the node that shall lead it; it must hold a replica."""

    topic: str
    partition: int = Field(ge=0, le=PARTITION_MAX)
    node: str


class ClockResetIn(Body):
    """A partition whose time is ahead of the clock of its leader."""

    topic: str
    partition: int = Field(ge=0, le=PARTITION_MAX)


class RebuildIn(Body):
    """A partition, and the node whose replica of it shall be rebuilt."""

    topic: str
    partition: int = Field(ge=0, le=PARTITION_MAX)
    node: str


class LimitIn(Body):
    """A named limit. Limits that are not given are removed; at least one is required."""

    max_in_flight: int | None = Field(default=None, description="Maximum number of leased messages.")
    rate: str | float | None = Field(default=None, description='Messages per second, or text such as "5/s", "100/m".')
    burst: int | None = Field(
        default=None,
        description="Messages at once after a pause; by default those of a tenth of a second, with a unit of a second.",
    )
    unit: str | None = Field(
        default=None, description="Name of the unit of the messages' costs, which rate and burst then count: `tokens`."
    )


class LimitsIn(LimitIn):
    """Limits of a group. Limits that are not given are removed."""

    limit: str | None = Field(
        default=None, description="Name of a limit that groups of any topics share; without other limits."
    )


class PushIn(Body):
    """How the messages of a group are pushed. Members that are not given stay."""

    url: str | None = Field(default=None, description="URL to which messages are POSTed.")
    targets: Literal["group", "message"] | None = Field(
        default=None, description="`message`: each message goes to its own URL. The topic needs `push_targets`."
    )
    secrets: list[str] | None = Field(
        default=None, description="1 to 4 secrets, each `whsec_` and base64 of 24 to 64 bytes; all sign. Not shown."
    )
    keep_secrets: bool = Field(default=False, description="Keep the previous secrets, too.")
    headers: dict[str, str] | None = Field(
        default=None,
        max_length=HEADERS_MOST,
        description="Headers of the requests. Their values are not shown. `{}` removes them.",
    )
    concurrency: int | None = Field(default=None, description="Requests of each node at a time; 10 by default.")
    request_timeout: Duration | None = Field(default=None, description="Time for one request; 30 s by default.")
    on_429: Literal["snooze", "pause_tenant", "pause_group", "pause_limit"] | None = Field(
        default=None, description="Reaction to a response 429 with `Retry-After`; `snooze` by default."
    )


class GroupUpdate(Body):
    """A group's own settings: `max_attempts`, `max_snoozes`, `backoff`, `on_expiry`, `max_in_flight_per_key`. `{}`
    restores those of the topic."""

    settings: dict[str, Any]


HeaderValue = TypeAliasType("HeaderValue", str | int | float | bool | dict[str, str] | None)
_TEXT: Any = Field(default=None, description="The value, as UTF-8 text.")
# The schema must not say `= None`, because null is a value.
_JSON: Any = Field(
    default=None,
    alias="json",
    description="The value, as JSON; it is sent in compact form, with the header `content-type: application/json`.",
)
_HEADERS: Any = Field(default=None, description='Bytes are written as `{"base64": "aw=="}`.')


def _check_delay_ms(value: Any) -> Any:
    """Refuse a value that is not a whole number of milliseconds, with an error that names the unit."""
    if value is not None:
        try:
            delay_of(None, value)
        except InvalidTime as error:
            problem = error.message.removeprefix("delay_ms: ")
            raise PydanticCustomError(error.code, "{problem}", {"problem": problem}) from None
    return value


DelayMs = Annotated[
    Annotated[int, Field(ge=0, le=TIME_MAX_MS)] | None,
    BeforeValidator(_check_delay_ms),
    Field(description="Whole milliseconds, instead of `delay`.", examples=[1500]),
]


class BackoffIn(BaseModel):
    """How long a message waits before its next attempt. Members that are left out have the defaults of the setting of
    topics."""

    model_config = ConfigDict(extra="forbid", strict=True)

    kind: Literal["exponential", "fixed", "linear", "none"] = "exponential"
    first: Duration = "1s"
    factor: float = Field(default=2, ge=1, le=100)
    cap: Duration = "10m"
    jitter_percent: int = Field(default=20, ge=0, le=100)


MaxAttempts = Annotated[int, Field(ge=1, le=MOST_ATTEMPTS)] | Literal["none"]
Cost = Annotated[int, Field(ge=1, le=MOST_COST)]


class PushTargetIn(BaseModel):
    """The URL of a message, to which groups with `"targets": "message"` send it."""

    model_config = ConfigDict(extra="forbid", strict=True)

    url: str
    method: Literal["POST", "PUT", "PATCH", "DELETE", "GET"] = "POST"
    headers: dict[str, str] | None = Field(
        default=None, max_length=HEADERS_MOST, description="Headers of the request, which are stored with the message."
    )
    timeout: Duration | None = Field(
        default=None, description="Time for the request, 1 s to 10 minutes; by default that of the group."
    )
    callback: str | None = Field(
        default=None,
        description="Topic that gets a message once the receiver has accepted this one. You need `produce` on it.",
    )
    failure_callback: str | None = Field(
        default=None,
        description="Topic that gets a message if this one is dead after a response or a failed request. You need "
        "`produce` on it.",
    )


class MessageIn(BaseModel):
    """A message to produce. Its value is one of `text`, `value` and `json`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str | None = _TEXT
    value: str | None = Field(
        default=None, description="The value, in base64; null deletes the key in a compacted topic."
    )
    json_: Any = _JSON
    key: str | None = Field(default=None, description="Messages with the same key go to the same partition.")
    key_base64: str | None = None
    headers: dict[str, HeaderValue] | None = _HEADERS
    deliver_at: Instant | None = None
    delay: Duration | None = None
    delay_ms: DelayMs = None
    ttl: Duration | None = None
    unique_key: str | None = None
    unique_key_base64: str | None = None
    on_conflict: Literal["reject", "replace", "replace_pending", "ignore", "debounce", "throttle"] = "reject"
    max_wait: Duration | None = Field(
        default=None,
        description="With `debounce`: the message is due at most this long after the first message of its series.",
        examples=["1m"],
    )
    window: Duration | None = Field(
        default=None,
        description="With `throttle`, which needs it: at most one message is stored in a window of this length.",
        examples=["1m"],
    )
    # The client refuses other texts, with an error that names the rule for the end of a window alone.
    edge: Annotated[str, Field(json_schema_extra={"enum": ["leading", "both"]})] | None = Field(
        default=None,
        description="With `throttle`: `leading` (the default) stores the first message of a window; `both` also "
        "delivers the newest of the others at the end of the window.",
    )
    priority: int | None = Field(
        default=None,
        ge=FIXED.priority_least,
        le=FIXED.priority_most,
        description="In a priority or fair topic: lower values are delivered first; 0 by default.",
    )
    tenant: str | None = Field(default=None, description="In a fair topic: the tenant; `default` if omitted.")
    max_attempts: MaxAttempts | None = Field(
        default=None, description="Its own number of attempts; by default the setting of the group or topic."
    )
    backoff: BackoffIn | None = Field(
        default=None, description="Its own back-off; by default the setting of the group or topic."
    )
    cost: Cost | None = Field(default=None, description="Its cost, for groups whose rate has a unit; 1 by default.")
    push: PushTargetIn | None = Field(
        default=None, description="Its URL; the topic needs `push_targets`. It is stored as the header `sandq-push`."
    )

    @model_validator(mode="before")
    @classmethod
    def _without_response_members(cls, given: Any) -> Any:
        """Drop members that only responses have, so that a consumed message can be produced again."""
        check_members(given)
        if isinstance(given, dict) and not REPORTED_FIELDS.isdisjoint(given):
            return {name: value for name, value in given.items() if name not in REPORTED_FIELDS}
        return given

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `Producer.send`. Raise InvalidRequest."""
        given = _without_nulls(self)
        options = {"on_conflict": given.pop("on_conflict", "reject")}
        for name in ("max_wait", "window", "edge"):
            if (value := given.pop(name, None)) is not None:
                options[name] = value
        return {**read_message(given), **options}


class PutIn(BaseModel):
    """The new value of a key: one of `text`, `value` and `json`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    _few = model_validator(mode="before")(check_members)

    text: str | None = _TEXT
    value: str | None = Field(default=None, description="The value, in base64.")
    json_: Any = _JSON
    headers: dict[str, HeaderValue] | None = _HEADERS
    ttl: Duration | None = Field(default=None, description="Time until it expires; by default the topic's setting.")

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `Keys.put`, without the key. Raise InvalidRequest."""
        given = _without_nulls(self)
        value = read_value(given)
        if value is None:
            raise InvalidRequest("value: null is not a value; use DELETE to delete a key")
        headers = None if given.get("headers") is None else read_headers(given["headers"])
        if "json" in given:
            headers = with_json_type(headers)
        return {"value": value, "headers": headers, "ttl": given.get("ttl")}


def _without_nulls(body: BaseModel) -> dict[str, Any]:
    """Return the given members. A null `text` or `value` is dropped if a further one is given; `{"json": null}` is a
    value."""
    given = body.model_dump(by_alias=True, exclude_unset=True)
    if given.get("text", ...) is None:
        del given["text"]
    if given.get("value", ...) is None and not given.keys().isdisjoint(("text", "json")):
        del given["value"]
    return given


class MessagesIn(Body):
    """Many messages, which are stored together."""

    messages: list[MessageIn] = Field(min_length=1, max_length=MESSAGES_MAX, fail_fast=True)


def _one_or_many(given: Any) -> str:
    """Return the tag of a body: one message, or many."""
    return "many" if isinstance(given, MessagesIn) or (isinstance(given, dict) and "messages" in given) else "one"


ProduceIn = TypeAliasType(
    "ProduceIn",
    Annotated[Annotated[MessagesIn, Tag("many")] | Annotated[MessageIn, Tag("one")], Discriminator(_one_or_many)],
)
"""A message, or many."""


class LeaseIn(Body):
    """Options of a lease request."""

    max: int = Field(default=1, ge=1, le=FIXED.grant_messages, description="Maximum number of messages.")
    wait: Duration = Field(
        default=0, description="Maximum time to wait if nothing is ready, up to a minute.", examples=["1s"]
    )
    lease: Duration | None = Field(default=None, description="Duration of the lease; by default the topic's setting.")
    start: Start = Field(default="earliest", description="Where a new group begins.")
    ack: bool = Field(default=False, description="Ack before sending: messages that are lost on the network are lost.")
    partitions: list[Annotated[int, Field(ge=0, le=PARTITION_MAX)]] | None = Field(
        default=None,
        min_length=1,
        max_length=PARTITION_MAX + 1,
        description="Partitions to lease from; all by default.",
        examples=[[0, 3]],
    )


class HeldIn(BaseModel):
    """A leased message; without an offset, the whole lease. Further members of a message from `lease` are ignored, so
    that it can be sent back unchanged."""

    model_config = ConfigDict(extra="ignore", strict=True)

    lease_token: str
    offset: str | None = None


class AckIn(Body):
    """One message (`lease_token`, `offset`), or many (`messages`)."""

    lease_token: str | None = None
    offset: str | None = None
    messages: list[HeldIn] | None = Field(
        default=None,
        max_length=SETTLE_ITEMS,
        fail_fast=True,
        description="Messages of a response of `lease`; empty if nothing was leased.",
    )
    without_leader: list[int] | None = Field(default=None, description="From the response of `lease`; ignored here.")

    def held(self) -> list[tuple[str, str | None]]:
        """Return (lease token, offset) of each message. Raise InvalidRequest."""
        if (self.lease_token is None) is (self.messages is None):
            raise InvalidRequest("give either lease_token (with the offset of a message) or messages")
        if self.lease_token is not None:
            return [(self.lease_token, self.offset)]
        if self.offset is not None:
            raise InvalidRequest("offset: it needs a lease_token")
        return [(one.lease_token, one.offset) for one in self.messages or ()]


class OutgoingIn(MessageIn):
    """A message that an ack or a nack sends; it has no unique key."""

    topic: str | None = Field(default=None, description="Target topic; by default that of the settled message.")

    @model_validator(mode="before")
    @classmethod
    def _without_response_members(cls, given: Any) -> Any:
        """Drop members that only responses have, except the topic, which is the target here."""
        check_members(given)
        if isinstance(given, dict):
            return {name: value for name, value in given.items() if name == "topic" or name not in REPORTED_FIELDS}
        return given

    def outgoing(self) -> Outgoing:
        """Return the message as the client sends it. Raise InvalidRequest."""
        if self.unique_key is not None or self.unique_key_base64 is not None:
            raise InvalidRequest("then: a message sent by an ack or a nack has no unique key: it takes effect once")
        for rule, options in (("debounce", (self.max_wait,)), ("throttle", (self.window, self.edge))):
            if self.on_conflict == rule or any([option is not None for option in options]):
                raise InvalidRequest(f"then: such a message has no unique key, so it cannot be {rule}d")
        given = self.arguments()
        if (delay_ms := given.pop("delay_ms", None)) is not None:
            given["delay"] = delay_of(given.get("delay"), delay_ms)
        taken = {name: value for name, value in given.items() if name not in ("on_conflict", "unique_key", "topic")}
        return Outgoing(value=taken.pop("value", None), topic=self.topic, **taken)


class AckThenIn(AckIn):
    """Messages to ack, and messages to send with the ack."""

    then: list[OutgoingIn] | None = Field(
        default=None,
        min_length=1,
        max_length=FIXED.then_messages,
        description="Messages to send atomically with the ack of messages under one lease.",
    )


class NackIn(AckIn):
    """Messages to nack."""

    delay: Duration | None = Field(default=None, description="Time until redelivery; by default the back-off.")
    delay_ms: DelayMs = None
    error: str | None = Field(default=None, description="Reason, shown by `why` and in dead letters.")
    priority: int | None = Field(
        default=None,
        ge=FIXED.priority_least,
        le=FIXED.priority_most,
        description="In a priority or fair topic: the new priority for this group; unchanged by default.",
    )
    headers: dict[str, HeaderValue] | None = Field(
        default=None, description="Headers that replace the existing ones for this group; unchanged by default."
    )

    count: bool = Field(
        default=True, description="Whether the attempt counts. `false` snoozes messages, up to `max_snoozes` times."
    )
    if_dead: list[OutgoingIn] | None = Field(
        default=None,
        min_length=1,
        max_length=FIXED.then_messages,
        description="Messages to send atomically if this nack makes the message dead. Only for one message, with its "
        "offset, and without `priority` and `headers`.",
    )

    def changes(self) -> dict[str, Any]:
        """Return the changes of the messages, as arguments of `Leases.nack`. Raise InvalidRequest."""
        headers = None if self.headers is None else read_headers(self.headers)
        return {"priority": self.priority, "headers": headers}


class RejectIn(AckIn):
    """Messages to reject."""

    error: str | None = Field(default=None, description="Reason, shown by `why` and in dead letters.")
    then: list[OutgoingIn] | None = Field(
        default=None,
        min_length=1,
        max_length=FIXED.then_messages,
        description="Messages to send atomically with the rejection of one message, which has its offset.",
    )


class ExtendIn(AckIn):
    """Leases to extend."""

    lease: Duration = Field(description="New duration of the lease, from now.")


class LeasePauseIn(Body):
    """A leased message, and what to pause: a part of its group, or the named limit of the group."""

    lease_token: str
    offset: str
    part: Literal["tenant", "key", "group", "limit"] = Field(
        description="Which messages of the group to pause: like this one. `limit`: all that share its named limit."
    )
    for_: Duration = Field(alias="for", description="Duration of the pause; at most an hour.")


class ResumeIn(Body):
    """The part of a group to resume (one of three members). Without them, the group as a whole."""

    tenant: str | None = Field(default=None, description="In a fair topic: only this tenant, and those below it.")
    key: str | None = Field(default=None, description="In a topic that limits keys: only this key.")
    key_base64: str | None = None

    def part(self) -> dict[str, Any]:
        """Return the part as arguments of the client. Raise InvalidRequest."""
        # A program whose variable is null must not pause the whole group.
        for name in sorted(self.model_fields_set & {"tenant", "key", "key_base64"}):
            if getattr(self, name) is None:
                raise InvalidRequest(f"{name}: null names no part of the group; leave it out to mean the whole group")
        return {"tenant": self.tenant, "key": read_key(self.model_dump(exclude_unset=True), "key")}


class LimitPauseIn(Body):
    """The end of a pause (`until` or `for`). Without an end, the pause stays until it is ended."""

    until: Instant | None = Field(default=None, description="End of the pause.")
    for_: Duration | None = Field(default=None, alias="for", description="Duration of the pause.")


class PauseIn(ResumeIn):
    """The end of a pause (`until` or `for`), and the part of the group. Without an end, the pause stays until it is
    ended."""

    until: Instant | None = Field(default=None, description="End of the pause.")
    for_: Duration | None = Field(default=None, alias="for", description="Duration of the pause.")


class SeekIn(Body):
    to: Start


_NEW_PRIORITY: Any = Field(
    default=None,
    ge=FIXED.priority_least,
    le=FIXED.priority_most,
    description="In a priority or fair topic: the new priority. Without a time, the time stays.",
)


class MoveIn(Body):
    """A new delivery time (one of three members), a new priority, or both."""

    deliver_at: Instant | None = None
    delay: Duration | None = None
    delay_ms: DelayMs = None
    priority: int | None = _NEW_PRIORITY


class UpdateIn(MoveIn):
    """Changes of a pending message, in one step: a new value (one of `text`, `value` and `json`), new headers, a new
    time, or a new priority."""

    model_config = ConfigDict(extra="forbid", strict=True)

    _few = model_validator(mode="before")(check_members)

    text: str | None = _TEXT
    value: str | None = Field(default=None, description="The value, in base64.")
    json_: Any = _JSON
    headers: dict[str, HeaderValue] | None = Field(
        default=None, description="Replaces its headers; `{}` removes them. Unchanged by default."
    )

    def changes(self) -> dict[str, Any]:
        """Return the new value and the new headers as arguments of `Messages.update`.

        Empty if only the time or the priority changes."""
        given = _without_nulls(self)
        changes: dict[str, Any] = {}
        if not given.keys().isdisjoint(("text", "value", "json")):
            value = read_value(given)
            if value is None:
                raise InvalidRequest("value: null is not a value; use DELETE to cancel a message")
            changes |= {"json": given["json"]} if "json" in given else {"value": value}
        if given.get("headers") is not None:
            changes["headers"] = read_headers(given["headers"])
        return changes


def check_bulk(filters: Mapping[str, Any], *, everything: bool, dry_run: bool, effect: str) -> None:
    """Refuse a bulk request that selects no messages, or selects them in two ways. Raise InvalidRequest.

    `filters`: by name, None if not given. `effect`: the effect of the request on every message.
    """
    given = [name for name, value in filters.items() if value is not None]
    if everything and given:
        raise InvalidRequest(f"all: it excludes {', '.join(given)}: select every message, or those that match")
    if not (given or everything or dry_run):
        raise InvalidRequest(f"this would {effect}: give all=true, or a filter ({', '.join(filters)})")


class Window(Body):
    """Selects messages whose delivery time is at or after `since` and before `until`."""

    since: Instant | None = None
    until: Instant | None = None
    dry_run: bool = Field(default=False, description="Only count them.")
    all: bool = Field(default=False, description="Required if no filter is given.")

    def chosen(self, effect: str) -> dict[str, Any]:
        """Return the arguments of the client for this request. Raise InvalidRequest, as `check_bulk` does."""
        given = self.model_dump(exclude_unset=True, exclude={"all", "ids"})
        filters = {name: given.get(name) for name in ("since", "until", *FILTERS) if name in type(self).model_fields}
        check_bulk(filters, everything=self.all, dry_run=self.dry_run, effect=effect)
        return given


class MoveAllIn(Window):
    """A new time (`to` an instant, or by a `shift`), a new priority, or both, for many messages."""

    key_prefix: str | None = None
    unique_key_prefix: str | None = None
    to: Instant | None = None
    shift: Shift | None = Field(default=None, description='May be negative: `"-30m"`.')
    priority: int | None = _NEW_PRIORITY


class DeadIn(Window):
    """Selects dead letters: all that match, or only those of `ids`. `since` and `until` refer to the time of death."""

    reason: Literal["nacked", "lease_expired", "expired", "rejected", "undeliverable"] | None = None
    error: str | None = Field(default=None, description="Part of the last error; case matters.")
    key_prefix: str | None = Field(default=None, description="Prefix of their keys.")
    ids: list[str] | None = Field(default=None, min_length=1, max_length=DEAD_IDS, fail_fast=True)

    def named(self) -> list[str] | None:
        """Return the ids; None: all that match. Raise InvalidRequest."""
        given = sorted(self.model_fields_set - {"ids"})
        if self.ids is not None and given:
            raise InvalidRequest(f"ids: they exclude {', '.join(given)}: name dead letters, or select those that match")
        return self.ids


class RedriveIn(DeadIn):
    rate: int | None = Field(default=None, ge=1, le=2**32, description="Messages per second.")


class BackupIn(Body):
    """Contents of a backup."""

    topics: list[str] | None = Field(default=None, max_length=10_000, description="Only these topics; null: all.")


class SqlIn(Body):
    """An SQL statement."""

    statement: str = Field(min_length=1, max_length=262_144, description="One statement in MySQL's dialect.")
    database: Literal["sandq", "z4", "information_schema"] = "sandq"
    full_scan: bool = Field(default=False, description="Allow reading whole topics if no condition bounds the read.")
    limit: int = Field(default=1000, ge=1, le=10_000, description="Maximum number of rows in the response.")


class RestoreIn(Body):
    """Topics to restore from a backup, and their names."""

    topics: list[str] | None = Field(default=None, max_length=10_000, description="Only these topics; null: all.")
    names: dict[str, str] = Field(
        default_factory=dict, max_length=10_000, description="New names, by the names in the backup."
    )
    prefix: str = Field(default="", max_length=200, description="Prefix for the names of all other topics.")
    base: bool = Field(default=False, description="Leave out its increments: restore the state of the backup itself.")
    resume_groups: bool = Field(
        default=False, description="Deliver due messages at once; by default groups are paused."
    )
