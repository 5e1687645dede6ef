"""`python -m sandctl`, and what the command `sandctl` runs: also while it is still being loaded, Ctrl-C is quiet."""

from __future__ import annotations

import sys


def run() -> None:
    """Does not return: ends the process with the exit code."""
    try:
        from sandctl.main import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)


if __name__ == "__main__":
    run()
