"""All errors have one form: `errors` lists every mistake with its position and the expected value."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.nodes.http_requests import Web


def places(found: dict[str, Any]) -> dict[str, str | None]:
    assert all(error.keys() == {"where", "problem", "did_you_mean"} and error["problem"] for error in found["errors"])
    assert len({error["where"] for error in found["errors"]}) == len(found["errors"])
    return {error["where"]: error["did_you_mean"] for error in found["errors"]}


async def refused(web: Web, method: str, path: str, body: object) -> dict[str, Any]:
    response = await web.raw(method, path, json=body)
    assert response.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = response.json()
    assert 400 <= response.status_code == found["status"] and found["detail"] and found["code"]
    assert "mistakes" not in found
    return found


async def test_topic_errors_are_reported_together(web: Web) -> None:
    body = {
        "name": "a b",
        "kind": "timr",
        "partitions": 0,
        "replcas": 2,
    }
    found = await refused(web, "POST", "/topics?dry_run=1", {**body, "settings": {}})
    assert (found["code"], places(found)) == (
        "INVALID",
        {
            "query.dry_run": None,
            "body.kind": "timer",
            "body.partitions": None,
            "body.replcas": "replicas",
            "body.name": None,
        },
    )
    found = await refused(web, "POST", "/topics", {**body, "kind": "fair", "settings": {"leese": 1, "ttl": "long"}})
    assert places(found) == {
        "body.name": None,
        "body.partitions": None,
        "body.replcas": "replicas",
        "body.settings.leese": "lease",
        "body.settings.ttl": None,
    }


async def test_errors_of_acks_with_messages_name_the_field(web: Web) -> None:
    await web.post("/topics", {"name": "t"}, 201)
    for body, wrong in (
        ({"lease_token": "1.0.5", "ofset": "x"}, {"body.ofset": "offset"}),
        ({"lease_token": "1.0.5", "then": [{"tex": "a"}]}, {"body.then.0.tex": "text"}),
    ):
        assert places(await refused(web, "POST", "/topics/t/groups/g/ack", body)) == wrong


async def test_settings_are_reported_one_by_one(web: Web) -> None:
    wrong = {"settings": {"leese": "1m", "max_attempts": 0, "backoff": {"knd": "fixed"}}}
    await web.post("/topics", {"name": "t"}, 201)
    for method, path, body in (("POST", "/topics", {"name": "u", **wrong}), ("PATCH", "/topics/t", wrong)):
        found = await refused(web, method, path, body)
        assert (found["code"], places(found)) == (
            "INVALID_SETTING",
            {
                "body.settings.leese": "lease",
                "body.settings.max_attempts": None,
                "body.settings.backoff.knd": "kind",
            },
        )


async def test_message_errors_are_reported_together(web: Web) -> None:
    await web.post("/topics", {"name": "t"}, 201)
    wrong = {"text": "a", "json": 1, "delya": 1, "delay": "soon", "ttl": -1, "key": "k", "key_base64": "aw=="}
    found = await refused(web, "POST", "/topics/t", wrong)
    assert (found["code"], places(found)) == (
        "INVALID",
        {"body.delya": "delay", "body.delay": None, "body.ttl": None, "body.value": None, "body.key": None},
    )
    found = await refused(web, "POST", "/topics/t", {"text": "a", "delay": "soon", "deliver_at": 17})
    assert (found["code"], places(found).keys()) == (
        "INVALID_TIME",
        {"body.delay", "body.deliver_at"}
        | {"body.delay" for error in found["errors"] if "one of them" in error["problem"]},
    )
    found = await refused(web, "POST", "/topics/t", {"text": "a", "headers": {"h": {"base64": "%"}}, "value": "%"})
    assert places(found).keys() == {"body.headers.h", "request"}
    found = await refused(web, "POST", "/topics/t", {"messages": [{"text": "a"}, {"text": "a", "ttl": 0}]})
    assert places(found) == {"body.messages.1.ttl": None}


async def test_other_errors_list_one_mistake(web: Web) -> None:
    await web.post("/topics", {"name": "t"}, 201)
    for method, path, body, where in (
        ("GET", "/topics/none", None, "path.topic"),
        ("GET", "/topics/t/groups/none", None, "path.group"),
        ("POST", "/topics/t/9", {"text": "a"}, "path.partition"),
        ("GET", "/nowhere", None, "request"),
        ("PUT", "/topics", None, "request"),
        ("POST", "/topics", {"name": "t"}, "request"),
        ("GET", "/topics/t/messages?limt=5", None, "query.limt"),
    ):
        found = await refused(web, method, path, body)
        assert [error["where"] for error in found["errors"]] == [where], path
    assert found["errors"][0]["did_you_mean"] == "limit"
    response = await web.raw("POST", "/topics/t", content=b"{")
    assert places(response.json()).keys() == {"body.1"}


async def test_reply_lists_at_most_twenty_mistakes(web: Web) -> None:
    await web.post("/topics", {"name": "t"})
    found = await refused(web, "POST", "/topics/t", {"text": "x"} | {f"delai{number}": 1 for number in range(9000)})
    assert len(found["errors"]) == 20


async def test_lone_surrogate_in_filter_is_rejected(web: Web) -> None:
    await web.post("/topics", {"name": "t"})
    await web.post("/topics/t/groups/g/lease", {})
    for what in ("redrive", "purge"):
        response = await web.raw("POST", f"/topics/t/groups/g/dead/{what}", content=b'{"error": "\\ud800"}')
        assert response.status_code == 400 and "UTF-8" in response.text


@pytest.mark.parametrize("name", ["Problem", "Mistake"])
async def test_openapi_has_the_shape(web: Web, name: str) -> None:
    schema = (await web.get("/openapi.json"))["components"]["schemas"][name]
    wanted = {"Problem": {"errors", "code", "detail"}, "Mistake": {"where", "problem", "did_you_mean"}}[name]
    assert wanted <= set(schema["required"])
