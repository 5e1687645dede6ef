"""Schedules over HTTP."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote

import pytest

from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.http_requests import Web

SCHEDULES = "/topics/t/schedules"
DAILY = {"name": "daily", "text": "report", "cron": "0 9 * * *", "zone": "Europe/Berlin"}


@pytest.fixture
async def timers(web: Web) -> Web:
    """HTTP client of a node with a timer topic "t" of three partitions."""
    await web.post("/topics", {"name": "t", "partitions": 3}, 201)
    return web


def at(name: str, tail: str = "") -> str:
    return f"{SCHEDULES}/{quote(name, safe='')}{tail}"


async def test_a_schedule_is_made_shown_changed_and_deleted(timers: Web) -> None:
    made = await timers.post(SCHEDULES, {**DAILY, "jitter": "5m", "headers": {"b": {"base64": "/w=="}}}, 201)
    assert {name: made[name] for name in ("name", "text", "cron", "zone", "jitter", "misfire", "state")} == {
        **DAILY, "jitter": "5m", "misfire": "one", "state": "active"
    }  # fmt: skip
    assert made["next_local"][10:19] == "T09:00:00" and made["next_at"] <= made["fire_at"] and made["next_id"]
    assert made["headers"] == {"b": {"base64": "/w=="}} and made["history"] == [] and made["fired"] == 0
    assert await timers.get(at("daily")) == made
    assert await timers.post(SCHEDULES, {**DAILY, "jitter": "5m", "headers": {"b": {"base64": "/w=="}}}, 201) == made
    assert (await timers.post(SCHEDULES, DAILY, 409))["code"] == "CONFLICT"
    changed = await timers.patch(at("daily"), {"text": "x", "jitter": None, "headers": None, "count": 2})
    assert changed["text"] == "x" and "jitter" not in changed and "headers" not in changed and changed["count"] == 2
    assert changed["version"] != made["version"] and changed["next_at"] == changed["fire_at"] == made["next_at"]
    every = await timers.patch(at("daily"), {"every": "1h"})
    assert every["every"] == "1h" and "cron" not in every and "zone" not in every
    await timers.delete(at("daily"), 204)
    assert (await timers.get(at("daily"), 404))["code"] == "NOT_FOUND"
    for method, tail, body in (("PATCH", "", {"count": 1}), ("DELETE", "", None), ("POST", "/pause", None)):
        assert (await timers.ask(method, at("daily", tail), body, 404))["code"] == "NOT_FOUND"


async def test_shown_schedule_can_be_created_again(timers: Web) -> None:
    body = {**DAILY, "misfire": "all", "misfire_most": 3, "overlap_group": "g", "start": "2040-01-01T00:00:00Z"}
    made = await timers.post(SCHEDULES, {**body, "key": "k", "ttl": "1h", "paused": True}, 201)
    await timers.delete(at("daily"), 204)
    again = await timers.post(SCHEDULES, made, 201)
    told = {name for name in made if name not in ("version", "created_at", "changed_at")}
    assert {name: again[name] for name in told} == {name: made[name] for name in told}


@pytest.mark.parametrize("name", ["a/b", "a/next", "%2F", "übersicht 1", "preview", "a?b#c", "pause"])
async def test_names_of_any_printable_text(timers: Web, name: str) -> None:
    await timers.post(SCHEDULES, {"name": name, "text": "", "every": "1h"}, 201)
    assert (await timers.get(at(name)))["name"] == name
    assert len((await timers.get(at(name, "/next"), count=2))["next"]) == 2
    await timers.post(at(name, "/pause"), None, 204)
    assert (await timers.get(at(name)))["state"] == "paused"
    assert (await timers.get(at(name, "/next")))["next"] == []
    await timers.delete(at(name), 204)


async def test_slashes_that_are_not_encoded_name_no_schedule(timers: Web) -> None:
    await timers.post(SCHEDULES, {"name": "a/b", "text": "", "every": "1h"}, 201)
    assert (await timers.get(f"{SCHEDULES}/a/b", 404))["code"] == "NO_ROUTE"
    for path in (f"{SCHEDULES}/%FF", f"{SCHEDULES}/%0A", f"{SCHEDULES}/{'x' * 256}"):
        assert (await timers.get(path, 400))["code"] == "INVALID", path


async def test_schedules_are_listed_in_pages_and_as_json_lines(timers: Web) -> None:
    many = [{"name": f"n{number}", "text": f"{number}", "every": "1h"} for number in range(8)]
    assert await timers.post(SCHEDULES, {"schedules": many}, 201) == {"created": 8, "changed": 0, "unchanged": 0}
    many[0]["every"] = "2h"
    assert await timers.post(SCHEDULES, {"schedules": many}, 201) == {"created": 0, "changed": 1, "unchanged": 7}
    names, after = list[str](), None
    while True:
        more = {} if after is None else {"after": after}
        page = await timers.get(SCHEDULES, limit=3, prefix="n", values=True, **more)
        names += [row["name"] for row in page["schedules"]]
        assert all([row["text"] == row["name"][1:] for row in page["schedules"]])
        after = page["next"]
        if after is None:
            break
    assert names == [one["name"] for one in many]
    assert "text" not in (await timers.get(SCHEDULES, limit=1))["schedules"][0]
    answer = await timers.raw("GET", SCHEDULES, headers={"Accept": "application/x-ndjson"})
    assert [json.loads(line)["name"] for line in answer.text.splitlines()] == names
    assert (await timers.get(SCHEDULES, prefix="m")) == {"schedules": [], "next": None}


async def test_many_in_a_body_of_more_than_a_megabyte(timers: Web) -> None:
    many = [{"name": f"n{number}", "text": "x" * (200 << 10), "every": "1h"} for number in range(9)]
    assert (await timers.post(SCHEDULES, {"schedules": many}, 201))["created"] == 9
    await timers.patch(at("n0"), {"text": "\x01" * (250 << 10)})


async def test_tenants_have_names_of_their_own(web: Web) -> None:
    await web.post("/topics", {"name": "t", "kind": "fair"}, 201)
    for tenant in ("acme", "beta", None):
        body = {"name": "daily", "text": str(tenant), "every": "1h"} | ({"tenant": tenant} if tenant else {})
        await web.post(SCHEDULES, body, 201)
    assert (await web.get(at("daily"), tenant="beta"))["text"] == "beta"
    assert (await web.get(at("daily"), tenant="default"))["text"] == "None"
    assert (await web.get(at("daily"), tenant="gamma", status=404))["code"] == "NOT_FOUND"
    first = await web.get(SCHEDULES, limit=2)
    rest = await web.get(SCHEDULES, after=first["next"])
    assert [row.get("tenant") for row in first["schedules"] + rest["schedules"]] == [None, "acme", "beta"]
    assert [row["tenant"] for row in (await web.get(SCHEDULES, tenant="beta"))["schedules"]] == ["beta"]
    await web.delete(at("daily"), 204, tenant="acme")
    assert len((await web.get(SCHEDULES))["schedules"]) == 2


async def test_triggers_and_occurrences(timers: Web, hand: HandClock) -> None:
    await timers.post(SCHEDULES, {"name": "a", "json": {"x": 1}, "every": "1h", "count": 2}, 201)
    sent = (await timers.post(at("a", "/trigger")))["id"]
    (message,) = (await timers.post("/topics/t/groups/g/lease", {"ack": True, "wait": "1m"}))["messages"]
    assert message["id"] == sent and message["json"] == {"x": 1} and message["headers"]["sandq-schedule"] == "a"
    (event,) = (await timers.get(at("a")))["history"]
    assert (event["outcome"], event["id"]) == ("triggered", sent)


async def test_previews(timers: Web) -> None:
    asked = {"cron": "30 2 * * *", "zone": "Europe/Berlin", "after": "2026-03-28T12:00:00Z", "count": 2}
    found = (await timers.post("/schedules/preview", asked))["next"]
    assert [one["local"] for one in found] == ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]
    assert found[0]["occurrence_at"] == found[0]["fire_at"] == "2026-03-29T01:00:00.000Z"
    assert (await timers.get(SCHEDULES))["schedules"] == []


WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "body"),
    ({"name": "a", "text": ""}, "either cron or every"),
    ({"name": "a", "text": "", "cron": "* * *"}, "five fields"),
    ({"name": "a", "text": "", "cron": "0 0 31 2 *"}, "never happens"),
    ({"name": "a", "text": "", "cron": "@daily", "zone": "Europe/Berlim"}, "did you mean"),
    ({"name": "a", "text": "", "cron": "\ud800"}, "surrogate"),
    ({"name": "\ud800", "text": "", "every": "1h"}, "name"),
    ({"name": "", "text": "", "every": "1h"}, "1..255"),
    ({"name": "a", "every": "1h"}, "one of text, value and json"),
    ({"name": "a", "value": None, "every": "1h"}, "null is not allowed"),
    ({"name": "a", "text": "", "every": "1h", "misfire": "perhaps"}, "misfire"),
    ({"name": "a", "text": "", "every": "1h", "misfire_most": 3}, "misfire_most"),
    ({"name": "a", "text": "", "every": "1h", "count": 0}, "count"),
    ({"name": "a", "text": "", "every": "1h", "tenant": "acme"}, "tenant"),
    ({"name": "a", "text": "", "every": "1h", "priority": 3}, "priority"),
    ({"name": "a", "text": "", "every": "1h", "overlap_group": "a b"}, "group name"),
    ({"name": "a", "text": "", "every": "1h", "unique_key": "k"}, "unique_key"),
    ({"name": "a", "text": "x" * (257 << 10), "every": "1h"}, "send a reference"),
    ({"schedules": []}, "schedules"),
    ({"schedules": [{"name": "a", "text": "", "every": "1h"}] * 2}, "twice"),
]


async def test_invalid_schedules_and_changes_are_rejected(timers: Web) -> None:
    for body, words in WRONG:
        response = await timers.raw("POST", SCHEDULES, content=json.dumps(body))
        assert response.status_code in (400, 413, 422), (body, response.text)
        assert words in response.text, (str(body)[:200], response.text)
    assert (await timers.get(SCHEDULES))["schedules"] == []
    await timers.post(SCHEDULES, DAILY, 201)
    for changes in ({}, {"value": None}, {"name": "b"}, {"cron": None}, {"every": "0s"}):
        await timers.patch(at("daily"), changes, 400)


async def test_a_compacted_topic_has_none(keys: Web) -> None:
    for method, path, body in (
        ("POST", SCHEDULES, DAILY),
        ("GET", SCHEDULES, None),
        ("GET", at("daily"), None),
        ("POST", at("daily", "/trigger"), None),
    ):
        assert "compacted" in (await keys.ask(method, path, body, 400))["detail"], path
    assert (await keys.get("/topics/none/schedules", 404))["code"] == "UNKNOWN_TOPIC"
