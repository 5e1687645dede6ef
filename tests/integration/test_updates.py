"""Pending messages of a node get new values and headers. Producers get the outcome for taken unique keys."""

from __future__ import annotations

import anyio
import pytest

import sandq
import sandq.errors
import sandq.sync
import sandq.testing
from sandq.model import offsets
from sandq.node.running import Serving
from sandq.protocol.frames import Type
from tests.integration.conftest import Dial
from tests.support.nodes.working import take, with_topic

NOW = {"backoff": {"kind": "none"}}


async def test_a_pending_message_gets_another_value_and_headers(api: sandq.Client) -> None:
    async with with_topic(api, **NOW):
        messages = api.messages("t")
        first = await api.produce("t", b"old", key="k", headers={"a": 1}, ttl="1h", delay="1h", unique_key="k")
        assert await messages.update(first, value=b"new") == first
        assert await messages.update(unique_key="k", key="k", headers={"b": 2}) == first
        found = await messages.get(first)
        assert (found.value, found.headers, found.key, found.ttl_ms) == (b"new", {"b": 2}, b"k", 3_600_000)
        assert (found.state, found.moves, found.unique_key) == ("delayed", 0, b"k")
        await messages.update(first, headers={})
        assert ((await messages.get(first)).headers, (await messages.get(first)).value) == ({}, b"new")


async def test_every_group_gets_the_new_value(api: sandq.Client) -> None:
    """Consumers that gave the message back get the new value, and so do readers of the log."""
    async with with_topic(api, **NOW):
        ids = await (await api.produce_many("t", [b"%d" % n for n in range(3)]))
        async with api.subscribe("t", group="g") as found:
            for message in await take(found, 3, ack=False):
                with pytest.raises(sandq.errors.TooLate) as late:
                    await api.messages("t").update(message.id, value=b"late")
                assert late.value.details["state"] == "leased"
                await message.nack(delay="1h")
        await api.messages("t").update(ids[1], value=b"new", headers={"n": 1})
        async with api.subscribe("t", group="other") as found:
            assert [message.value for message in await take(found, 3)] == [b"0", b"new", b"2"]
        assert [message.value async for message in api.fetch("t", 0, limit=3)] == [b"0", b"new", b"2"]
        with pytest.raises(sandq.errors.TooLate, match="cannot be updated any more: it is acked"):
            await api.messages("t").update(ids[1], value=b"late")


async def test_many_at_once_and_large_ones(api: sandq.Client) -> None:
    """Updates are sent in frames of limited size. Each update has its own outcome."""
    async with with_topic(api, **NOW):
        messages = api.messages("t")
        ids = await (await api.produce_many("t", [{"value": b"old", "delay": "1h"} for _ in range(40)]))
        large = b"x" * (1 << 20)
        outcomes: dict[str, object] = {}

        async def change(one: str) -> None:
            try:
                outcomes[one] = await messages.update(one, value=large + one.encode())
            except sandq.errors.SandqError as error:
                outcomes[one] = error.code

        await messages.cancel(ids[7])
        async with anyio.create_task_group() as tasks:
            for one in ids:
                tasks.start_soon(change, one)
        assert outcomes == {one: "TOO_LATE" if one == ids[7] else one for one in ids}
        assert (await messages.get(ids[39])).value == large + ids[39].encode()
        largest = b"x" * (8 << 20)
        await messages.update(ids[0], value=largest)
        assert (await messages.get(ids[0])).value == largest


async def test_large_messages_are_updated_and_nacked_in_parts(api: sandq.Client) -> None:
    """A partition rewrites only a limited number of messages at a time. Clients that update more do not notice it."""
    async with with_topic(api, kind="priority", **NOW):
        messages = api.messages("t")
        large = b"x" * (5 << 20)
        ids = [await api.produce("t", large, delay="1h") for _ in range(5)]
        outcomes: dict[str, str] = {}

        async def change(one: str) -> None:
            outcomes[one] = await messages.update(one, headers={"of": one}, delay=0)

        async with anyio.create_task_group() as tasks:
            for one in ids:
                tasks.start_soon(change, one)
        assert sorted(outcomes) == sorted(ids)
        async with api.subscribe("t", group="g", credit=5) as found:
            held = await take(found, 5, ack=False)
            for given_back in [message.nack(delay=0, priority=3) for message in held]:
                await given_back
            again = await take(found, 5)
        assert {message.id: message.headers for message in again} == {one: {"of": one} for one in ids}
        assert [(message.priority, message.value == large) for message in again] == [(3, True)] * 5


async def test_a_move_in_the_same_step(api: sandq.Client) -> None:
    async with with_topic(api, kind="priority", **NOW):
        first = await api.produce("t", b"old", delay="1h", priority=7)
        moved = await api.messages("t").update(first, value=b"new", delay=0, priority=2)
        assert moved != first
        (taken,) = await api.leases("t", "g").take(1, wait="10s")
        assert (taken.value, taken.priority, taken.id) == (b"new", 2, first)


async def test_update_errors_are_reported(api: sandq.Client) -> None:
    async with with_topic(api, **NOW):
        messages = api.messages("t")
        first = await api.produce("t", b"old", delay="1h")
        for given, error in (
            ({}, sandq.errors.InvalidRequest),
            ({"value": b"x", "delay": 1, "deliver_at": "2030-01-01T00:00:00Z"}, sandq.errors.InvalidRequest),
            ({"value": b"x", "priority": 1}, sandq.errors.InvalidRequest),
            ({"value": 5}, sandq.errors.InvalidRequest),
            ({"value": b"x" * (8 * 1024 * 1024 + 1)}, sandq.errors.TooLarge),
            ({"headers": {"a": "x" * 70_000}}, sandq.errors.TooLarge),
        ):
            with pytest.raises(error):
                await messages.update(first, **given)
        with pytest.raises(sandq.errors.NotFound):
            await messages.update(unique_key="nobody", value=b"x")
        assert (await messages.get(first)).value == b"old"


async def test_update_of_a_compacted_topic_points_to_put(api: sandq.Client) -> None:
    async with with_topic(api, kind="compacted"):
        first = await api.produce("t", b"v", key="k")
        with pytest.raises(sandq.errors.InvalidRequest, match="put the key's new value"):
            await api.messages("t").update(first, value=b"new")


async def test_sizes_are_checked_before_anything_is_done(node: Serving, api: sandq.Client, dial: Dial) -> None:
    raw = await dial(node)
    async with with_topic(api, **NOW):
        first = await api.produce("t", b"old", delay="1h")
        target = [0, offsets.from_text(first)]
        good = [target, None, False, None, {"value": 3}]
        for name, size in (("value", 8 * 1024 * 1024 + 1), ("headers", 65_537)):
            bad = [target, None, False, None, {name: size}]
            refused = await raw.call(Type.MOVE, "t", 0, [good, bad], b"new" + bytes(size))
            assert (refused[0], refused[2]) == (Type.ERROR, "TOO_LARGE")
        much = [[target, None, False, None, {"value": 8 * 1024 * 1024}]] * 2
        refused = await raw.call(Type.MOVE, "t", 0, [*much, good], bytes(16 * 1024 * 1024) + b"new")
        assert (refused[2], refused[5]["limit"]) == ("TOO_LARGE", "batch_bytes")
        for wrong in (
            {},
            {"key": 1},
            {"value": "text"},
            {"value": None},
            {"value": -1},
            [],
            {"value": 4},
            {"value": 2},
        ):
            refused = await raw.call(Type.MOVE, "t", 0, [[target, None, False, None, wrong]], b"new")
            assert (refused[0], refused[2]) == (Type.ERROR, "INVALID")
        assert (await raw.call(Type.MOVE, "t", 0, [good]))[2] == "INVALID", "without cells"
        assert (await api.messages("t").get(first)).value == b"old"
        assert (await raw.call(Type.MOVE, "t", 0, [good], b"new"))[2] == [["updated", target[1]]]


# -- unique keys that are taken ---------------------------------------------------------------------------------------


async def test_receipt_reports_the_outcome_for_the_other_message(api: sandq.Client) -> None:
    async with with_topic(api, retention="1h", **NOW), api.producer("t") as producer:
        first = await producer.send(b"1", unique_key="k", on_conflict="replace")
        assert first.outcome is None or first.done
        id1 = await first
        assert first.outcome == sandq.SendOutcome("stored")
        second = await producer.send(b"2", unique_key="k", on_conflict="replace")
        id2 = await second
        assert second.outcome == ("replaced", id1, None)
        third = await producer.send(b"3", unique_key="k", on_conflict="ignore")
        assert (await third, third.outcome) == (id2, ("ignored", id2, "ready"))
        (held,) = await api.leases("t", "g").take(1, wait="10s")
        for on_conflict in ("replace", "replace_pending"):
            refused = await producer.send(b"4", unique_key="k", on_conflict=on_conflict)
            with pytest.raises(sandq.errors.DuplicateKey, match="which is leased"):
                await refused
            assert refused.outcome is None
        await api.leases("t", "g").ack([held])
        pending = await producer.send(b"5", unique_key="k", on_conflict="replace_pending")
        with pytest.raises(sandq.errors.DuplicateKey, match="which is acked"):
            await pending
        beside = await producer.send(b"6", unique_key="k", on_conflict="replace")
        await beside
        assert beside.outcome == ("stored", None, "acked")
        plain = await producer.send(b"7", unique_key="other")
        await plain
        assert plain.outcome == ("stored", None, None)


async def test_messages_of_one_batch_have_outcomes_of_their_own(api: sandq.Client) -> None:
    """This is also true if the node joins requests into one batch."""
    async with with_topic(api, **NOW):
        ids = await (await api.produce_many("t", [{"value": b"v", "unique_key": f"{n}"} for n in range(5)]))
        receipts = await api.produce_many(
            "t", [{"value": b"w", "unique_key": f"{n}", "on_conflict": "replace_pending"} for n in range(3, 8)]
        )
        await receipts
        outcomes = [receipt.outcome for receipt in receipts]
        assert outcomes == [("replaced", ids[3], None), ("replaced", ids[4], None)] + [("stored", None, None)] * 3
        one = await api.send("t", b"x", unique_key="0", on_conflict="replace")
        await one
        assert one.outcome == ("replaced", ids[0], None)


def test_blocking_client_updates_messages() -> None:
    with sandq.testing.broker() as broker, sandq.sync.connect(broker.address) as client:
        client.admin.create_topic("t", **NOW)
        first = client.produce("t", b"old", delay="1h", unique_key="k")
        assert client.messages("t").update(unique_key="k", value=b"new") == first
        receipt = client.send("t", b"newer", unique_key="k", on_conflict="replace_pending")
        assert receipt.wait() != first
        assert receipt.outcome == ("replaced", first, None)
        with client.producer("t") as producer:
            ignored = producer.send(b"x", unique_key="k", on_conflict="ignore")
            ignored.wait()
            assert ignored.outcome is not None and ignored.outcome.state == "ready"
