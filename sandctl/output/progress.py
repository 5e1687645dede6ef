"""Progress of long work: one line on standard error that overwrites itself, on a terminal only."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from sandq.client import JobResult

_SHOW_S = 0.1
_BAR_CHARS = 20
_BLOCKS = " ▏▎▍▌▋▊▉█"


def _is_terminal() -> bool:
    return sys.stderr.isatty()


class Progress:
    """Shows the progress of a long operation.

    Usage: `with Progress("cancelled") as progress: await messages.cancel_all(progress=progress)`.

    `total` is the count from before; the job itself only knows how many messages it has found up to now.
    """

    def __init__(self, verb: str = "", total: int | None = None) -> None:
        self._verb = verb
        self._total = total
        self._wanted = _is_terminal()
        self._shown_at = 0.0
        self._width = 0

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._width:
            click.echo("\r" + " " * self._width + "\r", err=True, nl=False)

    def __call__(self, result: JobResult) -> None:
        """Show the progress of a job."""
        self.at(result.done, None if self._total is None else max(self._total, result.matched))

    def at(self, done: int, total: int | None = None) -> None:
        """Show how many items are done."""
        total = self._total if total is None else total
        text = f"{self._verb} {done:,}"
        if total:
            text += f" of {total:,} {bar(done, total)} {min(done, total) * 100 // total:>3}%"
        self.tell(text)

    def tell(self, text: str) -> None:
        """Show the progress in words, but not faster than people can read."""
        now = time.monotonic()
        if not self._wanted or now - self._shown_at < _SHOW_S:
            return
        self._shown_at = now
        click.echo("\r" + text.ljust(self._width), err=True, nl=False)
        self._width = max(self._width, len(text))


def bar(done: int, total: int) -> str:
    """Return a bar of `_BAR_CHARS` characters."""
    eighths = min(done, total) * _BAR_CHARS * 8 // total
    whole, rest = divmod(eighths, 8)
    return (_BLOCKS[-1] * whole + (_BLOCKS[rest] if rest else "")).ljust(_BAR_CHARS)
