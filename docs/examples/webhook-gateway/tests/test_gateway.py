"""Hours of retries in a second. Virtual time begins at 00:00:00."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import anyio
import httpx
import pytest
import sandq
import sandq.testing
from sandq.testing import AsyncBroker

from gateway import sender
from gateway.app import app
from gateway.broker import connect

pytestmark = pytest.mark.anyio


class Receivers:
    """Receive webhooks in place of the servers of the tenants, and verify their signatures."""

    def __init__(self, web: httpx.AsyncClient, broker: AsyncBroker) -> None:
        self.web = web
        self.broker = broker
        self.secrets: dict[str, str] = {}
        self.responses: dict[str, list[httpx.Response]] = defaultdict(list)
        """Next responses of each host; 204 if there is none left."""
        self.requests: list[tuple[str, str, str]] = []
        """Time, host and body of each request."""
        self.ids: list[str] = []
        self.open = anyio.Event()
        """Receivers respond once it is set."""
        self.open.set()

    async def create_tenant(self, name: str) -> None:
        self.secrets[name] = (await self.web.post(f"/tenants/{name}")).json()["secret"]

    async def send(self, tenant: str, body: object, **more: str) -> httpx.Response:
        event = {"tenant": tenant, "url": f"https://{tenant}/hooks", "body": body, **more}
        return await self.web.post("/events", json=event)

    async def receive(self, request: httpx.Request) -> httpx.Response:
        host = request.url.host
        sandq.verify_push(dict(request.headers), request.content, self.secrets[host])
        self.requests.append((f"{self.broker.now():%H:%M:%S}", host, request.content.decode()))
        self.ids.append(request.headers["webhook-id"])
        await self.open.wait()
        return self.responses[host].pop(0) if self.responses[host] else httpx.Response(204)

    def times(self, host: str) -> list[str]:
        return [time for time, to, _ in self.requests if to == host]

    @asynccontextmanager
    async def running_sender(self) -> AsyncIterator[None]:
        transport = httpx.MockTransport(self.receive)
        async with httpx.AsyncClient(transport=transport) as http, anyio.create_task_group() as tasks:
            tasks.start_soon(sender.work, app.state.client, http)
            yield
            tasks.cancel_scope.cancel()


@pytest.fixture
async def receivers(web: httpx.AsyncClient, async_sandq_broker: AsyncBroker) -> Receivers:
    """Create two tenants, whose names are the hosts of their receivers."""
    await app.state.client.admin.update_topic("webhooks", backoff={"jitter_percent": 0})  # so that times are exact
    receivers = Receivers(web, async_sandq_broker)
    for name in ("acme", "shop"):
        await receivers.create_tenant(name)
    return receivers


async def test_events_are_delivered_signed_and_once(receivers: Receivers, async_sandq_broker: AsyncBroker) -> None:
    assert (await receivers.send("acme", {"order": 7}, id="order-7")).status_code == 202
    repeated = await receivers.send("acme", {"order": 7, "again": True}, id="order-7")
    assert repeated.status_code == 202, "a repeated request changes nothing"
    async with receivers.running_sender():
        await async_sandq_broker.advance("1h")
    assert receivers.requests == [("00:00:00", "acme", '{"order":7}')]


async def test_bad_requests_are_refused(receivers: Receivers, web: httpx.AsyncClient) -> None:
    assert (await receivers.send("absent", 1)).status_code == 404
    assert (await web.post("/events", json={"tenant": "acme", "url": "acme", "body": 1})).status_code == 422
    assert (await web.post("/tenants/acme")).status_code == 409
    assert (await web.post("/tenants/absent/pause")).status_code == 404


@pytest.mark.parametrize("name", ["shop%20x", "a%00b", "x" * 101, "a.b", "%C3%A9"])
async def test_name_of_a_tenant_that_no_key_can_have_is_refused(web: httpx.AsyncClient, name: str) -> None:
    assert (await web.post(f"/tenants/{name}")).status_code == 422


async def test_broker_that_does_not_answer_is_reported(
    web: httpx.AsyncClient, async_sandq_broker: AsyncBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.app.TIMEOUT", "100ms")
    async with AsyncExitStack() as stack:
        async with sandq.testing.broker() as stopped:
            client = await stack.enter_async_context(stopped.client())
        monkeypatch.setattr(app.state, "client", client)
        refused = await web.post("/tenants/late")
    assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")


async def test_limits_are_set_although_the_first_start_was_interrupted(
    async_sandq_broker: AsyncBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKER", async_sandq_broker.address)
    await async_sandq_broker.create_topic("webhooks", kind="fair")
    async with connect() as client:
        for number in range(60):
            await client.produce("webhooks", json=number)
        assert len(await client.leases("webhooks", "senders").take(60)) == 50, "a tenth of the messages of a second"


async def test_restart_keeps_the_limits_of_the_operator(web: httpx.AsyncClient) -> None:
    await app.state.client.admin.limit_group("webhooks", "senders", max_in_flight=1)
    async with connect() as client:
        for number in range(3):
            await client.produce("webhooks", json=number)
        assert len(await client.leases("webhooks", "senders").take(3)) == 1


async def test_tenant_without_webhooks_has_no_dead_ones(receivers: Receivers, web: httpx.AsyncClient) -> None:
    assert (await web.get("/tenants/acme/dead")).json() == []
    assert (await web.post("/tenants/acme/replay")).json() == {"replayed": 0}
    for path in ("dead", "replay"):
        method = {"dead": web.get, "replay": web.post}[path]
        assert (await method(f"/tenants/absent/{path}")).status_code == 404
        assert (await method(f"/tenants/a%00b/{path}")).status_code in (404, 422)


async def test_receiver_delays_a_webhook_by_a_day_at_most(
    receivers: Receivers, async_sandq_broker: AsyncBroker
) -> None:
    receivers.responses["acme"] = [httpx.Response(429, headers={"retry-after": "99999999"})]
    await receivers.send("acme", 1)
    async with receivers.running_sender():
        await async_sandq_broker.advance("23h")
        assert len(receivers.requests) == 1
        await async_sandq_broker.advance("1h")
    assert len(receivers.requests) == 2


async def test_failures_are_retried_later_each_time(receivers: Receivers, async_sandq_broker: AsyncBroker) -> None:
    busy = httpx.Response(429, headers={"retry-after": "300"})
    receivers.responses["acme"] = [httpx.Response(500), httpx.Response(302), busy]
    await receivers.send("acme", 1)
    async with receivers.running_sender():
        await async_sandq_broker.advance("1h")
    assert receivers.times("acme") == ["00:00:00", "00:00:10", "00:01:10", "00:06:10"]
    assert len(set(receivers.ids)) == 1, "a receiver recognizes a repeated webhook"


async def test_dead_webhooks_are_listed_and_replayed(
    receivers: Receivers, web: httpx.AsyncClient, async_sandq_broker: AsyncBroker
) -> None:
    receivers.responses["acme"] = [httpx.Response(410)]
    receivers.responses["shop"] = [httpx.Response(500)] * 6
    for tenant in ("acme", "shop"):
        await receivers.send(tenant, 1)
    async with receivers.running_sender():
        await async_sandq_broker.advance("12h")
        (letter,) = (await web.get("/tenants/acme/dead")).json()
        assert (letter["url"], letter["attempts"], letter["error"]) == ("https://acme/hooks", 1, "410 gone")
        (letter,) = (await web.get("/tenants/shop/dead")).json()
        assert letter["attempts"] == 6
        assert (await web.post("/tenants/acme/replay", params={"url": "https://other"})).json() == {"replayed": 0}
        assert (await web.post("/tenants/acme/replay")).json() == {"replayed": 1}
        await async_sandq_broker.advance(0)
        assert receivers.times("acme") == ["00:00:00", "12:00:00"]
        assert len(receivers.times("shop")) == 6, "the webhook of the other tenant stays dead"


async def test_tenant_sees_no_webhooks_of_a_tenant_with_a_longer_name(
    receivers: Receivers, web: httpx.AsyncClient, async_sandq_broker: AsyncBroker
) -> None:
    await receivers.create_tenant("acme2")
    receivers.responses["acme2"] = [httpx.Response(410)]
    await receivers.send("acme2", 1)
    async with receivers.running_sender():
        await async_sandq_broker.advance(0)
    assert len((await web.get("/tenants/acme2/dead")).json()) == 1
    assert (await web.get("/tenants/acme/dead")).json() == []


async def test_a_tenant_with_many_events_does_not_delay_others(
    receivers: Receivers, async_sandq_broker: AsyncBroker
) -> None:
    for number in range(40):
        await receivers.send("acme", number)
    await receivers.send("shop", 0)
    receivers.open = anyio.Event()
    async with receivers.running_sender():
        await async_sandq_broker.advance(0)
        hosts = [host for _, host, _ in receivers.requests]
        assert (hosts.count("acme"), hosts.count("shop")) == (10, 1), "a tenant has at most ten concurrent requests"
        receivers.open.set()
        await async_sandq_broker.advance("1s")
    assert len(receivers.requests) == 41


async def test_paused_tenant_gets_its_events_after_the_pause(
    receivers: Receivers, web: httpx.AsyncClient, async_sandq_broker: AsyncBroker
) -> None:
    assert (await web.post("/tenants/acme/pause")).json() == {"paused": True}
    for tenant in ("acme", "shop"):
        await receivers.send(tenant, 1)
    async with receivers.running_sender():
        await async_sandq_broker.advance("1h")
        assert receivers.requests == [("00:00:00", "shop", "1")]
        await web.post("/tenants/acme/resume")
        await async_sandq_broker.advance("1m")
    assert receivers.times("acme") == ["01:01:00"]


async def test_crash_and_restart_of_a_sender_lose_nothing(
    receivers: Receivers, async_sandq_broker: AsyncBroker
) -> None:
    for number in range(2):
        await receivers.send("acme", number)
    held = await app.state.client.leases("webhooks", "senders").take(2)  # a sender that crashes holds a lease
    assert len(held) == 2
    async with receivers.running_sender():
        await async_sandq_broker.advance("29s")
        assert receivers.requests == []
        await async_sandq_broker.advance("1m")
    assert sorted(body for _, _, body in receivers.requests) == ["0", "1"]
    await receivers.send("acme", 2)  # no sender runs
    await async_sandq_broker.advance("1h")
    async with receivers.running_sender():
        await async_sandq_broker.advance(0)
    assert receivers.requests[2:] == [("01:01:29", "acme", "2")]


async def test_limit_of_the_group_holds_for_all_tenants_together(
    receivers: Receivers, async_sandq_broker: AsyncBroker
) -> None:
    await app.state.client.admin.limit_group("webhooks", "senders", rate="1/m", burst=1)
    for tenant in ("acme", "shop"):
        await receivers.send(tenant, 1)
    async with receivers.running_sender():
        await async_sandq_broker.advance("1m")
    assert [time for time, _, _ in receivers.requests] == ["00:00:00", "00:01:00"]
