"""Logs: a line an event, JSON or text, to stderr.

Every line has `timestamp`, `level`, `event` and `node`; of a connection also `connection` (a number, in the order in
which they came) and `peer`; of a request `request_id` (binary protocol: as the client numbered it; HTTP: X-Request-Id),
`request` (its type) and `topic`, where they are known. What libraries log goes the same way.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

LEVELS = ("debug", "info", "warning", "error")


def set_up(log_format: str, level: str, node: str) -> None:
    """For the whole process: once, before the event loop runs. `log_format`: auto (text on a terminal), json, text."""
    if log_format == "auto":
        log_format = "text" if sys.stderr.isatty() else "json"
    renderer: Any = structlog.dev.ConsoleRenderer() if log_format == "text" else structlog.processors.JSONRenderer()
    number = getattr(logging, level.upper())
    common: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*common, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
    handler = logging.StreamHandler(sys.stderr)
    formatter = structlog.stdlib.ProcessorFormatter
    handler.setFormatter(formatter(processors=[formatter.remove_processors_meta, renderer], foreign_pre_chain=common))
    # Debug lines of libraries are about themselves.
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)
    structlog.contextvars.bind_contextvars(node=node)
