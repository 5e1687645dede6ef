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
from collections import deque
from typing import Any, TextIO

import structlog

from sandq.broker import verbose
from sandq.protocol.requests_debug import LEVELS as LEVELS
from sandq.server.line_writer import FINISH_S, LineWriter

RECENT_LINES = 500
RECENT_LINE_CHARS = 2000
"""Of the last lines, which are kept to be told of."""
_writers: list[LineWriter] = []
"""Of this process, since it began."""
_set_up = ["auto", "info"]
"""Format and level, as they were asked for."""
_now = ["info"]
"""The level by which it is logged now."""
_before: list[tuple[str, Any, int]] = []
"""While it is another than the configured one: that, and what goes with it."""
_recent: deque[str] = deque(maxlen=RECENT_LINES)


def set_up(log_format: str, level: str, node: str) -> Any:
    """Set logging up for the whole process: once, before the event loop runs. `log_format`: auto (text on a terminal),
    json, text. Returns a file for what people read on standard output (`write`); None when they do not: the log is
    JSON, and no terminal is there."""
    _set_up[:] = log_format, level
    _now[:] = [level]
    verbose.switch(level == "debug")
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
    log_file: Any = _Remembered(_file(sys.stderr))
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


def level() -> str:
    """By which it is logged now."""
    return _now[0]


def configured_level() -> str:
    """By which it is logged unless somebody has said otherwise."""
    return _before[0][0] if _before else _now[0]


def set_level(level: str) -> None:
    """Log from this level on from now on, until `reset_level`; not what was bound to a logger before it."""
    if level == configured_level():
        reset_level()
        return
    if not _before:
        _before.append((_now[0], structlog.get_config()["wrapper_class"], logging.getLogger().level))
    number = getattr(logging, level.upper())
    _use(level, structlog.make_filtering_bound_logger(number), max(number, logging.WARNING))


def reset_level() -> None:
    """Log as it was set up."""
    if _before:
        _use(*_before.pop())


def _use(level: str, wrapper: Any, of_libraries: int) -> None:
    _now[:] = [level]
    verbose.switch(level == "debug")
    structlog.configure(wrapper_class=wrapper)
    logging.getLogger().setLevel(of_libraries)


def recent() -> list[str]:
    """The last lines that were logged, the oldest first."""
    return list(_recent)


def lines_dropped() -> int:
    """How many lines this process could not write to standard error and output."""
    return sum([writer.dropped for writer in _writers])


def finish() -> None:
    """Wait, for a moment at most, until what was logged is written: the process ends."""
    deadline = time.monotonic() + FINISH_S
    for writer in _writers:
        writer.finish(max(deadline - time.monotonic(), 0))


class _Remembered:
    """A file whose last lines are kept."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, text: str) -> int:
        if line := text.rstrip("\n"):
            _recent.append(line[:RECENT_LINE_CHARS])
        return int(self._file.write(text))

    def flush(self) -> None:
        self._file.flush()


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
