"""Limits of a topic, in addition to those of the node."""

from __future__ import annotations

import pytest

import sandq
from sandq.errors import InvalidRequest, InvalidSetting, InvalidTime, TooLarge
from sandq.model.batch import Column, encode
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.nodes.working import take
from tests.support.waiting import until_holds

YEAR = 366


async def test_large_messages(node: Serving, dial: Dial, api: sandq.Client) -> None:
    await api.admin.create_topic("t", max_message_bytes="1KiB")
    await api.produce("t", bytes(1024))
    with pytest.raises(TooLarge, match="max_message_bytes") as refused:
        await api.produce("t", bytes(1025))
    assert refused.value.details["maximum"] == 1024
    raw = await dial(node)  # the node refuses what an older client does not check
    for count in (1, 2):
        answer = await raw.produce(*[bytes(1025)] * count)
        assert answer[2] == "TOO_LARGE" and "topic 't' (max_message_bytes)" in answer[3]
    await api.admin.update_topic("t", max_message_bytes="none")
    await until_holds(lambda: "max_message_bytes" not in node.broker.catalog.topic("t").record.settings)
    await api.produce("t", bytes(1025))


async def test_a_topic_takes_no_more_than_the_node(node: Serving, dial: Dial, api: sandq.Client) -> None:
    await api.admin.create_topic("t", max_message_bytes="48MiB")
    with pytest.raises(TooLarge) as refused:
        await api.produce("t", bytes((8 << 20) + 1))
    assert refused.value.details["limit"] == "message_bytes"


async def test_values_of_keys_and_of_schedules(api: sandq.Client) -> None:
    await api.admin.create_topic("keys", kind="compacted", max_message_bytes="1KiB")
    with pytest.raises(TooLarge, match="max_message_bytes"):
        await api.kv("keys").put(b"k", bytes(1025))
    await api.kv("keys").put(b"k", bytes(1024))
    await api.admin.create_topic("t", max_message_bytes="1KiB")
    with pytest.raises(TooLarge, match="max_message_bytes"):
        await api.schedules("t").create("daily", bytes(1025), every="1d")


async def test_messages_that_are_far_ahead(node: Serving, dial: Dial, api: sandq.Client) -> None:
    await api.admin.create_topic("t", max_delay="1h")
    kept = await api.produce("t", b"near", delay="1h")
    for later in ({"delay": "61m"}, {"deliver_at": "2199-01-01T00:00:00Z"}):
        with pytest.raises(InvalidTime, match="max_delay"):
            await api.produce("t", b"far", **later)  # type: ignore[arg-type]
    messages = api.messages("t")
    with pytest.raises(InvalidTime, match="max_delay"):
        await messages.move(kept, delay="61m")
    with pytest.raises(InvalidTime, match="max_delay"):
        await messages.move_all(shift="61m")
    raw = await dial(node)
    answer = await raw.produce_batch(encode({Column.VALUE: [b"x"], Column.DELIVER_MS: [3_660_000]}, relative=True))
    assert answer[2] == "INVALID_TIME" and "topic 't' takes none beyond 1h (max_delay)" in answer[3]


async def test_max_delay_of_topic_allows_decades(api: sandq.Client) -> None:
    await api.admin.create_topic("t", max_delay=f"{80 * YEAR}d")
    message = await api.produce("t", b"a will", delay=f"{79 * YEAR}d")
    await api.produce("t", b"another", deliver_at="2090-01-01T00:00:00Z")
    assert await api.messages("t").move(message, delay=f"{78 * YEAR}d")
    with pytest.raises(InvalidTime, match="max_delay"):
        await api.produce("t", b"too late", delay=f"{81 * YEAR}d")


async def test_long_leases(node: Serving, dial: Dial, api: sandq.Client) -> None:
    await api.admin.create_topic("t", lease="1m", max_lease="2m")
    await api.produce("t", b"m")
    with pytest.raises(InvalidRequest, match="topic 't' allows 2m"):
        async with api.subscribe("t", group="g", lease="3m"):
            pass
    with pytest.raises(InvalidRequest, match="max_lease"):
        await api.leases("t", "g").take(lease="3m")
    async with api.subscribe("t", group="g", lease="2m") as subscription:
        (message,) = await take(subscription, 1, ack=False)
        with pytest.raises(InvalidRequest, match="max_lease"):
            await message.extend("3m")
        await message.extend("2m")
        await message.ack()
    with pytest.raises(InvalidSetting, match=r"lease: 1m is longer than max_lease \(30s\)"):
        await api.admin.update_topic("t", max_lease="30s")
    await api.admin.update_topic("t", lease="20s", max_lease="30s")


async def test_a_topic_without_limits_is_as_before(node: Serving, dial: Dial) -> None:
    raw = await dial(node)
    await raw.create()
    settings = (await raw.call(Type.METADATA, ["t"]))[3][0]["settings"]
    assert not [name for name in settings if name in ("max_message_bytes", "max_delay_ms", "max_lease_ms")]
