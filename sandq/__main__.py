"""`python -m sandq`, and what the command `sandq` runs: also while it is still being loaded, Ctrl-C is quiet."""

from __future__ import annotations

import os
import signal

_EXIT_INTERRUPTED = 130


def _end(*_: object) -> None:
    os._exit(_EXIT_INTERRUPTED)


# Only who is about to call `run` imports this. Until then nothing has begun, so nothing has to be cleaned up; and where
# Ctrl-C is ignored (`nohup`), it stays so.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)


def run() -> None:
    """Does not return: ends the process with the exit code."""
    from sandq.cli import main

    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main()


if __name__ == "__main__":
    run()
