"""Tests of HTTP request bodies: mistakes are reported, and thousands of mistakes become one."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from sandq.model.errors import InvalidRequest
from sandq.server.http.bodies import MEMBERS_MAX, AckIn, MessageIn, OutgoingIn, ProduceIn, PutIn, TopicCreate
from sandq.server.http.further_mistakes import further_mistakes

MANY = 9_990


def members(value: Any = 0) -> dict[str, Any]:
    return {f"k{number}": value for number in range(MANY)}


def mistakes(body: Any, given: Any) -> list[Any]:
    with pytest.raises(ValidationError) as found:
        TypeAdapter(body).validate_python(given)
    return found.value.errors()


@pytest.mark.parametrize("body", [ProduceIn, PutIn, AckIn, TopicCreate])
def test_more_members_than_any_body_has_are_one_mistake(body: Any) -> None:
    (mistake,) = mistakes(body, members())
    assert mistake["msg"] == f"Value error, it has {MANY} members, more than any valid object ({MEMBERS_MAX})"
    (mistake,) = mistakes(ProduceIn, {"messages": [{"text": "x"}, members(), members()]})
    assert mistake["loc"] == ("many", "messages", 1), (
        "and of many messages only the errors of the first invalid message"
    )


@pytest.mark.parametrize("wrong", [[], {"a": 1}, {"base64": None}])
def test_invalid_header_is_one_mistake_among_many_valid_ones(wrong: Any) -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(ProduceIn)
    for value in (1, "x", None, True, 0.5, {"base64": "aw=="}):
        assert adapter.validate_python({"text": "x", "headers": members(value)})
    (mistake,) = mistakes(ProduceIn, {"text": "x", "headers": members() | {"odd": wrong}})
    assert mistake["msg"].startswith("Value error, headers: 'odd' is not text")


def test_few_unknown_members_are_each_named() -> None:
    assert [one["loc"] for one in mistakes(ProduceIn, {"text": "x", "a": 1, "b": 2})] == [("one", "a"), ("one", "b")]


def test_max_wait_of_a_message_is_an_argument_of_send() -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(ProduceIn)
    body = {"text": "x", "unique_key": "u", "delay": "5s", "on_conflict": "debounce", "max_wait": "1m"}
    assert adapter.validate_python(body).arguments() == {
        "value": b"x",
        "unique_key": b"u",
        "delay": "5s",
        "on_conflict": "debounce",
        "max_wait": "1m",
    }
    assert "max_wait" not in adapter.validate_python(body | {"max_wait": None}).arguments()
    for wrong in (-1, "soon", True, [60]):
        assert {one["loc"][:2] for one in mistakes(ProduceIn, body | {"max_wait": wrong})} == {("one", "max_wait")}


def test_window_and_edge_of_a_message_are_arguments_of_send() -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(ProduceIn)
    body = {"text": "x", "unique_key": "u", "on_conflict": "throttle", "window": "1m", "edge": "both"}
    assert adapter.validate_python(body).arguments() == {
        "value": b"x",
        "unique_key": b"u",
        "on_conflict": "throttle",
        "window": "1m",
        "edge": "both",
    }
    assert not {"window", "edge"} & adapter.validate_python(body | {"window": None, "edge": None}).arguments().keys()
    for name, wrong in (("window", -1), ("window", "soon"), ("window", True), ("edge", 1), ("edge", ["both"])):
        assert {one["loc"][:2] for one in mistakes(ProduceIn, body | {name: wrong})} == {("one", name)}


@pytest.mark.parametrize("option", [{"on_conflict": "throttle"}, {"window": "1m"}, {"edge": "both"}])
def test_throttling_of_a_message_sent_by_an_ack_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"then: .* so it cannot be throttled"):
        OutgoingIn.model_validate({"text": "x", **option}).outgoing()


@pytest.mark.parametrize("option", [{"on_conflict": "debounce"}, {"max_wait": "1m"}])
def test_debounce_of_a_message_sent_by_an_ack_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"then: .* so it cannot be debounced"):
        OutgoingIn.model_validate({"text": "x", **option}).outgoing()


def test_options_of_a_request_are_no_further_mistakes() -> None:
    body = {"text": "x", "delay": "soon", "unique_key": "u", "on_conflict": "debounce", "max_wait": "1m"}
    body |= {"window": "1m", "edge": "both"}
    assert [where for where, _ in further_mistakes(body, MessageIn.model_fields.keys())] == ["body.delay"]


def test_ranks_of_messages_are_arguments_of_send() -> None:
    adapter: TypeAdapter[Any] = TypeAdapter(ProduceIn)
    body = adapter.validate_python({"text": "x", "priority": -(2**31), "tenant": "acme"})
    assert body.arguments() == {"value": b"x", "priority": -(2**31), "tenant": "acme", "on_conflict": "reject"}
    assert adapter.validate_python({"text": "x", "priority": None, "tenant": None}).arguments().keys() == {
        "value",
        "on_conflict",
    }
    for wrong in (2**31, -(2**31) - 1, "1", 1.0, True):
        assert [one["loc"] for one in mistakes(ProduceIn, {"text": "x", "priority": wrong})] == [("one", "priority")]
    assert [one["loc"] for one in mistakes(ProduceIn, {"text": "x", "tenant": 5})] == [("one", "tenant")]


@pytest.mark.parametrize("kind", ["priority", "fair"])
def test_kinds_of_topics(kind: str) -> None:
    settings = {"ageing": "30s", "tenants": {"acme": {"weight": 3}}}
    assert TopicCreate.model_validate({"name": "t", "kind": kind, "settings": settings}).kind == kind
