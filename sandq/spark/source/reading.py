"""Reads the range of one task as Arrow record batches; it blocks, and leases and acknowledges nothing.

While one page is converted into columns, the next one is already requested. The client retries if a leader fails. This
module checks that no message is missed silently:

- The range is closed on the node that replies, so no message can be added to it. Pending messages are exempt.
- The topic is the planned one, not a later topic with the same name.
- The partition's clock was not set back since planning, because a reset gives messages new positions.
- No part of the range was trimmed before it was read. Each page says how far the log was trimmed at that moment.
  Messages that are trimmed after they were read are not lost.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

from sandq.model import offsets as offset_model
from sandq.model.errors import HistoryGone, Unavailable, UnknownTopic
from sandq.protocol.requests_log import FetchReply, MeasureReply
from sandq.spark.credentials import NO_CREDENTIALS, Credentials
from sandq.spark.source.brokers import clock_reset_text, naming_clock_reset
from sandq.spark.source.columns import Rows
from sandq.spark.source.options import PLAIN, Extra
from sandq.spark.source.planning import Task
from sandq.sync import Client, connect

log = logging.getLogger("sandq.spark")

CLIENT_NAME: Final = "sandq-spark"

FetchPage = Callable[[bytes], FetchReply]
"""Returns the page of a task that begins at a cursor; blocks."""


def read_task(
    task: Task,
    servers: tuple[str, ...],
    extra: Extra = PLAIN,
    *,
    fail_on_data_loss: bool = True,
    credentials: Credentials = NO_CREDENTIALS,
) -> Iterator[Any]:
    """Return the messages of a task, as pyarrow.RecordBatch with `columns.schema`. Connects a client for this task.

    Raises HistoryGone if messages were trimmed before they were read, or if the partition's clock was set back; without
    `fail_on_data_loss` this is logged instead. Raises UnknownTopic if the topic was deleted. Raises Unavailable,
    TimedOut and their like if no leader replies within the client's timeout; the task may be retried then.
    """
    with connect(*servers, name=CLIENT_NAME, **credentials.arguments()) as client:
        yield from read_pages(task, page_fetcher(client, task), extra, fail_on_data_loss=fail_on_data_loss)
        start = offset_model.to_text(offset_model.FIRST)
        check_epoch(task, client.measure(task.topic, task.partition, start, start, limit=1), fail=fail_on_data_loss)


def read_pages(
    task: Task, fetch_page: FetchPage, extra: Extra = PLAIN, *, fail_on_data_loss: bool = True
) -> Iterator[Any]:
    """Return the messages of a task from the pages of `fetch_page`, which runs in a thread."""
    rows = Rows(task.topic, task.partition, extra)
    for cursor, page in _pages(task, fetch_page):
        _check_trimmed(task, cursor, page, fail_on_data_loss)
        _check_closed(task, page)
        for piece in page.pieces:
            rows.add(piece)
            if rows.is_full:
                yield rows.take()
    if rows.count:
        yield rows.take()


def page_fetcher(client: Client, task: Task) -> FetchPage:
    """Return a function that requests pages of the task from the partition's leader."""
    end = offset_model.to_text(task.end)

    def fetch_page(cursor: bytes) -> FetchReply:
        start = offset_model.to_text(cursor)
        with naming_clock_reset(task.topic, task.partition):
            page = client.page(task.topic, task.partition, start, end, pending=task.pending)
        if page.number != task.number:
            raise UnknownTopic(f"topic {task.topic!r} was deleted; a new topic has its name", topic=task.topic)
        return page

    return fetch_page


def _pages(task: Task, fetch_page: FetchPage) -> Iterator[tuple[bytes, FetchReply]]:
    """Return pairs (cursor of the request, page); requests the next page before it returns one."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="sandq-spark")
    try:
        cursor = task.start
        pending: Future[FetchReply] | None = pool.submit(fetch_page, cursor) if cursor < task.end else None
        while pending is not None:
            page, requested = pending.result(), cursor
            pending = None
            following = page.next
            if following is not None and following < task.end:
                cursor = following
                pending = pool.submit(fetch_page, cursor)
            yield requested, page
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _check_closed(task: Task, page: FetchReply) -> None:
    if task.pending:
        return
    closed = offset_model.pack(page.closed_ms, 0, 0, 0)
    if closed < task.end:
        raise Unavailable(
            f"{task}: on its leader, the log is closed only up to {offset_model.to_text(closed)}; messages may "
            "still be added after that"
        )


def check_epoch(task: Task, found: MeasureReply, *, fail: bool) -> None:
    """Report a clock reset since planning. `found` must be measured after all pages were read.

    If the epoch is still the planned one then, no page was read after a reset.
    """
    if found.clock_epoch == task.clock_epoch:
        return
    if fail:
        raise HistoryGone(clock_reset_text(task.topic, task.partition), topic=task.topic, partition=task.partition)
    log.warning("%s", clock_reset_text(task.topic, task.partition))


def _check_trimmed(task: Task, cursor: bytes, page: FetchReply, fail: bool) -> None:
    # A range from the smallest offset means "from the beginning", not that a message was there.
    trimmed = page.trimmed
    if trimmed < cursor or cursor == offset_model.FIRST:
        return
    gone = min(trimmed, task.end)
    text = (
        f"topic {task.topic!r}, partition {task.partition}: messages from {offset_model.to_text(cursor)} up to "
        f"{offset_model.to_text(gone)} were trimmed before they were read"
    )
    if fail:
        raise HistoryGone(
            f"{text}. With failOnDataLoss=false this is a warning, and reading continues after them; a longer "
            "retention of the topic prevents it",
            topic=task.topic,
            partition=task.partition,
        )
    log.warning("%s; reading continues after them", text)
