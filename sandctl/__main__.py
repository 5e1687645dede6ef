"""`python -m sandctl`, and what the command `sandctl` runs: also while it is still being loaded, Ctrl-C is quiet."""

from __future__ import annotations

import signal
import sys


def run() -> None:
    """Does not return: ends the process with the exit code."""
    try:
        from sandctl.main import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        # The rest is Python taking itself apart: a second Ctrl-C changes nothing any more.
        signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    run()
