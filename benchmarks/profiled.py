"""A node under cProfile, a profile for each thread: `python -m benchmarks --profile DIR`.

Read them with `python -m pstats DIR/NAME.MainThread`. Seconds are CPU time of the thread, so waiting takes none.
Profiling makes the node two to three times slower, and calls of small functions most of all.
"""

from __future__ import annotations

import cProfile
import os
import sys
import threading
import time

from demo.node import end_with_parent
from sandq.cli import main

_run = threading.Thread.run


def _profiled_run(thread: threading.Thread) -> None:
    if not thread.name.startswith("sandq"):
        _run(thread)
        return
    profile = cProfile.Profile(time.thread_time)
    try:
        profile.runcall(_run, thread)
    finally:
        _store(profile, thread.name)


def _store(profile: cProfile.Profile, thread: str) -> None:
    node = os.environ.get("SANDQ_NODE__ID", "")
    profile.dump_stats(".".join(filter(None, (os.environ["BENCHMARKS_PROFILE"], node, thread))))


if __name__ == "__main__":
    end_with_parent(int(sys.argv.pop(1)))
    threading.Thread.run = _profiled_run  # type: ignore[assignment, method-assign]
    profile = cProfile.Profile(time.thread_time)
    try:
        profile.runcall(main)
    finally:
        _store(profile, "MainThread")
