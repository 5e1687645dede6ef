"""Logs: a line an event, JSON or text, to stderr.

Every line has `timestamp`, `level`, `event` and `node`; of a connection also `connection` (a number, in the order in
which they came) and `peer`; of HTTP's process `process`; of a request `request_id` (binary protocol: as the client
numbered it; HTTP: X-Request-Id), `request` (its type) and `topic`, where they are known. What libraries log goes the
same way.

Logging never ends or blocks a node: a line that cannot be written, or for which nobody makes room, is dropped and
counted (`line_writer.py`).
"""

from __future__ import annotations

import logging
import sys
import time
from typing import Any, TextIO

import structlog

from sandq.server.line_writer import FINISH_S, LineWriter

LEVELS = ("debug", "info", "warning", "error")
_writers: list[LineWriter] = []
"""Of this process, since it began."""
_set_up = ["auto", "info"]
"""Format and level, as they were asked for."""


def set_up(log_format: str, level: str, node: str) -> Any:
    """Set logging up for the whole process: once, before the event loop runs. `log_format`: auto (text on a terminal),
    json, text. Returns a file for what people read on standard output (`write`); None when they do not: the log is
    JSON, and no terminal is there."""
    _set_up[:] = log_format, level
    if log_format == "auto":
        log_format = "text" if _is_terminal(sys.stderr) else "json"
    for_people = log_format == "text" or _is_terminal(sys.stdout)
    renderer: Any = structlog.dev.ConsoleRenderer() if log_format == "text" else structlog.processors.JSONRenderer()
    number = getattr(logging, level.upper())
    common: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    log_file = _file(sys.stderr)
    structlog.configure(
        processors=[*common, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(number),
        logger_factory=structlog.WriteLoggerFactory(log_file),
    )
    handler = logging.StreamHandler(log_file)
    formatter = structlog.stdlib.ProcessorFormatter
    handler.setFormatter(formatter(processors=[formatter.remove_processors_meta, renderer], foreign_pre_chain=common))
    # What cannot be formatted must not be told on a standard error that may be full.
    logging.raiseExceptions = False
    # Debug lines of libraries are about themselves.
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)
    structlog.contextvars.bind_contextvars(node=node)
    return _file(sys.stdout) if for_people else None


def as_set_up() -> tuple[str, str]:
    """The format and the level that `set_up` was called with: for processes that log beside this one."""
    log_format, level = _set_up
    return log_format, level


def lines_dropped() -> int:
    """How many lines this process could not write to standard error and output."""
    return sum([writer.dropped for writer in _writers])


def finish() -> None:
    """Wait, for a moment at most, until what was logged is written: the process ends."""
    deadline = time.monotonic() + FINISH_S
    for writer in _writers:
        writer.finish(max(deadline - time.monotonic(), 0))


def _is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and stream.isatty()


def _file(stream: TextIO | None) -> Any:
    """A file whose `write` neither waits nor fails."""
    try:
        descriptor = None if stream is None else stream.fileno()
    except OSError:
        return stream  # memory
    _writers.append(LineWriter(descriptor))
    return _writers[-1]
