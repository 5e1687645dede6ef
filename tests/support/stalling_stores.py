"""Provide `MemoryStores` that hang in a write until a test lets them continue. LevelDB sometimes hangs like this."""

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
        self.has_stalled = threading.Event()
        """Set while a write hangs."""
        self.error: StorageFailed | None = None
        """Error that all writes from now on raise; None: writes succeed."""

    def stall(self) -> None:
        """Let all writes hang, until `resume`."""
        self.has_stalled.clear()
        self._may_write.clear()

    def resume(self) -> None:
        self._may_write.set()

    def write(self, changes: Sequence[Change]) -> None:
        if not self._may_write.is_set():
            self.has_stalled.set()
            assert self._may_write.wait(PATIENCE_S), "the store was not resumed"
        if self.error is not None:
            raise self.error
        super().write(changes)
