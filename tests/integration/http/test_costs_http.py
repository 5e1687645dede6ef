"""Costs of messages and rates with a unit, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.http.test_messages import topic
from tests.support.nodes.http_requests import Web


async def test_messages_have_costs(web: Web) -> None:
    await topic(web)
    one = await web.post("/topics/t", {"text": "one", "cost": 1200})
    many = await web.post("/topics/t", {"messages": [{"text": "two", "cost": 1}, {"text": "three", "cost": 5}]})
    assert (await web.get(f"/topics/t/messages/{one['id']}"))["cost"] == 1200
    costs = [await web.get(f"/topics/t/messages/{message['id']}/why") for message in many["results"]]
    assert [found.get("cost") for found in costs] == [None, 5]
    await web.post("/topics/t/schedules", {"name": "s", "text": "m", "every": "1h", "cost": 7})
    assert (await web.get("/topics/t/schedules/s"))["cost"] == 7


@pytest.mark.parametrize("cost", [0, 10**9 + 1, "many", 1.5, True])
async def test_wrong_cost_is_refused(web: Web, cost: Any) -> None:
    await topic(web)
    refused = await web.post("/topics/t", {"text": "m", "cost": cost}, 400)
    assert "cost" in refused["detail"]


async def test_group_has_a_rate_with_a_unit(web: Web) -> None:
    await topic(web)
    await web.post("/topics/t", {"text": "a", "cost": 5})
    await web.ask("PUT", "/topics/t/groups/g/limits", {"rate": "90000/m", "unit": "tokens"}, 204)
    (message,) = (await web.post("/topics/t/groups/g/lease", {"max": 5}))["messages"]
    found = await web.get("/topics/t/groups/g")
    limits = found["limits"]
    assert message["text"] == "a" and (limits["unit"], limits["burst"]) == ("tokens", 1500)
    refused = await web.ask("PUT", "/topics/t/groups/g/limits", {"unit": "tokens"}, 400)
    assert "unit: it goes with a rate only" in refused["detail"]
