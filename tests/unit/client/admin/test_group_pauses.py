"""Tests of the paused parts of a group: the replies of several leaders are merged."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.client.admin.group_pauses import PausedPart, merged_refusals, pauses_of
from sandq.errors import InvalidRequest, ProtocolError
from sandq.model.pauses import PAUSES_MAX, incomplete_pause
from sandq.protocol.frames import Type


def tenant(name: str | None, until_ms: int | None = 5, **more: Any) -> dict[str, Any]:
    return {"tenant": name, "key": None, "key_hash": None, "until_ms": until_ms, "partitions": 1, **more}


def key(name: bytes | None, key_hash: int, until_ms: int | None = 5) -> dict[str, Any]:
    return {"tenant": None, "key": name, "key_hash": key_hash, "until_ms": until_ms, "partitions": 1}


def frame(*rows: Any, left_out: int = 0) -> list[Any]:
    return [Type.REPLY, 1, [*rows], left_out]


def test_pauses_of_several_leaders_are_merged_with_latest_end() -> None:
    found = pauses_of(
        [
            frame(tenant("beta"), key(b"z", 1), key(None, 3), key(b"a", 9)),
            frame(tenant("acme", 3), tenant("beta", None), key(None, 1, 9)),
            frame(tenant("acme", 7)),
        ]
    )
    assert found.left_out == 0
    assert found.pauses == [
        PausedPart("tenant", "acme", None, 7, 2),
        PausedPart("tenant", "beta", None, None, 2),
        PausedPart("key", None, b"a", 5, 1),
        PausedPart("key", None, b"z", 9, 2),
        PausedPart("key", None, None, 5, 1),
    ]


def test_pauses_above_limit_are_counted() -> None:
    many = [tenant(f"t{number:04}") for number in range(PAUSES_MAX)]
    found = pauses_of([frame(*many, left_out=4), frame(tenant("a"), tenant("b"))])
    assert len(found.pauses) == PAUSES_MAX and found.pauses[1].tenant == "b"
    assert found.left_out == 4
    assert pauses_of([frame(*many), frame(tenant("a"), tenant("b"))]).left_out == 2


@pytest.mark.parametrize(
    "wrong",
    [
        [Type.REPLY, 1],
        [Type.REPLY, 1, []],
        [Type.REPLY, 1, {}, 0],
        frame(5),
        frame(tenant("a", partitions=None)),
        frame(tenant(None)),
        frame(tenant("a", key_hash=5)),
    ],
)
def test_malformed_reply_is_a_protocol_error(wrong: list[Any]) -> None:
    with pytest.raises(ProtocolError, match="PAUSE_LIST"):
        pauses_of([wrong])


def test_refusals_of_two_nodes_become_one_error() -> None:
    refusals: list[Any] = [incomplete_pause(2, refused=[at], reason="it has too many") for at in (4, 1)]
    error = merged_refusals(refusals, 5)
    assert error.message.startswith("the pause holds in 3 of 5 partitions: partitions 1, 4 refused it, because it has")


@pytest.mark.parametrize("wrong", [None, 5, ["1"]])
def test_malformed_refusal_is_a_protocol_error(wrong: Any) -> None:
    with pytest.raises(ProtocolError, match="GROUP_PAUSE"):
        merged_refusals([InvalidRequest("refused", refused=wrong)], 5)
