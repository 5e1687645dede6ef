"""Tests of priorities and tenants: their batches, their partitions, and the topics that accept them."""

from __future__ import annotations

from typing import Any

import pytest

from sandq.client.client import Client
from sandq.client.json_format import message_json, read_message, stored_json
from sandq.client.producer.validation import RANK_BIT, MessageValidation
from sandq.model.batch import Batch, Column
from sandq.model.errors import InvalidRequest, NotFound
from sandq.model.partitioning import partition_for
from sandq.protocol.frames import Type
from tests.support.client.fake_server import FakeServer
from tests.support.client.helpers import take

TENANTS = ("acme", "acme.mail", "shop", "default")


def cells(server: FakeServer) -> dict[bytes | None, tuple[int, Any, Any]]:
    """Value -> the number of its batch, its priority and its tenant."""
    found = {}
    for number, request in enumerate(server.produced):
        batch = Batch.parse(request.batch)
        priorities = batch.int_column(Column.PRIORITY) or [None] * batch.count
        tenants = batch.bytes_column(Column.TENANT) or [None] * batch.count
        for value, *rank in zip(batch.values(), priorities, tenants, strict=True):
            found[value] = (number, *rank)
    return found


def test_a_message_without_a_rank_has_nothing_of_it() -> None:
    checks = MessageValidation({})
    *_, traits, _, _, _, _, rank, _ = checks.message(b"v")
    assert (traits & RANK_BIT, rank) == (0, None)
    *_, traits, _, _, _, _, rank, _ = checks.message(b"v", priority=0)
    assert (traits & RANK_BIT, rank) == (RANK_BIT, (0, None))


def test_ranked_messages_never_share_a_batch_with_others(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.add_topic("p", kind="priority")
        async with client.producer("p") as producer:
            await producer.send_many(
                [
                    b"plain",
                    {"value": b"low", "priority": -(2**31)},
                    {"value": b"high", "priority": 2**31 - 1, "ttl": "1m"},
                    {"value": b"zero", "priority": 0},
                    b"plain too",
                    {"value": b"later", "priority": 3, "delay": 5},
                ]
            )
            await producer.send_many([b"five"], priority=5)
        found = cells(server)
        assert {value: rank[1:] for value, rank in found.items()} == {
            b"plain": (None, None),
            b"plain too": (None, None),
            b"low": (-(2**31), None),
            b"high": (2**31 - 1, None),
            b"zero": (0, None),
            b"later": (3, None),
            b"five": (5, None),
        }
        assert found[b"plain"][0] == found[b"plain too"][0] and found[b"low"][0] == found[b"zero"][0]
        assert len({rank[0] for rank in found.values()}) == 4
        plain = server.produced[found[b"plain"][0]]
        assert {Column.PRIORITY, Column.TENANT}.isdisjoint(Batch.parse(plain.batch).columns)

    with_client(body)


def test_tenant_selects_one_of_the_initial_partitions(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.add_topic("f", 8, kind="fair")
        server.topics["f"] = server.topics["f"]._replace(initial_partitions=3)
        async with client.producer("f") as producer:
            for number in range(20):
                tenant = TENANTS[number % len(TENANTS)]
                wanted = partition_for(tenant.encode(), 3)
                more: dict[str, Any] = {} if tenant == "default" else {"tenant": tenant}
                for key in (None, f"key{number}"):
                    assert (await producer.send(b"v", key=key, **more)).partition == wanted
                assert (await producer.send(b"v", unique_key=f"u{number}", **more)).partition == wanted
                assert (await producer.send(b"v", priority=number, partition=wanted, **more)).partition == wanted
                with pytest.raises(InvalidRequest, match=f"partition: the tenant routes the message to {wanted}, not"):
                    await producer.send(b"v", partition=7, **more)
            receipt = await producer.send(b"v", tenant="acme", key="k", unique_key="another")
            assert receipt.partition == partition_for(b"acme", 3)
        assert {rank[2] for rank in cells(server).values()} <= {None, *(tenant.encode() for tenant in TENANTS)}

    with_client(body)


@pytest.mark.parametrize(
    ("kind", "given", "words"),
    [
        ("timer", {"priority": 0}, "priority: topic 'x' is a timer topic; only priority or fair topics accept it"),
        ("timer", {"tenant": "a", "priority": 1}, "tenant: topic 'x' is a timer topic; only fair topics accept it"),
        ("compacted", {"key": "k", "priority": 1}, "priority: topic 'x' is a compacted topic; "),
        ("priority", {"tenant": "a"}, "tenant: topic 'x' is a priority topic; only fair topics accept it"),
    ],
)
def test_a_rank_that_the_kind_of_topic_does_not_take(
    with_client: Any, kind: str, given: dict[str, Any], words: str
) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.add_topic("x", kind=kind)
        with pytest.raises(InvalidRequest, match=words):
            await client.produce("x", b"v", **given)
        assert not server.produced

    with_client(body)


def test_topic_recreated_with_a_different_kind(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        await client.produce("t", b"v")
        await client.admin.delete_topic("t")
        server.add_topic("t", kind="fair")
        await client.produce("t", b"w", tenant="acme", priority=1)
        assert cells(server)[b"w"][1:] == (1, b"acme")

    with_client(body)


def test_messages_have_their_rank_and_can_be_produced_again(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.add_topic("f", kind="fair")
        server.auto = True
        await client.produce("f", b"ranked", priority=-7, tenant="acme")
        await client.produce("f", b"plain")
        assert [(one.priority, one.tenant) async for one in client.fetch("f", 0)] == [(-7, "acme"), (0, None)]
        messages = client.messages("f")
        stored = {one.value: one async for one in messages.list(values=True)}
        assert [(stored[value].priority, stored[value].tenant) for value in (b"ranked", b"plain")] == [
            (-7, "acme"),
            (0, None),
        ]
        assert (await messages.why(stored[b"ranked"].id))["tenant"] == "acme"
        again = read_message(stored_json(stored[b"ranked"], value=True))
        assert (again["priority"], again["tenant"]) == (-7, "acme")
        async with client.subscribe("f", group="g") as subscription:
            ranked, plain = await take(subscription, 2)
            assert (ranked.priority, ranked.tenant, plain.priority, plain.tenant) == (-7, "acme", 0, None)
            again = read_message(message_json(ranked))
            assert (again["priority"], again["tenant"]) == (-7, "acme")
            assert message_json(plain).keys().isdisjoint(("priority", "tenant"))
            await ranked.ack()
            await plain.ack()

    with_client(body)


def test_a_unique_key_is_looked_for_where_its_tenant_is(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.add_topic("f", 3, kind="fair")
        messages = client.messages("f")
        for tenant in ("acme", "mail"):
            await client.produce("f", b"v", unique_key="u", tenant=tenant, delay="1h")
            found = await messages.get(unique_key="u", tenant=tenant)
            assert (found.tenant, found.partition) == (tenant, partition_for(tenant.encode(), 3))
            assert (await messages.why(unique_key="u", tenant=tenant))["id"] == found.id
            await messages.move(unique_key="u", tenant=tenant, delay="2h")
            assert await messages.cancel(unique_key="u", tenant=tenant) == found.id
            with pytest.raises(NotFound):
                await messages.get(unique_key="u", tenant=tenant)
            server.cancelled.clear()  # the topic finds duplicates by unique key only
        default = await client.produce("f", b"v", unique_key="u")
        assert (await messages.get(unique_key="u")).id == default
        assert (await messages.get(unique_key="u", tenant="default")).id == default
        asked = len(server.of_type(Type.GET))
        for use in (
            messages.get(default, tenant="default"),
            messages.get(unique_key="u", tenant="a b"),
            client.messages("t").get(unique_key="u", tenant="acme"),
        ):
            with pytest.raises(InvalidRequest, match=r"^tenant: "):
                await use
        assert len(server.of_type(Type.GET)) == asked

    with_client(body)
