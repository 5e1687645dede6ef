"""Change the log level of a node, temporarily or until it stops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

from sandq.model.caller import Caller
from sandq.model.logger import get_logger
from sandq.server import logs

log = get_logger("sandq.node")


class LogLevel:
    """The log level of this process. `run` restores the configured level in time."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._until_s: float | None = None
        """Time at which the configured level is restored, by trio's clock."""
        self._changed = trio.Event()

    def change(self, level: str | None, for_ms: int | None, caller: Caller) -> dict[str, Any]:
        """Change the level for `for_ms`, or until the process ends. `level` None: only return the state.

        Return `level`, the current one; `configured`; and `until_ms`, when the configured level is restored, or None.
        """
        if level is not None:
            before = logs.level()
            logs.set_level(level)
            self._until_s = (
                None if for_ms is None or level == logs.configured_level() else trio.current_time() + for_ms / 1000
            )
            self._changed.set()
            if level != before:
                log.warning("logging at another level", before=before, now=level, for_ms=for_ms, by=caller.principal)
        return self._status()

    def _status(self) -> dict[str, Any]:
        """Return the current and the configured level, and when the latter is restored."""
        until_ms = None
        if self._until_s is not None:
            until_ms = self._now_ms() + max(round((self._until_s - trio.current_time()) * 1000), 0)
        return {"level": logs.level(), "configured": logs.configured_level(), "until_ms": until_ms}

    async def run(self) -> None:
        """Restore the configured level in time, and when cancelled."""
        try:
            while True:
                self._changed = trio.Event()
                with trio.move_on_at(float("inf") if self._until_s is None else self._until_s):
                    await self._changed.wait()
                    continue
                self._restore()
        finally:
            self._restore()

    def _restore(self) -> None:
        """Restore the configured level, if a different one is in use."""
        if logs.level() != logs.configured_level():
            logs.reset_level()
            log.warning("logging at the configured level again", now=logs.level())
        self._until_s = None
