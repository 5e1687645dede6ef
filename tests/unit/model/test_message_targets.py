"""Tests of the header with the URL of a message."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandq.model.access import Access
from sandq.model.errors import Forbidden, InvalidRequest
from sandq.model.message_targets import (
    HEADERS_BYTES,
    HEADERS_MOST,
    PUSH_HEADER,
    TEXT_CHARS,
    PushTarget,
    TargetRules,
    callbacks_of,
    check_target,
    parse_target,
    with_target,
)
from sandq.model.push_targets import PushRules, TargetRefused

URL = "https://shop.example/hooks?a=1"


def rules_of(urls: PushRules, access: Access | None = None) -> TargetRules:
    """Return rules of a cluster with the topics `done` and `failed`."""

    def check_topic(name: str) -> None:
        if name not in ("done", "failed"):
            raise InvalidRequest(f"there is no topic {name!r}")

    return TargetRules(urls, check_topic, access)


def test_target_with_a_url_only_has_the_defaults() -> None:
    text = PushTarget(URL).text()
    assert json.loads(text) == {"url": URL}
    found = parse_target(text)
    assert (found.target.host, found.target.path) == ("shop.example", "/hooks?a=1")
    assert (found.method, found.headers, found.timeout_ms) == ("POST", (), None)


def test_target_keeps_method_headers_and_timeout() -> None:
    target = PushTarget(URL, "PUT", {"Authorization": "Bearer x y", "x-empty": ""}, timedelta(seconds=90))
    found = parse_target(target.text())
    assert (found.method, found.timeout_ms) == ("PUT", 90_000)
    assert found.headers == (("authorization", "Bearer x y"), ("x-empty", ""))


def test_mapping_is_a_target() -> None:
    headers = with_target({"a": 1}, {"url": URL, "timeout": "5s", "method": None})
    assert headers["a"] == 1 and parse_target(headers[PUSH_HEADER]).timeout_ms == 5000


@pytest.mark.parametrize(
    ("push", "words"),
    [
        (5, "an object with a url"),
        ({}, "url is missing"),
        ({"url": 5}, "url: text of printable ASCII"),
        ({"url": "ftp://shop.example"}, "begins with https"),
        ({"url": "https://user@shop.example/"}, "a user or a password"),
        ({"url": URL, "methd": "GET"}, "'methd' is no part of a target"),
        ({"url": URL, "method": "post"}, "method: one of POST"),
        ({"url": URL, "method": "CONNECT"}, "method: one of POST"),
        ({"url": URL, "method": ["GET"]}, "method: one of POST"),
        ({"url": URL, "timeout": "100ms"}, "timeout: 1s to 10m is expected"),
        ({"url": URL, "timeout": "11m"}, "timeout: 1s to 10m is expected"),
        ({"url": URL, "timeout": True}, "a duration"),
        ({"url": URL, "headers": ["a"]}, "names with text"),
        ({"url": URL, "headers": {"a b": "x"}}, "no name of an HTTP header"),
        ({"url": URL, "headers": {"": "x"}}, "no name of an HTTP header"),
        ({"url": URL, "headers": {"a": 5}}, "printable ASCII"),
        ({"url": URL, "headers": {"a": "x\r\nb: y"}}, "printable ASCII"),
        ({"url": URL, "headers": {"a": " x"}}, "printable ASCII"),
        ({"url": URL, "headers": {"a": "x", "A": "y"}}, "given twice"),
        ({"url": URL, "headers": {f"h{n}": "x" for n in range(HEADERS_MOST + 1)}}, "17 of them, 16 are allowed"),
        ({"url": URL, "headers": {"a": "x" * HEADERS_BYTES}}, "4097 bytes, 4096 are allowed"),
    ],
)
def test_wrong_target_is_refused(push: Any, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words):
        with_target(None, push)


@pytest.mark.parametrize(
    "name",
    [
        *("Host", "content-length", "Transfer-Encoding", "connection", "te", "trailer", "upgrade", "keep-alive"),
        *("proxy-authorization", "expect", "accept-encoding", "webhook-signature", "webhook-id", "sandq-attempt"),
    ],
)
def test_headers_of_the_sender_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match="is set by the sender only"):
        PushTarget(URL, headers={name: "x"}).text()


def test_errors_show_no_values_of_headers() -> None:
    with pytest.raises(InvalidRequest) as caught:
        PushTarget(URL, headers={"authorization": "secret\n"}).text()
    assert "secret" not in caught.value.message


@pytest.mark.parametrize(
    "value",
    [None, 5, b"{}", "", "{", "[]", "null", '"x"', "[" * 8000, '{"url": 5}', '{"url": null}', "x" * (TEXT_CHARS + 1)],
)
def test_header_of_another_form_is_refused(value: object) -> None:
    with pytest.raises(InvalidRequest, match=f"^header {PUSH_HEADER}: "):
        parse_target(value)


@given(st.text(max_size=60) | st.recursive(st.none() | st.text(max_size=9), lambda part: st.lists(part, max_size=3)))
def test_any_value_is_a_target_or_refused(value: object) -> None:
    with pytest.raises(InvalidRequest):
        parse_target(value)


@given(
    st.fixed_dictionaries(
        {"url": st.sampled_from([URL, "http://[::1]:8/", 5, None])},
        optional={
            "method": st.sampled_from(["GET", "", None, 7]),
            "headers": st.none() | st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.integers()),
            "timeout": st.none() | st.text(max_size=4) | st.integers() | st.floats(),
        },
    )
)
def test_accepted_object_can_be_sent_and_read(found: dict[str, Any]) -> None:
    try:
        text = PushTarget.of(found).text()
    except InvalidRequest:
        return
    assert parse_target(text) == parse_target(PushTarget.of(json.loads(text)).text())


def test_topic_without_push_targets_takes_no_target() -> None:
    check_target({"other": 1}, None)
    with pytest.raises(InvalidRequest, match="its setting push_targets allows them"):
        check_target({PUSH_HEADER: PushTarget(URL).text()}, None)


@pytest.mark.parametrize(
    "url",
    [
        "https://127.0.0.1/",
        "https://[::ffff:10.0.0.1]/",
        "https://169.254.169.254/",
        "https://b.example:81/",
        "http://b.example/",
    ],
)
def test_target_that_the_node_does_not_allow_is_refused(url: str) -> None:
    with pytest.raises(TargetRefused):
        check_target({PUSH_HEADER: PushTarget(url).text()}, rules_of(PushRules()))


def test_target_outside_the_list_is_refused() -> None:
    rules = rules_of(PushRules.of(["*.shop.example"], [443], False))
    check_target({PUSH_HEADER: PushTarget("https://a.shop.example/").text()}, rules)
    with pytest.raises(TargetRefused, match=r"evil\.example is not among push\.allow"):
        check_target({PUSH_HEADER: PushTarget("https://evil.example/").text()}, rules)


def test_target_keeps_its_callbacks() -> None:
    found = parse_target(PushTarget(URL, callback="done", failure_callback="failed").text())
    assert (found.callback, found.failure_callback, callbacks_of(found)) == ("done", "failed", {"done", "failed"})
    assert callbacks_of(parse_target(PushTarget(URL, callback="done", failure_callback="done").text())) == {"done"}
    assert callbacks_of(parse_target(PushTarget(URL).text())) == set()


@pytest.mark.parametrize("name", ["callback", "failure_callback"])
@pytest.mark.parametrize("topic", ["", "a b", "x" * 300, "sandq.audit", 5, ["done"], True])
def test_callback_without_a_name_of_a_topic_is_refused(name: str, topic: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"^push: {name}: topic name "):
        PushTarget.of({"url": URL, name: topic}).text()
    with pytest.raises(InvalidRequest, match=f"^header sandq-push: {name}: topic name "):
        parse_target(json.dumps({"url": URL, name: topic}))


def test_callbacks_need_their_topics_and_rights() -> None:
    def header(**callbacks: str) -> dict[str, str]:
        return {PUSH_HEADER: PushTarget(URL, **callbacks).text()}

    both = header(callback="done", failure_callback="failed")
    check_target(both, rules_of(PushRules()))
    check_target(both, rules_of(PushRules(), Access.of("me", ["produce:done", "produce:failed"], {})))
    with pytest.raises(InvalidRequest, match="there is no topic 'gone'"):
        check_target(header(callback="gone"), rules_of(PushRules()))
    some = rules_of(PushRules(), Access.of("me", ["produce:done", "manage:failed"], {}))
    for topic in ("failed", "gone"):
        with pytest.raises(Forbidden, match=f"produce on topic '{topic}'"):
            check_target(header(callback="done", failure_callback=topic), some)


@pytest.mark.parametrize(
    "text",
    [
        r'{"url":"https://a.example","\ud800":1}',
        r'{"url":"https://a.example","method":"\ud800"}',
        r'{"url":"https://a.example","timeout":"\ud800"}',
        r'{"url":"https://a.example","headers":{"\ud800":"x"}}',
        r'{"url":"https://a.example","headers":{"a":"\ud800"}}',
        r'{"url":"https://\ud800"}',
        r'{"url":"https://a.example","callback":"\ud800"}',
        r'{"url":"https://a.example","failure_callback":"\ud800"}',
    ],
)
def test_error_about_an_unpaired_surrogate_can_be_encoded(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        check_target({PUSH_HEADER: text}, rules_of(PushRules()))
    assert caught.value.message.encode()
