"""`MemoryStores` that stand still in a write until they are told to go on, as LevelDB does now and then."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from sandq.model.errors import StorageFailed
from sandq.storage.stores import Change, MemoryStores
from tests.support.waiting import PATIENCE_S


class StallingStores(MemoryStores):
    def __init__(self) -> None:
        super().__init__()
        self._may_write = threading.Event()
        self._may_write.set()
        self.stands = threading.Event()
        """Somebody waits in a write."""
        self.error: StorageFailed | None = None
        """Raised by the writes from here on."""

    def stall(self) -> None:
        """Let whoever writes from here on wait."""
        self.stands.clear()
        self._may_write.clear()

    def go_on(self) -> None:
        self._may_write.set()

    def write(self, changes: Sequence[Change]) -> None:
        if not self._may_write.is_set():
            self.stands.set()
            assert self._may_write.wait(PATIENCE_S), "it was not told to go on"
        if self.error is not None:
            raise self.error
        super().write(changes)
