"""A named hold keeps messages that its reader has not read, also through a restart, until the hold expires or is
released."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

import sandq
from sandq.errors import Conflict, InvalidName, InvalidRequest, InvalidTime, UnknownPartition, UnknownTopic
from sandq.node import run_node
from sandq.node.running import Serving
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected, stored_messages, take, waits_until_trimmed

NOTHING = "0" * 26


async def _fetched(api: sandq.Client) -> list[sandq.StoredMessage]:
    return [message async for message in api.fetch("t", 0)]


async def _all_acked(api: sandq.Client, count: int) -> list[str]:
    """Produce and ack messages. Return their offsets, in order."""
    for number in range(count):
        await api.produce("t", b"%d" % number)
    async with api.subscribe("t", group="g", credit=100) as subscription:
        return [message.offset for message in await take(subscription, count)]


async def _holds(api: sandq.Client) -> list[Any]:
    return [row["holds"] for row in await api.admin.stats("t")]


@pytest.mark.parametrize("kind", ["timer", "fair"])
async def test_hold_keeps_messages_through_a_restart(tmp_path: Path, hand: HandClock, kind: str) -> None:
    config = small_config(tmp_path)
    async with run_node(config, clock=hand.guarded()) as node, connected(node) as api:
        await api.admin.create_topic("t", kind=kind)
        assert await api.admin.hold("t", "report", {0: NOTHING}, ttl="1h") == {0: NOTHING}
        offsets = await _all_acked(api, 5)
        assert await api.admin.hold("t", "report", {0: offsets[1]}, ttl="1h") == {0: NOTHING}
        await waits_until_trimmed(api, left=3)
        until_ms = node.broker.clock.now_ms() + 3_600_000
        ((held,),) = await _holds(api)
        assert (held["name"], held["offset"]) == ("report", offsets[1]) and 0 <= until_ms - held["until_ms"] <= 60_000
    async with run_node(config, clock=hand.guarded()) as node, connected(node) as api:
        assert await _holds(api) == [[held]]
        assert [message.value for message in await _fetched(api)] == [b"2", b"3", b"4"]
        # Move the hold to the beginning: the reply names the offset up to which messages are trimmed.
        assert await api.admin.hold("t", "report", {0: offsets[0]}, ttl="1h") == {0: offsets[1]}
        assert await stored_messages(api) == 3
        await api.admin.hold("t", "report", {0: offsets[3]}, ttl="1h")
        await waits_until_trimmed(api, left=1)
        hand.forward(3_601)
        await waits_until_trimmed(api)
        assert await _holds(api) == [[]]


async def test_released_it_keeps_nothing(api: sandq.Client) -> None:
    await api.admin.create_topic("t", partitions=2)
    await api.admin.create_topic("other")
    assert await api.admin.hold("t", "a", {0: NOTHING, 1: NOTHING}) == {0: NOTHING, 1: NOTHING}
    await api.admin.hold("t", "b", {1: NOTHING})
    await _all_acked(api, 20)
    await api.produce("other", b"m")
    async with api.subscribe("other", group="g") as subscription:
        await take(subscription, 1)
    await waits_until_trimmed(api, "other")  # acked after the messages of "t", which are held
    assert await stored_messages(api) == 20
    await api.admin.release("t", "b")
    assert [[hold["name"] for hold in holds] for holds in await _holds(api)] == [["a"], ["a"]]
    await api.admin.release("t", "a")
    await api.admin.release("t", "a")
    await waits_until_trimmed(api)


async def test_invalid_holds_are_refused(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    await api.admin.create_topic("keys", kind="compacted")
    with pytest.raises(InvalidRequest, match="compacted"):
        await api.admin.hold("keys", "h", {0: NOTHING})
    with pytest.raises(InvalidRequest, match="compacted"):
        await api.admin.release("keys", "h")
    with pytest.raises(InvalidName, match="hold"):
        await api.admin.hold("t", "no name", {0: NOTHING})
    with pytest.raises(InvalidRequest, match="not an offset"):
        await api.admin.hold("t", "h", {0: "yesterday"})
    for ttl in ("0.9s", "367d"):
        with pytest.raises(InvalidRequest, match="1s to 366d"):
            await api.admin.hold("t", "h", {0: NOTHING}, ttl=ttl)
    with pytest.raises(InvalidTime):
        await api.admin.hold("t", "h", {0: NOTHING}, ttl="soon")
    for partition in (1, -1, "0"):
        with pytest.raises(UnknownPartition):
            await api.admin.hold("t", "h", {partition: NOTHING})  # type: ignore[dict-item]
    with pytest.raises(UnknownTopic):
        await api.admin.hold("nowhere", "h", {0: NOTHING})
    assert await api.admin.hold("t", "h", {}) == {}
    assert await _holds(api) == [[]]


async def test_number_of_holds_is_limited(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    for number in range(64):
        await api.admin.hold("t", f"h{number}", {0: NOTHING})
    with pytest.raises(Conflict, match="64 holds"):
        await api.admin.hold("t", "one-more", {0: NOTHING})


async def test_blocking_client_sets_and_releases_hold(node: Serving) -> None:
    def blocking() -> Any:
        with sandq.sync.connect(f"127.0.0.1:{node.client_port}") as client:
            client.admin.create_topic("t")
            assert client.admin.hold("t", "h", {0: NOTHING}, ttl=60) == {0: NOTHING}
            (row,) = client.admin.stats("t")
            client.admin.release("t", "h")
            return row["holds"][0]["offset"]

    assert await trio.to_thread.run_sync(blocking) == NOTHING
