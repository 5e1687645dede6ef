"""Settings of all suites."""

from __future__ import annotations

import gc
import signal
from collections.abc import Generator
from typing import Any
from unittest import mock

import pytest
import structlog
from hypothesis import settings
from hypothesis.internal.conjecture import providers

from tests.support.examples import IS_RANDOM, examples

# Wall time says nothing on a shared machine. `make test` tries the same examples each time, so that a change is what
# breaks it; `make test-long` (TEST_RANDOM=1) looks for new ones and prints how to replay them.
settings.register_profile("same", deadline=None, derandomize=True, print_blob=True, max_examples=examples(100))
settings.register_profile("random", deadline=None, print_blob=True)
settings.load_profile("random" if IS_RANDOM else "same")
if not IS_RANDOM:
    # Hypothesis also tries the constants in the source of all loaded modules. Reading them takes seconds in each
    # process, and the examples would depend on the modules that happen to be loaded.
    mock.patch.object(providers, "_get_local_constants", lambda: providers._local_constants).start()

GC_THRESHOLDS = (10_000, 20, 100)
"""Objects and rounds between collections of each generation."""

# A shell that runs `make test &` makes it ignore Ctrl-C, and its child processes inherit that; but tests send Ctrl-C.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Let structlog receive the lines of nodes in this process, as in the command `sandq`. Tests reset this."""
    if not structlog.is_configured():
        structlog.configure()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collecting makes a million objects that stay: to look through them for garbage again and again takes time.

    Tests keep hundreds of megabytes, so full collections are rare afterwards, too."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*GC_THRESHOLDS)
        gc.enable()
