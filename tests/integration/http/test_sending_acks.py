"""Acks that send messages, over HTTP."""

from __future__ import annotations

import pytest

from tests.support.nodes.http_requests import Web


async def test_an_ack_that_sends_messages(web: Web) -> None:
    for topic in ("steps", "next"):
        await web.post("/topics", {"name": topic})
    await web.post("/topics/steps", {"text": "m", "key": "ada"})
    (leased,) = (await web.post("/topics/steps/groups/g/lease", {"wait": "10s"}))["messages"]
    held = {"lease_token": leased["lease_token"], "offset": leased["offset"]}
    then = [{"text": "paid", "key": "ada", "topic": "next", "headers": {"a": 1}}, {"json": {"n": 1}, "delay": "1h"}]
    assert await web.post("/topics/steps/groups/g/ack", held | {"then": then}) == {"settled": 1}
    (sent,) = (await web.post("/topics/next/groups/g/lease", {"wait": "10s"}))["messages"]
    assert (sent["text"], sent["key"], sent["headers"]) == ("paid", "ada", {"a": 1})
    (own,) = (await web.get("/topics/steps/messages", state="delayed", values=True))["messages"]
    assert (own["json"], own["state"]) == ({"n": 1}, "delayed")


@pytest.mark.parametrize(
    ("then", "status", "words"),
    [
        ([{"text": "x", "topic": "nowhere"}], 404, "no topic 'nowhere'"),
        ([{"text": "x", "unique_key": "u"}], 400, "no unique key"),
        ([{"text": "x", "tenant": "acme"}], 400, "tenant"),
        ([], 400, "at least 1"),
    ],
)
async def test_invalid_messages_in_acks_are_refused(
    web: Web, then: list[dict[str, str]], status: int, words: str
) -> None:
    await web.post("/topics", {"name": "steps"})
    await web.post("/topics/steps", {"text": "m"})
    (leased,) = (await web.post("/topics/steps/groups/g/lease", {"wait": "10s"}))["messages"]
    held = {"lease_token": leased["lease_token"]}
    answer = await web.post("/topics/steps/groups/g/ack", held | {"then": then}, status=status)
    assert words in str(answer)
    assert not [one for one in answer["errors"] if one["where"].startswith("path")]
    assert await web.post("/topics/steps/groups/g/nack", held) == {"settled": 1}, "the message must still be held"


async def test_ack_of_several_messages_sends_all_or_nothing(web: Web) -> None:
    for topic in ("steps", "next"):
        await web.post("/topics", {"name": topic})
    await web.post("/topics/steps", {"messages": [{"text": "a"}, {"text": "b"}]}, status=201)
    leased = (await web.post("/topics/steps/groups/g/lease", {"max": 2, "wait": "10s"}))["messages"]
    held = [{"lease_token": one["lease_token"], "offset": one["offset"]} for one in leased]
    assert len(held) == 2 and held[0]["lease_token"] == held[1]["lease_token"]
    await web.post("/topics/steps/groups/g/nack", held[0] | {"delay": "1h"})
    then = [{"text": "done", "topic": "next"}]
    answer = await web.post("/topics/steps/groups/g/ack", {"messages": held, "then": then}, status=409)
    assert (answer["code"], answer["lost"], answer["settled"]) == ("LEASE_LOST", [held[0]], 0)
    assert await web.post("/topics/steps/groups/g/ack", {"messages": held[1:], "then": then}) == {"settled": 1}
    sent = (await web.post("/topics/next/groups/g/lease", {"max": 9, "wait": "10s"}))["messages"]
    assert [one["text"] for one in sent] == ["done"]
