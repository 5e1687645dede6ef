"""Whether a task's rows have come to their end, or were cut off.

When something before the sink fails (a function of the user, a shuffle, a task that is killed), Spark shuts the stream
of rows down, and to a Python writer that looks as if there were no more rows. What it would store then, the last chunk
of each partition, would have fewer rows than that of the attempt that follows, which would find rows other than its
own.

The one difference is in the stream of the worker itself: behind rows that came to their end, Spark sends a mark, and
behind those that were cut off, nothing. The worker looks for that mark too, but after the writer. So it is looked at
here, and left for the worker to read. Spark hands the stream to nobody; it is a local variable of the worker's main
function. Where that is not found nothing can be told, and a warning says so: an attempt after one that was cut off may
then fail with `ChangedRows`. Nothing is lost or doubled by that.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Final

from sandq.model.errors import Unavailable

log = logging.getLogger("sandq.spark")

_NAME: Final = "infile"


def check_ended() -> None:
    """Unavailable when the rows of the task that runs in this thread were cut off. To be called behind the last one."""
    stream = _stream()
    if stream is None:
        log.warning("this release of Spark does not let a writer see whether its rows were cut off")
    elif not stream.peek(1):
        raise Unavailable(
            "sandq sink: the rows of this task were cut off, because something before the sink failed; what that was "
            "is in the error of the task"
        )


def _stream() -> Any:
    frame = sys._getframe()
    while frame is not None:
        found = frame.f_locals.get(_NAME)
        if hasattr(found, "peek"):
            return found
        frame = frame.f_back  # type: ignore[assignment]
    return None
