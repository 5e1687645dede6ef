"""Loggers of a node, which may be a guest in the process of another program.

If structlog is configured, by the command `sandq` or by the program, lines go there. Otherwise they go to the logger of
the same name of Python's `logging`. So a program that has configured neither sees warnings and errors only.
"""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

import structlog


class Logger:
    """A logger with the methods of structlog's, which chooses the destination of each line when it is logged."""

    __slots__ = ("_name", "_standard", "_structured")

    def __init__(self, name: str) -> None:
        self._name = name
        self._structured = structlog.get_logger(name)
        self._standard = structlog.wrap_logger(
            logging.getLogger(name),
            processors=[structlog.stdlib.filter_by_level, structlog.contextvars.merge_contextvars, _as_text],
            wrapper_class=structlog.stdlib.BoundLogger,
            context_class=dict,
        )

    def __getattr__(self, method: str) -> Any:
        return getattr(self._structured if structlog.is_configured() else self._standard, method)


def get_logger(name: str) -> Any:
    """Return the logger of this name."""
    return Logger(name)


def _as_text(_: Any, __: str, event: MutableMapping[str, Any]) -> tuple[tuple[str, str], dict[str, Any]]:
    """Return the arguments of a method of `logging`: the event and its fields as one text."""
    options: dict[str, Any] = {name: event.pop(name) for name in ("exc_info", "stack_info") if name in event}
    text = " ".join([str(event.pop("event", "")), *(f"{name}={value!r}" for name, value in event.items())])
    return ("%s", text), options
