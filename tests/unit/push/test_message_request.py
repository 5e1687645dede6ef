"""Tests of the headers of a request: the data for the receiver, and valid HTTP for any message content."""

from __future__ import annotations

import json
import re
from base64 import b64decode
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote_to_bytes

import h11
import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandq.model.message_targets import PUSH_HEADER
from sandq.model.webhooks import secret_text, verify
from sandq.push.message_request import (
    HEADER_BYTES_MOST,
    HEADER_MOST_BYTES,
    HEADERS_MOST,
    encoded,
    headers_of,
    webhook_id,
)
from tests.support.hostile_rows import HEADERS, NO_HEADERS

SECRET = secret_text(bytes(24))
NOW_S = 1_800_000_000


@dataclass
class FakeMessage:
    value: bytes = b"{}"
    key: bytes | None = None
    headers: dict[str, Any] = field(default_factory=dict)
    cell: bytes | None = None
    """The stored headers if they are not a map."""
    id: str = "06GH4X0000000000000000000G"
    topic: str = "orders.eu"
    partition: int = 3
    attempt: int = 2
    deliver_at_ms: int = NOW_S * 1000
    deleted: bool = False

    @property
    def headers_bytes(self) -> bytes | None:
        return msgpack.packb(self.headers) if self.cell is None else self.cell


def names(message: FakeMessage) -> dict[str, str]:
    found = headers_of(message, "billing", [SECRET], NOW_S, "sandq/1")
    return {name.decode(): value.decode() for name, value in found}


def test_a_receiver_learns_everything_and_can_verify_it() -> None:
    own = {"Trace": "x y", "n": 5, "raw": b"\x00", "flag": True, "no": None}
    message = FakeMessage(b'{"a":1}', b"caf\xc3\xa9 1%", own)
    found = names(message)
    verify([SECRET], found, message.value, NOW_S)
    del found["webhook-signature"]
    assert found == {
        "user-agent": "sandq/1",
        "accept-encoding": "identity",
        "content-type": "application/octet-stream",
        "webhook-id": "orders%2Eeu_3_06GH4X0000000000000000000G",
        "webhook-timestamp": str(NOW_S),
        "sandq-topic": "orders.eu",
        "sandq-group": "billing",
        "sandq-partition": "3",
        "sandq-message-id": message.id,
        "sandq-attempt": "2",
        "sandq-deliver-at": "2027-01-15T08:00:00.000Z",
        "sandq-key": "caf%C3%A9%201%25",
        "sandq-header-trace": "x y",
        "sandq-header-n": "5",
        "sandq-header-raw": "%00",
        "sandq-header-flag": "true",
        "sandq-header-no": "",
    }


def test_content_type_is_taken_from_the_message_headers() -> None:
    found = names(FakeMessage(headers={"Content-Type": "application/json; charset=utf-8"}))
    assert found["content-type"] == "application/json; charset=utf-8"
    assert not any(name.startswith("sandq-header-") for name in found)
    for wrong in ("", "a\r\nb: c", "ä", 5, "x" * 256):
        found = names(FakeMessage(headers={"content-type": wrong}))
        assert found["content-type"] == "application/octet-stream"
        assert "sandq-header-content-type" in found


def test_deleted_key_is_distinguished_from_an_empty_value() -> None:
    assert "sandq-deleted" not in names(FakeMessage(b"", b"k"))
    assert names(FakeMessage(b"", b"k", deleted=True))["sandq-deleted"] == "true"


def test_ids_are_different_where_topics_are() -> None:
    ids = {webhook_id(topic, 0, "X") for topic in ("a.b", "a_b", "a-b", "a_0", "a")}
    assert len(ids) == 5 and not any("." in one for one in ids)


def test_headers_that_do_not_fit_are_omitted_and_counted() -> None:
    message = FakeMessage(key=b"k", headers={"big": "x" * HEADER_BYTES_MOST, "small": "1", "huge": "\u00e4" * 9000})
    found = names(message)
    assert found["sandq-left-out"] == "2" and found["sandq-header-small"] == "1" and found["sandq-key"] == "k"


def test_size_and_number_of_headers_are_bounded() -> None:
    """The limits follow from the maximum line length and header count of common servers."""
    own = {"line": "x" * (HEADER_MOST_BYTES + 1), **{f"h{number}": number for number in range(100)}}
    found = names(FakeMessage(key=b"k", headers=own))
    assert sum(name.startswith("sandq-header-") for name in found) == HEADERS_MOST - 1  # one header is for the key
    assert "sandq-header-line" not in found and found["sandq-left-out"] == "38" and len(found) < 98


values = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=20)
    | st.binary(max_size=20)
)


@given(st.dictionaries(st.text(max_size=12), values, max_size=4), st.none() | st.binary(max_size=20))
def test_any_message_makes_a_request_of_http(headers: dict[str, Any], key: bytes | None) -> None:
    found = headers_of(FakeMessage(headers=headers, key=key), "g", [SECRET], NOW_S, "sandq/1")
    request = h11.Request(method="POST", target="/", headers=[(b"host", b"x"), *found])
    assert all(re.fullmatch(rb"[ -~]*", value) for _, value in request.headers)


@given(st.text(max_size=30))
def test_a_value_can_be_read_back(text: str) -> None:
    data = text.encode(errors="replace")
    assert unquote_to_bytes(encoded(text)) == data
    assert encoded(text) == encoded(text).strip()


@pytest.mark.parametrize("name", NO_HEADERS)
def test_headers_that_are_no_map_are_sent_in_base64(name: str) -> None:
    cell = NO_HEADERS[name]
    found = names(FakeMessage(cell=cell, key=b"k"))
    assert not any(name.startswith("sandq-header-") for name in found) and found["sandq-key"] == "k"
    if not cell:
        assert "sandq-headers-base64" not in found
    elif len(cell) > HEADER_MOST_BYTES:
        assert found["sandq-left-out"] == "1"
    else:
        assert b64decode(found["sandq-headers-base64"]) == cell


def test_headers_that_are_no_map_are_left_out_if_they_have_a_target() -> None:
    """The target may contain secrets for another receiver. Only a restore can store such headers."""
    cell = msgpack.packb({1: 2, PUSH_HEADER: '{"url":"http://a","headers":{"authorization":"Bearer x"}}'})
    found = names(FakeMessage(cell=cell))
    assert "sandq-headers-base64" not in found and found["sandq-left-out"] == "1"


@pytest.mark.parametrize("name", HEADERS)
def test_hostile_headers_make_a_request_of_http(name: str) -> None:
    found = headers_of(FakeMessage(cell=HEADERS[name]), "g", [SECRET], NOW_S, "sandq/1")
    h11.Request(method="POST", target="/", headers=[(b"host", b"x"), *found])
    assert all(re.fullmatch(rb"[ -~]*", value) for _, value in found)


def test_maps_and_arrays_in_headers_are_sent_as_json() -> None:
    found = names(FakeMessage(headers={"a": [1, "x", None, {"b": True}], "c": {"d": b"\xff"}}))
    assert json.loads(found["sandq-header-a"]) == [1, "x", None, {"b": True}]
    assert json.loads(found["sandq-header-c"]) == {"d": {"base64": "/w=="}}
