"""The most frequent requests bypass FastAPI's layers, and get the same responses."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from sandq.server.http import hot_routes
from sandq.server.http.hot_routes import HotRoutes
from tests.support.nodes.http_requests import Web

HOT, OTHER = "topic-1", "topic-2"
T = "/topics/{topic}"
LEASE, ACK = f"{T}/groups/g/lease", f"{T}/groups/g/ack"
PLAIN: list[tuple[str, Any]] = [
    (T, {"text": "a", "unique_key": "one"}),
    (T, {"text": "b", "unique_key": "one"}),
    (T, {"json": {"n": 1}, "key": "k", "headers": {"h": "é"}, "delay": "0s", "ttl": "1h"}),
    (T, {"messages": [{"text": "c"}, {"text": "d", "unique_key": "one"}]}),
    (T, {"messages": [{"text": "e", "unique_key": "one"}]}),
    (T, {"text": "g", "key": "k", "key_base64": "aw=="}),
    ("/topics/{topic}-none", {"text": "h"}),
    (LEASE, {"max": 2}),
    (LEASE, {"max": 10, "ack": True}),
    (LEASE, {}),
    (ACK, {"lease_token": "99.0.1"}),
    (ACK, {"lease_token": "nonsense"}),
    (ACK, {"messages": []}),
    (ACK, {"lease_token": "99.0.1", "messages": [{"lease_token": "99.0.1"}]}),
]
ODD: list[tuple[str, Any]] = [
    (T, b""),
    (T, b"{"),
    (T, b"null"),
    (T, b'{"text": "a", "text": "b"}'),
    (T, b'{"text": 1, "delya": 2}'),
    (T, b'{"messages": []}'),
    (T, b'{"text": "f", "delay": "a while"}'),
    (T, b"[" * 60_000),
    (T, b'{"text": "%s"}' % (b"x" * 70_000)),
    (f"{T}?x=1", b'{"text": "a"}'),
    (f"{T}?x=%ff", b'{"text": "a"}'),
    (f"{T}/", b'{"text": "a"}'),
    ("/topics/a%2Fb", b'{"text": "a"}'),
    ("/topics/%20%ff", b'{"text": "h"}'),
    (LEASE, b""),
    (LEASE, b"null"),
    (LEASE, b'{"max": 0}'),
    (ACK, b""),
]


def comparable(response: httpx.Response, topic: str) -> tuple[int, list[tuple[str, str]], str]:
    """Return the response without the parts that always differ: ids, times, tokens, and the topic's name."""
    unlike = r'[0-9A-Z]{26}|(?<=request_id": ")\w+|\d{4}-\d\d-\d\dT[\d:.]+Z|(?<=lease_token":")[\d.]+'
    text = re.sub(unlike, "*", response.text.replace(topic, "T"))
    differ = ("date", "x-request-id", "content-length")
    headers = [(name, value) for name, value in response.headers.items() if name not in differ]
    return response.status_code, headers, text


async def test_hot_routes_reply_like_fastapi(web: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    past: list[str] = []
    answer, pass_all_on = hot_routes._respond, False
    find = HotRoutes._find

    async def noted(route: Any, request: Any, arguments: Any) -> Any:
        past.append(request.url.path)
        return await answer(route, request, arguments)

    monkeypatch.setattr(hot_routes, "_respond", noted)
    monkeypatch.setattr(HotRoutes, "_find", lambda hot, scope: None if pass_all_on else find(hot, scope))
    for topic in (HOT, OTHER):
        await web.post("/topics", {"name": topic, "partitions": 1}, 201)
    for number, (path, body) in enumerate([*PLAIN, *ODD]):
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        answers = []
        for topic in (HOT, OTHER):
            pass_all_on = topic == OTHER
            before = len(past)
            answers.append(comparable(await web.raw("POST", path.replace("{topic}", topic), **content), topic))
            assert len(past) - before == (topic == HOT and number < len(PLAIN)), (path, body, past)
        assert answers[0] == answers[1], (path, body)


async def test_hot_routes_are_counted_in_metrics(web: Web) -> None:
    await web.post("/topics", {"name": "t"}, 201)
    await web.post("/topics/t", {"text": "a"}, 201)
    metrics = (await web.raw("GET", "/metrics")).text
    assert 'sandq_http_requests_total{method="POST",route="/topics/{topic}",status="201"} 1' in metrics


async def test_fault_in_a_hot_route_is_reported_as_a_fault(
    web: Web, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await web.post("/topics", {"name": "t"}, 201)

    async def fails(*args: Any) -> Any:
        raise RuntimeError("a fault")

    monkeypatch.setattr(hot_routes, "_respond", fails)
    found = await web.raw("POST", "/topics/t", json={"text": "a"})
    assert (found.status_code, found.json()["code"]) == (500, "INTERNAL")
    assert "a fault" in capsys.readouterr().out
