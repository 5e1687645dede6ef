"""Check the settings of a schedule: its recurrence, its number of occurrences, and the handling of missed ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

from sandq.model.errors import InvalidRequest
from sandq.model.names import check_name
from sandq.schedules.cron import check_steps
from sandq.schedules.planning import MISSED_MOST
from sandq.schedules.recurrence import Recurrence

ONE, SKIP, ALL = "one", "skip", "all"
MISFIRES: Final = (ONE, SKIP, ALL)
"""Handling of missed occurrences: one message for all of them, none, or one for each."""
COUNT_MOST: Final = 1 << 40
_RECURRENCE: Final = ("cron", "every_ms", "zone", "start_ms", "end_ms", "jitter_ms")
_OTHER: Final = ("count", "misfire", "misfire_most", "overlap_group")
NAMES: Final = (*_RECURRENCE, *_OTHER)


class Checked(NamedTuple):
    """Valid settings."""

    settings: dict[str, Any]
    """The settings to store: only settings that differ from the defaults."""
    recurrence: Recurrence

    def anchored(self, old: Mapping[str, Any]) -> Checked:
        """Return these settings with the interval's anchor of the `old` settings, if both have one."""
        if "anchor_ms" not in self.settings or "anchor_ms" not in old:
            return self
        anchor = {"anchor_ms": old["anchor_ms"]}
        return Checked(self.settings | anchor, replace(self.recurrence, **anchor))


def check(given: Mapping[str, Any], anchor_ms: int) -> Checked:
    """Check the settings of a schedule. `anchor_ms`: the anchor of an interval without a start.

    Raise InvalidRequest, which says what is wrong.
    """
    for name in given:
        if name not in NAMES:
            raise InvalidRequest(f"{str(name)[:40]!r} is no setting of a schedule; these are: {', '.join(NAMES)}")
    present = {name: value for name, value in given.items() if value is not None}
    recurrence = Recurrence(**{name: present[name] for name in _RECURRENCE if name in present}, anchor_ms=anchor_ms)
    if recurrence.cron is not None or recurrence.start_ms is not None:
        recurrence = Recurrence(**{name: present[name] for name in _RECURRENCE if name in present})
    recurrence.check()
    if recurrence.cron is not None:
        check_steps(recurrence.cron)
    settings = recurrence.record()
    _check_number(present, "count", 1, COUNT_MOST)
    misfire = present.get("misfire", ONE)
    if misfire not in MISFIRES:
        raise InvalidRequest(f"misfire: one of {', '.join(MISFIRES)} is expected, not {str(misfire)[:40]!r}")
    _check_number(present, "misfire_most", 1, MISSED_MOST)
    if "misfire_most" in present and misfire != ALL:
        raise InvalidRequest(f"misfire_most: it bounds how many are caught up on with misfire {ALL!r}, not {misfire!r}")
    if "overlap_group" in present:
        check_name("group", present["overlap_group"])
    if misfire == ONE:
        present.pop("misfire", None)
    return Checked(settings | {name: present[name] for name in _OTHER if name in present}, recurrence)


def _check_number(present: Mapping[str, Any], name: str, least: int, most: int) -> None:
    value = present.get(name)
    if value is not None and (type(value) is not int or not least <= value <= most):
        raise InvalidRequest(f"{name}: a whole number of {least} to {most} is expected, not {str(value)[:40]!r}")
