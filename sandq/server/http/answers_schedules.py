"""What routes about schedules answer."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from sandq.server.http.answers import Answer


class Occurrence(Answer):
    occurrence_at: str
    fired_at: str
    outcome: str = Field(
        description="`sent`; `skipped`: the last one was not acked; `missed`: it was too late; `triggered`."
    )
    id: str | None = Field(description="Of its message.")


class Schedule(Answer):
    """A schedule: what it was told (what it was not told, is not there), and how it stands."""

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
    paused: bool
    json_: Any = Field(default=None, alias="json", description="The value when its headers say that it is JSON ...")
    text: str | None = Field(default=None, description="... when it is UTF-8 ...")
    value: str | None = Field(default=None, description="... otherwise in base64.")
    key: str | None = None
    key_base64: str | None = None
    headers: dict[str, Any] | None = None
    headers_base64: str | None = Field(default=None, description="Instead, if they are no map with text keys.")
    priority: int | None = Field(default=None, description="Unless it is 0.")
    tenant: str | None = Field(default=None, description="When it names one.")
    topic: str
    partition: int
    version: int
    state: str = Field(description="`active`, `paused`, or `ended`: there is no occurrence any more.")
    next_at: str | None = Field(description="The next occurrence.")
    next_local: str | None = Field(description="The same on a clock of its zone.")
    fire_at: str | None = Field(description="When its message is delivered: later by the jitter.")
    next_id: str | None = Field(description="That message, when it is made already.")
    fired: int = Field(description="Occurrences that are over.")
    missed: int = Field(description="Of all that were due, those that were left out.")
    created_at: str
    changed_at: str
    history: list[Occurrence] = Field(description="The last ten.")


class SchedulePage(Answer):
    schedules: list[Schedule]
    next: str | None = Field(description="The `after` of the next page; null: this is the last one.")


class SchedulesStored(Answer):
    created: int
    changed: int
    unchanged: int


class Fire(Answer):
    occurrence_at: str
    local: str | None = Field(description="The same on a clock of the schedule's zone.")
    fire_at: str = Field(description="When its message is delivered: later by the jitter.")


class Fires(Answer):
    next: list[Fire]


class Triggered(Answer):
    id: str = Field(description="Of the message.")
