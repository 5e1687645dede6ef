"""Set up logging: one line per event, JSON or text, to standard error.

Every line has `timestamp`, `level`, `event` and `node`. Lines about a connection have `connection` (its sequence
number) and `peer`, and lines of the HTTP process `process`. Lines about a request have `request_id` (the client's
number in the binary protocol, X-Request-Id in HTTP), `request` (its type) and `topic`, as far as they are known. The
logs of libraries are formatted in the same way.

Logging never ends or blocks a node. A line that cannot be written, because of an error or a full queue, is dropped and
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
"""Number of recent lines that are kept in memory for debug dumps."""
RECENT_LINE_CHARS = 2000
"""Maximum length of such a line, in characters."""
_writers: list[LineWriter] = []
"""All line writers that this process has created."""
_set_up = ["auto", "info"]
"""Format and level that `set_up` was called with."""
_now = ["info"]
"""The current level."""
_before: list[tuple[str, Any, int]] = []
"""If the level was changed: the configured level and its settings, to restore them. Otherwise empty."""
_recent: deque[str] = deque(maxlen=RECENT_LINES)


def set_up(log_format: str, level: str, node: str) -> Any:
    """Set up logging for the whole process: call it once, before the event loop runs.

    `log_format`: auto (text on a terminal, otherwise json), json or text. Return a file for messages to people on
    standard output; use its `write`. Return None if the log is JSON and standard output is no terminal: then no person
    reads them.
    """
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
    # By default, `logging` would print formatting errors to standard error, which may block.
    logging.raiseExceptions = False
    # Debug lines of libraries do not help: they are about the libraries themselves.
    logging.basicConfig(handlers=[handler], level=max(number, logging.WARNING), force=True)
    structlog.contextvars.bind_contextvars(node=node)
    return _file(sys.stdout) if for_people else None


def as_set_up() -> tuple[str, str]:
    """Return the format and the level that `set_up` was called with, for child processes that log in the same way."""
    log_format, level = _set_up
    return log_format, level


def level() -> str:
    """Return the current level."""
    return _now[0]


def configured_level() -> str:
    """Return the level that `set_up` was called with."""
    return _before[0][0] if _before else _now[0]


def set_level(level: str) -> None:
    """Change the level until `reset_level` is called. Loggers that were bound before keep their level."""
    if level == configured_level():
        reset_level()
        return
    if not _before:
        _before.append((_now[0], structlog.get_config()["wrapper_class"], logging.getLogger().level))
    number = getattr(logging, level.upper())
    _apply_level(level, structlog.make_filtering_bound_logger(number), max(number, logging.WARNING))


def reset_level() -> None:
    """Restore the configured level."""
    if _before:
        _apply_level(*_before.pop())


def _apply_level(level: str, wrapper: Any, of_libraries: int) -> None:
    """Apply a log level. `wrapper`: the logger for sandq's own lines; `of_libraries`: the level for libraries."""
    _now[:] = [level]
    verbose.switch(level == "debug")
    structlog.configure(wrapper_class=wrapper)
    logging.getLogger().setLevel(of_libraries)


def recent() -> list[str]:
    """Return the last lines that were logged, oldest first."""
    return list(_recent)


def lines_dropped() -> int:
    """Return how many lines this process could not write to standard error and output."""
    return sum([writer.dropped for writer in _writers])


def finish() -> None:
    """Wait for pending lines to be written, for at most `FINISH_S`. Call it when the process ends."""
    deadline = time.monotonic() + FINISH_S
    for writer in _writers:
        writer.finish(max(deadline - time.monotonic(), 0))


class _Remembered:
    """A file that keeps its last lines in memory."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Write to the file, and remember the line for dumps."""
        if line := text.rstrip("\n"):
            _recent.append(line[:RECENT_LINE_CHARS])
        return int(self._file.write(text))

    def flush(self) -> None:
        """Flush the file."""
        self._file.flush()


def _is_terminal(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal."""
    return stream is not None and stream.isatty()


def _file(stream: TextIO | None) -> Any:
    """Return a file whose `write` neither blocks nor raises."""
    try:
        descriptor = None if stream is None else stream.fileno()
    except OSError:
        return stream  # a stream in memory, as in tests
    _writers.append(LineWriter(descriptor))
    return _writers[-1]
