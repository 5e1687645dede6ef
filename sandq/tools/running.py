"""Run the command `sandq` as a process: set its exit code, and end it after an interrupt or a closed standard output.

Exit codes: 0 success, 1 failure, 2 wrong usage, 130 interrupted (Ctrl-C).
"""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

EXIT_FAILED = 1
EXIT_INTERRUPTED = 130


class Root(click.Group):
    """A click group whose commands end without a traceback after an interrupt or an output error."""

    def main(  # type: ignore[override]
        self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any
    ) -> None:
        extra["standalone_mode"] = False
        if sys.stdout is None:  # the parent process has closed it
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115
        try:
            code = self._run(args, prog_name or "sandq", extra)
        except KeyboardInterrupt:
            code = EXIT_INTERRUPTED
        sys.exit(code)

    def _run(self, args: Sequence[str] | None, prog_name: str, extra: dict[str, Any]) -> int:
        try:
            result = super().main(args, prog_name, **extra)
            sys.stdout.flush()
        except click.ClickException as error:
            error.show()
            return error.exit_code
        except click.Abort:
            return EXIT_INTERRUPTED
        except OSError as error:
            forget_output()
            if error.errno != errno.EPIPE:
                click.echo(f"sandq: {error.filename or ''}: {error.strerror}".replace(": : ", ": "), err=True)
            return EXIT_FAILED
        return result if isinstance(result, int) else 0


def forget_output() -> None:
    """Flush standard output. If that fails, discard its buffer, so that Python does not try again at exit."""
    with contextlib.suppress(OSError, AttributeError, ValueError):
        sys.stdout.flush()
        return
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def printable(text: str) -> str:
    """Return the text with all unprintable characters escaped, so that it cannot send escape sequences to a
    terminal."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
