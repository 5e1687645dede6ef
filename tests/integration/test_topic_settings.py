"""A topic's settings are changed while it is in use: each takes effect at once, and lasts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sandq
from sandq.errors import DuplicateKey, InvalidSetting, UnknownTopic
from sandq.node import run_node
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected, take, values, waits_until_trimmed
from tests.support.waiting import until_answer

RECORDS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"lease": "45s"}, {"lease_ms": 45_000}),
    ({"max_attempts": 3}, {"max_attempts": 3}),
    ({"max_attempts": None}, {"max_attempts": None}),
    ({"ttl": "1d"}, {"ttl_ms": 86_400_000}),
    ({"ttl": None}, {"ttl_ms": None}),
    ({"retention": "1h"}, {"retention_ms": 3_600_000}),
    ({"delete_on_ack": False, "retain": "30d", "retain_bytes": "10GiB"},
     {"delete_on_ack": False, "retain_ms": 2_592_000_000, "retain_bytes": 10 * 2**30}),
    ({"delete_on_ack": True, "retain": None, "retain_bytes": None},
     {"delete_on_ack": True, "retain_ms": None, "retain_bytes": None}),
    ({"group_ttl": "1m"}, {"group_ttl_ms": 60_000}),
    ({"group_ttl": None}, {"group_ttl_ms": None}),
    ({"dedup_window": "1h"}, {"dedup_window_ms": 3_600_000}),
]  # fmt: skip


async def test_each_setting_changes_alone_and_lasts(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    async with run_node(config) as node, connected(node) as api:
        settings = dict((await api.admin.create_topic("t", partitions=2)).settings)
        for change, expected in RECORDS:
            settings |= expected
            assert (await api.admin.update_topic("t", **change)).settings == settings
            assert (await api.admin.topic("t")).settings == settings
        record = await api.admin.update_topic("t", backoff={"first": "5s", "factor": 3})
        settings["backoff"] = settings["backoff"] | {"first_ms": 5000, "factor_permille": 3000}
        assert record.settings == settings, "only the named fields of the backoff may change"
        assert (await api.admin.update_topic("t")).settings == settings
    async with run_node(config) as node, connected(node) as api:
        assert (await api.admin.topic("t")).settings == settings
        for delivery in node.broker.catalog.topic("t").partitions.values():
            assert delivery.raft_group.status.settings == settings, "partitions must have the settings, too"


async def test_partitions_are_added_and_last(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    async with run_node(config) as node, connected(node) as api:
        await api.admin.create_topic("t", partitions=2)
        await api.produce("t", b"before", unique_key="u", delay="1h")
        record = await api.admin.update_topic("t", partitions=5, ttl="1h")
        assert (len(record.partitions), record.initial_partitions, record.settings["ttl_ms"]) == (5, 2, 3_600_000)
        for partition in range(5):
            await api.produce("t", b"after", partition=partition)
    async with run_node(config) as node, connected(node) as api:
        record = await api.admin.topic("t")
        assert (len(record.partitions), record.initial_partitions) == (5, 2)
        for delivery in node.broker.catalog.topic("t").partitions.values():
            assert delivery.raft_group.status.settings == record.settings, "new partitions must have the settings, too"
        assert (await api.messages("t").get(unique_key="u")).value == b"before"
        async with api.subscribe("t", group="g", credit=10) as subscription:
            assert {message.partition for message in await take(subscription, 5)} == set(range(5))


async def test_refused_settings_change_nothing(api: sandq.Client) -> None:
    settings = (await api.admin.create_topic("t")).settings
    wrong: list[dict[str, Any]] = [
        {"lease": "1ms"},
        {"ordering": "key"},
        {"ttl": "-1s"},
        {"retain": "1d"},
        {"group_ttl": "1s"},
        {"dedup_window": "8d"},
        {"backoff": {"kind": "wild"}},
        {"leese": "1m"},
        {"lease": "1m", "max_attempts": 0},
    ]
    for change in wrong:
        with pytest.raises(InvalidSetting) as refused:
            await api.admin.update_topic("t", **change)
        assert next(reversed(change)) in refused.value.message
    assert (await api.admin.topic("t")).settings == settings
    with pytest.raises(UnknownTopic):
        await api.admin.update_topic("u", lease="1m")


async def test_a_lease_and_attempts(timed: Serving, hand: HandClock) -> None:
    hand.hold()
    async with connected(timed) as api:
        await lease_and_attempts(api, hand)


async def lease_and_attempts(api: sandq.Client, hand: HandClock) -> None:
    """Check that changed settings of leases and attempts apply from the next lease on."""
    await api.admin.create_topic("t", lease="1h", max_attempts=None, backoff={"kind": "none"})

    async def leased_for(message_id: str) -> float:
        """Return the remaining lease time of a message, in seconds."""
        (group,) = (await api.messages("t").why(message_id))["groups"]
        return (int(group["deadline_ms"]) - hand.now_ms()) / 1000

    async with api.subscribe("t", group="g", credit=1) as subscription:
        await api.produce("t", b"long")
        (message,) = await take(subscription, 1, ack=False)
        assert await leased_for(message.id) == pytest.approx(3600, abs=0.01)
        await message.ack()
    await api.admin.update_topic("t", lease="1m", max_attempts=1)
    async with api.subscribe("t", group="g", credit=1) as subscription:
        await api.produce("t", b"short")
        (message,) = await take(subscription, 1, ack=False)
        assert await leased_for(message.id) == pytest.approx(60, abs=0.01)
        await message.nack(error="no")
    assert await api.dead("t", "g").counts() == {"nacked": 1}


async def test_back_off_and_ttl(api: sandq.Client) -> None:
    await api.admin.create_topic("t", backoff={"kind": "fixed", "first": "1h", "cap": "1h"})
    first = await api.produce("t", b"first")
    async with api.subscribe("t", group="g", credit=1) as subscription:
        await (await take(subscription, 1, ack=False))[0].nack()
        await api.admin.update_topic("t", backoff={"first": "0s"})
        second = await api.produce("t", b"second")
        await (await take(subscription, 1, ack=False))[0].nack()
        (again,) = await take(subscription, 1, ack=False)
        assert (again.id, again.attempt) == (second, 2)
        await again.ack()
        assert (await api.messages("t").get(first)).state == "waiting", (
            "the message must be leased for the reported time"
        )
    third = await api.produce("t", b"third", delay="1h")
    fourth = await api.produce("t", b"fourth")
    await api.admin.update_topic("t", ttl="1ms")
    await until_answer(lambda: api.dead("t", "g").counts(), lambda counts: counts.get("expired", 0) >= 1)
    assert (await api.messages("t").get(fourth)).state == "dead", "the setting must apply to stored messages"
    assert (await api.messages("t").get(third)).state == "delayed"
    await api.admin.update_topic("t", ttl=None)
    await api.messages("t").move(third, delay=0)
    async with api.subscribe("t", group="g") as subscription:
        assert values(await take(subscription, 1)) == [b"third"]


async def test_dedup_window_and_retention(api: sandq.Client) -> None:
    await api.admin.create_topic("t", dedup_window=0, retention="1h")
    async with api.subscribe("t", group="g", credit=100) as subscription:
        await api.produce("t", b"1", unique_key="u")
        await take(subscription, 1)
        await api.admin.update_topic("t", dedup_window="1h")
        await api.produce("t", b"2", unique_key="u")
        await take(subscription, 1)
        with pytest.raises(DuplicateKey):
            await api.produce("t", b"3", unique_key="u")
    assert len([1 async for _ in api.fetch("t", 0)]) == 2
    await api.admin.update_topic("t", retention=0)
    await waits_until_trimmed(api)


async def test_unexpected_error_in_a_change_ends_only_the_connection(
    node: Serving, api: sandq.Client, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error ends the caller's connection, not the node."""

    def fail(*args: object) -> None:
        raise OverflowError("what nobody thought of")

    await api.admin.create_topic("t")
    raw = await dial(node)
    with monkeypatch.context() as patch:
        patch.setattr("sandq.broker.controller.topic_administration.update_settings", fail)
        with pytest.raises(EOFError):
            await raw.call(Type.TOPIC_UPDATE, "t", {"ttl": "1d"}, None, None)
    assert (await api.admin.update_topic("t", ttl="1d")).settings["ttl_ms"] == 86_400_000
