"""Metrics of a node after a sequence of known requests."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.lowlevel
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families

import sandq
from sandq.node import run_node
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from sandq.schedules.zones import data_version
from sandq.server import tcp
from sandq.server.metrics.catalog import EVERY
from sandq.server.metrics.metrics import DEAD_REASONS
from tests.integration.conftest import Dial
from tests.support.documents import document
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.raw_client import RawClient
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected, take
from tests.support.waiting import until_answer

DOCS = document("metrics")
BACKOFF = {"kind": "fixed", "first": "1s", "jitter_percent": 0}
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


class Found:
    """Samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.samples = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def __call__(self, name: str, **labels: str) -> float | None:
        """Return None if there is no such sample."""
        return self.samples.get((f"sandq_{name}", tuple(sorted(labels.items()))))

    def having(self, label: str, value: str) -> list[str]:
        return [name for name, labels in self.samples if (label, value) in labels]


async def scrape(node: Serving) -> Found:
    text, _ = await node.metrics.render()
    return Found(text.decode())


@pytest.fixture
async def walked(timed: Serving, hand: HandClock) -> AsyncIterator[tuple[Serving, sandq.Client]]:
    """Store ten messages, three of them for later. Settle all other messages except one, each in a different way."""
    hand.hold()
    async with connected(timed) as client:
        await client.admin.create_topic("t", max_attempts=2, backoff=BACKOFF, lease="10s")
        now_ms = hand.now_ms()
        for n in range(6):
            await client.produce("t", b"%d" % n)
        for n in range(3):
            await client.produce("t", b"later", deliver_at=now_ms + 3_600_000 + n)
        await client.produce("t", b"x", deliver_at=now_ms + 1500, unique_key="mine")
        assert (await client.messages("t").cancel(unique_key="mine")) is not None
        async with client.subscribe("t", group="g", credit=6, auto_extend=False) as subscription:
            messages = await take(subscription, 6, ack=False)
            for message in messages[:3]:
                await message.ack()
            await messages[3].nack()
            await messages[4].nack(delay="10m")
            hand.forward(1.1)
            (again,) = await take(subscription, 1, ack=False)
            assert again.attempt == 2
            await again.nack(error="twice")
        yield timed, client


async def test_ends_that_a_consumer_chooses_are_counted(timed: Serving) -> None:
    async with connected(timed) as client:
        await client.admin.create_topic("ends", backoff=BACKOFF)
        for value in (b"a", b"b", b"c"):
            await client.produce("ends", value)
        leases = client.leases("ends", "g")
        first, *others = await leases.take(3, wait="1m")
        assert await leases.dead([first], "410 gone") == []
        assert await leases.nack(others, count=False) == []
    found = await scrape(timed)
    assert found("messages_snoozed_total", topic="ends") == 2
    assert found("messages_nacked_total", topic="ends") == 0
    reasons = {reason: found("messages_dead_total", topic="ends", reason=reason) for reason in DEAD_REASONS}
    assert reasons == {"nacked": 0, "lease_expired": 0, "expired": 0, "rejected": 1}


async def test_every_counter_has_the_value_it_must_have(walked: tuple[Serving, sandq.Client]) -> None:
    found = await scrape(walked[0])
    counted = {
        "messages_in_total": 10,
        "messages_out_total": 7,
        "messages_redelivered_total": 1,
        "messages_acked_total": 3,
        "messages_nacked_total": 3,
        "messages_snoozed_total": 0,
        "messages_lease_expired_total": 0,
        "messages_released_total": 1,
        "messages_cancelled_total": 1,
        "messages_moved_total": 0,
    }
    assert {name: found(name, topic="t") for name in counted} == counted
    assert found("messages_dead_total", topic="t", reason="nacked") == 1
    assert found("messages_dead_total", topic="t", reason="lease_expired") == 0
    assert found("topic_delayed", topic="t") == 3
    assert (found("message_bytes_in_total", topic="t") or 0) > 10 * 30
    assert found("requests_total", type="produce", result="ok") == 10
    assert found("requests_total", type="nack", result="ok") == 3
    assert found("requests_total", type="subscribe", result="ok") == 1
    assert found("request_duration_seconds_count", type="produce") == 10
    assert found("delivery_attempts_bucket", le="1.0") == 6
    assert found("delivery_attempts_count") == 7
    assert found("delivery_attempts_sum") == 8


async def test_every_gauge_of_a_group_has_the_value_it_must_have(walked: tuple[Serving, sandq.Client]) -> None:
    found = await scrape(walked[0])
    # There are ten messages: one was given back by its consumer, one waits for ten minutes, one is dead, three are
    # delayed.
    wanted = {"ready": 1, "leased": 0, "waiting": 1, "lag": 2, "dead": 1, "delayed": 3, "consumers": 0, "stalled": 0}
    assert {name: found(f"group_{name}", topic="t", group="g") for name in wanted} == wanted
    assert found("group_oldest_unacked_age_seconds", topic="t", group="g") == pytest.approx(1.1, abs=0.05)


async def test_a_paused_group_shows_that_it_is(walked: tuple[Serving, sandq.Client]) -> None:
    node, client = walked
    assert (await scrape(node))("group_paused", topic="t", group="g") == 0
    await client.admin.pause_group("t", "g")
    found = await scrape(node)
    assert (found("group_paused", topic="t", group="g"), found("group_stalled", topic="t", group="g")) == (1, 0)
    await client.admin.resume_group("t", "g")
    assert (await scrape(node))("group_paused", topic="t", group="g") == 0


async def test_lateness_counts_first_deliveries_and_none_is_early(walked: tuple[Serving, sandq.Client]) -> None:
    found = await scrape(walked[0])
    assert found("early_deliveries_total") == 0
    assert found("delivery_lateness_seconds_bucket", topic="t", le="+Inf") == 6
    assert found("delivery_lateness_seconds_bucket", topic="t", le="-0.001") == 0
    assert found("delivery_lateness_seconds_bucket", topic="t", le="0.001") == 6, "the clock did not move"


async def test_message_due_in_idle_partition_counts_as_lag(
    walked: tuple[Serving, sandq.Client], hand: HandClock
) -> None:
    node, client = walked
    hand.forward(7200)
    await node.metrics.refresh()
    found = await scrape(node)
    assert found("topic_delayed", topic="t") == 0
    assert found("group_lag", topic="t", group="g") == 5
    assert found("group_delayed", topic="t", group="g") == 0
    hand.forward(10)
    await node.metrics.refresh()
    assert (await scrape(node))("group_lag", topic="t", group="g") == 5, "counted once"
    await client.produce("t", b"now")
    found = await scrape(node)
    assert found("group_lag", topic="t", group="g") == 6, "the partition must count the message without a refresh"


async def test_leases_that_run_out_are_counted(timed: Serving, hand: HandClock) -> None:
    async with connected(timed) as client:
        await client.admin.create_topic("t", lease="10m", max_attempts=1)
        await client.produce("t", b"x")
        async with client.subscribe("t", group="g", auto_extend=False) as subscription:
            await take(subscription, 1, ack=False)
            hand.forward(601)
            found = await until_answer(
                partial(scrape, timed), lambda found: found("messages_lease_expired_total", topic="t") == 1
            )
        assert found("messages_dead_total", topic="t", reason="lease_expired") == 1
        assert found("group_dead", topic="t", group="g") == 1


async def test_deleted_topics_and_groups_leave_no_metrics(walked: tuple[Serving, sandq.Client]) -> None:
    node, client = walked
    assert (await scrape(node)).having("group", "g")
    await client.admin.delete_group("t", "g", force=True)
    found = await scrape(node)
    assert not found.having("group", "g") and found.having("topic", "t")
    await client.admin.delete_topic("t")
    assert not (await scrape(node)).having("topic", "t")


async def test_requests_that_fail_are_counted_by_their_code(node: Serving, client: RawClient) -> None:
    await client.call(Type.TOPIC_DELETE, "nosuch")
    await client.call(Type.PING, "what")
    await client.call(200)
    found = await scrape(node)
    assert found("requests_total", type="topic_delete", result="UNKNOWN_TOPIC") == 1
    assert found("requests_total", type="topic_delete", result="ok") == 0
    assert found("requests_total", type="hello", result="ok") == 1
    assert found("requests_total", type="other", result="INVALID") == 1
    assert found("requests_in_flight") == 0


async def test_connections_are_counted(node: Serving, client: RawClient, dial: Dial) -> None:
    garbage = await dial(node, hello=False)
    await garbage.send_bytes(b"\xff" * 100)
    await garbage.rest()
    found = await until_answer(partial(scrape, node), lambda found: found("connections") == 1)
    assert found("connections_accepted_total") == 2
    assert found("connections_refused_total") == 0
    assert found("connection_errors_total", code="FRAME_TOO_LARGE") == 1
    assert (found("received_bytes_total") or 0) > 100 and (found("sent_bytes_total") or 0) > 100


async def test_refused_connections_are_counted(tmp_path: Path, dial: Dial, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp, "SPARE_SLOTS", 0)
    async with run_node(small_config(tmp_path, LIMITS__CONNECTIONS="1")) as node:
        await dial(node)
        refused = await dial(node, hello=False)
        assert b"OVERLOADED" in await refused.rest()
        assert (await scrape(node))("connections_refused_total") == 1


async def test_a_lease_request_counts_like_a_push(timed: Serving, hand: HandClock) -> None:
    hand.hold()
    async with connected(timed) as client:
        await client.admin.create_topic("t")
        await client.produce("t", b"x")
        assert len(await client.leases("t", "g").take(max=10)) == 1
        found = await scrape(timed)
        assert found("messages_out_total", topic="t") == 1
        assert found("delivery_lateness_seconds_bucket", topic="t", le="0.001") == 1
        assert found("requests_total", type="lease", result="ok") == 1


async def test_topics_beyond_the_limit_share_a_label(tmp_path: Path) -> None:
    config = small_config(tmp_path, LIMITS__METRIC_TOPICS="1", LIMITS__METRIC_GROUPS="1")
    async with run_node(config) as node, connected(node) as client:
        for topic in ("a", "b", "c"):
            await client.admin.create_topic(topic)
            await client.produce(topic, b"x")
            await client.schedules(topic).create("s", b"", cron="0 0 29 2 *", paused=True)
            for group in ("g", "h"):
                await client.leases(topic, group).take()
        found = await scrape(node)
        assert found("messages_in_total", topic="a") == 1
        assert found("messages_in_total", topic="_other") == 2
        assert (found("topic_schedules", topic="a"), found("topic_schedules", topic="_other")) == (1, 2)
        assert found("group_lag", topic="a", group="g") == 1
        assert found("group_lag", topic="a", group="_other") == 1
        assert found("group_lag", topic="_other", group="_other") == 4
        assert not found.having("topic", "b")


async def test_http_requests_have_metrics(node: Serving) -> None:
    node.metrics.http.requests.observe("GET", "/topics/{topic}", 200, 0.002)
    node.metrics.http.requests.observe("GET", "/topics/{topic}", 404, 0.2)
    node.metrics.http.requests.observe("BREW", "(none)", 405, 0.001)
    found = await scrape(node)
    assert found("http_requests_total", method="GET", route="/topics/{topic}", status="404") == 1
    assert found("http_request_duration_seconds_count", method="GET", route="/topics/{topic}") == 2
    assert found("http_requests_total", method="other", route="(none)", status="405") == 1


async def test_two_nodes_in_a_process_have_separate_metrics(node: Serving, client: RawClient, tmp_path: Path) -> None:
    await client.create()
    async with run_node(small_config(tmp_path / "other")) as other:
        assert (await scrape(other))("topics") == 0
        assert (await scrape(node))("topics") == 1


# -- formats ---------------------------------------------------------------------------------------------------------


async def test_metrics_text_is_parsed_by_prometheus_client(walked: tuple[Serving, sandq.Client]) -> None:
    text, content_type = await walked[0].metrics.render("text/html, */*")
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(text.decode())}
    for metric in EVERY:
        family = families[metric.name.removesuffix("_total") if metric.type == "counter" else metric.name]
        assert (family.type, family.documentation) == (metric.type, metric.help)
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels)
    assert families["process_cpu_seconds"].samples[0].value > 0


async def test_openmetrics_parses_with_its_own_parser(walked: tuple[Serving, sandq.Client]) -> None:
    text, content_type = await walked[0].metrics.render(OPENMETRICS)
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")
    families = {family.name: family for family in openmetrics_parser.text_string_to_metric_families(text.decode())}
    assert {metric.name.removesuffix("_total") for metric in EVERY} <= families.keys()


async def test_zone_data_has_a_metric(node: Serving) -> None:
    text, _ = await node.metrics.render()
    assert f'zone_data="{data_version()}"' in text.decode()


async def test_a_label_may_hold_anything(tmp_path: Path) -> None:
    async with run_node(small_config(tmp_path)) as node:
        odd = 'a"b\\c\nd'
        node.metrics.http.requests.observe("GET", odd, 200, 0.1)
        assert (await scrape(node))("http_requests_total", method="GET", route=odd, status="200") == 1


def _documented() -> dict[str, tuple[str, tuple[str, ...], str]]:
    """Return the metrics in docs/metrics.md: type, labels and help by name."""
    rows: dict[str, tuple[str, tuple[str, ...], str]] = {}
    for line in DOCS.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if len(cells) == 5 and cells[0].startswith("`sandq_"):
            labels = tuple(re.findall(r"`([a-z_]+)`", cells[2]))
            rows[cells[0].strip("`")] = (cells[1], labels, cells[3])
    return rows


def test_documentation_lists_every_metric() -> None:
    assert _documented() == {metric.name: (metric.type, metric.labels, metric.help) for metric in EVERY}


def test_names_follow_the_conventions() -> None:
    for metric in EVERY:
        assert metric.name.startswith("sandq_")
        assert (metric.type == "counter") == metric.name.endswith("_total")
        assert metric.help[-1] in "." and '"' not in metric.help
        assert not re.search(r"_(ms|milliseconds|kb|mb)\b", metric.name)


async def test_a_scrape_while_everything_changes(node: Serving, api: sandq.Client) -> None:
    """Topics are created and deleted meanwhile. Metrics do not use the apply thread."""
    stop = trio.Event()
    scrapes: list[Any] = []

    async def scrape_often() -> None:
        while not stop.is_set():
            scrapes.append(await scrape(node))
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(scrape_often)
        for n in range(8):
            await api.admin.create_topic(f"t{n}")
            await api.produce(f"t{n}", b"x")
            await api.admin.delete_topic(f"t{n}")
        stop.set()
    assert len(scrapes) > 5 and all(found("build_info") is None for found in scrapes)


async def test_a_group_that_waits_for_its_limits(node: Serving, api: sandq.Client) -> None:

    def limited(found: Found) -> list[float | None]:
        return [found("group_limited", topic="l", group="g", limit=limit) for limit in ("max_in_flight", "rate")]

    await api.admin.create_topic("l")
    await api.produce_many("l", [{"value": b"v"}] * 3)
    async with api.subscribe("l", group="g", credit=10) as subscription:
        await take(subscription, 3, ack=False)
        assert limited(await scrape(node)) == [None, None], "a group without limits has no such sample"
        await api.admin.limit_group("l", "g", max_in_flight=3)
        await api.produce("l", b"v")
        await until_answer(partial(scrape, node), lambda found: limited(found) == [1, 0])


async def test_tenants_of_a_fair_topic(node: Serving, api: sandq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    await api.admin.create_topic("f", kind="fair", tenants={"acme": {"max_in_flight": 1}})
    await api.produce_many("f", [{"value": b"v", "tenant": tenant} for tenant in ("acme", "acme", "shop")])
    async with api.subscribe("f", group="g", credit=10) as subscription:
        await take(subscription, 2, ack=False)
        await node.metrics.refresh()
        found = await scrape(node)
        assert found("tenant_ready", topic="f", group="g", tenant="acme") == 1
        assert found("tenant_in_flight", topic="f", group="g", tenant="acme") == 1
        assert found("tenant_ready", topic="f", group="g", tenant="shop") == 0
        assert found("tenant_in_flight", topic="f", group="g", tenant="shop") == 1
        monkeypatch.setattr("sandq.server.metrics.topics.TENANTS", 1)
        assert set((await scrape(node)).having("tenant", "acme")) == {"sandq_tenant_ready", "sandq_tenant_in_flight"}
        assert (await scrape(node)).having("tenant", "shop") == [], "only the tenants with the most ready messages"
    await api.admin.delete_topic("f")
    await node.metrics.refresh()
    assert (await scrape(node)).having("topic", "f") == []
