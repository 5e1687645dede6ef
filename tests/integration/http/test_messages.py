"""Messages over HTTP: produced, listed, cancelled, moved, read."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.nodes.http_requests import Web


async def taken(web: Web, count: int = 100) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await web.post("/topics/t/groups/g/lease", {"max": count, "ack": True}))["messages"]
    return found


async def topic(web: Web, **body: Any) -> None:
    await web.post("/topics", {"name": "t", **body})


@pytest.mark.parametrize(
    ("body", "value"),
    [
        ({"text": "grüße"}, "grüße".encode()),
        ({"text": ""}, b""),
        ({"value": base64.b64encode(b"\xff\x00").decode()}, b"\xff\x00"),
    ],
)
async def test_values(web: Web, body: dict[str, Any], value: bytes) -> None:
    await topic(web)
    stored = await web.post("/topics/t", body, 201)
    (message,) = await taken(web)
    assert (message["id"], message["partition"]) == (stored["id"], 0)
    assert (message["text"].encode() if "text" in message else base64.b64decode(message["value"])) == value


JSON_VALUES: list[Any] = [
    {"a": [1, None]},
    None,
    "text",
    0,
    -1.5,
    [],
    {"": {"x": [[]]}},
    12345678901234567890,
    {"é": "\u2028😀"},
]


@pytest.mark.parametrize("value", JSON_VALUES)
async def test_a_message_sent_as_json_is_returned_as_json(web: Web, value: Any) -> None:
    await topic(web, settings={"max_attempts": 1})
    stored = await web.post("/topics/t", {"json": value, "headers": {"a": "b"}}, 201)
    found = await web.get(f"/topics/t/messages/{stored['id']}")
    assert found["json"] == value and found["headers"] == {"a": "b", "content-type": "application/json"}
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    assert (await web.get(f"/topics/t/messages/{stored['id']}", as_text=True))["text"] == text
    (listed,) = (await web.get("/topics/t/messages", values=True))["messages"]
    (read,) = (await web.get("/topics/t/0"))["messages"]
    leased = (await web.post("/topics/t/groups/g/lease", {"max": 1}))["messages"][0]
    await web.post("/topics/t/groups/g/nack", {"lease_token": leased["lease_token"]})
    (dead,) = (await web.get("/topics/t/groups/g/dead"))["messages"]
    for one in (listed, read, leased, dead):
        assert one["json"] == value and "text" not in one and "value" not in one
    # The listed message can be produced unchanged.
    await web.post("/topics/t", leased, 201)
    (again,) = (await web.post("/topics/t/groups/g/lease", {"max": 1, "ack": True}))["messages"]
    assert (again["json"], again["headers"]) == (value, found["headers"])


HOSTILE_JSON: list[bytes] = [
    b"{",
    b"NaN",
    b'{"a":1,"a":2}',
    b"1e400",
    b"1.00000000000000000001",
    b'"\\ud800"',
    b"\xff",
    b"[" * 101 + b"]" * 101,
    b"[" * 5000 + b"]" * 5000,
    b"1" * 41,
    b"",
    b"[" + b"[]," * 50_000 + b"0]",
]


async def test_a_value_that_is_no_strict_json_is_shown_as_text(web: Web) -> None:
    """Headers may be wrong; the other messages of a lease are still delivered."""
    await topic(web)
    headers = {"Content-Type": "application/cloudevents+json; charset=utf-8"}
    for value in HOSTILE_JSON:
        await web.post("/topics/t", {"value": base64.b64encode(value).decode(), "headers": headers}, 201)
    await web.post("/topics/t", {"text": "[1, 2]", "headers": headers}, 201)
    await web.post("/topics/t", {"text": "[1, 2]", "headers": {"content-type": "text/plain"}}, 201)
    *wrong, right, plain = await taken(web)
    shown = [one["text"].encode() if "text" in one else base64.b64decode(one["value"]) for one in wrong]
    assert shown == HOSTILE_JSON
    assert (right["json"], plain["text"]) == ([1, 2], "[1, 2]")


async def test_json_that_a_double_would_change_is_refused(web: Web) -> None:
    await topic(web)
    for number in ("1.00000000000000000001", "12345678901234567.5", "1e-400", "1.23456e-320", "1e-9999999999999999999"):
        response = await web.raw("POST", "/topics/t", content=f'{{"json": {number}}}'.encode())
        assert response.status_code == 400 and "more digits than a double can hold" in response.text, number
    for number in ("0.1", "1.10", "0.0", "-0.0", "1e22", "123456789012345.5", "0.30000000000000004", "2.5e-310"):
        response = await web.raw("POST", "/topics/t", content=f'{{"json": {number}}}'.encode())
        assert response.status_code == 201, number


async def test_message_fields_round_trip(web: Web) -> None:
    await topic(web, partitions=4)
    body = {
        "text": "v",
        "key_base64": "/w==",
        "headers": {"a": "1", "n": 2, "f": 1.5, "z": None, "b": {"base64": "AA=="}},
        "ttl": "1h",
        "delay": "1h",
    }
    stored = await web.post("/topics/t/3", body)
    assert stored["partition"] == 3
    found = await web.get(f"/topics/t/messages/{stored['id']}")
    assert (found["text"], found["key_base64"], found["headers"]) == ("v", "/w==", body["headers"])
    assert (found["state"], found["ttl"], found["partition"]) == ("delayed", "1h", 3)
    listed = (await web.get("/topics/t/messages"))["messages"]
    assert "text" not in listed[0]
    again = await web.post("/topics/t", found)
    assert again["id"] != stored["id"], "a message that was read can be produced unchanged"


async def test_many(web: Web) -> None:
    await topic(web, partitions=3)
    body = {"messages": [{"text": str(n), "key": str(n % 7)} for n in range(500)]}
    found = await web.post("/topics/t", body, 201)
    assert (found["stored"], found["failed"], len({row["id"] for row in found["results"]})) == (500, 0, 500)
    assert sorted(int(message["text"]) for message in await taken(web, 1000)) == list(range(500))


async def test_some_of_many_are_refused(web: Web) -> None:
    await topic(web)
    first = await web.post("/topics/t", {"text": "a", "unique_key": "k", "delay": "1h"})
    body = {"messages": [{"text": "b", "unique_key": "k", "delay": "1h"}, {"text": "c"}]}
    found = await web.post("/topics/t", body, 207)
    assert (found["stored"], found["failed"]) == (1, 1)
    assert found["results"][0]["error"]["code"] == "DUPLICATE_KEY"
    assert found["results"][0]["error"]["id"] == first["id"]
    assert found["results"][1]["id"]
    refused = await web.post("/topics/t", {"messages": body["messages"][:1]}, 409)
    assert (refused["code"], refused["id"], refused["state"]) == ("DUPLICATE_KEY", first["id"], "delayed")
    replaced = await web.post("/topics/t", {"text": "d", "unique_key": "k", "delay": "1h", "on_conflict": "replace"})
    assert (await web.get("/topics/t/messages/k", by="unique_key"))["id"] == replaced["id"]


async def test_delay_in_milliseconds(web: Web) -> None:
    await topic(web)
    one = await web.post("/topics/t", {"text": "a", "delay_ms": 3_600_000})
    many = await web.post(
        "/topics/t", {"messages": [{"text": "b", "delay_ms": 3_600_000}, {"text": "c", "delay_ms": None}]}, 201
    )
    ids = (one["id"], many["results"][0]["id"])
    assert [(await web.get(f"/topics/t/messages/{name}"))["state"] for name in ids] == ["delayed"] * 2
    moved = await web.patch(f"/topics/t/messages/{one['id']}", {"delay_ms": 0})
    assert moved["offset"] < many["results"][0]["id"]


DEBOUNCED = {"unique_key": "u", "on_conflict": "debounce"}
THROTTLED = {"unique_key": "u", "on_conflict": "throttle"}
NO_MESSAGES: list[tuple[dict[str, Any], str]] = [
    ({}, "one of text, value and json"),
    ({"text": "a", "json": 1}, "one of text, value and json"),
    ({"text": 5}, "text"),
    ({"text": None}, "one of text, value and json"),
    ({"value": "%%%"}, "base64"),
    ({"text": "a", "colour": "red"}, "colour"),
    ({"text": "a", "priority": 1}, "priority: topic 't' is a timer topic"),
    ({"text": "a", "priority": 2**31}, "priority"),
    ({"text": "a", "priority": "1"}, "priority"),
    ({"text": "a", "tenant": "acme"}, "tenant: topic 't' is a timer topic"),
    ({"text": "a", "tenant": "a b"}, "tenant"),
    ({"text": "a", "delay": "soon"}, "duration"),
    ({"text": "a", "delay": -1}, "negative"),
    ({"text": "a", "delay": 2_000_000_000}, "a bare number is seconds"),
    ({"text": "a", "delay": "4000d"}, "limits.delay_days"),
    ({"text": "a", "delay_ms": -1}, "delay_ms"),
    ({"text": "a", "delay_ms": 1.5}, "delay_ms"),
    ({"text": "a", "delay_ms": 5, "delay": "1s"}, "one of them"),
    ({"text": "a", "delay_ms": 5, "deliver_at": "2030-01-01T00:00:00Z"}, "one of them"),
    ({"text": "a", "deliver_at": 1900000000000000}, "looks like microseconds"),
    ({"text": "a", "deliver_at": 1900000000}, "looks like seconds"),
    ({"text": "a", "deliver_at": "tomorrow"}, "RFC 3339"),
    ({"text": "a", "deliver_at": 1.5}, "deliver_at"),
    ({"text": "a", "deliver_at": "2030-01-01T00:00:00Z", "delay": "1s"}, "one of them"),
    ({"text": "a", "ttl": 0}, "ttl"),
    ({"text": "a", "key": "k", "key_base64": "aw=="}, "one of them"),
    ({"text": "a", "key": "k" * 70_000}, "key"),
    ({"text": "a", "headers": {"a": [1]}}, "headers"),
    ({"text": "a", "headers": {"a": "x" * 70_000}}, "headers"),
    ({"text": "a", "headers": {"a": {"base64": "%"}}}, "base64"),
    ({"text": "a", "on_conflict": "replace"}, "unique_key"),
    ({"text": "a", "on_conflict": "perhaps"}, "on_conflict"),
    ({"text": "a", "on_conflict": "debounce"}, "on_conflict: it needs a unique_key"),
    ({"text": "a", "unique_key": "u", "max_wait": "1m"}, 'max_wait: it needs on_conflict="debounce"'),
    ({"text": "a", **DEBOUNCED, "max_wait": -1}, "it must not be negative"),
    ({"text": "a", **DEBOUNCED, "max_wait": 0}, "max_wait: it must be greater than 0"),
    ({"text": "a", **DEBOUNCED, "max_wait": "3661d"}, "max_wait: 3661d is more than 3660 days"),
    ({"text": "a", **DEBOUNCED, "max_wait": 4, "delay": 5}, "max_wait: 4s is less than the delay of 5s"),
    ({"text": "a", **THROTTLED}, 'window: on_conflict="throttle" needs one'),
    ({"text": "a", "unique_key": "u", "window": "1m"}, 'window: it needs on_conflict="throttle"'),
    ({"text": "a", **THROTTLED, "window": "8d"}, "window: 8d is more than 7 days"),
    ({"text": "a", **THROTTLED, "window": 5, "edge": "trailing"}, 'use on_conflict="debounce"'),
    ({"text": "a", **THROTTLED, "window": 5, "edge": "both", "delay": 5}, "give no deliver_at or delay"),
    ({"text": "a\ud800"}, "surrogate"),
    ({"text": "a", "key": "\udc00"}, "surrogate"),
    ({"text": "a", "headers": {"\ud800": 1}}, "surrogate"),
]


async def test_invalid_messages_are_rejected(web: Web) -> None:
    await topic(web)
    for body, words in NO_MESSAGES:
        for path, sent in (
            ("/topics/t", body),
            ("/topics/t/0", body),
            ("/topics/t", {"messages": [{"text": "fine"}, body]}),
        ):
            # Encode as ASCII, because a lone surrogate can only be written that way.
            response = await web.raw("POST", path, content=json.dumps(sent))
            assert response.status_code in (400, 413) and words in response.json()["detail"], response.text
        assert (await web.get("/topics/t/messages"))["messages"] == [], "nothing half done"


async def test_too_much(web: Web) -> None:
    await topic(web)
    assert (await web.post("/topics/t", {"text": "x" * 2_100_000}, 413))["code"] == "TOO_LARGE"
    found = await web.post("/topics/t", {"messages": [{"text": ""}] * 10_001}, 400)
    assert "10000" in found["detail"] and len(found["detail"]) < 1000
    assert (await web.post("/topics/t", {"messages": []}, 400))["code"] == "INVALID"


async def test_missing_topics_partitions_and_messages_are_errors(web: Web) -> None:
    await topic(web, partitions=2)
    assert (await web.post("/topics/nope", {"text": "a"}, 404))["code"] == "UNKNOWN_TOPIC"
    assert (await web.post("/topics/t/2", {"text": "a"}, 404))["code"] == "UNKNOWN_PARTITION"
    for path in ("/topics/t/x", "/topics/t/-1", "/nope"):
        assert (await web.post(path, {"text": "a"}, 404))["code"] == "NO_ROUTE"
    assert (await web.get("/topics/t/messages/01M7XVGS5F000000000G000000", 404))["code"] == "NOT_FOUND"
    assert (await web.get("/topics/t/messages/nonsense", 400))["code"] == "INVALID"
    assert (await web.get("/topics/t/messages/none", 404, by="unique_key"))["code"] == "NOT_FOUND"
    assert (await web.get("/topics/t/9", 404))["code"] == "UNKNOWN_PARTITION"


async def test_cancel_and_move(web: Web) -> None:
    await topic(web, settings={"retention": "1h"})
    one = await web.post("/topics/t", {"text": "1", "delay": "1h"})
    two = await web.post("/topics/t", {"text": "2", "delay": "1h", "unique_key": "two"})
    assert await web.delete(f"/topics/t/messages/{one['id']}") == {"id": one["id"]}
    moved = await web.patch("/topics/t/messages/two?by=unique_key", {"delay": 0})
    assert moved["id"] == two["id"] and moved["offset"] < two["offset"]
    assert [message["text"] for message in await taken(web)] == ["2"]
    late = await web.delete(f"/topics/t/messages/{two['id']}", 409)
    assert (late["code"], late["state"]) == ("TOO_LATE", "acked")
    assert (await web.patch(f"/topics/t/messages/{two['id']}", {}, 400))["code"] == "INVALID"
    both = {"delay": 1, "deliver_at": "2030-01-01T00:00:00Z"}
    assert (await web.patch(f"/topics/t/messages/{two['id']}", both, 400))["code"] == "INVALID"


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"by": "unique_key", "tenant": "acme"}, "tenant: topic 't' is a timer topic; only fair topics have tenants"),
        ({"by": "unique_key", "tenant": "a b"}, "tenant: 'a b' is not allowed"),
        ({"tenant": "acme"}, "tenant: it belongs to unique_key"),
        ({"key": "k"}, "key: it belongs to unique_key"),
        ({"by": "unique_key", "key": "k", "tenant": "acme"}, "key and tenant: one of them"),
    ],
)
async def test_tenant_parameter_is_checked_for_unique_keys(web: Web, query: dict[str, str], words: str) -> None:
    await topic(web)
    await web.post("/topics/t", {"text": "a", "unique_key": "k", "delay": "1h"})
    for method, path in (("GET", ""), ("GET", "/why"), ("DELETE", ""), ("PATCH", "")):
        content = json.dumps({"delay": "2h"}) if method == "PATCH" else None
        response = await web.raw(method, f"/topics/t/messages/k{path}", params=query, content=content)
        assert response.status_code == 400 and words in response.json()["detail"], response.text
    assert (await web.get("/topics/t/messages/k", by="unique_key"))["state"] == "delayed"


async def test_message_with_a_key_is_named_by_both(web: Web) -> None:
    await topic(web, partitions=3)
    body = {"unique_key": "i/1", "delay": "1h"}
    ada = await web.post("/topics/t", {"text": "ada", "key": "ada/x", **body}, 201)
    bob = await web.post("/topics/t", {"text": "bob", "key_base64": "/wA=", **body}, 201)
    taken = await web.post("/topics/t", {"text": "ada", "key": "ada/x", **body}, 409)
    assert (taken["code"], taken["id"]) == ("DUPLICATE_KEY", ada["id"])
    for stored, name, named in (
        (ada, "i%2F1", {"by": "unique_key", "key": "ada/x"}),
        (bob, "aS8x", {"by": "unique_key", "key": "_wA", "encoding": "base64"}),
    ):
        at = f"/topics/t/messages/{name}"
        assert (await web.get(at, **named))["id"] == stored["id"]
        assert (await web.get(f"{at}/why", **named))["id"] == stored["id"]
        changed = await web.ask("PATCH", at, {"text": "new", "delay": "2h"}, 200, params=named)
        assert changed["id"] == stored["id"]
        assert (await web.delete(at, **named))["id"] == stored["id"]
        missing = await web.get(at, 404, by="unique_key", **({"encoding": "base64"} if "encoding" in named else {}))
        assert "a message with a key is named by its key and its unique key" in missing["detail"]


async def test_why_explains_the_state_of_a_message(web: Web) -> None:
    await topic(web)
    stored = await web.post("/topics/t", {"text": "1"})
    await web.post("/topics/t/groups/g/lease", {})
    told = await web.get(f"/topics/t/messages/{stored['id']}/why")
    assert (told["state"], told["groups"][0]["state"]) == ("leased", "leased")
    assert told["groups"][0]["reason"]


async def test_many_at_once_are_cancelled_and_moved(web: Web) -> None:
    await topic(web, partitions=2)
    messages = [{"text": str(n), "key": f"k{n % 2}", "delay": "1h"} for n in range(20)]
    await web.post("/topics/t", {"messages": [*messages, {"text": "u", "unique_key": "order-1", "delay": "1h"}]})
    assert len((await web.get("/topics/t/messages", unique_key_prefix="order-"))["messages"]) == 1
    assert (await web.patch("/topics/t/messages", {"shift": "1h", "unique_key_prefix": "order-"}))["done"] == 1
    assert (await web.delete("/topics/t/messages", unique_key_prefix="order-"))["done"] == 1
    assert "all=true" in (await web.delete("/topics/t/messages", 400))["detail"]
    assert (await web.delete("/topics/t/messages", dry_run=True))["matched"] == 20
    assert (await web.delete("/topics/t/messages", key_prefix="k0"))["done"] == 10
    assert (await web.patch("/topics/t/messages", {"shift": "-1h", "key_prefix": "k1"}))["done"] == 10
    assert len(await taken(web)) == 10
    assert (await web.delete("/topics/t/messages", all=True))["done"] == 0
    for body in ({}, {"to": "x"}, {"shift": "1h", "to": "2030-01-01T00:00:00Z"}, {"shift": "soon"}, {"all": 1}):
        await web.patch("/topics/t/messages", body, 400)


ODD_KEYS = ["order-17/mail", "order-17/why", "a/", "/", "%2F", "a%2Fb", "50%", "a?b#c", "é/ü", "k\n", "why"]


async def test_a_unique_key_with_a_slash_names_one_message(web: Web) -> None:
    await topic(web)
    await web.post("/topics/t", {"text": "other", "delay": "1h", "unique_key": "order-17"})
    for key in ODD_KEYS:
        await web.post("/topics/t", {"text": key, "delay": "1h", "unique_key": key})
    for key in ODD_KEYS:
        encoded = base64.urlsafe_b64encode(key.encode()).decode().rstrip("=")
        for name, how in ((quote(key, safe=""), {}), (encoded, {"encoding": "base64"})):
            at, by = f"/topics/t/messages/{name}", {"by": "unique_key", **how}
            assert (await web.get(at, **by))["text"] == key
            assert (await web.get(f"{at}/why", **by))["groups"] == []
            changed = await web.ask("PATCH", at, {"text": key, "delay": "2h"}, 200, params=by)
            assert changed["id"] == (await web.get(at, **by))["id"]
        assert (await web.delete(f"/topics/t/messages/{quote(key, safe='')}", by="unique_key"))["id"] == changed["id"]
    left = (await web.get("/topics/t/messages", values=True))["messages"]
    assert [message["text"] for message in left] == ["other"]


async def test_a_unique_key_that_is_no_text_is_named_in_base64(web: Web) -> None:
    await topic(web)
    stored = await web.post("/topics/t", {"text": "a", "delay": "1h", "unique_key_base64": "/wA="})
    for name in ("_wA", "_wA="):
        found = await web.get(f"/topics/t/messages/{name}", by="unique_key", encoding="base64")
        assert (found["id"], found["unique_key_base64"]) == (stored["id"], "/wA=")
    wrong: list[tuple[str, dict[str, str], str]] = [
        ("%FF%00", {"by": "unique_key"}, "encoding=base64"),
        ("50%", {"by": "unique_key"}, "%25"),
        ("+wA", {"by": "unique_key", "encoding": "base64"}, "is not base64url"),
        ("_wA", {"by": "unique_key", "encoding": "base64", "key": "%"}, "key: '%' is not base64url"),
        (stored["id"], {"encoding": "base64"}, "by=unique_key"),
    ]
    for name, params, words in wrong:
        assert words in (await web.get(f"/topics/t/messages/{name}", 400, **params))["detail"], name


async def test_bulk_changes_without_a_filter_are_refused(web: Web) -> None:
    await topic(web)
    await web.post("/topics/t", {"messages": [{"text": str(n), "key": "k", "delay": "1h"} for n in range(3)]})
    for name in ("since", "until", "key_prefix", "unique_key_prefix"):
        words = name if name.endswith("prefix") else "'' is not an instant"
        assert words in (await web.delete("/topics/t/messages", 400, **{name: ""}))["detail"], name
        assert name in (await web.patch("/topics/t/messages", {name: "", "shift": "1h"}, 400))["detail"], name
    for body in ({"shift": "1h"}, {"shift": "1h", "key_prefix": None}):
        assert "all=true" in (await web.patch("/topics/t/messages", body, 400))["detail"]
    both = {"all": True, "key_prefix": "k"}
    assert "all: it excludes key_prefix" in (await web.delete("/topics/t/messages", 400, **both))["detail"]
    assert "all: it excludes" in (await web.patch("/topics/t/messages", {**both, "shift": "1h"}, 400))["detail"]
    assert (await web.patch("/topics/t/messages", {"shift": "1h", "dry_run": True}))["matched"] == 3
    assert (await web.patch("/topics/t/messages", {"shift": "1h", "all": True}))["done"] == 3
    for act in ("redrive", "purge"):
        path = f"/topics/t/groups/g/dead/{act}"
        for empty in (None, {}, {"reason": None}):
            assert "all=true" in (await web.post(path, empty, 400))["detail"]
        for name in ("error", "key_prefix", "since", "until"):
            assert name in (await web.post(path, {name: ""}, 400))["detail"], name
        assert "all: it excludes reason" in (await web.post(path, {"all": True, "reason": "nacked"}, 400))["detail"]
        assert "ids: they exclude all" in (await web.post(path, {"all": True, "ids": ["x"]}, 400))["detail"]


async def test_pages_have_every_message_once(web: Web) -> None:
    """Partitions also have offsets with the same time and index."""
    await topic(web, partitions=3)
    at = "2031-01-01T00:00:00Z"
    for partition in range(3):
        messages = [{"text": f"{partition}.{n}", "deliver_at": at} for n in range(20)]
        await web.post(f"/topics/t/{partition}", {"messages": messages})
    seen: list[str] = []
    after: dict[str, str] = {}
    for _ in range(30):
        page = await web.get("/topics/t/messages", limit=7, values=True, state="delayed", **after)
        seen += [message["text"] for message in page["messages"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert len(seen) == 60 and len(set(seen)) == 60
    newest: list[str] = []
    after = {}
    for _ in range(30):
        page = await web.get("/topics/t/messages", limit=7, values=True, order="newest", **after)
        newest += [message["text"] for message in page["messages"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert newest == seen[::-1]
    lines = await web.raw("GET", "/topics/t/messages", headers={"accept": "application/x-ndjson"})
    assert lines.headers["content-type"] == "application/x-ndjson"
    assert len({json.loads(line)["id"] for line in lines.text.splitlines()}) == 60


async def test_values_of_a_list_are_cut_between_characters(web: Web) -> None:
    await topic(web, partitions=1)
    for sent in ({"text": "Grüße"}, {"json": {"a": "ß" * 100}}, {"value": "/wD/"}, {"text": "ab"}):
        await web.post("/topics/t", {**sent, "deliver_at": "2031-01-01T00:00:00Z"})
    page = await web.get("/topics/t/messages", value_bytes=3)
    shown = [(one.get("text"), one.get("value"), one["size"]) for one in page["messages"]]
    assert shown == [("Gr", None, 7), ('{"a', None, 208), (None, "/wD/", 3), ("ab", None, 2)]
    page = await web.get("/topics/t/messages", value_bytes=4)
    assert page["messages"][0]["text"] == "Grü" and "json" not in page["messages"][1]
    for wrong in ("0", "65537", "x"):
        assert "value_bytes" in str(await web.get("/topics/t/messages", 400, value_bytes=wrong))
    assert "order" in str(await web.get("/topics/t/messages", 400, order="up"))


async def test_invalid_list_parameters_are_rejected(web: Web) -> None:
    await topic(web)
    wrong: list[dict[str, object]] = [
        {"state": "dead"},
        {"limit": 0},
        {"limit": 1001},
        {"limit": "x"},
        {"since": "x"},
        {"after": "x"},
        {"page": 2},
    ]
    for params in wrong:
        await web.get("/topics/t/messages", 400, **params)
        response = await web.raw("GET", "/topics/t/messages", params=params, headers={"accept": "application/x-ndjson"})
        assert response.status_code == 400 and response.headers["content-type"] == "application/problem+json"


async def test_a_partitions_log(web: Web) -> None:
    await topic(web, settings={"delete_on_ack": False})
    await web.post("/topics/t", {"messages": [{"text": str(n)} for n in range(250)]})
    seen: list[str] = []
    start: dict[str, str] = {}
    for _ in range(9):
        page = await web.get("/topics/t/0", **start)
        seen += [message["text"] for message in page["messages"]]
        if page["next"] is None:
            break
        start = {"start": page["next"]}
    assert seen == [str(n) for n in range(250)]
    lines = await web.raw("GET", "/topics/t/0?limit=3", headers={"accept": "application/x-ndjson"})
    assert [json.loads(line)["text"] for line in lines.text.splitlines()] == ["0", "1", "2"]


async def test_listing_dead_messages_points_to_dead_letters(web: Web) -> None:
    await topic(web)
    found = await web.get("/topics/t/messages", 400, state="dead")
    assert "GET /topics/TOPIC/groups/GROUP/dead" in found["detail"]
