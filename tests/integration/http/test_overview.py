"""The overview of all topics over HTTP, the last hour of a topic, and the console's files."""

from __future__ import annotations

import json
from importlib.resources import files
from typing import Any

import pytest
import trio

from sandq.node.running import Serving
from sandq.server import http
from sandq.server import overview as node_overview
from sandq.server.http import cluster_watch
from tests.support.nodes.http_requests import Web
from tests.support.waiting import until_answer

LOOK_S = 0.1
PAGE = {"accept": "text/html,application/xhtml+xml"}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Count and poll more often than nodes and gateways usually do."""
    monkeypatch.setattr(node_overview, "SAMPLE_S", LOOK_S)
    monkeypatch.setattr(cluster_watch, "REFRESH_S", LOOK_S)


async def overview(web: Web, **params: Any) -> Any:
    return await web.get("/overview", 200, **params)


async def test_topics_are_reported_with_rates_lag_and_findings(web: Web) -> None:
    for name in ("a.one", "a.two", "b"):
        await web.post("/topics", {"name": name, "partitions": 2}, 201)
    await web.post("/topics/a.one", {"messages": [{"text": "x"}] * 6 + [{"text": "x", "delay": "1h"}] * 4}, 201)
    await web.post("/topics/a.one/groups/g/lease", {"max": 1, "wait": "10s"}, 200)

    async def row() -> Any:
        shown = await overview(web, prefix="a.", groups="true")
        assert [one["topic"] for one in shown["topics"]] == ["a.one", "a.two"]
        return shown

    await web.post("/topics/a.one/groups/g/pause", None, 204)

    def is_paused(shown: Any) -> bool:
        return any(found["situation"] == "group-paused" for found in shown["findings"])

    shown = await until_answer(row, lambda shown: is_paused(shown) and shown["groups"][0]["lag"] == 6)
    one = shown["topics"][0]
    assert (one["kind"], one["partitions"], one["replicas"], one["without_leader"]) == ("timer", 2, 1, 0)
    assert (one["messages"], one["delayed"], one["lag"], one["groups"]) == (10, 4, 6, 1)
    assert shown["groups"][0] | {"oldest_at": None, "ready": 0, "leased": 0} == {
        "topic": "a.one", "group": "g", "lag": 6, "ready": 0, "leased": 0, "waiting": 0, "dead": 0, "consumers": 0,
        "paused": True, "reason": "it is paused until it is resumed", "push": None, "push_error": None,
        "unfinished": None, "held_up_by": [], "oldest_at": None,
    }  # fmt: skip
    assert shown["over_ms"] in (int(LOOK_S * 1000), int(2 * LOOK_S * 1000))
    pages = await overview(web, limit=2)
    assert (len(pages["topics"]), pages["next"]) == (2, "a.two")
    assert [one["topic"] for one in (await overview(web, after="a.two"))["topics"]] == ["b"]


async def test_last_hour_of_a_topic_is_reported(web: Web) -> None:
    await web.post("/topics", {"name": "t"}, 201)
    assert (await web.get("/topics/t/history", 200))["slots"] == []
    await web.get("/topics/none/history", 404)

    async def history() -> Any:
        await web.post("/topics/t", {"text": "x"}, 201)
        await web.post("/topics/t/groups/g/lease", {"max": 10, "wait": "10s", "ack": True}, 200)
        return (await web.get("/topics/t/history", 200))["slots"]

    def has_both(slots: Any) -> bool:
        # The first sample is only a baseline, so the first message may be missing. A minute may end between the two.
        return all(any(slot[name] > 0 for slot in slots) for name in ("stored", "delivered"))

    slots = await until_answer(history, has_both)
    (first, *_) = [slot for slot in slots if slot["delivered"] > 0]
    assert first["late_p99_ms"] >= first["late_p50_ms"]


async def test_overview_stream_sends_everything_then_changes(web: Web, web_node: Serving) -> None:
    await web.post("/topics", {"name": "t"}, 201)
    assert web_node.http is not None
    text, has_produced = b"", False
    async with await trio.open_tcp_stream(*web_node.http) as stream:
        await stream.send_all(b"GET /overview/stream HTTP/1.1\r\nHost: localhost\r\n\r\n")
        while not any(row["messages"] for row in rows_of(text)):
            text += await stream.receive_some(65536)
            if not has_produced and b"event: look" in text:
                has_produced = True
                assert [row["topic"] for row in rows_of(text)] == ["t"]
                await web.post("/topics/t", {"text": "x"}, 201)
    assert b"text/event-stream" in text.split(b"\r\n\r\n")[0]
    assert text.index(b"event: cluster") < text.index(b"event: topics") < text.index(b"event: look")
    assert b'"node":"node1"' in text


def rows_of(text: bytes) -> list[Any]:
    """Return all rows of topics that were reported completely."""
    *events, _ = text.split(b"\n\n")
    shown = [event.partition(b"event: topics\ndata: ")[2] for event in events]
    return [row for data in shown if data for row in json.loads(data)]


async def test_browser_gets_the_console_page(web: Web) -> None:
    page = await web.raw("GET", "/", headers=PAGE)
    assert page.status_code == 200 and page.headers["content-type"] == "text/html; charset=utf-8"
    policy = page.headers["content-security-policy"]
    assert "script-src 'self';" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert page.headers["x-content-type-options"] == "nosniff"
    assert "Accept" in page.headers["vary"]
    assert (await web.raw("GET", "/", headers={"accept": "application/json"})).headers["location"] == "/docs"
    again = await web.raw("GET", "/", headers={**PAGE, "if-none-match": page.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


async def test_console_files_are_compressed_if_accepted(web: Web) -> None:
    shown = {}
    for encoding in ("gzip, deflate", "identity", "gzip;q=0"):
        answer = await web.raw("GET", "/console/ui.js", headers={"accept-encoding": encoding})
        assert "Accept-Encoding" in answer.headers["vary"]
        shown[encoding] = answer.headers.get("content-encoding"), answer.headers["etag"], answer.text
        known = {"accept-encoding": encoding, "if-none-match": answer.headers["etag"]}
        assert (await web.raw("GET", "/console/ui.js", headers=known)).status_code == 304
    packed, plain, refused = shown.values()
    assert (packed[0], plain[0]) == ("gzip", None) and plain == refused
    assert packed[1] != plain[1] and packed[2] == plain[2]


async def test_all_console_files_are_served(web: Web) -> None:
    names = [file.name for file in files(http).joinpath("static", "console").iterdir()]
    assert {"index.html", "main.js", "style.css", "uplot.js", "LICENSE.uplot"} <= {*names}
    for name in names:
        answer = await web.raw("GET", f"/console/{name}")
        if name in ("index.html", "LICENSE.uplot"):
            assert answer.status_code == 404
            continue
        assert answer.status_code == 200 and len(answer.headers["etag"]) > 10, name
        assert not any(part in answer.text for part in ("innerHTML", "eval(", "document.write", "http://cdn")), name
    page = (await web.raw("GET", "/", headers=PAGE)).text
    assert "<script>" not in page and "style=" not in page and " on" not in page.replace(" on ", "")


@pytest.mark.parametrize("name", ["nope.js", "..%2findex.html", "%2e%2e%2fswagger-ui.css", ""])
async def test_other_files_are_not_served(web: Web, name: str) -> None:
    assert (await web.raw("GET", f"/console/{name}")).status_code == 404
