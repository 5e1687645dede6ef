"""One subscription to several topics, by names or by a pattern."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio

import sandq
from sandq.client.client import connect_with
from sandq.client.consumer import chosen
from sandq.client.options import Options
from sandq.errors import ConsumerFenced, InvalidName, InvalidRequest, TooLarge, UnknownTopic
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.nodes.working import connected, take, values
from tests.support.waiting import PATIENCE_S, until_holds

TOPICS = ["a", "b", "c"]


@pytest.fixture
async def client(node: Serving) -> AsyncIterator[sandq.Client]:
    """A client whose subscriptions look for new topics all the time."""
    options = Options(topics_interval_s=0.01)
    async with connect_with(options, (f"127.0.0.1:{node.client_port}",), "test") as client:
        for topic in TOPICS:
            await client.admin.create_topic(topic, lease="10m")
        yield client


async def fill(client: sandq.Client, topic: str, count: int) -> None:
    await client.produce_many(topic, [b"%s%d" % (topic.encode(), number) for number in range(count)])


def credit_in(node: Serving, topic: str, subscription: sandq.Subscription) -> int:
    """Return the credit of a topic."""
    found = node.broker.catalog.partition(topic, 0).subscription_of("g", subscription.consumer_id)
    assert found is not None
    return found.credit


async def test_messages_of_all_come_and_acks_go_where_they_belong(client: sandq.Client) -> None:
    for topic in TOPICS:
        await fill(client, topic, 3)
    async with client.subscribe(TOPICS, group="g", credit=100) as subscription:
        messages = await take(subscription, 9)
        assert subscription.topics == TOPICS and subscription.topic == "a, b, c"
    assert Counter(message.topic for message in messages) == {"a": 3, "b": 3, "c": 3}
    assert all(message.value.startswith(message.topic.encode()) for message in messages)
    for topic in TOPICS:
        assert [(row["leased"], row["ready"]) for row in await client.admin.groups(topic)] == [(0, 0)]


async def test_nacks_and_extensions_go_where_they_belong(client: sandq.Client) -> None:
    await client.produce("a", b"one")
    await client.produce("b", b"two")
    async with client.subscribe(["a", "b"], group="g") as subscription:
        first, second = sorted(await take(subscription, 2, ack=False), key=lambda message: message.value)
        await first.extend("1h")
        await second.nack(delay=0)
        (again,) = await take(subscription, 1)
        assert (again.topic, again.value, again.attempt) == ("b", b"two", 2)
        await first.ack()


async def test_busy_topic_uses_all_credit(client: sandq.Client) -> None:
    await fill(client, "a", 20)
    async with client.subscribe(TOPICS, group="g", credit=6) as subscription:
        assert {message.topic for message in await take(subscription, 6, ack=False)} == {"a"}


async def test_messages_held_are_limited_by_credit(node: Serving, client: sandq.Client) -> None:
    for topic in TOPICS:
        await fill(client, topic, 20)
    async with client.subscribe(TOPICS, group="g", credit=6) as subscription:
        held = await take(subscription, 6, ack=False)
        async with connected(node) as other, other.subscribe(TOPICS, group="g", credit=1000) as others:
            # The other consumer has credit for all messages. The missing ones are held here: the credit,
            # plus at most one per topic.
            rest = await take(others, 60 - 6 - len(TOPICS), ack=False)
    assert not {(one.topic, one.id) for one in rest} & {(one.topic, one.id) for one in held}


async def test_credit_that_a_topic_does_not_use_goes_to_others(node: Serving, client: sandq.Client) -> None:
    await fill(client, "a", 1)
    async with client.subscribe(TOPICS, group="g", credit=30) as subscription:
        await take(subscription, 1)
        await until_holds(lambda: credit_in(node, "a", subscription) == 1)
        await fill(client, "b", 40)
        assert {message.topic for message in await take(subscription, 30, ack=False)} == {"b"}


async def test_every_topic_is_served_in_turn(client: sandq.Client) -> None:
    """One topic with many messages does not delay the others."""
    await fill(client, "a", 300)
    async with client.subscribe(TOPICS, group="g", credit=10) as subscription:
        await take(subscription, 20)
        for topic in ("b", "c"):
            await fill(client, topic, 5)
        seen: Counter[str] = Counter()
        with trio.fail_after(PATIENCE_S):
            while seen["b"] < 5 or seen["c"] < 5:
                (message,) = await take(subscription, 1)
                seen[message.topic] += 1
        assert seen["a"] < 280, "the other topics must not wait until topic 'a' is empty"


async def test_batches_come_from_all_topics(client: sandq.Client) -> None:
    for topic in TOPICS:
        await fill(client, topic, 50)
    found: Counter[str] = Counter()
    async with client.subscribe(TOPICS, group="g") as subscription:
        with trio.fail_after(PATIENCE_S):
            async for batch in subscription.batches():
                found[batch.topic] += len(batch)
                await batch.ack()
                if found.total() == 150:
                    break
    assert found == {"a": 50, "b": 50, "c": 50}


async def test_a_run_over_several(client: sandq.Client) -> None:
    for topic in TOPICS:
        await fill(client, topic, 20)
    found: Counter[str] = Counter()

    async def handle(message: sandq.Message) -> None:
        found[message.topic] += 1
        if found.total() == 60:
            nursery.cancel_scope.cancel()

    with trio.fail_after(PATIENCE_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lambda: client.run(TOPICS, "g", handle, concurrency=4))
    assert found == {"a": 20, "b": 20, "c": 20}


async def test_leaving_gives_back_of_all(client: sandq.Client) -> None:
    for topic in TOPICS:
        await fill(client, topic, 2)
    async with client.subscribe(TOPICS, group="g", credit=100) as subscription:
        held = await take(subscription, 6, ack=False)
    assert {message.attempt for message in held} == {1}
    async with client.subscribe(TOPICS, group="g", credit=100) as again:
        assert {message.attempt for message in await take(again, 6)} == {1}


async def test_a_topic_that_is_deleted_ends_it(client: sandq.Client) -> None:
    async with client.subscribe(TOPICS, group="g") as subscription:
        await client.admin.delete_topic("b")
        with pytest.raises(UnknownTopic, match="'b'"), trio.fail_after(PATIENCE_S):
            await anext(subscription)


async def test_a_name_that_lasts_is_for_all_of_them(node: Serving, client: sandq.Client) -> None:
    for topic in TOPICS:
        await fill(client, topic, 1)
    async with client.subscribe(TOPICS, group="g", consumer_id="w") as zombie:
        held = await take(zombie, 3, ack=False)
        async with connected(node) as later, later.subscribe(TOPICS, group="g", consumer_id="w") as again:
            assert {(one.topic, one.id) for one in await take(again, 3)} == {(one.topic, one.id) for one in held}
            with pytest.raises(ConsumerFenced), trio.fail_after(PATIENCE_S):
                await anext(zombie)


# -- patterns ----------------------------------------------------------------------------------------------------------


async def test_pattern_subscribes_to_matching_topics(client: sandq.Client) -> None:
    for topic in ("orders.eu", "orders.us", "other"):
        await client.admin.create_topic(topic)
        await fill(client, topic, 1)
    async with client.subscribe(sandq.pattern("orders.*"), group="g") as subscription:
        assert sorted(subscription.topics) == ["orders.eu", "orders.us"]
        assert sorted(values(await take(subscription, 2))) == [b"orders.eu0", b"orders.us0"]


async def test_topics_come_and_go(client: sandq.Client) -> None:
    async with client.subscribe(sandq.pattern("new.*"), group="g") as subscription:
        assert subscription.topics == []
        for _ in range(2):  # the second time, it is created again
            await client.admin.create_topic("new.one")
            await client.produce("new.one", b"hello")
            assert values(await take(subscription, 1)) == [b"hello"]
            await client.admin.delete_topic("new.one")
            await until_holds(lambda: subscription.topics == [])
        await client.admin.create_topic("new.two")
        await client.produce("new.two", b"again")
        assert values(await take(subscription, 1)) == [b"again"]


async def test_held_message_of_deleted_topic_is_lost(client: sandq.Client) -> None:
    for topic in ("p.a", "p.b"):
        await client.admin.create_topic(topic)
    await client.produce("p.a", b"held")
    async with client.subscribe(sandq.pattern("p.*"), group="g") as subscription:
        (held,) = await take(subscription, 1, ack=False)
        await client.admin.delete_topic("p.a")
        await until_holds(lambda: subscription.topics == ["p.b"])
        with pytest.raises(sandq.errors.SandqError):
            await held.ack()
        await client.produce("p.b", b"on")
        assert values(await take(subscription, 1)) == [b"on"]


async def test_more_than_may_be(client: sandq.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (chosen, sandq.client.consumer.subscription):
        monkeypatch.setattr(module, "TOPICS_MAX", 2)
    with pytest.raises(TooLarge, match="at most 2"):
        client.subscribe(TOPICS, group="g")
    with pytest.raises(TooLarge, match="at most 2"):
        async with client.subscribe(sandq.pattern("?"), group="g"):
            pass
    async with client.subscribe(sandq.pattern("[ab]", "d"), group="g") as subscription:
        await client.admin.create_topic("d")
        await client.admin.delete_topic("a")
        await until_holds(lambda: subscription.topics == ["b", "d"])


async def test_a_topic_that_refuses_is_left_out_until_it_takes_it(
    client: sandq.Client, caplog: pytest.LogCaptureFixture
) -> None:
    await client.admin.create_topic("p.a")
    await client.admin.create_topic("p.short", max_lease="1m")
    async with client.subscribe(sandq.pattern("p.*"), group="g", lease="10m") as subscription:
        await until_holds(lambda: [*subscription.refused] == ["p.short"])
        assert "max_lease" in str(subscription.refused["p.short"])
        for topic in ("p.short", "p.a"):
            await client.produce(topic, topic.encode())
        assert values(await take(subscription, 1)) == [b"p.a"]
        # this topic is created later and also refuses the subscription
        await client.admin.create_topic("p.later", max_lease="2m")
        await until_holds(lambda: sorted(subscription.refused) == ["p.later", "p.short"])
        await client.admin.update_topic("p.short", max_lease="none")
        assert values(await take(subscription, 1)) == [b"p.short"]
        await until_holds(lambda: [*subscription.refused] == ["p.later"])
        await client.admin.delete_topic("p.later")
        await until_holds(lambda: subscription.refused == {})
        assert sorted(subscription.topics) == ["p.a", "p.short"]
    told = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert [("p.short" in line, "p.later" in line) for line in told if "refuses it" in line] == [
        (True, False),
        (False, True),
    ]


async def test_error_of_all_pattern_topics_is_raised(client: sandq.Client) -> None:
    for topic in ("p.a", "p.b"):
        await client.admin.create_topic(topic, max_lease="1m")
        with pytest.raises(InvalidRequest, match="max_lease"):
            async with client.subscribe(sandq.pattern("p.*"), group="g", lease="10m"):
                pass
    # A client that names a topic gets an error, whatever other clients do.
    with pytest.raises(InvalidRequest, match="max_lease"):
        async with client.subscribe(["a", "p.a"], group="g", lease="5m"):
            pass


async def test_handlers_go_on_without_a_topic_that_refuses(client: sandq.Client) -> None:
    await client.admin.create_topic("p.a")
    await client.admin.create_topic("p.short", max_lease="1m")
    done = trio.Event()

    async def handler(message: sandq.Message) -> None:
        assert message.topic == "p.a"
        done.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lambda: client.run(sandq.pattern("p.*"), "g", handler, lease="10m"))
        await client.produce("p.a", b"x")
        with trio.fail_after(PATIENCE_S):
            await done.wait()
        nursery.cancel_scope.cancel()


# -- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topics", "error"),
    [([], InvalidRequest), (["a", "b c"], InvalidName), ([5], InvalidName), (5, InvalidName), (b"a", InvalidName)],
)
async def test_invalid_topic_lists_are_rejected(api: sandq.Client, topics: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        api.subscribe(topics, group="g")


async def test_missing_topic_of_list_is_refused(client: sandq.Client) -> None:
    with pytest.raises(UnknownTopic, match="'nope'"):
        async with client.subscribe(["a", "nope"], group="g"):
            pass


async def test_partitions_are_of_one_topic(client: sandq.Client) -> None:
    with pytest.raises(InvalidRequest, match="single topic"):
        client.subscribe(["a", "b"], group="g", partitions=[0])
    async with client.subscribe(["a", "a"], group="g", partitions=[0]) as subscription:
        assert subscription.topics == ["a"]


async def test_names_by_a_pattern_as_a_client_asks_for_them(node: Serving, dial: Dial) -> None:
    raw = await dial(node)
    for topic in ("x.2", "x.1", "y"):
        await raw.create(topic)
    assert (await raw.call(Type.TOPIC_NAMES, ["x.*", "z"], 10))[2] == ["x.1", "x.2"]
    assert (await raw.call(Type.TOPIC_NAMES, ["*"], 2))[2] == ["x.1", "x.2"]
    for patterns in ([], ["a b"], "x", [5], ["*"] * 21):
        answer = await raw.call(Type.TOPIC_NAMES, patterns, 10)
        assert (answer[0], answer[2]) == (Type.ERROR, "INVALID"), patterns


async def test_credit_is_taken_back(node: Serving, dial: Dial) -> None:
    raw = await dial(node)
    await raw.create()
    await raw.subscribe(credit=10)
    await raw.send(Type.CREDIT, 0, 1, -9)
    leader = node.broker.catalog.partition("t", 0)
    await until_holds(lambda: leader.subscription_of("g", "c").credit == 1)  # type: ignore[union-attr]
    await raw.send(Type.CREDIT, 0, 1, -3)
    await until_holds(lambda: leader.subscription_of("g", "c").credit == -2)  # type: ignore[union-attr]
    await raw.produce(b"one")
    await raw.send(Type.CREDIT, 0, 1, 3)
    with trio.fail_after(PATIENCE_S):
        await raw.push()
    assert leader.subscription_of("g", "c").credit == 0  # type: ignore[union-attr]
