"""Named limits over HTTP."""

from __future__ import annotations

from tests.integration.http.test_messages import topic
from tests.support.nodes.http_requests import Web
from tests.support.waiting import until_answer


async def test_named_limit_is_set_used_and_deleted(web: Web) -> None:
    await topic(web)
    assert await web.get("/limits") == {"limits": []}
    await web.ask("PUT", "/limits/llm", {"rate": "90000/m", "unit": "tokens", "max_in_flight": 2}, 204)
    await web.ask("PUT", "/topics/t/groups/g/limits", {"limit": "llm"}, 204)
    await web.post("/topics/t", {"messages": [{"text": "a"}, {"text": "b"}, {"text": "c"}]})
    assert (await web.get("/topics/t"))["group_limits"]["g"]["limit"] == "llm"
    held: list[str] = []
    while len(held) < 2:
        found = await web.post("/topics/t/groups/g/lease", {"max": 5, "wait": "1m"})
        held += [message["text"] for message in found["messages"]]
    assert len(held) == 2
    group = await until_answer(lambda: web.get("/topics/t/groups/g"), lambda group: group["limits"] is not None)
    assert group["limits"]["limit"] == "llm" and group["limits"]["unit"] == "tokens"
    (listed,) = (await web.get("/limits"))["limits"]
    assert (listed["limit"], listed["rate"], listed["burst"], listed["unheard"]) == ("llm", "1500/s", 1500, 0)
    shown = await web.get("/limits/llm")
    assert {(member["topic"], member["group"]) for member in shown["members"]} == {("t", "g")}
    assert (await web.ask("DELETE", "/limits/llm", None, 409))["code"] == "CONFLICT"
    await web.ask("PUT", "/topics/t/groups/g/limits", {}, 204)
    await web.ask("DELETE", "/limits/llm", None, 204)
    await web.get("/limits/llm", 404)


async def test_named_limit_is_paused_by_a_lease_and_by_an_operator(web: Web) -> None:
    await topic(web)
    await web.ask("PUT", "/limits/llm", {"max_in_flight": 2}, 204)
    await web.ask("PUT", "/topics/t/groups/g/limits", {"limit": "llm"}, 204)
    await web.post("/topics/t", {"messages": [{"text": "a"}, {"text": "b"}]})
    found = await web.post("/topics/t/groups/g/lease", {"max": 1, "wait": "1m"})
    (message,) = found["messages"]
    lease = {"lease_token": message["lease_token"], "offset": message["offset"], "part": "limit", "for": "5m"}
    paused = await web.post("/topics/t/groups/g/pause-by-lease", lease, 200)
    shown = await web.get("/limits/llm")
    assert (shown["paused"], shown["paused_until"]) == (True, paused["paused_until"])
    assert (shown["paused_by"], shown["unpaused"]) == ("group g of topic t", 0)
    await web.ask("POST", "/limits/llm/resume", None, 204)
    assert not (await web.get("/limits/llm"))["paused"]
    await web.ask("POST", "/limits/llm/pause", {"for": "1m"}, 204)
    assert (await web.get("/limits"))["limits"][0]["paused_by"] == "an operator"
    await web.ask("POST", "/limits/llm/pause", None, 204)
    assert (await web.get("/limits/llm"))["paused_until"] is None
    assert (await web.post("/topics/t/groups/g/lease", {"max": 1}))["messages"] == []
    assert (await web.ask("POST", "/limits/other/pause", {"for": "1m"}, 404))["code"] == "NOT_FOUND"
    assert (await web.ask("POST", "/limits/llm/pause", {"for": "9999d"}, 400))["code"] == "INVALID_TIME"


async def test_wrong_named_limits_are_refused(web: Web) -> None:
    await topic(web)
    assert (await web.ask("PUT", "/limits/llm", {}, 400))["code"] == "INVALID"
    assert (await web.ask("PUT", "/limits/llm", {"unit": "tokens"}, 400))["code"] == "INVALID_SETTING"
    assert (await web.ask("PUT", "/limits/a%20b", {"rate": 5}, 400))["code"] == "INVALID_NAME"
    assert (await web.ask("PUT", "/topics/t/groups/g/limits", {"limit": "llm"}, 404))["code"] == "NOT_FOUND"
    assert (await web.ask("DELETE", "/limits/llm", None, 404))["code"] == "NOT_FOUND"
