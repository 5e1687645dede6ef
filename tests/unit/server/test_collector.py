"""Tests that the garbage collector of a serving process runs rarely and skips the objects from the start."""

from __future__ import annotations

import subprocess
import sys

from sandq.server.process_tuning import ROUNDS, YOUNG_OBJECTS, YOUNG_ROUNDS

PROGRAM = """
import gc
from sandq.server.process_tuning import collect_rarely
before = len(gc.get_objects())
collect_rarely()
print(*gc.get_threshold(), gc.get_freeze_count() > before // 2, len(gc.get_objects()) < before // 2)
"""


def test_collector_ignores_existing_objects() -> None:
    """Run in a separate process, because the collector is shared."""
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(YOUNG_OBJECTS), str(YOUNG_ROUNDS), str(ROUNDS), "True", "True"]
