"""`python -m sandctl`, and the entry point of the command `sandctl`. Ctrl-C ends it without a traceback, even while its
modules are being loaded."""

from __future__ import annotations

import os
import signal
import sys

_EXIT_INTERRUPTED = 130


def _end(*_: object) -> None:
    os._exit(_EXIT_INTERRUPTED)


# Only a program that calls `run` imports this module. Before `run`, there is nothing to clean up. If
# Ctrl-C is ignored (`nohup`), it stays ignored.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)


def run() -> None:
    """Run the command, and end the process with its exit code. This function never returns."""
    from sandctl.interrupts import FirstOnly
    from sandctl.main import main

    first_only = FirstOnly()
    try:
        try:
            if signal.getsignal(signal.SIGINT) is _end:
                signal.signal(signal.SIGINT, first_only)
            main()
        finally:
            first_only.is_over = True  # from here on, Ctrl-C raises nothing
    except KeyboardInterrupt:
        sys.exit(_EXIT_INTERRUPTED)
    finally:
        # Only Python's own shutdown follows: ignore Ctrl-C, so that it prints no traceback.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    run()
