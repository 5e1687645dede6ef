"""Where a watcher stands, as text for a URL: `p` and the place in each partition, in their order."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sandq.model.errors import InvalidRequest

POSITION_CHARS = 12_000
"""What fits into a request line."""
EARLIEST = "earliest"
_VERSION = r"[0-9A-Za-z]{26}"
_PLACE = rf"{_VERSION}(?:\.{_VERSION})?"
_AFTER = re.compile(rf"{EARLIEST}|{_VERSION}|p{_PLACE}(?:-{_PLACE})*")
_SHOWN_CHARS = 80


def start_of(after: str) -> str | dict[int, str]:
    """The `start` of a watch; InvalidRequest when it can be none."""
    if not _AFTER.fullmatch(after):
        shown = after if len(after) <= _SHOWN_CHARS else after[:_SHOWN_CHARS] + "..."
        raise InvalidRequest(f"after: the position of an answer, earliest or a version is expected, not {shown!r}")
    if not after.startswith("p"):
        return after
    return dict(enumerate(after[1:].split("-")))


def position_text(position: Mapping[int, str]) -> str:
    """What `start_of` reads, of a watch of all partitions."""
    text = "p" + "-".join(position[partition] for partition in sorted(position))
    if len(text) > POSITION_CHARS:
        raise InvalidRequest(
            f"the position in {len(position)} partitions does not fit into a URL: watch with the Python client"
        )
    return text
