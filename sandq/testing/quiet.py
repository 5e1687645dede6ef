"""Logs of embedded brokers: structlog prints everything unless told otherwise, and a test wants to see its own."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterator

import structlog

_lock = threading.Lock()
_brokers = 0


@contextlib.contextmanager
def quiet_logs() -> Iterator[None]:
    """Warnings and worse only, while any broker runs; whoever has configured structlog gets what they asked for."""
    global _brokers
    with _lock:
        ours = _brokers > 0 or not structlog.is_configured()
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
