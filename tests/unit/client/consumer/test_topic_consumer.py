"""Tests of a subscription at several nodes: left nodes, and messages that are held meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sandq.client.client import Client
from sandq.client.consumer.subscription import Subscription
from sandq.client.consumer.topic_consumer import Session
from sandq.model.errors import NotLeader
from sandq.protocol.frames import Type, encode_error
from tests.support.client.fake_server import SILENCE, FakeServer
from tests.support.client.helpers import take, two_nodes
from tests.support.waiting import until_holds

TOKEN = 5 << 16


def sessions_of(subscription: Subscription) -> dict[str, Session]:
    """Return the sessions of its only topic, by node."""
    return subscription._consumers["t"].sessions


async def set_leaders(client: Client, leaders: Sequence[str | None], *servers: FakeServer) -> None:
    """Make the servers report these leaders to the client."""
    for server in servers:
        number = server.topics["t"].number
        server.add_topic("t", 2, leaders=leaders)
        server.topics["t"] = server.topics["t"]._replace(number=number)
    client._cluster.refresh("t")

    def knows() -> bool:
        record = client._cluster.record("t")
        return record is not None and [row.leader for row in record.partitions] == list(leaders)

    await until_holds(knows)


def test_held_messages_stay_while_the_leader_is_unknown(run: Any) -> None:
    """Once a held message was released without the consumer's knowledge, as if not begun. Other consumers got it as the
    same attempt."""

    async def main() -> None:
        async with (
            two_nodes() as (one, two, client),
            client.subscribe("t", group="g", credit=4) as subscription,
        ):
            await until_holds(lambda: one.subscribed and two.subscribed)
            one.deliver(one.subscription(), [b"a"], token=TOKEN, last=True)
            (message,) = await take(subscription, 1)
            await set_leaders(client, [None, "n2"], one, two)
            await set_leaders(client, ["n1", "n2"], one, two)
            one.deliver(one.subscription(), [b"b"], token=TOKEN + 1, last=True)
            (other,) = await take(subscription, 1)
            await message.ack()
            await other.ack()
            assert one.unsubscribed == [] and len(one.subscribed) == 1

    run(main)


def test_a_node_that_ceases_to_lead_is_left(run: Any) -> None:
    """The node itself reports that it no longer leads."""

    async def main() -> None:
        async with two_nodes() as (one, two, client), client.subscribe("t", group="g", credit=4) as subscription:
            await until_holds(lambda: one.subscribed and two.subscribed)
            await set_leaders(client, ["n2", "n2"], one, two)
            subscribed = one.subscription()
            subscribed.connection.send(encode_error(subscribed.request.subscription_id, NotLeader("n2 leads it")))
            await until_holds(lambda: list(sessions_of(subscription)) == ["n2"])
            assert one.unsubscribed == []

    run(main)


def test_held_messages_stay_when_a_node_times_out(run: Any) -> None:
    """The new subscription on a new connection took too long and was repeated."""

    async def main() -> None:
        async with (
            two_nodes(timeout_s=0.5) as (one, two, client),
            client.subscribe("t", group="g", credit=4) as subscription,
        ):
            await until_holds(lambda: one.subscribed and two.subscribed)
            one.deliver(one.subscription(), [b"a"], token=TOKEN, last=True)
            (message,) = await take(subscription, 1)
            one.script[Type.SUBSCRIBE] += [SILENCE]
            one.cut_all()
            await until_holds(lambda: len(one.subscribed) == 2)
            await message.ack()
            assert one.unsubscribed == []

    run(main)


def test_node_without_leaders_gets_no_prefetch_credit(run: Any) -> None:
    async def main() -> None:
        async with two_nodes() as (one, two, client), client.subscribe("t", group="g") as subscription:
            await until_holds(lambda: one.subscribed and two.subscribed)
            await set_leaders(client, ["n2", "n2"], one, two)
            await until_holds(lambda: sessions_of(subscription)["n1"].credit.is_retired)
            assert subscription._intake.prefetch is not None
            subscription._intake.prefetch.extra = 100
            subscription._intake.give_credit()
            assert [sessions_of(subscription)[name].credit.target for name in ("n1", "n2")] == [0, 110]
            await set_leaders(client, ["n1", "n2"], one, two)
            await until_holds(lambda: not sessions_of(subscription)["n1"].credit.is_retired)
            assert [sessions_of(subscription)[name].credit.target for name in ("n1", "n2")] == [55, 55]

    run(main)


def test_messages_in_flight_at_credit_revocation_are_released(with_client: Any) -> None:
    """Two topics deliver the whole credit at the same time. At most the credit plus one message per topic is held."""

    async def body(server: FakeServer, client: Client) -> None:
        server.limits = {"credit_least": -1000}
        server.add_topic("u")
        server.cut_all()
        async with client.subscribe(["t", "u"], group="g", credit=6) as subscription:
            by_topic = {one.request.topic: one for link in server.connections for one in link.subscriptions.values()}
            t, u = by_topic["t"], by_topic["u"]
            server.deliver(t, [b"t0"], token=TOKEN, last=True)
            await until_holds(lambda: t.credit == 5)
            server.deliver(u, [b"u0"], token=TOKEN, last=True)
            await until_holds(lambda: (t.credit, u.credit) == (2, 2))
            server.deliver(u, [b"u1", b"u2"], token=TOKEN + 1, last=True)
            # the session had credit for the messages
            server.deliver(t, [b"t1", b"t2", b"t3", b"t4", b"t5"], token=TOKEN + 1, last=True)
            held = await take(subscription, 8)
            await until_holds(lambda: server.nacks)
            assert [message.value for message in held] == [b"t0", b"u0", b"u1", b"u2", b"t1", b"t2", b"t3", b"t4"]
            (nack,) = server.nacks
            assert nack.items[0][0] == TOKEN + 1 and nack.items[0][4] is False, "the attempt is not counted"
            await until_holds(lambda: (t.credit, u.credit) == (-2, 0))
            for message in held:
                await message.ack()
            await until_holds(lambda: (t.credit, u.credit) == (3, 3))

    with_client(body)
