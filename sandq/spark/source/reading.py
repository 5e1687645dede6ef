"""Reading one task's part of a partition, blocking, as Arrow's record batches; nothing is leased or acknowledged.

The next page is on its way while the last one is made into columns. The client asks again when a leader fails; what is
checked here is that nothing was left out without a word:

- the range is closed, as the node that answers knows it: no message can still come to lie in it (pending messages are
  read as they stand);
- the topic is the one that was planned for, not another one of its name;
- the partition's clock was not set back since it was planned, which places messages anew;
- nothing of it was trimmed before it was read. A node says with a page how far it has trimmed, as of the same moment:
  what is trimmed behind the reader's back later is no loss.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from sandq.model import offsets as offset_model
from sandq.model.errors import HistoryGone, Unavailable, UnknownTopic
from sandq.protocol.requests_log import FetchReply, MeasureReply
from sandq.spark.credentials import NOBODY, Credentials
from sandq.spark.source.brokers import naming_set_back, set_back
from sandq.spark.source.columns import Rows
from sandq.spark.source.options import PLAIN, Extra
from sandq.spark.source.planning import Task
from sandq.sync import Client, connect

log = logging.getLogger("sandq.spark")

CLIENT_NAME: Final = "sandq-spark"

Ask = Callable[[bytes], FetchReply]
"""A page from a cursor on, within the task; blocking."""


def read_task(
    task: Task,
    servers: tuple[str, ...],
    extra: Extra = PLAIN,
    *,
    fail_on_data_loss: bool = True,
    who: Credentials = NOBODY,
) -> Iterator[Any]:
    """The messages of a task (pyarrow.RecordBatch, with `columns.schema`), through a client of its own.

    HistoryGone: data was trimmed before it was read, or the partition's clock was set back meanwhile (a warning
    instead, unless `fail_on_data_loss`). UnknownTopic: the
    topic was deleted. Unavailable, TimedOut and their like: no leader answered within the client's timeout; the task
    may be tried again.
    """
    with connect(*servers, name=CLIENT_NAME, **who.arguments()) as client:
        yield from read_pages(task, asking(client, task), extra, fail_on_data_loss=fail_on_data_loss)
        start = offset_model.to_text(offset_model.FIRST)
        check_epoch(task, client.measure(task.topic, task.partition, start, start, limit=1), fail=fail_on_data_loss)


def read_pages(task: Task, ask: Ask, extra: Extra = PLAIN, *, fail_on_data_loss: bool = True) -> Iterator[Any]:
    """The same, through any `ask`, which is called in a thread."""
    rows = Rows(task.topic, task.partition, extra)
    for cursor, page in _pages(task, ask):
        _check_trimmed(task, cursor, page, fail_on_data_loss)
        _check_closed(task, page)
        for piece in page.pieces:
            rows.add(piece)
            if rows.is_full:
                yield rows.take()
    if rows.count:
        yield rows.take()


def asking(client: Client, task: Task) -> Ask:
    """Asks the partition's leader, wherever it moves meanwhile."""
    end = offset_model.to_text(task.end)

    def ask(cursor: bytes) -> FetchReply:
        start = offset_model.to_text(cursor)
        with naming_set_back(task.topic, task.partition):
            page = client.page(task.topic, task.partition, start, end, pending=task.pending)
        if page.number != task.number:
            raise UnknownTopic(f"topic {task.topic!r} was deleted; there is another one of this name", topic=task.topic)
        return page

    return ask


def _pages(task: Task, ask: Ask) -> Iterator[tuple[bytes, FetchReply]]:
    """(cursor that was asked from, page), one page ahead."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="sandq-spark")
    try:
        cursor = task.start
        coming: Future[FetchReply] | None = pool.submit(ask, cursor) if cursor < task.end else None
        while coming is not None:
            page, asked = coming.result(), cursor
            coming = None
            following = page.next
            if following is not None and following < task.end:
                cursor = following
                coming = pool.submit(ask, cursor)
            yield asked, page
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _check_closed(task: Task, page: FetchReply) -> None:
    if task.pending:
        return
    closed = offset_model.pack(page.closed_ms, 0, 0, 0)
    if closed < task.end:
        raise Unavailable(
            f"{task}: the node that leads it knows it closed up to {offset_model.to_text(closed)} only; messages may "
            "still come to lie behind that"
        )


def check_epoch(task: Task, found: MeasureReply, *, fail: bool) -> None:
    """`found` after all was read: in an epoch of the partition's clock that is the task's, all of it was."""
    if found.clock_epoch == task.clock_epoch:
        return
    if fail:
        raise HistoryGone(set_back(task.topic, task.partition), topic=task.topic, partition=task.partition)
    log.warning("%s", set_back(task.topic, task.partition))


def _check_trimmed(task: Task, cursor: bytes, page: FetchReply, fail: bool) -> None:
    # From the very first offset on is no claim that something was there.
    trimmed = page.trimmed
    if trimmed < cursor or cursor == offset_model.FIRST:
        return
    gone = min(trimmed, task.end)
    what = (
        f"topic {task.topic!r}, partition {task.partition}: messages from {offset_model.to_text(cursor)} up to "
        f"{offset_model.to_text(gone)} were trimmed before they were read"
    )
    if fail:
        raise HistoryGone(
            f"{what}. With failOnDataLoss=false that is a warning and reading goes on behind them; a longer retention "
            "of the topic prevents it",
            topic=task.topic,
            partition=task.partition,
        )
    log.warning("%s; reading goes on behind them", what)
