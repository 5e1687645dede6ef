"""Profiles as text, stored with the figures."""

from __future__ import annotations

import pstats
from io import StringIO
from pathlib import Path

TOP = 25
SUFFIX = ".txt"


def write_texts(directory: Path, name: str) -> None:
    """Write `NAME.THREAD.txt` for each profile `NAME.THREAD` of a measurement: the functions with the most time of
    their own, without this machine's directories."""
    for path in sorted(directory.glob(f"{name}.*")):
        if path.suffix != SUFFIX:
            path.with_name(path.name + SUFFIX).write_text(text_of(path))


def text_of(profile: Path) -> str:
    """Return the top of one profile."""
    text = StringIO()
    stats = pstats.Stats(str(profile), stream=text).strip_dirs().sort_stats("tottime")
    stats.files = []  # type: ignore[attr-defined]  # it begins with their paths otherwise
    stats.print_stats(TOP)
    return "\n".join(line.rstrip() for line in text.getvalue().strip().splitlines()) + "\n"
