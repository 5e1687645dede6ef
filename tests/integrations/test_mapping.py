"""The pure parts of sandq-workers: URLs, names, bindings, and messages of kombu as messages of sandq."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from sandq.errors import InvalidName, InvalidRequest

pytest.importorskip("kombu", reason="`make test` installs requirements-workers.lock")

from sandq_workers.kombu.bindings import matches
from sandq_workers.kombu.envelope import eta_of, incoming, outgoing, route_of, scheduled
from sandq_workers.names import decoded, encoded, key_of
from sandq_workers.urls import masked, parse

NOW_MS = 1_800_000_000_000


def payload(*, headers: dict[str, Any] | None = None, **properties: Any) -> dict[str, Any]:
    return {
        "body": "[[1], {}, {}]",
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "headers": headers or {},
        "properties": {"delivery_info": {}, **properties},
    }


@pytest.mark.parametrize(
    "name", ["celery", "a b", "celery@host", "x-ray", "xx-", "-first", "sandq.x", "kombu.bindings", "ä/€", "x-40", "."]
)
def test_name_of_a_queue_is_encoded_reversibly(name: str) -> None:
    assert decoded(encoded(name, prefix="shop."), prefix="shop.") == name
    assert encoded(name)[0].isalnum() and not encoded(name).startswith(("sandq.", "kombu."))


@pytest.mark.parametrize("name", ["", "a" * 250, "@" * 70])
def test_name_that_is_empty_or_too_long_is_refused(name: str) -> None:
    with pytest.raises(InvalidName, match="1 to 249 are allowed"):
        encoded(name)


def test_url_with_several_hosts_a_token_and_options_is_parsed() -> None:
    found = parse("sandq://t%40k@a:7170,b/shop?tls=true&ca=/etc/ca.pem")
    assert (found.servers, found.token, found.prefix) == (("a:7170", "b"), "t@k", "shop.")
    assert dict(found.options) == {"tls": True, "ca": "/etc/ca.pem"}
    assert "t@k" not in repr(found)
    assert masked("sandq://secret@a,b/x") == "sandq://**@a,b/x" and masked("sandq://a") == "sandq://a"


@pytest.mark.parametrize("url", ["sandq://a?tsl=true", "sandq://a?tls=yes", "redis://a"])
def test_url_with_a_mistake_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest):
        parse(url)


def test_eta_becomes_the_delivery_time_and_is_removed() -> None:
    eta = datetime(2030, 1, 1, 0, 0, 0, 500, tzinfo=UTC)
    sent = payload(headers={"eta": eta.isoformat(), "id": "1"}, expiration="5000", priority=9)
    found = outgoing(sent, exchange="", routing_key="q", now_ms=NOW_MS)
    assert found.deliver_at_ms == eta.timestamp() * 1000 // 1 + 1, "a message is never early: fractions round up"
    assert (found.ttl_ms, found.priority) == (1, 0)
    assert found.options(is_ranked=True)["priority"] == 0 and "priority" not in found.options(is_ranked=False)
    received = incoming(found.value, found.headers, tag="t", attempt=2, name="q/1")
    assert received["headers"] == {"eta": None, "id": "1"} and received["body"] == "[[1], {}, {}]"
    assert received["properties"]["delivery_tag"] == "t"
    assert received["properties"]["delivery_info"] == {"exchange": "", "routing_key": "q", "redelivered": True}
    assert sent["headers"]["eta"], "the payload of the caller is unchanged, so that it can be sent again"


def test_eta_in_the_past_and_expiration_without_eta() -> None:
    past = payload(headers={"eta": "2020-01-01T00:00:00"}, expiration="5000")
    found = outgoing(past, exchange="e", routing_key="k", now_ms=NOW_MS)
    assert (found.deliver_at_ms, found.ttl_ms, found.priority) == (None, 5000, 9)
    assert route_of(found.headers) == ("e", "k")


@pytest.mark.parametrize("eta", [None, "", "soon", 5, "9999-99-99"])
def test_eta_that_is_no_time_stays_for_the_worker(eta: object) -> None:
    assert eta_of(eta) is None
    found = outgoing(payload(headers={"eta": eta}), exchange="", routing_key="q", now_ms=NOW_MS)
    assert incoming(found.value, found.headers, tag="t", attempt=1, name="q/1")["headers"] == {"eta": eta}


@pytest.mark.parametrize("text", [None, 5, "{", "[]", b"\xff", '{"properties": 5, "headers": []}'])
def test_message_of_a_different_program_is_a_body_without_headers(text: Any) -> None:
    found = incoming(b"\xff", {"kombu": text}, tag="t", attempt=1, name="q/1")
    assert (found["body"], found["headers"], found["content-type"]) == (b"\xff", {}, "application/data")
    assert route_of({"kombu": text}) == ("", "")


def test_id_of_a_task_is_the_unique_key_of_its_message() -> None:
    task = payload(headers={"id": "t1", "task": "shop.remind"})
    options = outgoing(task, exchange="", routing_key="q", now_ms=NOW_MS).options(is_ranked=False)
    assert (options["unique_key"], options["on_conflict"]) == ("t1", "debounce")
    assert "unique_key" not in outgoing(payload(), exchange="", routing_key="q", now_ms=NOW_MS).options(is_ranked=False)


def test_key_of_an_odd_id_is_its_hash() -> None:
    assert key_of("x" * 200) == "x" * 200 and key_of("ä 1") == "ä 1"
    for odd in ("x" * 201, "a\nb", "\ud800"):
        assert key_of(odd).startswith("sha256:") and key_of(odd) == key_of(odd)


def test_each_message_of_a_schedule_is_a_task_of_its_own_without_an_instant_of_expiry() -> None:
    headers = {"id": "t1", "root_id": "t1", "task": "shop.remind", "expires": "2030-01-01T00:00:00+00:00"}
    sent = outgoing(payload(headers=headers, expiration="5000"), exchange="", routing_key="q", now_ms=NOW_MS)
    made = scheduled(sent)
    assert made.unique_key is None and made.ttl_ms == 5000
    first, again, second = [
        incoming(made.value, made.headers, tag="t", attempt=1, name=name) for name in ("q/1", "q/1", "q/2")
    ]
    task_id = first["headers"]["id"]
    assert first["headers"] == {**headers, "expires": None, "id": task_id, "root_id": task_id}
    assert first["properties"]["correlation_id"] == task_id == again["headers"]["id"] != second["headers"]["id"]


@pytest.mark.parametrize(
    ("kind", "bound", "key", "is_match"),
    [
        ("direct", "a.b", "a.b", True),
        ("direct", "a.*", "a.b", False),
        ("fanout", "a", "b", True),
        ("topic", "a.*", "a.b", True),
        ("topic", "a.*", "a.b.c", False),
        ("topic", "a.#", "a", True),
        ("topic", "a.#", "a.b.c", True),
        ("topic", "a.#", "ab", False),
        ("topic", "#", "", True),
        ("topic", "#", "a.b", True),
        ("topic", "#.b", "b", True),
        ("topic", "#.b", "a.a.b", True),
        ("topic", "#.b", "ab", False),
        ("topic", "a.#.c", "a.c", True),
        ("topic", "a.#.c", "a.b.b.c", True),
        ("topic", "worker.+", "worker.x", False),
    ],
)
def test_exchange_routes_by_its_kind(kind: str, bound: str, key: str, is_match: bool) -> None:
    assert matches(kind, bound, key) is is_match
