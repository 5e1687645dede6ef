"""Tests of the consumers of a group: the replies of several leaders are merged."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.client.admin.group_consumers import GroupConsumer, consumers_of
from sandq.errors import ProtocolError
from sandq.protocol.frames import Type


def row(consumer: str, **more: Any) -> dict[str, Any]:
    subscribed = {"address": "192.0.2.7:4711", "since_ms": 5, "credit": 3, "partitions": 2}
    return {"consumer": consumer, **subscribed, "messages": 1, "leased_ms": 9, **more}


def frame(*rows: Any, left_out: int = 0) -> list[Any]:
    return [Type.REPLY, 1, [*rows], left_out]


def test_rows_of_one_consumer_are_added_up_and_the_most_messages_come_first() -> None:
    leases = {"address": None, "since_ms": None, "credit": None, "partitions": 0}
    found = consumers_of(
        [
            frame(row("ada"), row("bob", **leases, messages=0, leased_ms=None), left_out=2),
            frame(row("ada", since_ms=4, messages=5, leased_ms=8), row("eve", **leases), left_out=1),
        ]
    )
    assert found.left_out == 2
    assert found.consumers == [
        GroupConsumer("ada", "192.0.2.7:4711", 4, 6, 4, 6, 8),
        GroupConsumer("eve", None, None, None, 0, 1, 9),
        GroupConsumer("bob", None, None, None, 0, 0, None),
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        [Type.REPLY, 1],
        [Type.REPLY, 1, []],
        [Type.REPLY, 1, {}, 0],
        frame(5),
        frame(row("ada", messages=None)),
        frame(row("ada", address=7)),
    ],
)
def test_malformed_reply_is_a_protocol_error(wrong: list[Any]) -> None:
    with pytest.raises(ProtocolError, match="CONSUMER_LIST"):
        consumers_of([wrong])
