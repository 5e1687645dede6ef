"""What a nack changes of its messages, as a command of the partition has it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from sandq.model.errors import InvalidRequest, TooLarge
from sandq.model.headers import headers_check
from sandq.model.limits import FIXED, Limits
from sandq.partition.levels import BUDGET
from sandq.protocol.requests import CHANGES, Nack

CHANGED_MESSAGES: Final = FIXED.grant_messages
CHANGED_BYTES: Final = 16 << 20
"""Messages that one nack may give other headers or another priority, and of those headers: each is stored anew. In a
partition below the level `BUDGET`; from there on an entry has a budget for all that it stores anew."""


def with_columns(request: Nack, level: int, limits: Limits, check_ranked: Callable[[], None]) -> list[list[Any]]:
    """The items of a nack, with what they change of their messages by column. `level`: of the partition.
    `check_ranked`: raises where messages have no priorities. Raises TooLarge, InvalidRequest."""
    most = limits.headers_bytes
    items, messages, header_bytes = [], 0, 0
    for number, item in enumerate(request.items, 1):
        if len(item) > 5 and (changes := item[5]) is not None:
            named = _named(item[1])
            messages, header_bytes = messages + named, header_bytes + named * len(changes.get("headers", b""))
            if level < BUDGET and (messages > CHANGED_MESSAGES or header_bytes > CHANGED_BYTES):
                raise TooLarge(
                    f"a nack may change {CHANGED_MESSAGES} messages, and give {CHANGED_BYTES} bytes of headers: "
                    "nack fewer at once"
                )
            if "priority" in changes:
                check_ranked()
            if (size := len(changes.get("headers", b""))) > most:
                raise TooLarge(f"headers: {size} bytes, {most} are allowed", limit="headers_bytes", maximum=most)
            if size:
                try:
                    headers_check(changes["headers"])
                except InvalidRequest as error:
                    raise InvalidRequest(f"item {number}: {error.message}") from None
            item = [*item[:5], {CHANGES[name]: value for name, value in changes.items()}, *item[6:]]
        items.append(item)
    return items


def _named(what: list[list[Any]] | None) -> int:
    """How many messages an item of a nack may be about."""
    if what is None:
        return FIXED.grant_messages
    counts = [one if isinstance(one, int) else int.from_bytes(one, "little").bit_count() for _, one in what]
    return sum(counts)
