"""Responses of routes about schedules."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from sandq.server.http.responses import ResponseModel


class Occurrence(ResponseModel):
    occurrence_at: str
    fired_at: str
    outcome: str = Field(
        description="`sent`; `skipped`: the last message was not acked; `missed`: it was too late; `triggered`."
    )
    id: str | None = Field(description="Id of its message.")


class Schedule(ResponseModel):
    """A schedule: the members that were given, and its state."""

    name: str
    cron: str | None = None
    every: str | None = None
    zone: str | None = None
    start: str | None = None
    end: str | None = None
    count: int | None = None
    jitter: str | None = None
    misfire: str
    misfire_most: int | None = None
    overlap_group: str | None = None
    ttl: str | None = None
    max_attempts: int | str | None = None
    backoff: dict[str, Any] | None = None
    cost: int | None = None
    paused: bool
    json_: Any = Field(default=None, alias="json", description="The value, if its headers say that it is JSON.")
    text: str | None = Field(default=None, description="The value, if it is not JSON but UTF-8.")
    value: str | None = Field(default=None, description="The value in base64, if it is neither JSON nor UTF-8.")
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, Any] | None = None
    headers_base64: str | None = Field(default=None, description="The headers, if they are no map with text keys.")
    priority: int | None = Field(default=None, description="Only if it is not 0.")
    tenant: str | None = Field(default=None, description="Only if it has one.")
    topic: str
    partition: int
    version: int
    state: str = Field(description="`active`, `paused`, or `ended`: no further occurrences.")
    next_at: str | None = Field(description="Time of the next occurrence.")
    next_local: str | None = Field(description="The same in the schedule's time zone.")
    fire_at: str | None = Field(description="Delivery time of its message, including the jitter.")
    next_id: str | None = Field(description="Id of this message, if it is stored already.")
    fired: int = Field(description="Number of past occurrences.")
    missed: int = Field(description="Number of past occurrences that were left out.")
    created_at: str
    changed_at: str
    history: list[Occurrence] = Field(description="The last ten occurrences.")


class SchedulePage(ResponseModel):
    schedules: list[Schedule]
    next: str | None = Field(description="`after` of the next page; null on the last page.")


class SchedulesStored(ResponseModel):
    created: int
    changed: int
    unchanged: int


class Fire(ResponseModel):
    occurrence_at: str
    local: str | None = Field(description="The same in the schedule's time zone.")
    fire_at: str = Field(description="Delivery time of its message, including the jitter.")


class Fires(ResponseModel):
    next: list[Fire]


class Triggered(ResponseModel):
    id: str = Field(description="Id of the message.")
