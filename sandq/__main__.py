"""Entry point of `python -m sandq` and of the command `sandq`. Ctrl-C ends it quietly, even while modules load."""

from __future__ import annotations

import os
import signal

_EXIT_INTERRUPTED = 130


def _end(*_: object) -> None:
    os._exit(_EXIT_INTERRUPTED)


# This module is imported only to call `run`. Until then nothing has started, so there is nothing to clean up. If Ctrl-C
# is ignored (`nohup`), it stays ignored.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)


def run() -> None:
    """Run the command `sandq`, and end the process with its exit code."""
    from sandq.cli import main

    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    main()


if __name__ == "__main__":
    run()
