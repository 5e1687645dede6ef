"""Print records one by one as they arrive. Each record has left this process before the next is read."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from sandctl.output.results import to_json
from sandctl.settings import settings

CLOSE_S = 1.0
"""Time limit at the end for unfinished output."""


class Printer:
    """Prints rows in the chosen output format. Create it within the event loop."""

    def __init__(self) -> None:
        from sandctl.streams import Writer

        self._writer = Writer(sys.stdout.buffer)
        self._output = settings().output
        self._count = 0

    async def show(self, record: Callable[[], Mapping[str, Any]], text: Callable[[], bytes]) -> None:
        """Print `record` for programs, or `text` with its line feed for people.

        The row has left this process when `show` returns.
        """
        if self._output == "table":
            data = text()
        else:
            data = to_json(record()).encode("utf-8", "surrogatepass")
            data = data + b"\n" if self._output == "jsonl" else (b",\n  " if self._count else b"[\n  ") + data
        self._count += 1
        await self._writer.write(data)

    async def close(self) -> None:
        """Finish the output: complete a half-written row, and close a JSON array. Do nothing if the
        reader has closed the pipe."""
        import anyio

        with anyio.CancelScope(shield=True), anyio.move_on_after(CLOSE_S):
            await self._writer.finish()
            if self._output == "json" and not self._writer.is_broken:
                await self._writer.write(b"\n]\n" if self._count else b"[]\n")
