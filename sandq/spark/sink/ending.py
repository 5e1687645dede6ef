"""`check_ended` finds out whether the rows of a task are complete or were cut off.

If something before the sink fails (a function of the user, a shuffle, a killed task), Spark closes the stream of rows.
A Python writer cannot distinguish that from the end of the rows. It would store a last chunk with too few rows. The
next attempt has all rows, and would find that the stored chunk differs from its own.

The worker's input stream shows the difference: after complete rows Spark sends an end mark, after cut-off rows it sends
nothing. The worker itself reads the mark only after the writer has returned. So this module peeks at it, and leaves it
in the stream. Spark does not pass the stream to writers: it is a local variable of the worker's main function.

If the variable is not found, a warning is logged. An attempt after one that was cut off may then fail with
`ChangedRows`. No row is lost or stored twice because of that.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

from sandq.model.errors import Unavailable

log = logging.getLogger("sandq.spark")

_INPUT_VARIABLE: Final = "infile"


def check_ended() -> None:
    """Raise Unavailable if the rows of the task in this thread were cut off. Call it after the last row."""
    stream = _worker_input()
    if stream is None:
        log.warning("with this release of Spark, a writer cannot detect that its rows were cut off")
    elif not stream.peek(1):
        raise Unavailable(
            "sandq sink: the rows of this task were cut off, because something before the sink failed; see the error "
            "of the task"
        )


def _worker_input() -> Any:
    """Return the input stream of Spark's Python worker: a local variable of its `main`, found by walking up the stack.

    None if no frame has it.
    """
    frame = sys._getframe()
    while frame is not None:
        found = frame.f_locals.get(_INPUT_VARIABLE)
        if hasattr(found, "peek"):
            return found
        frame = frame.f_back  # type: ignore[assignment]
    return None
