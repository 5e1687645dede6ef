"""Times of redeliveries, by the broker's own timestamps: backoff, delays, expired leases, ttl."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import sandq
from sandq.errors import LeaseLost
from sandq.node import run_node
from sandq.node.running import Serving
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected, take, values, with_topic
from tests.support.waiting import until_answer

BACKOFFS: list[tuple[dict[str, object], list[tuple[int, int]]]] = [
    ({"kind": "none"}, [(0, 0)] * 3),
    ({"kind": "fixed", "first": "40ms", "jitter_percent": 0}, [(40, 40)] * 3),
    ({"kind": "linear", "first": "30ms", "jitter_percent": 0}, [(30, 30), (60, 60), (90, 90)]),
    ({"kind": "linear", "first": "30ms", "cap": "50ms", "jitter_percent": 0}, [(30, 30), (50, 50), (50, 50)]),
    ({"kind": "exponential", "first": "20ms", "factor": 3, "cap": "100ms", "jitter_percent": 0},
     [(20, 20), (60, 60), (100, 100)]),
    ({"kind": "exponential", "first": "40ms", "factor": 1.5, "jitter_percent": 50}, [(20, 60), (30, 90), (45, 135)]),
]  # fmt: skip


async def fail_once(api: sandq.Client, group: str = "g", delay: float | None = None) -> sandq.Message:
    """Receive the next message and nack it. The consumer leaves afterwards."""
    async with api.subscribe("t", group=group) as subscription:
        (message,) = await take(subscription, 1, ack=False)
        await message.nack(delay=delay, error=f"attempt {message.attempt}")
        return message


async def attempts_of(
    node: Serving, subscription: sandq.Subscription, count: int, delays_s: Sequence[float | None]
) -> list[int]:
    """Nack the only message `count` times. Return the time of each delivery, by the broker's clock."""
    came_ms = []
    for attempt in range(1, count + 1):
        (message,) = await take(subscription, 1, ack=False)
        came_ms.append(node.broker.clock.now_ms())
        assert message.attempt == attempt
        await message.nack(delay=delays_s[attempt - 1], error=f"attempt {attempt}")
    return came_ms


async def in_group(api: sandq.Client, message_id: str, name: str = "g") -> dict[str, Any]:
    """Return a group's state of a message."""
    (found,) = [group for group in (await api.messages("t").why(message_id))["groups"] if group["group"] == name]
    return dict(found)


@pytest.mark.parametrize(("backoff", "delays_ms"), BACKOFFS)
async def test_retries_follow_the_backoff_of_the_topic(
    tmp_path: Path, hand: HandClock, backoff: dict[str, object], delays_ms: list[tuple[int, int]]
) -> None:
    """The reply names the time of the retry; the message then arrives, not a millisecond earlier."""
    hand.hold()
    config = small_config(tmp_path, DELIVERY__LEASE_AHEAD="0ms")
    async with (
        run_node(config, clock=hand.guarded()) as node,
        connected(node) as api,
        with_topic(api, backoff=backoff, max_attempts=4, lease="1h"),
        api.subscribe("t", group="g", credit=1) as subscription,
    ):
        message_id = await api.produce("t", b"m")
        for attempt, (least_ms, most_ms) in enumerate([*delays_ms, (0, 0)], 1):
            (message,) = await take(subscription, 1, ack=False)
            assert (message.id, message.attempt) == (message_id, attempt)
            await message.nack(error=f"attempt {attempt}")
            if attempt > len(delays_ms) or most_ms == 0:
                continue
            group = await in_group(api, message_id)
            assert (group["state"], group["attempt"], group["error"]) == ("waiting", attempt, f"attempt {attempt}")
            assert least_ms <= group["due_ms"] - group["history"][-1][3] <= most_ms
            hand.forward_to(group["due_ms"] - 1)
            await api.produce("t", b"meanwhile")
            assert values(await take(subscription, 1)) == [b"meanwhile"], "early"
            assert (await in_group(api, message_id))["state"] == "waiting"
            hand.forward_to(group["due_ms"])
        ((letter),) = [letter async for letter in api.dead("t", "g").list()]
        assert [(row.attempt, row.error) for row in letter.history] == [(n, f"attempt {n}") for n in range(1, 5)]


async def test_a_nack_may_say_when(node: Serving, api: sandq.Client) -> None:
    await api.admin.create_topic("t", backoff={"kind": "linear", "first": "8m"})
    message_id = await api.produce("t", b"m")
    delays_s = (0.05, 0.0, 0.12)
    async with api.subscribe("t", group="g", credit=1) as subscription:
        came_ms = await attempts_of(node, subscription, 3, delays_s)
        (message,) = await take(subscription, 1, ack=False)
        came_ms.append(node.broker.clock.now_ms())
        await message.nack()
    group = await in_group(api, message_id)
    for number, delay_s in enumerate(delays_s):
        assert came_ms[number + 1] >= group["history"][number][3] + round(delay_s * 1000), "early"
    assert (group["state"], group["reason"]) == ("waiting", "it waits for its next attempt")
    assert 480_000 <= group["due_ms"] - group["history"][-1][3] <= 720_000, "the cap and the jitter must apply"


async def test_a_group_may_have_its_own(timed: Serving, hand: HandClock) -> None:
    hand.hold()
    topics = {"kind": "fixed", "first": "20s", "jitter_percent": 0}
    own = {"kind": "linear", "first": "10s", "jitter_percent": 0}
    async with connected(timed) as api, with_topic(api, max_attempts=3, backoff=topics):
        for name in ("own", "plain"):
            async with api.subscribe("t", group=name):
                pass
        await api.admin.update_group("t", "own", max_attempts=2, backoff=own)
        message_id = await api.produce("t", b"m")
        for name, delay_ms, attempts in (("own", 10_000, 2), ("plain", 20_000, 3)):
            for attempt in range(1, attempts + 1):
                assert (await fail_once(api, name)).attempt == attempt
                group = await in_group(api, message_id, name)
                if attempt < attempts:
                    assert group["due_ms"] - group["history"][-1][3] == delay_ms * (attempt if name == "own" else 1)
                else:
                    assert group["state"] == "dead"
                hand.forward(30)
        settings = {row["group"]: row["settings"] for row in await api.admin.groups("t")}
        assert settings["plain"] is None
        assert (settings["own"]["max_attempts"], settings["own"]["backoff"]["kind"]) == (2, "linear")
        # Return to the settings of the topic.
        await api.admin.update_group("t", "own")
        second = await api.produce("t", b"second")
        await fail_once(api, "own")
        group = await in_group(api, second, "own")
        assert group["due_ms"] - group["history"][-1][3] == 20_000
        assert [row["settings"] for row in await api.admin.groups("t")] == [None, None]


async def test_without_a_maximum_nothing_dies(api: sandq.Client) -> None:
    await api.admin.create_topic("t", max_attempts=None, backoff={"kind": "none"})
    message_id = await api.produce("t", b"m")
    async with api.subscribe("t", group="g") as subscription:
        for attempt in range(1, 31):
            (message,) = await take(subscription, 1, ack=False)
            assert message.attempt == attempt
            await message.nack(error=f"attempt {attempt}")
    group = await in_group(api, message_id)
    assert [row[0] for row in group["history"]] == [26, 27, 28, 29, 30], "the last five attempts must be kept"


async def test_a_lease_that_ends_is_an_attempt(timed: Serving, hand: HandClock) -> None:
    backoff = {"kind": "fixed", "first": "50ms", "jitter_percent": 0}
    async with (
        connected(timed) as api,
        with_topic(api, lease="10m", backoff=backoff),
        api.subscribe("t", group="g", auto_extend=False) as subscription,
    ):
        message_id = await api.produce("t", b"m")
        (first,) = await take(subscription, 1, ack=False)
        told = await in_group(api, message_id)
        hand.forward(601)
        await until_answer(lambda: in_group(api, message_id), lambda group: bool(group["history"]))
        with pytest.raises(LeaseLost):
            await first.ack()
        group = await in_group(api, message_id)
        attempt, consumer, _, ended_ms, outcome, error = group["history"][0]
        assert (attempt, consumer, outcome, error) == (1, told["consumer"], "lease_expired", None)
        assert told["deadline_ms"] <= ended_ms


async def test_held_messages_are_extended(timed: Serving, hand: HandClock) -> None:
    """The client extends a lease before it ends. The broker's clock moves only when this test moves it."""
    hand.hold()
    async with (
        connected(timed) as api,
        with_topic(api, lease="1s", max_attempts=1),
        api.subscribe("t", group="g") as subscription,
    ):
        message_id = await api.produce("t", b"m")
        (message,) = await take(subscription, 1, ack=False)
        deadline_ms = (await in_group(api, message_id))["deadline_ms"]
        hand.forward(0.9)
        group = await until_answer(lambda: in_group(api, message_id), lambda group: group["deadline_ms"] > deadline_ms)
        assert (group["state"], group["attempt"]) == ("leased", 1)
        assert await message.extend("1m") > hand.now_ms() + 59_000
        await message.ack()
