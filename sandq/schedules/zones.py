"""Load time zones, always from the package tzdata, never from the machine.

By default, `zoneinfo` prefers the data in the system's directories, and uses the package only as a fallback. The nodes
of a cluster may run on machines with different versions of that data, or without it. They would then disagree on when a
schedule fires as soon as a government changes its rules. So the data is read only from the package: it is installed
with sandq, pinned by the lock file, and upgraded like any other dependency. `data_version` returns its version, so that
differences between nodes can be reported.
"""

from __future__ import annotations

import difflib
import io
from functools import cache
from importlib import resources
from typing import Final
from zoneinfo import ZoneInfo

import tzdata

from sandq.model.errors import InvalidRequest

_NAME_CHARS: Final = 64
_LIKENESS: Final = 0.8


@cache
def zone(name: str) -> ZoneInfo:
    """Return the time zone with an IANA name, always the same object.

    Raise InvalidRequest if the zone is unknown; the error suggests a similar name."""
    if name not in _names():
        raise InvalidRequest(_unknown(name))
    # The name is a known one, so it cannot be a path that leads outside of the package.
    data = resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()
    return ZoneInfo.from_file(io.BytesIO(data), key=name)


def data_version() -> str:
    """Return the version of this node's zone data, as the package numbers it: "2026.6" is IANA's 2026f."""
    version: str = tzdata.__version__
    return version


def zone_names() -> list[str]:
    """Return the names of all zones, sorted."""
    return sorted(_names())


@cache
def _names() -> frozenset[str]:
    return frozenset(resources.files("tzdata").joinpath("zones").read_bytes().decode().split())


def _unknown(name: str) -> str:
    shown = name if len(name) <= _NAME_CHARS else name[:_NAME_CHARS] + "..."
    wanted = 'an IANA name such as "Europe/Berlin" or "UTC" is expected'
    close = _close_to(name)
    return f'zone: "{shown}" is not known; ' + (f'did you mean "{close}"?' if close else wanted)


def _close_to(name: str) -> str | None:
    """Return the zone that was probably meant: the name in a different case, without its continent, or with a typo."""
    if len(name) > _NAME_CHARS:
        return None
    wanted = name.strip().lower().replace(" ", "_")
    spoken = {known.lower(): known for known in zone_names()}
    cities = {lower.rpartition("/")[2]: known for lower, known in spoken.items()}
    city = wanted.rpartition("/")[2]
    for text, table in ((wanted, spoken), (city, cities)):
        if text in table:
            return table[text]
    for text, table in ((wanted, spoken), (city, cities)):
        close = difflib.get_close_matches(text, table, n=1, cutoff=_LIKENESS)
        if close:
            return table[close[0]]
    return None
