"""Refusals: errors of a write that no retry can fix, such as a wrong row.

If a task raises an error, Spark repeats it (by default up to four attempts), and computes its rows again. So for a
refusal a task raises nothing. It returns the refusal, and the driver raises it instead of committing.

To end the other tasks early as well, a task also stores its refusal in a file in the executor's directory of files. The
tasks of the same write on this executor check for the file before each record batch, and end with the same refusal. In
local mode these are all tasks.
"""

from __future__ import annotations

import contextlib
import os
import uuid
from pathlib import Path
from typing import Final

from sandq.model.errors import DuplicateKey, InvalidRequest, SandqError, UnknownTopic

_ENDING: Final = ".sandq-refused"


class RowRefused(InvalidRequest):
    """A row cannot be written, or its topic does not exist; a retry cannot help."""


class Stopped(Exception):
    """A different task of the write was refused; the text is that task's refusal."""


def is_refusal(error: SandqError) -> bool:
    """Return whether a retry of the task cannot fix the error, on any machine."""
    return "row" in error.details or isinstance(error, UnknownTopic | DuplicateKey)


class Refusal:
    """The refusal of a write, shared by its tasks on an executor; Spark pickles it and sends it to them."""

    def __init__(self) -> None:
        self._name = f"{uuid.uuid4().hex}{_ENDING}"

    def note(self, directory: str, text: str) -> None:
        """Store a refusal for the other tasks on this executor. If that fails, these tasks run to their end."""
        path = Path(directory, self._name)
        draft = path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            draft.write_text(text, encoding="utf-8")
            draft.replace(path)

    def check(self, directory: str) -> None:
        """Raise Stopped if a different task was refused."""
        with contextlib.suppress(OSError):
            raise Stopped(Path(directory, self._name).read_text(encoding="utf-8"))
