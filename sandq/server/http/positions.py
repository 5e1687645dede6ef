"""Positions of a watch as text for URLs: `p`, followed by the positions in all partitions, in their order."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sandq.model.errors import InvalidRequest

POSITION_CHARS = 12_000
"""Maximum length of a position, so that it fits into a request line."""
EARLIEST = "earliest"
_VERSION = r"[0-9A-Za-z]{26}"
_POSITION = rf"{_VERSION}(?:\.{_VERSION})?"
_AFTER = re.compile(rf"{EARLIEST}|{_VERSION}|p{_POSITION}(?:-{_POSITION})*")
_SHOWN_CHARS = 80


def start_of(after: str) -> str | dict[int, str]:
    """Return the `start` of a watch. Raise InvalidRequest if the text is no position."""
    if not _AFTER.fullmatch(after):
        shown = after if len(after) <= _SHOWN_CHARS else after[:_SHOWN_CHARS] + "..."
        raise InvalidRequest(f"after: expected the position of a response, earliest or a version, not {shown!r}")
    if not after.startswith("p"):
        return after
    return dict(enumerate(after[1:].split("-")))


def position_text(position: Mapping[int, str]) -> str:
    """Return the position of a watch of all partitions as text that `start_of` reads."""
    text = "p" + "-".join(position[partition] for partition in sorted(position))
    if len(text) > POSITION_CHARS:
        raise InvalidRequest(
            f"the positions in {len(position)} partitions do not fit into a URL: use the Python client to watch"
        )
    return text
