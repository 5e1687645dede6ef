"""At which level a node logs: the configured one, or another for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import structlog
import trio

from sandq.model.caller import Caller
from sandq.server import logs

log = structlog.get_logger("sandq.node")


class LogLevel:
    """Of this process. `run` it."""

    def __init__(self, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._until_s: float | None = None
        """On trio's clock."""
        self._changed = trio.Event()

    def change(self, level: str | None, for_ms: int | None, caller: Caller) -> dict[str, Any]:
        """Log at another level from now on, for so long, or until the process ends; None: only say.

        `level`, the one that holds; `configured`; `until_ms` when that holds again, or None.
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
        return self._told()

    def _told(self) -> dict[str, Any]:
        until_ms = None
        if self._until_s is not None:
            until_ms = self._now_ms() + max(round((self._until_s - trio.current_time()) * 1000), 0)
        return {"level": logs.level(), "configured": logs.configured_level(), "until_ms": until_ms}

    async def run(self) -> None:
        """Come back to the configured level in time, until cancelled; then at once."""
        try:
            while True:
                self._changed = trio.Event()
                with trio.move_on_at(float("inf") if self._until_s is None else self._until_s):
                    await self._changed.wait()
                    continue
                self._back()
        finally:
            self._back()

    def _back(self) -> None:
        if logs.level() != logs.configured_level():
            logs.reset_level()
            log.warning("logging at the configured level again", now=logs.level())
        self._until_s = None
