"""What requests carry. Every mistake is told at once, with the path to it (of many messages those of the first wrong
one); nothing unknown is passed over."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, model_validator
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from sandq.client.consumer import SETTLE_ITEMS, Outgoing
from sandq.client.json_format import FROM_OTHERS, read_headers, read_message, read_value
from sandq.client.producer import delay_of
from sandq.model.errors import InvalidRequest, InvalidTime
from sandq.model.json_values import with_json_type
from sandq.model.limits import FIXED
from sandq.model.times import TIME_MAX_MS, duration_ms, instant_ms
from sandq.protocol.fields import PARTITION_MAX

MESSAGES_MAX = 10_000
"""Messages that one request produces."""
DEAD_IDS = 1000
"""Dead letters that one request names."""
MEMBERS_MAX = 64
"""More than any object has that is no value of a user's."""
FILTERS = ("reason", "error", "key_prefix", "unique_key_prefix")
"""Members that select messages of a bulk request, beside `since` and `until`."""
INT_MAX = 2**53
"""What every JSON reader understands as a whole number."""


def _checked(check: Callable[[Any], object]) -> AfterValidator:
    """Have a mistake be one of several that are told together, with the code that it has."""

    def validate(value: Any) -> Any:
        try:
            check(value)
        except InvalidTime as error:
            raise PydanticCustomError(error.code, "{what}", {"what": error.message}) from None
        return value

    return AfterValidator(validate)


# Named, so that clients that are generated have one type for each.
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


def few(given: Any) -> Any:
    """An object, unless it has more members than any body; nor more headers, when one of them is wrong. Raises
    ValueError: each mistake would be told by itself otherwise, which takes long for thousands."""
    if isinstance(given, dict):
        if len(given) > MEMBERS_MAX:
            raise ValueError(f"it has {len(given)} members, and no more than {MEMBERS_MAX} can be meant")
        headers = given.get("headers")
        if isinstance(headers, dict) and len(headers) > MEMBERS_MAX:
            for name, value in headers.items():
                if not isinstance(value, _HEADER_TYPES) or (isinstance(value, dict) and not _is_of_texts(value)):
                    raise ValueError(f"headers: {name[:80]!r} is neither text, a number, true, false, null nor base64")
    return given


def _is_of_texts(value: dict[str, Any]) -> bool:
    return all(isinstance(text, str) for text in value.values())


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    _few = model_validator(mode="before")(few)


# sandglass writes its kinds as numbers.
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
    def _once(self) -> Self:
        for ours, theirs in (("partitions", "numPartitions"), ("replicas", "replicationFactor")):
            if getattr(self, ours) is not None and getattr(self, theirs) is not None:
                raise ValueError(f"{ours} and {theirs} are the same: give one of them")
        return self

    def counts(self) -> tuple[int | None, int | None]:
        """Partitions and replicas."""
        return self.partitions or self.numPartitions, self.replicas or self.replicationFactor


class TopicCreate(Counts):
    """A topic to be made. `numPartitions` and `replicationFactor` are other names for two of its members."""

    name: str
    kind: _Kind = Field(
        default="timer",
        description="`compacted`: it keeps the last value of each key; `priority`: the lowest priority goes first; "
        "`fair`: it is shared among tenants.",
    )
    settings: dict[str, Any] = Field(
        default={},
        description="`lease`, `max_attempts`, `backoff`, `ttl`, `retention`, ...; of a compacted topic `history` and "
        "`tombstone_retention`, of a priority or fair one `ageing`, of a fair one `tenants`: docs/topics.md has all.",
    )


class TopicUpdate(Counts):
    """What is to be changed of a topic; what is not named stays. `numPartitions` and `replicationFactor` are other
    names for two of its members."""

    settings: dict[str, Any] = {}

    @model_validator(mode="after")
    def _something(self) -> TopicUpdate:
        if not self.settings and self.counts() == (None, None):
            raise ValueError("nothing to change: settings, partitions or replicas are expected")
        return self


class DrainIn(Body):
    """Whether the node is to hold nothing, or again."""

    undo: bool = False


class FinalizeIn(Body):
    """Whether it is only to be said what would come."""

    dry_run: bool = False


class LogLevelIn(Body):
    """At which level a node is to log, and for how long."""

    level: Literal["debug", "info", "warning", "error"]
    for_: str | float | None = Field(
        default=None, alias="for", description='Text such as "10m", or seconds; at most a day.'
    )


class TransferIn(Body):
    """A partition, and the node of those that hold it that is to lead it."""

    topic: str
    partition: int = Field(ge=0, le=PARTITION_MAX)
    node: str


class ClockResetIn(Body):
    """A partition whose time is ahead of the clock of the node that leads it."""

    topic: str
    partition: int = Field(ge=0, le=PARTITION_MAX)


class RebuildIn(Body):
    """A partition, and the node of those that hold it whose replica is to be made anew."""

    topic: str
    partition: int = Field(ge=0, le=PARTITION_MAX)
    node: str


class LimitsIn(Body):
    """Limits of a group: what is not named has none."""

    max_in_flight: int | None = Field(default=None, description="Messages that are leased and not settled, at most.")
    rate: str | float | None = Field(default=None, description='Messages a second, or text such as "5/s", "100/m".')
    burst: int | None = Field(
        default=None, description="So many at once after a pause; a tenth of a second's worth unless told otherwise."
    )


class PushIn(Body):
    """How the messages of a group are pushed: what is not named stays."""

    url: str | None = Field(default=None, description="Where they are POSTed to.")
    secrets: list[str] | None = Field(
        default=None, description="1 to 4, `whsec_` and base64 of 24 to 64 bytes; each signs. Not shown again."
    )
    keep_secrets: bool = Field(default=False, description="Those of before sign as well.")
    concurrency: int | None = Field(default=None, description="Requests at once, by each node; 10 by default.")
    request_timeout: Duration | None = Field(default=None, description="For a request and its answer; 30 s by default.")


class GroupUpdate(Body):
    """Settings of a group's own: `max_attempts`, `max_snoozes`, `backoff`, `max_in_flight_per_key`. `{}`: it has the
    topic's again."""

    settings: dict[str, Any]


HeaderValue = TypeAliasType("HeaderValue", str | int | float | bool | dict[str, str] | None)
_TEXT: Any = Field(default=None, description="The value, as UTF-8 text.")
# No `= None` in the schema: null is a value, too.
_JSON: Any = Field(
    default=None,
    alias="json",
    description="The value, as JSON; it is sent as its compact text, with the header `content-type: application/json`.",
)
_HEADERS: Any = Field(default=None, description='Bytes are written as `{"base64": "aw=="}`.')


def _check_delay_ms(value: Any) -> Any:
    """Refuse what is no whole number of milliseconds, naming the unit."""
    if value is not None:
        try:
            delay_of(None, value)
        except InvalidTime as error:
            what = error.message.removeprefix("delay_ms: ")
            raise PydanticCustomError(error.code, "{what}", {"what": what}) from None
    return value


DelayMs = Annotated[
    Annotated[int, Field(ge=0, le=TIME_MAX_MS)] | None,
    BeforeValidator(_check_delay_ms),
    Field(description="In place of `delay`: whole milliseconds.", examples=[1500]),
]


class MessageIn(BaseModel):
    """A message to be produced: its value is one of `text`, `value` and `json`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    text: str | None = _TEXT
    value: str | None = Field(
        default=None, description="The value, in base64; null: the key of a compacted topic is deleted."
    )
    json_: Any = _JSON
    key: str | None = Field(default=None, description="Messages of one key go to one partition.")
    key_base64: str | None = None
    headers: dict[str, HeaderValue] | None = _HEADERS
    deliver_at: Instant | None = None
    delay: Duration | None = None
    delay_ms: DelayMs = None
    ttl: Duration | None = None
    unique_key: str | None = None
    unique_key_base64: str | None = None
    on_conflict: Literal["reject", "replace", "replace_pending", "ignore"] = "reject"
    priority: int | None = Field(
        default=None,
        ge=FIXED.priority_least,
        le=FIXED.priority_most,
        description="Of a priority or fair topic: lower goes first; otherwise 0.",
    )
    tenant: str | None = Field(default=None, description="Of a fair topic: whose it is; otherwise `default`.")

    @model_validator(mode="before")
    @classmethod
    def _without_what_brokers_tell(cls, given: Any) -> Any:
        """A message that was consumed can be produced as it is."""
        few(given)
        if isinstance(given, dict) and not FROM_OTHERS.isdisjoint(given):
            return {name: value for name, value in given.items() if name not in FROM_OTHERS}
        return given

    def arguments(self) -> dict[str, Any]:
        """Of `Producer.send`. Raises InvalidRequest."""
        given = _without_nulls(self)
        on_conflict = given.pop("on_conflict", "reject")
        return {**read_message(given), "on_conflict": on_conflict}


class PutIn(BaseModel):
    """What a key is to have: one of `text`, `value` and `json`."""

    model_config = ConfigDict(extra="forbid", strict=True)

    _few = model_validator(mode="before")(few)

    text: str | None = _TEXT
    value: str | None = Field(default=None, description="The value, in base64.")
    json_: Any = _JSON
    headers: dict[str, HeaderValue] | None = _HEADERS
    ttl: Duration | None = Field(default=None, description="So long it stays; otherwise the topic's setting.")

    def arguments(self) -> dict[str, Any]:
        """Of `Keys.put`, beside the key. Raises InvalidRequest."""
        given = _without_nulls(self)
        value = read_value(given)
        if value is None:
            raise InvalidRequest("value: null is none; DELETE deletes a key")
        headers = None if given.get("headers") is None else read_headers(given["headers"])
        if "json" in given:
            headers = with_json_type(headers)
        return {"value": value, "headers": headers, "ttl": given.get("ttl")}


def _without_nulls(body: BaseModel) -> dict[str, Any]:
    """What was given. A `text` and a `value` of null beside another one are none, but `{"json": null}` is a value."""
    given = body.model_dump(by_alias=True, exclude_unset=True)
    if given.get("text", ...) is None:
        del given["text"]
    if given.get("value", ...) is None and not given.keys().isdisjoint(("text", "json")):
        del given["value"]
    return given


class MessagesIn(Body):
    """Many messages, stored in one go."""

    messages: list[MessageIn] = Field(min_length=1, max_length=MESSAGES_MAX, fail_fast=True)


def _one_or_many(given: Any) -> str:
    return "many" if isinstance(given, MessagesIn) or (isinstance(given, dict) and "messages" in given) else "one"


ProduceIn = TypeAliasType(
    "ProduceIn",
    Annotated[Annotated[MessagesIn, Tag("many")] | Annotated[MessageIn, Tag("one")], Discriminator(_one_or_many)],
)
"""A message, or many."""


class LeaseIn(Body):
    """What is wanted, all of it optional."""

    max: int = Field(default=1, ge=1, le=FIXED.grant_messages, description="Messages at most.")
    wait: Duration = Field(
        default=0, description="How long to wait when nothing is ready: a minute at most.", examples=["1s"]
    )
    lease: Duration | None = Field(default=None, description="How long they are held; otherwise the topic's setting.")
    start: Start = Field(default="earliest", description="Where the group begins when it is new.")
    ack: bool = Field(default=False, description="Ack them before they are sent: what gets lost on its way is lost.")
    partitions: list[Annotated[int, Field(ge=0, le=PARTITION_MAX)]] | None = Field(
        default=None,
        min_length=1,
        max_length=PARTITION_MAX + 1,
        description="Numbers of the partitions to lease from; otherwise all.",
        examples=[[0, 3]],
    )


class HeldIn(BaseModel):
    """A leased message; without an offset, everything under the lease. What else a lease told of it is passed over, so
    that its answer can be sent back as it is."""

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
        description="Those of an answer to `lease`; none, where nothing was leased.",
    )
    without_leader: list[int] | None = Field(default=None, description="Of the answer to `lease`; ignored here.")

    def held(self) -> list[tuple[str, str | None]]:
        """(lease token, offset) of each. Raises InvalidRequest."""
        if (self.lease_token is None) is (self.messages is None):
            raise InvalidRequest("one of lease_token (with the offset of a message) and messages is expected")
        if self.lease_token is not None:
            return [(self.lease_token, self.offset)]
        if self.offset is not None:
            raise InvalidRequest("offset: it goes with a lease_token")
        return [(one.lease_token, one.offset) for one in self.messages or ()]


class OutgoingIn(MessageIn):
    """A message that the ack sends: one without a unique key."""

    topic: str | None = Field(default=None, description="Otherwise that of the message that is acked.")

    @model_validator(mode="before")
    @classmethod
    def _without_what_brokers_tell(cls, given: Any) -> Any:
        """The topic that a consumed message tells is where it is sent."""
        few(given)
        if isinstance(given, dict):
            return {name: value for name, value in given.items() if name == "topic" or name not in FROM_OTHERS}
        return given

    def outgoing(self) -> Outgoing:
        """As the client sends it. Raises InvalidRequest."""
        if self.unique_key is not None or self.unique_key_base64 is not None:
            raise InvalidRequest("then: what an ack sends has no unique key: the ack itself is done once")
        given = self.arguments()
        if (delay_ms := given.pop("delay_ms", None)) is not None:
            given["delay"] = delay_of(given.get("delay"), delay_ms)
        taken = {name: value for name, value in given.items() if name not in ("on_conflict", "unique_key", "topic")}
        return Outgoing(value=taken.pop("value", None), topic=self.topic, **taken)


class AckThenIn(AckIn):
    """What was done, and what is sent with it."""

    then: list[OutgoingIn] | None = Field(
        default=None,
        min_length=1,
        max_length=FIXED.then_messages,
        description="Messages that are sent with the ack of what is held under one lease, all of it or nothing.",
    )


class NackIn(AckIn):
    """What was not done."""

    delay: Duration | None = Field(default=None, description="When it comes again; otherwise after the back-off.")
    delay_ms: DelayMs = None
    error: str | None = Field(default=None, description="Why, for `why` and the dead letters.")
    priority: int | None = Field(
        default=None,
        ge=FIXED.priority_least,
        le=FIXED.priority_most,
        description="Of a priority or fair topic: what they have from now on, for this group; otherwise as before.",
    )
    headers: dict[str, HeaderValue] | None = Field(
        default=None, description="What they have in place of theirs from now on, for this group; otherwise as before."
    )

    count: bool = Field(
        default=True, description="Whether the attempt counts. `false` snoozes them, up to `max_snoozes` times."
    )

    def changes(self) -> dict[str, Any]:
        """What they have otherwise from now on, for `Leases.nack`. Raises InvalidRequest."""
        headers = None if self.headers is None else read_headers(self.headers)
        return {"priority": self.priority, "headers": headers}


class RejectIn(AckIn):
    """What cannot be done."""

    error: str | None = Field(default=None, description="Why, for `why` and the dead letters.")


class ExtendIn(AckIn):
    """What is to be held longer."""

    lease: Duration = Field(description="How long from now.")


class SeekIn(Body):
    to: Start


_NEW_PRIORITY: Any = Field(
    default=None,
    ge=FIXED.priority_least,
    le=FIXED.priority_most,
    description="Of a priority or fair topic: another priority; without a time, the time stays.",
)


class MoveIn(Body):
    """The new delivery time: one of the three; or another priority; or both."""

    deliver_at: Instant | None = None
    delay: Duration | None = None
    delay_ms: DelayMs = None
    priority: int | None = _NEW_PRIORITY


class UpdateIn(MoveIn):
    """What a pending message gets: another value (one of `text`, `value` and `json`), other headers, or both; or where
    it is moved: another time or priority. All of it in one step."""

    model_config = ConfigDict(extra="forbid", strict=True)

    _few = model_validator(mode="before")(few)

    text: str | None = _TEXT
    value: str | None = Field(default=None, description="The value, in base64.")
    json_: Any = _JSON
    headers: dict[str, HeaderValue] | None = Field(
        default=None, description="What it has in place of its headers; `{}`: none. Otherwise as before."
    )

    def changes(self) -> dict[str, Any]:
        """Value and headers, for `Messages.update`; empty: it is only moved. Raises InvalidRequest."""
        given = _without_nulls(self)
        changes: dict[str, Any] = {}
        if not given.keys().isdisjoint(("text", "value", "json")):
            value = read_value(given)
            if value is None:
                raise InvalidRequest("value: null is none; DELETE cancels a message")
            changes |= {"json": given["json"]} if "json" in given else {"value": value}
        if given.get("headers") is not None:
            changes["headers"] = read_headers(given["headers"])
        return changes


def check_bulk(which: Mapping[str, Any], *, everything: bool, dry_run: bool, what: str) -> None:
    """Refuse a bulk request that does not say which messages it is for, or says it twice. Raises InvalidRequest.

    `which`: its filters by name, None for those that are not given. `what`: what it would do to every message.
    """
    given = [name for name, value in which.items() if value is not None]
    if everything and given:
        raise InvalidRequest(f"all: it goes without {', '.join(given)}: every message, or those that match")
    if not (given or everything or dry_run):
        raise InvalidRequest(f"this would {what}: say all=true, or which ({', '.join(which)})")


class Window(Body):
    """Which messages: those whose delivery time is from `since` on and before `until`."""

    since: Instant | None = None
    until: Instant | None = None
    dry_run: bool = Field(default=False, description="Only count them.")
    all: bool = Field(default=False, description="Needed when nothing else says which.")

    def chosen(self, what: str) -> dict[str, Any]:
        """Return the arguments of the client for this request. Raises InvalidRequest, as `check_bulk` does."""
        given = self.model_dump(exclude_unset=True, exclude={"all", "ids"})
        which = {name: given.get(name) for name in ("since", "until", *FILTERS) if name in type(self).model_fields}
        check_bulk(which, everything=self.all, dry_run=self.dry_run, what=what)
        return given


class MoveAllIn(Window):
    """Where they are moved: `to` an instant, or by a `shift`; or another priority; or both."""

    key_prefix: str | None = None
    unique_key_prefix: str | None = None
    to: Instant | None = None
    shift: Shift | None = Field(default=None, description='May be negative: `"-30m"`.')
    priority: int | None = _NEW_PRIORITY


class DeadIn(Window):
    """Which dead letters: all that match, or those of `ids`, and nothing else then. `since` and `until` bound when they
    died."""

    reason: Literal["nacked", "lease_expired", "expired", "rejected", "undeliverable"] | None = None
    error: str | None = Field(default=None, description="Part of their last error, upper and lower case as they are.")
    key_prefix: str | None = Field(default=None, description="The beginning of their keys.")
    ids: list[str] | None = Field(default=None, min_length=1, max_length=DEAD_IDS, fail_fast=True)

    def named(self) -> list[str] | None:
        """Their ids; None: those that match. Raises InvalidRequest."""
        given = sorted(self.model_fields_set - {"ids"})
        if self.ids is not None and given:
            raise InvalidRequest(f"ids: they go without {', '.join(given)}: these letters, or all that match")
        return self.ids


class RedriveIn(DeadIn):
    rate: int | None = Field(default=None, ge=1, le=2**32, description="Messages a second.")


class BackupIn(Body):
    """What is to be in a backup."""

    topics: list[str] | None = Field(default=None, max_length=10_000, description="Only these; null: all.")


class SqlIn(Body):
    """A statement."""

    statement: str = Field(min_length=1, max_length=262_144, description="One, of MySQL's SQL.")
    database: Literal["sandq", "z4", "information_schema"] = "sandq"
    full_scan: bool = Field(default=False, description="Read whole topics, where nothing bounds what is read.")
    limit: int = Field(default=1000, ge=1, le=10_000, description="Rows of the answer, at most.")


class RestoreIn(Body):
    """What is made of a backup, and how it is named."""

    topics: list[str] | None = Field(default=None, max_length=10_000, description="Only these; null: all.")
    names: dict[str, str] = Field(
        default_factory=dict, max_length=10_000, description="By topics of the backup: other names."
    )
    prefix: str = Field(default="", max_length=200, description="Stands before all other names.")
    base: bool = Field(default=False, description="Leave out the increments behind it: as it was when it was made.")
    resume_groups: bool = Field(
        default=False, description="Let consumers have at once what is due; else groups are paused."
    )
