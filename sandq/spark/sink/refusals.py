"""What a task says when its rows cannot be written, however often it is run: to the driver, which fails the write once.

Spark runs a task that raises again, four times unless it is told otherwise, and reads its rows again for that. So a
refusal is no error of the task but what it returns, and the driver raises it instead of a commit. So that a long write
does not go on to its end for that, it is noted in a file beside those that Spark gives to the executor: tasks of the
same write that it runs, or begins later, see it between two blocks of rows and end with the same refusal. (In local
mode that is all tasks.)
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
    """A row cannot be written, or where it is to go is not there; writing it again cannot help."""


class Stopped(Exception):
    """Another task of the write was refused: this is what it said."""


def is_refusal(error: SandqError) -> bool:
    """Whether running the task again cannot help, on whichever machine."""
    return "row" in error.details or isinstance(error, UnknownTopic | DuplicateKey)


class Refusal:
    """Whether a write was refused, for its tasks; pickled on its way to them."""

    def __init__(self) -> None:
        self._name = f"{uuid.uuid4().hex}{_ENDING}"

    def note(self, directory: str, text: str) -> None:
        """Tell the other tasks of this executor. Where that cannot be written they go on to their end."""
        path = Path(directory, self._name)
        draft = path.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            draft.write_text(text, encoding="utf-8")
            draft.replace(path)

    def check(self, directory: str) -> None:
        """Raise Stopped when another task was refused."""
        with contextlib.suppress(OSError):
            raise Stopped(Path(directory, self._name).read_text(encoding="utf-8"))
