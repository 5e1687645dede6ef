"""Priority and fair topics of a node: changes by consumers, and reports about messages, groups and tenants."""

from __future__ import annotations

from typing import Any

import pytest

import sandq
import sandq.errors
import sandq.sync
import sandq.testing
from sandq.model.times import LEAST_INSTANT_MS
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.nodes.working import take, values, with_topic
from tests.support.waiting import until_answer

NOW = {"backoff": {"kind": "none"}}


async def test_a_nack_gives_a_message_another_priority_and_other_headers(api: sandq.Client) -> None:
    async with with_topic(api, kind="priority", **NOW), api.subscribe("t", group="g", credit=1) as found:
        await api.produce("t", b"a", priority=1, headers={"tries": 0})
        await api.produce("t", b"b", priority=5)
        (first,) = await take(found, 1, ack=False)
        assert (first.value, first.priority) == (b"a", 1)
        await first.nack(priority=9, headers={"tries": 1})
        (second, again) = await take(found, 2)
        assert (second.value, again.value, again.priority, again.headers) == (b"b", b"a", 9, {"tries": 1})
        assert again.attempt == 2


async def test_a_nack_may_take_headers_away_in_any_topic(api: sandq.Client) -> None:
    async with with_topic(api, **NOW), api.subscribe("t", group="g", credit=1) as found:
        await api.produce("t", b"a", headers={"tries": 0})
        (first,) = await take(found, 1, ack=False)
        with pytest.raises(sandq.errors.InvalidRequest, match="timer topic"):
            first.nack(priority=9)
        await first.nack(headers={})
        (again,) = await take(found, 1)
        assert again.headers == {}


async def test_nacked_batch_gets_the_new_priority(api: sandq.Client) -> None:
    async with with_topic(api, kind="fair", **NOW):
        await api.produce_many("t", [{"value": b"%d" % n, "tenant": "acme", "priority": n} for n in range(3)])
        async with api.subscribe("t", group="g") as found:
            async for batch in found.batches():
                assert batch.tenants == ["acme"] * len(batch)
                if batch.attempt == 1:
                    await batch.nack(priority=7)
                    continue
                assert batch.priorities == [7] * len(batch)
                await batch.ack()
                if b"2" in batch.values:
                    break


async def test_leases_nack_with_another_priority(api: sandq.Client) -> None:
    async with with_topic(api, kind="priority", **NOW):
        await api.produce("t", b"a", priority=1)
        await api.produce("t", b"b", priority=2)
        leases = api.leases("t", "g")
        assert await leases.nack(await leases.take(), priority=3, headers={"why": "later"}) == []
        taken = await leases.take(2)
        assert [(one.value, one.priority, one.headers) for one in taken] == [
            (b"b", 2, {}),
            (b"a", 3, {"why": "later"}),
        ]
        with pytest.raises(sandq.errors.InvalidRequest):
            await leases.nack(taken, priority=2**31)


async def test_pending_messages_are_given_another_priority(api: sandq.Client) -> None:
    async with with_topic(api, kind="fair"):
        messages = api.messages("t")
        ids = [await api.produce("t", b"%d" % n, tenant="acme", priority=5) for n in range(3)]
        await api.produce("t", b"named", tenant="acme", priority=5, unique_key="u")
        await messages.set_priority(ids[2], priority=-1)
        await messages.set_priority(unique_key="u", tenant="acme", priority=-2)
        found = await messages.get(ids[2])
        assert (found.id, found.priority, found.tenant, found.moves) == (ids[2], -1, "acme", 0)
        async with api.subscribe("t", group="g", credit=1) as subscription:
            assert values(await take(subscription, 4)) == [b"named", b"2", b"0", b"1"]
        with pytest.raises(sandq.errors.TooLate):
            await messages.set_priority(ids[0], priority=1)
        await api.produce("t", b"later", tenant="acme", priority=5, delay="1h")
        assert await messages.move_all(priority=-3, since=LEAST_INSTANT_MS) == (1, 1, 0)
        (later,) = [one async for one in messages.list(state="delayed")]
        assert later.priority == -3 and later.deliver_at_ms == later.due_ms


async def test_tenants_have_unique_keys_of_their_own(api: sandq.Client) -> None:
    async with with_topic(api, kind="fair"):
        messages = api.messages("t")
        ids = {name: await api.produce("t", name, tenant=name, unique_key="k", delay="1h") for name in ("acme", "beta")}
        ids["default"] = await api.produce("t", "default", unique_key="k", delay="1h")
        for name in ("acme", "beta"):
            with pytest.raises(sandq.errors.DuplicateKey):
                await api.produce("t", "again", tenant=name, unique_key="k")
        for name, message_id in ids.items():
            assert (await messages.get(unique_key="k", tenant=name)).id == message_id
            assert (await messages.why(unique_key="k", tenant=name))["id"] == message_id
        assert (await messages.get(unique_key="k")).id == ids["default"]
        with pytest.raises(sandq.errors.NotFound, match="of unique key 'k' of tenant gamma"):
            await messages.cancel(unique_key="k", tenant="gamma")
        for look in (messages.cancel, messages.get, messages.why):
            with pytest.raises(sandq.errors.NotFound, match=r"of the tenant 'default': .* give it") as missed:
                await look(unique_key="other")
            assert missed.value.details["tenant"] == "default"
        with pytest.raises(sandq.errors.NotFound) as gone:
            await messages.get("0" * 26)
        assert "tenant" not in gone.value.message
        assert await messages.cancel(unique_key="k", tenant="beta") == ids["beta"]
        await messages.move(unique_key="k", tenant="acme", delay="2h")
        assert {one.id async for one in messages.list()} == {ids["acme"], ids["default"]}


async def test_tenant_is_refused_for_topics_that_are_not_fair(api: sandq.Client, node: Any, dial: Dial) -> None:
    async with with_topic(api, kind="priority"):
        await api.produce("t", b"a", unique_key="k")
        with pytest.raises(sandq.errors.InvalidRequest, match="priority topic"):
            await api.messages("t").get(unique_key="k", tenant="acme")
        raw, named = await dial(node), [1, b"k", "acme"]
        for kind, asked in (
            (Type.GET, named),
            (Type.WHY, named),
            (Type.CANCEL, [named]),
            (Type.MOVE, [[named, 0, True]]),
        ):
            refused = await raw.call(kind, "t", 0, asked)
            assert refused[0] == Type.ERROR and "only messages of fair topics have tenants" in refused[3]


async def test_priorities_are_not_given_to_other_messages(api: sandq.Client) -> None:
    async with with_topic(api):
        message_id = await api.produce("t", b"a", delay="1h")
        for change in (
            api.messages("t").set_priority(message_id, priority=1),
            api.messages("t").move_all(priority=1),
            api.leases("t", "g").nack([], priority=1),
        ):
            with pytest.raises(sandq.errors.InvalidRequest, match="timer topic"):
                await change


async def test_why_and_tenants_of_fair_group_are_reported(api: sandq.Client) -> None:
    async with with_topic(api, kind="fair", tenants={"acme": {"max_in_flight": 1, "weight": 2}}, retention="1h"):
        ids = [await api.produce("t", b"%d" % n, tenant="acme") for n in range(3)]
        async with api.subscribe("t", group="g", credit=10) as subscription:
            (held,) = await take(subscription, 1, ack=False)
            (group,) = (await api.messages("t").why(ids[1]))["groups"]
            assert (group["state"], group["reason"]) == ("ready", "tenant acme has 1 of 1 messages in flight")
            (row,) = await api.admin.groups("t")
            acme = {"tenant": "acme", "ready": 2, "in_flight": 1, "max_in_flight": 1, "weight": 2}
            assert row["tenants"] == [acme | {"rate": None, "burst": None, "free_ms": None}]
            await held.ack()
            assert values(await take(subscription, 2)) == [b"1", b"2"]
        found = await api.messages("t").why(ids[1])
        assert found["tenant"] == "acme" and "priority" not in found

        async def tenants() -> Any:
            (row,) = await api.admin.groups("t")
            return row["tenants"]

        await until_answer(tenants, lambda rows: rows == [])


async def test_a_dead_letter_has_its_priority_and_tenant(api: sandq.Client) -> None:
    async with with_topic(api, kind="fair", max_attempts=1), api.subscribe("t", group="g") as subscription:
        await api.produce("t", b"a", tenant="acme", priority=-4)
        (message,) = await take(subscription, 1, ack=False)
        await message.nack()
        (letter,) = [one async for one in api.dead("t", "g").list()]
        assert (letter.priority, letter.tenant) == (-4, "acme")


async def test_a_node_refuses_changes_that_a_client_did_not_check(api: sandq.Client, node: Any, dial: Dial) -> None:
    async with with_topic(api), api.subscribe("t", group="g") as subscription:
        await api.produce("t", b"a")
        (message,) = await take(subscription, 1, ack=False)
        group, partition, token = (int(part) for part in message.lease_token.split("."))
        raw = await dial(node)
        for changes, expected in (
            ({"priority": 1}, "INVALID"),
            ({"headers": b"x" * 100_000}, "TOO_LARGE"),
            ({"value": b"x"}, "INVALID"),
        ):
            refused = await raw.call(Type.NACK, group, partition, [[token, None, None, None, True, changes]])
            assert (refused[0], refused[2]) == (Type.ERROR, expected)
        await message.ack()


def test_blocking_client_changes_priorities() -> None:
    with sandq.testing.broker() as broker, sandq.sync.connect(broker.address) as client:
        client.admin.create_topic("t", kind="fair", **NOW)
        ids = [client.produce("t", b"%d" % n, tenant="acme", priority=5) for n in range(3)]
        client.messages("t").set_priority(ids[2], priority=1)
        with client.subscribe("t", group="g", credit=1) as subscription:
            first = next(iter(subscription))
            assert first.value == b"2"
            with pytest.raises(sandq.errors.InvalidRequest):
                first.nack(priority=2**31)
            first.nack(priority=9, headers={"a": 1}).wait()
            rest = []
            for message in subscription:
                rest.append((message.value, message.priority, message.headers))
                message.ack()
                if len(rest) == 3:
                    break
        assert rest == [(b"0", 5, {}), (b"1", 5, {}), (b"2", 9, {"a": 1})]
