"""Check that a partition that runs on and one that is loaded again from its rows do the same.

Replicas restart at different times, so nothing that a partition keeps only in memory, such as the order of a
dictionary, may influence its rows or its answers."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, Final

from sandq.partition import commands as c
from sandq.partition.base.digest import comparable
from sandq.partition.base.view import Row, View
from sandq.partition.reader.look_aheads import LookAheads
from sandq.partition.records.leases import Lease
from sandq.partition.state_machine import TimerPartition
from sandq.storage.stores import MemoryStores

CHECKS_LOADING: Final = bool(os.environ.get("TEST_LOADING"))
"""Whether each entry in a bench is also applied to a partition that was just loaded. `make test-long` sets this."""


class LoadedPartition:
    """A copy of a partition, which is loaded from its rows and has look-aheads of its own."""

    def __init__(self, machine_class: type[TimerPartition], stores: MemoryStores, settings: dict[str, Any]) -> None:
        self._stores = MemoryStores(_rows(stores))
        self._view = View(self._stores)
        self._machine = machine_class.load(0, settings, self._view, LookAheads())

    def check(self, index: int, entry: c.Entry, results: Sequence[Any], stores: MemoryStores) -> None:
        """Apply the entry. Check that the other partition has the same results, and wrote the same rows."""
        found = self._machine.apply(index, entry, self._view)
        machine = self._machine.successor or self._machine
        machine.write_state(self._view)
        self._stores.write(self._view.drain())
        own, other = comparable(_rows(self._stores)), comparable(_rows(stores))
        differing = {key: (own.get(key), other.get(key)) for key in own.keys() | other.keys()}
        differing = {key: pair for key, pair in differing.items() if pair[0] != pair[1]}
        assert not differing, f"the rows of a loaded partition differ after {entry.commands}: {differing}"
        assert _shown(found) == _shown(results), f"the answers of a loaded partition differ to {entry.commands}"


def _shown(result: Any) -> Any:
    """Return a result as texts. Leave out the cached rows of leases."""
    if isinstance(result, list):
        return [_shown(one) for one in result]
    if isinstance(result, Lease):
        result.plain = None
    return repr(result)


def _rows(stores: MemoryStores) -> list[Row]:
    return stores.scan(b"", b"\xff" * 32)
