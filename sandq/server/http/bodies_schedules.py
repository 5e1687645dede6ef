"""What requests about schedules carry."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from sandq.client.schedules import FROM_BROKERS, read_changes, read_schedule
from sandq.model.limits import FIXED
from sandq.protocol.requests_schedules import TIMES_MOST
from sandq.server.http.bodies import INT_MAX, MESSAGES_MAX, Body, Duration, HeaderValue, Instant, few

_CRON = (
    "Five fields (minute, hour, day of month, month, day of week), six with the second first, or an alias: `@daily`."
)


class Times(Body):
    """When a schedule recurs: by `cron`, or `every` so long."""

    cron: str | None = Field(default=None, description=_CRON, examples=["0 9 * * MON-FRI"])
    every: Duration | None = Field(default=None, description="In place of `cron`.", examples=["15m"])
    zone: str | None = Field(
        default=None, description="Of `cron`: an IANA time zone; otherwise UTC.", examples=["Europe/Berlin"]
    )
    start: Instant | None = Field(default=None, description="None before this instant; `every` counts from it.")
    end: Instant | None = Field(default=None, description="None at this instant or later.")
    jitter: Duration | None = Field(default=None, description="Each is delivered by less than this later.")


class PreviewIn(Times):
    """A schedule that is not made."""

    count: int = Field(default=10, ge=1, le=TIMES_MOST, description="Occurrences to be told of.")
    after: Instant | None = Field(default=None, description="Behind which they are; otherwise now.")
    name: str = Field(default="preview", description="Of the schedule: by it and the occurrence a jitter goes.")


class _Told(Times):
    """What a schedule is told, beside its name and tenant."""

    count: int | None = Field(default=None, ge=1, le=INT_MAX, description="It ends after so many.")
    misfire: Literal["one", "skip", "all"] | None = Field(
        default=None,
        description="What nobody could fire in time becomes one message, none, or one each. Otherwise `one`.",
    )
    misfire_most: int | None = Field(default=None, ge=1, le=INT_MAX, description="With `all`: the last so many.")
    overlap_group: str | None = Field(
        default=None, description="None is sent while the last one is not acked in this consumer group."
    )
    text: str | None = Field(default=None, description="The value of its messages, as UTF-8 text.")
    value: str | None = Field(default=None, description="The value, in base64.")
    # No `= None` in the schema: null is a value, too.
    json_: Any = Field(default=None, alias="json", description="The value, as JSON; it is sent as its compact text.")
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, HeaderValue] | None = Field(
        default=None, description='Bytes are written as `{"base64": "aw=="}`.'
    )
    ttl: Duration | None = None
    priority: int | None = Field(
        default=None, ge=FIXED.priority_least, le=FIXED.priority_most, description="Of a priority or fair topic."
    )

    def _given(self) -> dict[str, Any]:
        """What was given. A `text` and a `value` of null beside another one are none, `{"json": null}` is a value."""
        given = self.model_dump(by_alias=True, exclude_unset=True)
        for name in ("text", "value"):
            if given.get(name, ...) is None and len(given.keys() & {"text", "value", "json"}) > 1:
                del given[name]
        return given


class ScheduleIn(_Told):
    """A schedule to be made: its value is one of `text`, `value` and `json`."""

    name: str = Field(description="Printable text of 255 bytes at most.")
    tenant: str | None = Field(default=None, description="Of a fair topic: whose messages they are.")
    paused: bool | None = Field(
        default=None, description="Fires nothing until it is resumed; null: as it is, a new one not."
    )

    @model_validator(mode="before")
    @classmethod
    def _without_what_brokers_tell(cls, given: Any) -> Any:
        """A schedule that was shown can be made as it is."""
        few(given)
        if isinstance(given, dict) and not FROM_BROKERS.isdisjoint(given):
            return {name: value for name, value in given.items() if name not in FROM_BROKERS}
        return given

    def arguments(self) -> dict[str, Any]:
        """Of `Schedules.create`. Raises InvalidRequest."""
        return read_schedule(self._given())


class ScheduleUpdate(_Told):
    """What is to be changed of a schedule: what is not named stays, null is as if it had never been told."""

    @model_validator(mode="after")
    def _something(self) -> ScheduleUpdate:
        if not self.model_fields_set:
            raise ValueError("nothing to change: at least one member is expected")
        return self

    def arguments(self) -> dict[str, Any]:
        """Of `Schedules.update`. Raises InvalidRequest."""
        return read_changes(self._given())


class SchedulesIn(Body):
    """Many schedules, made or changed to what they say."""

    schedules: list[ScheduleIn] = Field(min_length=1, max_length=MESSAGES_MAX, fail_fast=True)


def _one_or_many(given: Any) -> str:
    return "many" if isinstance(given, SchedulesIn) or (isinstance(given, dict) and "schedules" in given) else "one"


MakeIn = Annotated[Annotated[SchedulesIn, Tag("many")] | Annotated[ScheduleIn, Tag("one")], Discriminator(_one_or_many)]
"""A schedule, or many."""
