"""Provide pipes without a reader."""

from __future__ import annotations

import os


def fill(writer: int) -> None:
    """Fill a pipe, so that the next write to it blocks."""
    os.set_blocking(writer, False)
    for size in (65_536, 1):
        try:
            while True:
                os.write(writer, b"." * size)
        except BlockingIOError:
            pass
    os.set_blocking(writer, True)
