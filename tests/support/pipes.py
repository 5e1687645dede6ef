"""Pipes that nobody reads."""

from __future__ import annotations

import os


def fill(writer: int) -> None:
    """Write to a pipe until it takes no more; it blocks whoever writes next."""
    os.set_blocking(writer, False)
    for size in (65_536, 1):
        try:
            while True:
                os.write(writer, b"." * size)
        except BlockingIOError:
            pass
    os.set_blocking(writer, True)
