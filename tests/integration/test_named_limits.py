"""Named limits, which groups of several topics share, through a real node."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

import sandq
from sandq.client.json_format import group_limits_json
from sandq.errors import Conflict, InvalidName, InvalidRequest, InvalidSetting, NotFound
from sandq.node import run_node
from sandq.node.running import Serving
from tests.integration.test_metrics import scrape
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.small_node import small_config
from tests.support.nodes.working import connected, take
from tests.support.waiting import until_answer, until_holds


async def topics(api: sandq.Client) -> None:
    """Create two topics whose groups use the limit "llm", with messages."""
    for topic in ("chat", "mail"):
        await api.admin.create_topic(topic, partitions=2, lease="1h")
        await api.admin.limit_group(topic, "g", limit="llm")
        for number in range(6):
            await api.produce(topic, b"%d" % number, partition=number % 2)


async def test_groups_of_two_topics_share_the_messages_in_flight(api: sandq.Client) -> None:
    await api.admin.set_limit("llm", max_in_flight=3)
    await topics(api)
    chat, mail = api.leases("chat", "g"), api.leases("mail", "g")
    held: list[sandq.LeasedMessage] = []
    while len(held) < 3:
        held += await chat.take(10, wait="1m")
    assert len(held) == 3
    assert await mail.take(10) == []
    (row, *_) = await until_answer(lambda: api.admin.groups("mail"), lambda rows: bool(rows and rows[0]["reason"]))
    assert row["limits"]["limit"] == "llm" and "it waits for the limit llm: " in row["reason"]
    limit = await api.admin.limit("llm")
    assert (limit["max_in_flight"], limit["given"], limit["unheard"]) == (3, 3, 0)
    assert {(one["topic"], one["group"]) for one in limit["members"]} == {("chat", "g"), ("mail", "g")}
    assert await chat.ack(held) == []
    more: list[sandq.LeasedMessage] = []
    while not more:
        more = await mail.take(10, wait="1m")
    assert 1 <= len(more) <= 3


async def test_rate_counts_costs_over_topics_and_survives_a_restart(tmp_path: Path) -> None:
    async with run_node(small_config(tmp_path)) as serving, connected(serving) as api:
        await api.admin.set_limit("llm", rate="1/d", burst=10, unit="tokens")
        for topic in ("chat", "mail"):
            await api.admin.create_topic(topic, partitions=1, lease="1h")
            await api.admin.limit_group(topic, "g", limit="llm")
            await api.produce(topic, b"a", cost=6)
        async with api.subscribe("chat", group="g", credit=10) as subscription:
            await take(subscription, 1)
        assert await api.leases("mail", "g").take(1, wait="1s") == []
    async with run_node(small_config(tmp_path)) as serving, connected(serving) as api:
        assert await api.leases("mail", "g").take(1, wait="1s") == []
        (row,) = await api.admin.limits()
        assert (row["limit"], row["rate"], row["burst"], row["unit"]) == ("llm", "1/d", 10, "tokens")
        await api.admin.set_limit("llm", rate=100, burst=10, unit="tokens")
        assert len(await api.leases("mail", "g").take(1, wait="1m")) == 1


async def test_group_that_leaves_the_limit_gives_back_its_share(api: sandq.Client) -> None:
    await api.admin.set_limit("llm", max_in_flight=2)
    await topics(api)
    held: list[sandq.LeasedMessage] = []
    while len(held) < 2:
        held += await api.leases("chat", "g").take(2, wait="1m")
    assert await api.leases("mail", "g").take(2) == []
    await api.admin.limit_group("chat", "g")
    assert len(await api.leases("mail", "g").take(1, wait="1m")) == 1
    found = await until_answer(
        lambda: api.admin.limit("llm"), lambda limit: {one["topic"] for one in limit["members"]} == {"mail"}
    )
    assert found["given"] <= 2
    await api.admin.delete_topic("mail")
    await api.admin.delete_limit("llm")
    assert await api.admin.limits() == []


async def test_members_of_a_deleted_topic_give_back_their_shares(api: sandq.Client) -> None:
    await api.admin.set_limit("llm", max_in_flight=2)
    await topics(api)
    held: list[sandq.LeasedMessage] = []
    while len(held) < 2:
        held += await api.leases("chat", "g").take(2, wait="1m")
    await api.admin.delete_topic("chat")
    assert len(await api.leases("mail", "g").take(1, wait="1m")) == 1


async def test_metrics_show_the_use_of_a_limit(api: sandq.Client, node: Serving) -> None:
    await api.admin.set_limit("llm", max_in_flight=3)
    await topics(api)
    held: list[sandq.LeasedMessage] = []
    while len(held) < 3:
        held += await api.leases("chat", "g").take(10, wait="1m")
    assert await api.leases("mail", "g").take(10) == []
    found = await scrape(node)
    assert found("limit_in_flight", limit="llm") == found("limit_units_used_total", limit="llm") == 3
    assert found("limit_waiting", limit="llm") == 1


async def test_mistakes_are_named(api: sandq.Client) -> None:
    await api.admin.create_topic("t")
    assert await api.admin.limits() == []
    for attempt in (
        api.admin.limit("llm"),
        api.admin.delete_limit("llm"),
        api.admin.limit_group("t", "g", limit="llm"),
    ):
        with pytest.raises(NotFound, match="no limit 'llm'"):
            await attempt
    with pytest.raises(InvalidRequest, match="needs max_in_flight or a rate"):
        await api.admin.set_limit("llm")
    with pytest.raises(InvalidSetting, match="burst: it goes with a rate only"):
        await api.admin.set_limit("llm", burst=5)
    with pytest.raises(InvalidName):
        await api.admin.set_limit("a/b", rate=5)
    await api.admin.set_limit("llm", rate=5)
    with pytest.raises(InvalidSetting, match=r"no limits of its own \(rate\)"):
        await api.admin.limit_group("t", "g", limit="llm", rate=5)
    await api.admin.limit_group("t", "g", limit="llm")
    assert group_limits_json((await api.admin.topic("t")).settings)["g"]["limit"] == "llm"
    with pytest.raises(Conflict, match="used by group 'g' of topic 't'"):
        await api.admin.delete_limit("llm")
    await api.admin.create_topic("k", kind="compacted")
    with pytest.raises(InvalidRequest, match="compacted"):
        await api.admin.limit_group("k", "g", limit="llm")


async def test_topic_of_the_limits_is_not_for_messages(api: sandq.Client) -> None:
    await api.admin.set_limit("llm", rate=5)
    with pytest.raises(InvalidRequest, match="no messages can be sent to it"):
        await api.produce("sandq.limits", b"a")
    with pytest.raises(InvalidRequest, match="no messages can be sent to it"):
        await api.schedules("sandq.limits").create("s", b"m", every="1h")
    with pytest.raises(InvalidSetting, match="no messages can be sent to it"):
        await api.admin.create_topic("u", dead_letter_topic="sandq.limits")
    await api.admin.create_topic("t")
    await api.produce("t", b"a")
    (lease,) = await api.leases("t", "g").take(1, wait="1m")
    with pytest.raises(InvalidRequest, match="no messages can be sent to it"):
        await api.leases("t", "g").ack([lease], then=[sandq.Outgoing(b"m", topic="sandq.limits")])
    with pytest.raises(InvalidRequest, match="it has no messages"):
        await api.leases("sandq.limits", "llm").take(1)
    with pytest.raises(InvalidRequest, match="cannot be deleted"):
        await api.admin.delete_topic("sandq.limits")
    with pytest.raises(InvalidRequest, match="only its number of replicas"):
        await api.admin.update_topic("sandq.limits", partitions=3)
    await api.admin.update_topic("sandq.limits", replicas=1)


async def test_message_that_becomes_due_without_a_share_is_delivered(timed: Serving, hand: HandClock) -> None:
    """Nothing happens in the partition when its next message becomes due, so its leader must ask for a share then."""
    async with connected(timed) as api:
        await api.admin.set_limit("llm", max_in_flight=1)
        for topic in ("chat", "mail"):
            await api.admin.create_topic(topic)
            await api.admin.limit_group(topic, "g", limit="llm")
            await api.produce(topic, b"later", delay="30s")
        async with api.subscribe("chat", group="g") as subscription, trio.open_nursery() as nursery:
            got: list[sandq.LeasedMessage] = []

            async def lease() -> None:
                while not got:
                    got.extend(await api.leases("mail", "g").take(1, wait="1m"))

            nursery.start_soon(lease)
            await until_answer(lambda: api.admin.limit("llm"), lambda limit: len(limit["members"]) == 2)
            hand.forward(30)
            (message,) = await take(subscription, 1)
            assert message.value == b"later"
            await until_holds(lambda: bool(got))
