"""Settings of all suites."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# Wall time says nothing on a shared machine. `make test` tries the same examples each time, so that a change is what
# breaks it; `make test-long` (TEST_RANDOM=1) looks for new ones and prints how to replay them.
settings.register_profile("same", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("random", deadline=None, print_blob=True)
settings.load_profile("random" if os.environ.get("TEST_RANDOM") else "same")

# A shell that runs `make test &` lets it ignore Ctrl-C, and what it starts inherits that; tests interrupt processes.
signal.signal(signal.SIGINT, signal.default_int_handler)
