"""Messages with their own number of attempts and their own back-off, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.http.test_messages import topic
from tests.support.nodes.http_requests import Web

HOURLY = {"kind": "fixed", "first": "1h", "cap": "1h"}
SHOWN = {"kind": "fixed", "first": "1h", "factor": 2, "cap": "1h", "jitter_percent": 20}


async def test_messages_have_their_own_rules(web: Web) -> None:
    await topic(web)
    one = await web.post("/topics/t", {"text": "one", "max_attempts": 20, "backoff": HOURLY})
    many = await web.post(
        "/topics/t", {"messages": [{"text": "two", "max_attempts": "none"}, {"text": "three", "backoff": {}}]}
    )
    found = await web.get(f"/topics/t/messages/{one['id']}")
    assert (found["max_attempts"], found["backoff"]) == (20, SHOWN)
    rules = [await web.get(f"/topics/t/messages/{message['id']}/why") for message in many["results"]]
    assert [(one.get("max_attempts"), one.get("backoff")) for one in rules] == [
        ("none", None),
        (None, {"kind": "exponential", "first": "1s", "factor": 2, "cap": "10m", "jitter_percent": 20}),
    ]
    assert [one.get("max_attempts") for one in (await web.get("/topics/t/messages"))["messages"]] == [20, "none", None]


async def test_message_dies_after_its_own_attempts(web: Web) -> None:
    await topic(web)
    await web.post("/topics/t", {"text": "m", "max_attempts": 1})
    (message,) = (await web.post("/topics/t/groups/g/lease", {"max": 5}))["messages"]
    await web.post("/topics/t/groups/g/nack", {"messages": [{"lease_token": message["lease_token"]}]})
    (letter,) = (await web.get("/topics/t/groups/g/dead"))["messages"]
    assert (letter["attempts"], letter["max_attempts"]) == (1, 1)


async def test_messages_of_a_schedule_have_their_own_rules(web: Web) -> None:
    await topic(web)
    body = {"name": "s", "text": "m", "every": "1h", "max_attempts": "none", "backoff": HOURLY}
    await web.post("/topics/t/schedules", body)
    found = await web.get("/topics/t/schedules/s")
    assert (found["max_attempts"], found["backoff"]) == ("none", SHOWN)
    await web.patch("/topics/t/schedules/s", {"max_attempts": 3, "backoff": None})
    found = await web.get("/topics/t/schedules/s")
    assert (found["max_attempts"], found.get("backoff")) == (3, None)


@pytest.mark.parametrize(
    ("body", "where"),
    [
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 1001}, "max_attempts"),
        ({"max_attempts": "many"}, "max_attempts"),
        ({"backoff": {"kind": "slow"}}, "backoff.kind"),
        ({"backoff": {"firts": "1h"}}, "backoff.firts"),
        ({"backoff": {"kind": "fixed", "first": "1h"}}, "backoff.first"),
    ],
)
async def test_wrong_rules_are_refused(web: Web, body: dict[str, Any], where: str) -> None:
    await topic(web)
    refused = await web.post("/topics/t", {"text": "m", **body}, 400)
    assert where in refused["detail"]


async def test_update_does_not_change_rules(web: Web) -> None:
    await topic(web)
    stored = await web.post("/topics/t", {"text": "m", "max_attempts": 3})
    refused = await web.patch(f"/topics/t/messages/{stored['id']}", {"max_attempts": 4}, 400)
    assert "max_attempts" in refused["detail"]
