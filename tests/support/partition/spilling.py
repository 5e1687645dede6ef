"""Make groups spill waiting messages that are few, and read the spilled messages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from unittest.mock import patch

from sandq.model.limits import FIXED
from sandq.partition.base import rows
from sandq.partition.base.rows import Range
from sandq.partition.groups import group as group_module
from sandq.partition.groups import spilled
from sandq.partition.groups.group import Group
from sandq.partition.records.leases import Waiting
from tests.support.partition.bench import Bench


@contextmanager
def spilling_all() -> Iterator[None]:
    """Spill each waiting message that is not due yet. Each one is recalled when it is due."""
    with patch.object(Group, "spill_from", 0):
        yield


@contextmanager
def small_window() -> Iterator[None]:
    """Keep up to two ranges of waiting messages of a group in memory, and recall no more."""
    with patch.object(group_module, "FIXED", replace(FIXED, waiting_window=2)):
        yield


def spilling_by(number: int) -> AbstractContextManager[None]:
    """Return one of three: nothing is spilled, everything is, or all but two ranges of a group are."""
    return (nullcontext, spilling_all, small_window)[number % 3]()


def spilled_of(bench: Bench, group_id: int) -> dict[bytes, Waiting]:
    """Return the spilled messages of a group, by offset."""
    found = rows.all_of_group(bench.view, rows.SPILLED_AT, group_id)
    return {key[11:]: spilled.load_state(row, [Range(key[11:], 1)]) for key, row in found}
