"""The OPTIONS of a backend in the setting TASKS, with a check of each."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from typing import Any, Final

from sandq.errors import InvalidRequest
from sandq_workers.urls import Address, parse

KINDS: Final = ("priority", "timer")
DAY_S: Final = 86400
_KILLS: Final = 10
"""Attempts of a task whose workers were killed, in topics that are created."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options, with their defaults."""

    url: str = "sandq://127.0.0.1:7170"
    group: str = "workers"
    """The consumer group of all workers."""
    lease: str | None = None
    """How long the tasks of a killed worker stay leased; None: the setting of the topic."""
    kind: str = "priority"
    """The kind of topics that are created; `timer` has no priorities."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Settings of topics that are created."""
    max_attempts: int = 1
    """Maximum number of runs of a task that raises."""
    result_ttl: float | timedelta | None = 7 * DAY_S
    """How long results are kept, in seconds; None: for ever."""
    results_topic: str = "django.results"
    enqueue_on_commit: bool = True
    """Whether a task is sent after the commit of the caller's transaction."""
    outbox: bool = False
    """Whether a task is stored in a table in the caller's transaction."""
    outbox_interval: float = 0.5
    """How often the relay reads the table, in seconds."""
    database: str = "default"
    """The alias of the database whose transactions count."""

    @property
    def address(self) -> Address:
        """The address in the URL. Raises InvalidRequest."""
        return parse(self.url)

    @property
    def ttl_s(self) -> float | None:
        """How long results are kept, in seconds."""
        ttl = self.result_ttl
        return ttl.total_seconds() if isinstance(ttl, timedelta) else ttl

    @property
    def topic_settings(self) -> dict[str, Any]:
        """Settings of topics that are created."""
        return {"max_attempts": self.max_attempts + _KILLS - 1, **self.settings}


def read(given: Any) -> tuple[Options, list[str]]:
    """Return the options, and a text for each that is wrong. Wrong options have their defaults."""
    if not isinstance(given, Mapping):
        return Options(), ["OPTIONS must be a dict"]
    problems = []
    known = {each.name for each in fields(Options)}
    right = {}
    for name, value in given.items():
        if name not in known:
            near = difflib.get_close_matches(str(name), known, 1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            problems.append(f"unknown option {name!r}{meant} The options are {', '.join(sorted(known))}")
        elif problem := _problem(name, value):
            problems.append(f"{name}: {problem}")
        else:
            right[name] = value
    return Options(**right), problems


def _problem(name: str, value: Any) -> str | None:
    """Return what is wrong with an option; None if it is right."""
    if name == "url":
        try:
            if isinstance(value, str):
                parse(value)
        except InvalidRequest as error:
            return str(error)
    if name in ("enqueue_on_commit", "outbox"):
        return None if isinstance(value, bool) else f"{value!r} is not True or False"
    if name == "kind":
        return None if value in KINDS else f"{value!r} is not one of {', '.join(KINDS)}"
    if name == "settings":
        return None if isinstance(value, Mapping) else f"{value!r} is not a dict"
    if name == "max_attempts":
        return None if type(value) is int and value >= 1 else f"{value!r} is not a whole number of at least 1"
    if name in ("outbox_interval", "result_ttl"):
        if name == "result_ttl" and (value is None or (isinstance(value, timedelta) and value > timedelta(0))):
            return None
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return None if is_number and 0 < value < float("inf") else f"{value!r} is not a number of seconds above 0"
    if name == "lease" and value is None:
        return None
    return None if isinstance(value, str) and value else f"{value!r} is not a text"
