"""Reduces the logs of embedded brokers: by default, structlog would print all their log lines among the output of the
tests."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

import structlog

_lock = threading.Lock()
_brokers = 0


def _configuration() -> list[object]:
    found = structlog.get_config()
    return [*found["processors"], found["wrapper_class"], found["logger_factory"], found["context_class"]]


_DEFAULT = None if structlog.is_configured() else _configuration()
"""Structlog's default configuration. None if structlog was configured before this module was imported."""


def _is_unconfigured() -> bool:
    """Return whether structlog has its default configuration.

    `structlog.is_configured` does not suffice: it is also True after `structlog.testing.capture_logs`, which restores
    the default configuration with `configure`.
    """
    return not structlog.is_configured() or _configuration() == _DEFAULT


@contextlib.contextmanager
def quiet_logs() -> Iterator[None]:
    """Log only warnings and errors while any broker runs. A configuration of the caller is left unchanged."""
    global _brokers
    with _lock:
        ours = _brokers > 0 or _is_unconfigured()
        if ours:
            _brokers += 1
            structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        yield
    finally:
        with _lock:
            if ours:
                _brokers -= 1
                if not _brokers:
                    structlog.reset_defaults()
