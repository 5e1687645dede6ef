"""Messages as server-sent events."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import h11
import httpx
import pytest
import trio

from sandq.model.config_types import Address
from sandq.node.running import Serving
from sandq.server.http import event_streams
from tests.support.http_client import NO_TLS
from tests.support.nodes.gateway import PATIENT, gateway
from tests.support.nodes.http_requests import Web
from tests.support.nodes.small_node import small_config
from tests.support.nodes.with_http import run_node
from tests.support.nodes.working import connected
from tests.support.waiting import PATIENCE_S, until_answer

GROUP = "/topics/t/groups/g"
STREAM = f"{GROUP}/stream"


class Event(NamedTuple):
    held: dict[str, str]
    message: dict[str, Any]


class Events:
    """Return the content of a stream."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self._stream = stream
        self._http = h11.Connection(h11.CLIENT)
        self._text = b""

    async def ask(self, query: str) -> None:
        request = h11.Request(method="GET", target=f"{STREAM}?{query}", headers=[("host", "localhost")])
        await self._stream.send_all((self._http.send(request) or b"") + (self._http.send(h11.EndOfMessage()) or b""))
        answer = await self._next()
        assert isinstance(answer, h11.Response) and answer.status_code == 200, answer
        assert dict(answer.headers)[b"content-type"].startswith(b"text/event-stream")

    async def next_fields(self) -> dict[str, str]:
        """Return the next fields up to an empty line. An empty dict if the stream has ended cleanly."""
        while b"\n\n" not in self._text:
            event = await self._next()
            if isinstance(event, h11.EndOfMessage):
                assert not self._text
                return {}
            assert isinstance(event, h11.Data)
            self._text += event.data
        said, _, self._text = self._text.partition(b"\n\n")
        pairs = [line.partition(":") for line in said.decode().split("\n")]
        return {name or "comment": value.strip() for name, _, value in pairs}

    async def message(self) -> Event:
        while "data" not in (fields := await self.next_fields()):
            assert fields, "the stream has ended"
        assert "event" not in fields, fields
        return Event(json.loads(fields["id"]), json.loads(fields["data"]))

    async def messages(self, count: int) -> list[Event]:
        return [await self.message() for _ in range(count)]

    async def _next(self) -> Any:
        with trio.fail_after(PATIENCE_S):
            while (event := self._http.next_event()) is h11.NEED_DATA:
                self._http.receive_data(await self._stream.receive_some(65536))
        return event


@asynccontextmanager
async def streamed(at: Serving | Address, query: str = "") -> AsyncIterator[Events]:
    address = at.http if isinstance(at, Serving) else at
    assert address is not None
    async with await trio.open_tcp_stream(*address) as stream:
        events = Events(stream)
        await events.ask(query)
        yield events


async def topic(web: Web, *texts: str, **settings: Any) -> None:
    await web.post("/topics", {"name": "t", "settings": settings})
    await produce(web, *texts)


async def produce(web: Web, *texts: str) -> None:
    if texts:
        await web.post("/topics/t", {"messages": [{"text": text} for text in texts]})


async def count(web: Web, what: str) -> int:
    found: int = (await web.get(GROUP))[what]
    return found


async def test_messages_come_when_they_are_ready_as_lease_answers_them(web: Web, web_node: Serving) -> None:
    await topic(web, "a", "b")
    (leased,) = (await web.post(f"{GROUP}/lease", {}))["messages"]
    async with streamed(web_node) as events:
        b = await events.message()
        await produce(web, "c")
        c = await events.message()
        assert [event.message["text"] for event in (b, c)] == ["b", "c"]
        assert b.message.keys() == leased.keys()
        assert b.held == {name: b.message[name] for name in ("lease_token", "offset")}
        for event in (b, c):
            assert await web.post(f"{GROUP}/ack", event.held) == {"settled": 1}
        await web.post(f"{GROUP}/ack", {"messages": [leased]})
        assert await count(web, "lag") == 0


async def test_stream_sends_at_most_max_in_flight(web: Web, web_node: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream reports that it waits; settled messages, in whatever way, free its capacity."""
    monkeypatch.setattr(event_streams, "HEARTBEAT_S", 0.01)
    await topic(web, *map(str, range(10)))

    async def waits(events: Events) -> None:
        assert await count(web, "leased") == 2
        for _ in range(3):
            assert (await events.next_fields()) == {"comment": "-"}
        assert await count(web, "leased") == 2

    async with streamed(web_node, "max_in_flight=2") as events:
        first, second = await events.messages(2)
        await waits(events)
        await web.post(f"{GROUP}/ack", first.held)
        third = await events.message()
        await waits(events)
        await web.post(f"{GROUP}/nack", {**second.held, "delay": "1h"})
        await web.post(f"{GROUP}/extend", {**third.held, "lease": "2h"})
        fourth = await events.message()
        await waits(events)
        await web.post(f"{GROUP}/ack", {"messages": [{"lease_token": fourth.held["lease_token"]}, third.held]})
        last = await events.messages(2)
        await waits(events)
    texts = [event.message["text"] for event in (first, second, third, fourth, *last)]
    assert texts == ["0", "1", "2", "3", "4", "5"]


async def test_unsettled_messages_are_given_back_when_the_client_disconnects(
    web: Web, web_node: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that stops sending may read for a while; the node notices its end at the next send."""
    monkeypatch.setattr(event_streams, "HEARTBEAT_S", 0.01)
    await topic(web, "a", "b", "c")
    async with streamed(web_node, "lease=10h") as events:
        a, b, _ = await events.messages(3)
        await web.post(f"{GROUP}/ack", a.held)
    await until_answer(lambda: count(web, "leased"), lambda leased: leased == 0)
    lost = await web.post(f"{GROUP}/ack", b.held, 409)
    assert lost["lost"] == [b.held]
    again = (await web.post(f"{GROUP}/lease", {"max": 10, "wait": "1m"}))["messages"]
    assert [(message["text"], message["attempt"]) for message in again] == [("b", 1), ("c", 1)]


async def test_idle_stream_sends_heartbeats(web: Web, web_node: Serving, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_streams, "HEARTBEAT_S", 0.01)
    await topic(web)
    async with streamed(web_node) as events:
        assert await events.next_fields() == {"retry": "1000"}
        for _ in range(3):
            assert await events.next_fields() == {"comment": "-"}


async def test_stream_ends_with_an_error_event(web: Web, web_node: Serving) -> None:
    await topic(web, "a")
    async with streamed(web_node) as events:
        await events.message()
        await web.delete("/topics/t", 204)
        fields = await events.next_fields()
        assert fields["event"] == "error" and json.loads(fields["data"])["code"] == "UNKNOWN_TOPIC"
        assert await events.next_fields() == {}


async def test_invalid_stream_requests_get_normal_error_replies(web: Web, web_node: Serving) -> None:
    await web.get(STREAM, 404)
    await topic(web, "a")
    for wrong in ({"max_in_flight": 0}, {"max_in_flight": 1001}, {"lease": "x"}, {"start": "x"}, {"max": 1}):
        await web.get(STREAM, 400, **wrong)
    told = await web.raw("HEAD", STREAM)
    assert (told.status_code, told.content) == (200, b"")
    await web.get(GROUP, 404)


async def test_stream_ends_when_the_node_stops_and_keeps_its_leases(tmp_path: Path) -> None:
    config = small_config(tmp_path, LISTEN__HTTP="127.0.0.1:0")
    read = trio.Event()

    async def read_all(node: Serving) -> None:
        async with streamed(node, "lease=10h") as events:
            await events.message()
            read.set()
            while await events.next_fields():
                pass

    async with trio.open_nursery() as nursery, run_node(config) as node, connected(node) as api:
        await api.admin.create_topic("t")
        await api.produce("t", b"m")
        nursery.start_soon(read_all, node)
        await read.wait()
    async with run_node(config) as node, connected(node) as api:
        (group,) = await until_answer(lambda: api.admin.groups("t"))
        assert group["leased"] == 1


async def test_stream_ends_when_the_gateway_stops_and_keeps_its_leases(tmp_path: Path) -> None:
    async with run_node(small_config(tmp_path)) as node, connected(node) as api, AsyncExitStack() as streams:
        await api.admin.create_topic("t")
        await api.produce("t", b"m")
        async with gateway(f"127.0.0.1:{node.client_port}", node.broker.limits) as address:
            events = await streams.enter_async_context(streamed(address, "lease=10h"))
            await events.message()
        while await events.next_fields():
            pass
        (group,) = await api.admin.groups("t")
        assert group["leased"] == 1


async def test_stream_refused_by_the_waiting_limit_leases_nothing(tmp_path: Path) -> None:
    async with run_node(small_config(tmp_path)) as node, connected(node) as api:
        await api.admin.create_topic("t")
        limits = dataclasses.replace(node.broker.limits, http_waiting=1)
        server = f"127.0.0.1:{node.client_port}"
        async with (
            gateway(server, limits) as address,
            httpx.AsyncClient(verify=NO_TLS, base_url=f"http://{address}", timeout=PATIENCE_S) as client,
            streamed(address) as events,
        ):
            await api.produce("t", b"m")
            await events.message()
            await api.produce("t", b"n")
            refused = await client.get(f"{STREAM.replace('/g/', '/h/')}")
            assert (refused.status_code, refused.json()["code"]) == (503, "OVERLOADED")
            (message, other) = await api.leases("t", "h").take(2, wait="1m")
            assert (message.attempt, other.attempt) == (1, 1)


async def test_little_is_read_for_a_client_that_takes_nothing(
    web: Web, web_node: Serving, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system buffers less than the test sends."""
    monkeypatch.setattr(event_streams, "LEASE_MESSAGES", 2)
    total = 12
    await topic(web)
    async with connected(web_node) as api:
        for number in range(total):
            await api.produce("t", b"%02d" % number + b"x" * 900_000)
    async with streamed(web_node) as events:
        for _ in range(50):
            assert await count(web, "leased") < total
        found = await events.messages(total)
        assert [event.message["text"][:2] for event in found] == [f"{number:02}" for number in range(total)]


async def test_stream_outlasts_the_idle_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection without a request is closed after the idle time; one whose response goes on is not."""
    monkeypatch.setattr(event_streams, "HEARTBEAT_S", 0.01)
    deadlines = dataclasses.replace(PATIENT, idle_s=0.02)
    async with run_node(small_config(tmp_path)) as node, connected(node) as api:
        await api.admin.create_topic("t")
        server = f"127.0.0.1:{node.client_port}"
        async with gateway(server, node.broker.limits, deadlines) as address:
            async with streamed(address) as events:
                for _ in range(20):
                    assert await events.next_fields()
            async with await trio.open_tcp_stream(*address) as stream:
                assert await stream.receive_some(1) == b""
