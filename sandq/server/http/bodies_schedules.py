"""Bodies of requests about schedules."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from sandq.client.schedules import FROM_BROKERS, read_changes, read_schedule
from sandq.model.limits import FIXED
from sandq.protocol.requests_schedules import TIMES_MOST
from sandq.server.http.bodies import (
    INT_MAX,
    MESSAGES_MAX,
    BackoffIn,
    Body,
    Cost,
    Duration,
    HeaderValue,
    Instant,
    MaxAttempts,
    check_members,
)

_CRON = "Five fields (minute, hour, day of month, month, day of week), six with seconds first, or an alias: `@daily`."


class Times(Body):
    """When a schedule fires: by `cron`, or at a fixed interval (`every`)."""

    cron: str | None = Field(default=None, description=_CRON, examples=["0 9 * * MON-FRI"])
    every: Duration | None = Field(default=None, description="Interval, instead of `cron`.", examples=["15m"])
    zone: str | None = Field(
        default=None, description="IANA time zone of `cron`; UTC by default.", examples=["Europe/Berlin"]
    )
    start: Instant | None = Field(default=None, description="No occurrence before this instant; base of `every`.")
    end: Instant | None = Field(default=None, description="No occurrence at this instant or later.")
    jitter: Duration | None = Field(default=None, description="Each message is delayed by a random time below this.")


class PreviewIn(Times):
    """A schedule that is only previewed."""

    count: int = Field(default=10, ge=1, le=TIMES_MOST, description="Number of occurrences.")
    after: Instant | None = Field(default=None, description="Only occurrences after this instant; now by default.")
    name: str = Field(default="preview", description="Name of the schedule; it determines the jitter.")


class _Definition(Times):
    """The members of a schedule other than its name and tenant."""

    count: int | None = Field(default=None, ge=1, le=INT_MAX, description="It ends after this many occurrences.")
    misfire: Literal["one", "skip", "all"] | None = Field(
        default=None,
        description="What to send for missed occurrences: one message, none, or one each. `one` by default.",
    )
    misfire_most: int | None = Field(default=None, ge=1, le=INT_MAX, description="With `all`: at most the last N.")
    overlap_group: str | None = Field(
        default=None, description="Skip an occurrence while the last message is not acked by this consumer group."
    )
    text: str | None = Field(default=None, description="The value of its messages, as UTF-8 text.")
    value: str | None = Field(default=None, description="The value, in base64.")
    # The schema must not say `= None`, because null is a value.
    json_: Any = Field(default=None, alias="json", description="The value, as JSON; it is sent in compact form.")
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, HeaderValue] | None = Field(
        default=None, description='Bytes are written as `{"base64": "aw=="}`.'
    )
    ttl: Duration | None = None
    priority: int | None = Field(
        default=None, ge=FIXED.priority_least, le=FIXED.priority_most, description="In a priority or fair topic."
    )
    max_attempts: MaxAttempts | None = Field(default=None, description="Attempts of each message.")
    backoff: BackoffIn | None = Field(default=None, description="Back-off of each message.")
    cost: Cost | None = Field(default=None, description="Cost of each message, for rates with a unit.")

    def _given(self) -> dict[str, Any]:
        """Return the given members. A null `text` or `value` is dropped if a further value is given.

        `{"json": null}` is a value."""
        given = self.model_dump(by_alias=True, exclude_unset=True)
        for name in ("text", "value"):
            if given.get(name, ...) is None and len(given.keys() & {"text", "value", "json"}) > 1:
                del given[name]
        return given


class ScheduleIn(_Definition):
    """A schedule to create. Its value is one of `text`, `value` and `json`."""

    name: str = Field(description="Printable text, at most 255 bytes.")
    tenant: str | None = Field(default=None, description="In a fair topic: the tenant of its messages.")
    paused: bool | None = Field(
        default=None, description="Whether it is paused; null keeps the state, and a new schedule is not paused."
    )

    @model_validator(mode="before")
    @classmethod
    def _without_response_members(cls, given: Any) -> Any:
        """Drop members that only responses have, so that a schedule from a response can be created again."""
        check_members(given)
        if isinstance(given, dict) and not FROM_BROKERS.isdisjoint(given):
            return {name: value for name, value in given.items() if name not in FROM_BROKERS}
        return given

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `Schedules.create`. Raise InvalidRequest."""
        return read_schedule(self._given())


class ScheduleUpdate(_Definition):
    """Changes of a schedule. Members that are not given stay; null resets one to its default."""

    @model_validator(mode="after")
    def _something(self) -> ScheduleUpdate:
        """Refuse a body without changes."""
        if not self.model_fields_set:
            raise ValueError("nothing to change: give at least one member")
        return self

    def arguments(self) -> dict[str, Any]:
        """Return the arguments of `Schedules.update`. Raise InvalidRequest."""
        return read_changes(self._given())


class SchedulesIn(Body):
    """Many schedules, to create or to change."""

    schedules: list[ScheduleIn] = Field(min_length=1, max_length=MESSAGES_MAX, fail_fast=True)


def _one_or_many(given: Any) -> str:
    """Return the tag of a body: one schedule, or many."""
    return "many" if isinstance(given, SchedulesIn) or (isinstance(given, dict) and "schedules" in given) else "one"


MakeIn = Annotated[Annotated[SchedulesIn, Tag("many")] | Annotated[ScheduleIn, Tag("one")], Discriminator(_one_or_many)]
"""A schedule, or many."""
