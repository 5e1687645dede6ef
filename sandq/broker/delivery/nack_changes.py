"""Convert the changes of messages in a nack request to the form of a partition's command."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sandq.model.errors import InvalidRequest, TooLarge
from sandq.model.limits import Limits
from sandq.model.topic_limits import TopicLimits
from sandq.partition.produce_validation import check_headers
from sandq.protocol.requests import CHANGES, Nack, NackItem


def with_columns(
    request: Nack, limits: Limits, own: TopicLimits | None, check_ranked: Callable[[], None]
) -> list[list[Any]]:
    """Return the items of a nack, with the changes of their messages by column.

    `own`: limits of the topic. `check_ranked()`: raises InvalidRequest if the topic has no priorities. Raise TooLarge,
    InvalidRequest."""
    most = limits.headers_bytes
    items = []
    for number, item in enumerate(request.items, 1):
        if (changes := NackItem(*item).changes) is not None:
            if "priority" in changes:
                check_ranked()
            if (size := len(changes.get("headers", b""))) > most:
                raise TooLarge(f"headers: {size} bytes, {most} are allowed", limit="headers_bytes", maximum=most)
            if size:
                try:
                    check_headers(changes["headers"], own)
                except InvalidRequest as error:
                    raise InvalidRequest(f"item {number}: {error.message}") from None
            item = [*item[:5], {CHANGES[name]: value for name, value in changes.items()}, *item[6:]]
        items.append(item)
    return items
