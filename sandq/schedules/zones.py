"""Time zones: always those of the package tzdata, never those of the machine.

`zoneinfo` by itself prefers what it finds in the system's directories, and falls back on the package. Nodes of one
cluster run on machines with different versions of that, or with none, and would disagree on when a schedule fires as
soon as a government changes its mind. So the data is read from the package alone: it is installed with sandq, the lock
file pins it, and a newer one is installed like any other dependency. `data_version` says which it is, so that nodes
that differ can be told of.
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
    """Return the time zone of an IANA name; the same object each time. InvalidRequest when there is none, with a name
    that is close."""
    if name not in _names():
        raise InvalidRequest(_unknown(name))
    # Only known names come here: a path that leads elsewhere is not among them.
    data = resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()
    return ZoneInfo.from_file(io.BytesIO(data), key=name)


def data_version() -> str:
    """Return the version of the zone data of this node, as the package numbers it: "2026.6" is IANA's 2026f."""
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
    """The name that was probably meant: in other letters, without its continent, or with a typing error."""
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
