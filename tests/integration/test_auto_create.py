"""Topics that are created when a client produces or subscribes to them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import sandq
from sandq.errors import InvalidName, TooLarge, Unavailable, UnknownTopic
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.http_client import NO_TLS
from tests.support.nodes.http_requests import Web
from tests.support.nodes.small_node import small_config
from tests.support.nodes.with_http import run_node
from tests.support.nodes.working import connected
from tests.support.waiting import PATIENCE_S

MADE = {
    "AUTO_CREATE_TOPICS__PATTERNS": "made.*, [k]*",
    "AUTO_CREATE_TOPICS__PARTITIONS": "2",
    "AUTO_CREATE_TOPICS__SETTINGS": "{ttl: 1h, max_attempts: 3}",
    "LIMITS__AUTO_CREATED_TOPICS": "3",
}


@pytest.fixture
async def making(tmp_path: Path) -> AsyncIterator[Serving]:
    async with run_node(small_config(tmp_path, **MADE)) as serving:
        yield serving


@pytest.fixture
async def maker(making: Serving) -> AsyncIterator[sandq.Client]:
    async with connected(making) as client:
        yield client


async def names(client: sandq.Client) -> list[str]:
    return [topic.name for topic in await client.admin.list_topics()]


async def test_producing_makes_a_topic_as_the_node_says(making: Serving, maker: sandq.Client) -> None:
    await maker.produce("made.a", b"1")
    async with maker.producer("made.b") as producer:
        await producer.send(b"2")
    topic = await maker.admin.topic("made.a")
    assert (topic.kind, len(topic.partitions)) == ("timer", 2)
    assert (topic.settings["ttl_ms"], topic.settings["max_attempts"]) == (3_600_000, 3)
    assert "auto_created" not in topic.settings  # a client that copies the topic cannot set this field
    assert await names(maker) == ["made.a", "made.b"]
    assert making.broker.administration.topics.auto_created == 2


async def test_consuming_makes_a_topic(maker: sandq.Client) -> None:
    async with maker.subscribe(["made.a", "made.b"], group="g"):
        assert await names(maker) == ["made.a", "made.b"]
    assert await maker.leases("kept", "g").take() == []
    assert await names(maker) == ["kept", "made.a", "made.b"]


async def test_reading_makes_none(maker: sandq.Client) -> None:
    messages, read = maker.messages("made.a"), maker.fetch("made.a", 0)
    with pytest.raises(UnknownTopic, match="is created when a client produces to it or subscribes to it"):
        await maker.admin.topic("made.a")
    for look in (
        lambda: messages.get(unique_key="key"),
        lambda: messages.why(unique_key="key"),
        lambda: messages.cancel(unique_key="key"),
        lambda: anext(aiter(messages.list())),
        lambda: anext(aiter(read)),
        lambda: maker.kv("made.a").get(b"key"),
        lambda: maker.admin.groups("made.a"),
        lambda: maker.schedules("made.a").get("daily"),
    ):
        with pytest.raises(UnknownTopic):
            await look()
    async with maker.subscribe(sandq.pattern("made.*"), group="g") as subscription:
        assert subscription.topics == []
    assert await names(maker) == []


async def test_a_name_that_is_like_none_of_them(maker: sandq.Client) -> None:
    with pytest.raises(
        UnknownTopic, match=r"matches no pattern in auto_create_topics \(made\.\*, \[k\]\*\): create it"
    ):
        await maker.produce("other", b"x")
    with pytest.raises(UnknownTopic):
        async with maker.subscribe("other", group="g"):
            pass
    assert await names(maker) == []


async def test_number_of_auto_created_topics_is_limited(making: Serving, maker: sandq.Client) -> None:
    await maker.admin.create_topic("made.by.hand")  # not counted as auto-created
    for number in range(3):
        await maker.produce(f"made.{number}", b"x")
    await maker.admin.update_topic("made.0", ttl="2h")  # still counted as auto-created
    with pytest.raises(TooLarge, match=r"limits\.auto_created_topics") as refused:
        await maker.produce("made.3", b"x")
    assert refused.value.details["limit"] == "auto_created_topics"
    await maker.admin.create_topic("made.3")
    await maker.admin.delete_topic("made.1")
    await maker.produce("made.4", b"x")
    assert making.broker.administration.topics.auto_created == 4


async def test_deleted_topic_is_created_again_on_use(maker: sandq.Client) -> None:
    await maker.produce("made.a", b"1")
    await maker.admin.delete_topic("made.a")
    try:
        await maker.produce("made.a", b"2")
    except UnknownTopic:  # the earlier topic was still known
        await maker.produce("made.a", b"2")
    assert [found.value async for found in maker.messages("made.a").list(values=True)] == [b"2"]


async def test_topic_deleted_by_another_client_is_created_again(making: Serving, maker: sandq.Client) -> None:
    leases = maker.leases("made.a", "g")

    async def subscribe() -> None:
        async with maker.subscribe("made.a", group="g"):
            pass

    async with connected(making) as other:
        await maker.produce("made.a", b"1")
        for use in (lambda: maker.produce("made.a", b"2"), leases.take, subscribe):
            await other.admin.delete_topic("made.a")
            with pytest.raises(UnknownTopic):  # this client did not know the new topic yet
                await use()
            await use()
            assert (await other.admin.topic("made.a")).name == "made.a"


async def test_without_patterns_none_is_made(node: Serving, dial: Dial, api: sandq.Client) -> None:
    with pytest.raises(UnknownTopic, match=r"^there is no topic 'made\.a'$") as refused:
        await api.produce("made.a", b"x")
    assert "auto_create" not in refused.value.details
    answer = await (await dial(node)).call(Type.TOPIC_ENSURE, "made.a")
    assert answer[2] == "UNKNOWN_TOPIC" and "give all nodes the same patterns" in answer[3]


async def test_repeated_ensure_creates_one_topic(making: Serving, dial: Dial) -> None:
    raw = await dial(making)
    first, second = [await raw.call(Type.TOPIC_ENSURE, "made.a") for _ in range(2)]
    assert first[2] == second[2] and first[2]["name"] == "made.a"
    assert making.broker.administration.topics.auto_created == 1


async def test_many_new_names_are_refused_without_waiting(making: Serving, maker: sandq.Client, dial: Dial) -> None:
    """Topics beyond the known limit are refused, even while another change is in progress."""
    for number in range(3):
        await maker.produce(f"made.{number}", b"x")
    raw = await dial(making)
    async with making.broker.administration.changes._one:
        for number in range(20):
            assert (await raw.call(Type.TOPIC_ENSURE, f"made.more.{number}"))[2] == "TOO_LARGE"
    await maker.admin.delete_topic("made.1")
    async with making.broker.administration.changes._one:
        # a request for the same name waits for this attempt
        for number, name in enumerate(("made.x", "made.x", "made.y"), 71):
            await raw.send(Type.TOPIC_ENSURE, number, name)
        answer = await raw.receive()
        assert answer[1] == 73 and answer[2] == "OVERLOADED" and "1 others are being created" in answer[3]
    first, second = [await raw.receive() for _ in range(2)]
    assert first[2]["name"] == second[2]["name"] == "made.x"
    assert making.broker.administration.topics.auto_created == 4


async def test_a_node_of_a_version_that_makes_none_is_asked_again_later(
    maker: sandq.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandq.protocol.requests_admin.TopicEnsure.type", 240)
    with pytest.raises(Unavailable, match="runs a version that cannot create them on demand: try again") as refused:
        await maker.produce("made.a", b"x")
    assert refused.value.retriable


async def test_compacted_ones(tmp_path: Path) -> None:
    environ: dict[str, Any] = {
        "AUTO_CREATE_TOPICS__PATTERNS": "*",
        "AUTO_CREATE_TOPICS__KIND": "compacted",
        "AUTO_CREATE_TOPICS__SETTINGS": "{history: 5m}",
    }
    async with run_node(small_config(tmp_path, **environ)) as node, connected(node) as client:
        await client.kv("settings").put("theme", "dark")
        assert (await client.kv("settings").get("theme")).value == b"dark"  # type: ignore[union-attr]


async def test_over_http(tmp_path: Path) -> None:
    async with run_node(small_config(tmp_path, LISTEN__HTTP="127.0.0.1:0", **MADE)) as node:
        assert node.http is not None
        base = f"http://{node.http.host}:{node.http.port}"
        async with httpx.AsyncClient(verify=NO_TLS, base_url=base, timeout=PATIENCE_S) as client:
            web = Web(client)
            await web.get("/topics/made.a", 404)
            await web.post("/topics/made.a", {"value": "MQ=="}, 201)
            assert (await web.post("/topics/made.b/groups/g/lease", {}))["messages"] == []
            await web.get("/topics/made.c/groups", 404)
            refused = await web.post("/topics/other", {"value": "MQ=="}, 404)
            assert refused["code"] == "UNKNOWN_TOPIC" and "no pattern in auto_create_topics" in refused["detail"]
            assert [topic["name"] for topic in (await web.get("/topics"))["topics"]] == ["made.a", "made.b"]


async def test_topic_with_a_reserved_name_is_not_created(tmp_path: Path) -> None:
    async with run_node(small_config(tmp_path, AUTO_CREATE_TOPICS__PATTERNS="*")) as serving, connected(serving) as api:
        with pytest.raises(InvalidName, match=r"names that begin with 'sandq\.' are reserved"):
            await api.produce("sandq.orders", b"1")
        await api.produce("orders", b"1")
        assert await names(api) == ["orders"]
