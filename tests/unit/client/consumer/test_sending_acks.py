"""Tests of acks that send messages: of a message, of a batch, and a refused ack."""

from __future__ import annotations

from typing import Any

import anyio
import pytest

from sandq.client.client import Client
from sandq.client.consumer.outgoing import Outgoing
from sandq.model import offsets
from sandq.model.errors import (
    Conflict,
    InvalidRequest,
    LeaseLost,
    Overloaded,
    SandqError,
    StorageFailed,
    TimedOut,
    UnknownTopic,
)
from sandq.model.nack_ends import DEAD, RETRY, SNOOZE
from sandq.protocol.frames import Type, encode_reply
from tests.support.client.fake_server import CUT, GROUP_NUMBER, FakeServer
from tests.support.client.helpers import take
from tests.support.waiting import PATIENCE_S, until_holds
from tests.unit.client.consumer.test_batches import TOKEN, take_batches

NEXT = [Outgoing(value=b"next", topic="u")]
REFUSAL = UnknownTopic("there is no topic 'u'")


def loses(*ranges: list[Any]) -> Any:
    """An answer that names the messages of the ack that were no longer held."""
    return lambda to, frame: to.send(encode_reply(frame[1], [list(ranges)]))


def test_batch_ack_sends_messages(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=100) as subscription:
            base = server.deliver(server.subscription(), [b"v"] * 5, token=TOKEN)
            (batch,) = await take_batches(subscription, 1)
            await batch.messages[1].nack()
            await batch.ack(then=NEXT)
            (sent,) = server.ack_thens
            assert server.named(sent.what) == {offsets.shift(base, place) for place in (0, 2, 3, 4)}
            assert (sent.token, sent.messages) == (TOKEN, [["u", None, False, {"value": b"next"}]])
            assert not server.acks
            await batch.ack()
            with pytest.raises(InvalidRequest, match="settled before, so nothing is sent"):
                batch.ack(then=NEXT)
            with pytest.raises(InvalidRequest, match="message 1 is bytes"):
                batch.ack(then=[*NEXT, b"x"])  # type: ignore[list-item]

    with_client(body)


def test_batch_with_one_lost_message_keeps_the_others_held(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=100) as subscription:
            base = server.deliver(server.subscription(), [b"v"] * 3, token=TOKEN)
            (batch,) = await take_batches(subscription, 1)
            server.script[Type.ACK_THEN].append(loses([offsets.shift(base, 1), 1]))
            with pytest.raises(LeaseLost):
                await batch.ack(then=NEXT)
            messages = batch.messages
            assert [(one.is_held, one.is_lost, one.is_settled) for one in messages] == [
                (True, False, False),
                (False, True, False),
                (True, False, False),
            ]
            with pytest.raises(LeaseLost):
                await batch.ack(then=NEXT)  # the lost message is known, so no request is sent
            await messages[0].ack(then=NEXT)
            await messages[2].nack()
            assert [server.named(sent.what) for sent in server.ack_thens] == [{base}]
            assert server.named(server.nacks[0].items[0][1]) == {offsets.shift(base, 2)}

    with_client(body)


@pytest.mark.parametrize("end", ["ack", "then", "nack", "dead"])
def test_message_stays_held_after_refused_ack(with_client: Any, end: str) -> None:
    """Once the message was neither acked nor nacked. The consumer lost it until the lease ended."""

    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=1, lease="1s") as subscription:
            server.deliver(server.subscription(), [b"v"], token=TOKEN, lease_ms=1000)
            (message,) = await take(subscription, 1)
            server.script[Type.ACK_THEN].append(REFUSAL)
            settlement = message.ack(then=NEXT)
            with pytest.raises(UnknownTopic):
                await settlement
            with pytest.raises(UnknownTopic):
                await settlement
            assert message.is_held and not message.is_settled and not message.is_lost
            if end == "ack":
                await until_holds(lambda: server.extends)  # the lease is extended like the lease of any held message
            match end:
                case "ack":
                    await message.ack()
                case "then":
                    await message.ack(then=NEXT)
                case "nack":
                    await message.nack(error="no such topic")
                case "dead":
                    await message.dead("no such topic")
            assert message.is_settled
            assert (len(server.acks), len(server.ack_thens), len(server.nacks)) == (
                end == "ack",
                end == "then",
                end in ("nack", "dead"),
            )
            # The subscription gets exactly its credit back.
            server.deliver(server.subscription(), [b"w"], token=TOKEN + 1)
            (other,) = await take(subscription, 1)
            await other.ack()
            await until_holds(lambda: server.subscription().credit == 1)

    with_client(body)


def test_refused_ack_without_await_releases_the_lease(with_client: Any, caplog: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=10, lease="1s") as subscription:
            server.deliver(server.subscription(), [b"v"], token=TOKEN, lease_ms=1000)
            (message,) = await take(subscription, 1)
            server.script[Type.ACK_THEN].append(REFUSAL)
            settlement = message.ack(then=NEXT)
            await until_holds(lambda: "acks or nacks failed: there is no topic 'u'" in caplog.text)
            assert not message.is_settled and not message.is_lost
            await anyio.sleep(1.5)
            assert not server.extends
            with pytest.raises(UnknownTopic):
                await settlement
            await message.nack()  # the broker decides
            assert len(server.nacks) == 1

    with_client(body)


@pytest.mark.parametrize("kind", [Type.ACK_THEN, Type.NACK])
def test_refused_message_is_not_acked_with_the_rest_of_its_lease(with_client: Any, caplog: Any, kind: Type) -> None:
    """The rest must not be acked as the whole lease: the broker would ack the refused message, too."""

    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=10) as subscription:
            base = server.deliver(server.subscription(), [b"v", b"w"], token=TOKEN, last=True)
            refused, other = await take(subscription, 2)
            server.script[kind].append(REFUSAL)
            refused.ack(then=NEXT) if kind == Type.ACK_THEN else refused.nack()
            await until_holds(lambda: "acks or nacks failed: there is no topic 'u'" in caplog.text)
            await other.ack()
            ((_, what),) = server.acks[0].items
            assert server.named(what) == {offsets.shift(base, 1)}

    with_client(body)


@pytest.mark.parametrize(
    ("answers", "is_held"),
    [
        ([Overloaded("busy"), REFUSAL], True),
        ([CUT, REFUSAL], False),
        ([TimedOut("the outcome is unknown"), Overloaded("busy"), REFUSAL], False),
        ([StorageFailed("no space")], False),
        ([SandqError("a bug")], False),
    ],
)
def test_message_stays_held_only_if_the_ack_was_certainly_not_done(
    with_client: Any, answers: list[Any], is_held: bool
) -> None:
    """Otherwise the ack and the messages that it sends may be stored. A different ack would lose or repeat them."""

    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=10) as subscription:
            server.deliver(server.subscription(), [b"v"], token=TOKEN)
            (message,) = await take(subscription, 1)
            server.script[Type.ACK_THEN].extend(answers)
            with pytest.raises(SandqError) as raised:
                await message.ack(then=NEXT)
            assert raised.value.message == answers[-1].message
            assert (message.is_held, message.is_lost) == (is_held, not is_held)

    with_client(body)


def test_refused_ack_in_a_handler_fails_the_message(with_client: Any) -> None:
    """Once the message was lost to the consumer and returned only when its lease ended."""

    async def handler(message: Any) -> None:
        await message.ack(then=NEXT)

    async def body(server: FakeServer, client: Client) -> None:
        server.script[Type.ACK_THEN].append(REFUSAL)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.run("t", "g", handler))
            await until_holds(lambda: server.subscribed)
            server.deliver(server.subscription(), [b"v"], token=TOKEN)
            await until_holds(lambda: server.nacks)
            tasks.cancel_scope.cancel()
        assert server.nacks[0].items[0][3] == "UnknownTopic: there is no topic 'u'"

    with_client(body)


def test_ack_with_messages_needs_items_of_one_lease(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        leases, offset = client.leases("t", "g"), offsets.to_text(offsets.pack(5000, 1, 1, 0))
        items = [(f"{GROUP_NUMBER}.0.65536", offset), (f"{GROUP_NUMBER}.0.65536", offset[:-1] + "1")]
        assert await leases.ack(items, then=NEXT) == []
        (sent,) = server.ack_thens
        assert (sent.token, len(server.named(sent.what) or ())) == (65536, 2)
        with pytest.raises(InvalidRequest, match="these have 2 leases: ack the messages of each lease separately"):
            await leases.ack([(f"{GROUP_NUMBER}.0.65536", None), (f"{GROUP_NUMBER}.0.65537", None)], then=NEXT)
        server.script[Type.ACK_THEN].append(loses([offsets.from_text(offset), 1]))
        assert await leases.ack(items, then=NEXT) == [items[0]]
        server.script[Type.ACK_THEN].append(Conflict("it was acked before"))
        with pytest.raises(Conflict):
            await leases.ack(items, then=NEXT)

    with_client(body)


def test_thread_settles_a_refused_ack_differently(with_client: Any) -> None:
    refusals: list[str] = []

    def handler(message: Any) -> None:
        try:
            message.ack(then=NEXT).wait(PATIENCE_S)
        except UnknownTopic as error:
            refusals.append(error.message)
            message.dead("nowhere to go").wait(PATIENCE_S)

    async def body(server: FakeServer, client: Client) -> None:
        server.script[Type.ACK_THEN].append(REFUSAL)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.run("t", "g", handler))
            await until_holds(lambda: server.subscribed)
            server.deliver(server.subscription(), [b"v"], token=TOKEN)
            await until_holds(lambda: server.nacks)
            tasks.cancel_scope.cancel()
        assert server.nacks[0].items[0][3] == "nowhere to go" and refusals == ["there is no topic 'u'"]

    with_client(body)


@pytest.mark.parametrize("end", [DEAD, RETRY])
def test_nack_sends_messages(with_client: Any, end: int) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=10) as subscription:
            base = server.deliver(server.subscription(), [b"v", b"w"], token=TOKEN)
            message, other = await take(subscription, 2)
            if end == DEAD:
                await message.dead("gone", then=NEXT)
            else:
                await message.nack(error="busy", delay="5s", if_dead=NEXT)
            (sent,) = server.ack_thens
            assert (server.named(sent.what), sent.messages) == ({base}, [["u", None, False, {"value": b"next"}]])
            assert sent[5:] == ((DEAD, None, "gone") if end == DEAD else (RETRY, 5000, "busy"))
            assert message.is_settled and other.is_held and not server.nacks
            with pytest.raises(InvalidRequest, match="settled before, so nothing is sent"):
                message.dead(then=NEXT) if end == DEAD else message.nack(if_dead=NEXT)
            with pytest.raises(InvalidRequest, match="already, it cannot be acked"):
                message.ack(then=NEXT)
            with pytest.raises(InvalidRequest, match="cannot change the priority or the headers"):
                other.nack(headers={}, if_dead=NEXT)
            server.script[Type.ACK_THEN].append(REFUSAL)
            with pytest.raises(UnknownTopic):
                await other.dead(then=NEXT)
            assert other.is_held
            await other.nack(count=False, if_dead=NEXT)
            assert server.ack_thens[-1][5:] == (SNOOZE, None, None)

    with_client(body)


def test_lost_message_of_a_nack_that_sends(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=10) as subscription:
            base = server.deliver(server.subscription(), [b"v"], token=TOKEN)
            (message,) = await take(subscription, 1)
            server.script[Type.ACK_THEN].append(loses([base, 1]))
            with pytest.raises(LeaseLost):
                await message.dead(then=NEXT)
            assert message.is_lost

    with_client(body)


@pytest.mark.parametrize("option", ["delivery_timeout_s", "then_timeout_s"])
def test_overloaded_broker_refuses_in_the_end(with_client: Any, option: str) -> None:
    """Once the client repeated the request as long as the lease was extended."""

    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=10) as subscription:
            server.deliver(server.subscription(), [b"v"], token=TOKEN)
            (message,) = await take(subscription, 1)
            server.script[Type.ACK_THEN].extend([Overloaded("busy")] * 100)
            with pytest.raises(Overloaded):
                await message.ack(then=NEXT)
            assert message.is_held and 0 < len(server.script[Type.ACK_THEN]) < 99
            await message.ack()
            assert message.is_settled

    with_client(body, **{option: 0.3})


def test_leases_nack_one_message_with_messages(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        leases, offset = client.leases("t", "g"), offsets.to_text(offsets.pack(5000, 1, 1, 0))
        item = (f"{GROUP_NUMBER}.0.65536", offset)
        assert await leases.dead([item], "gone", then=NEXT) == []
        assert await leases.nack([item], delay="1s", if_dead=NEXT) == []
        assert [sent[5:] for sent in server.ack_thens] == [(DEAD, None, "gone"), (RETRY, 1000, None)]
        for wrong in ([item, (f"{GROUP_NUMBER}.0.65536", offset[:-1] + "1")], [(item[0], None)], []):
            with pytest.raises(InvalidRequest, match="takes one message, with its offset"):
                await leases.dead(wrong, then=NEXT)
        with pytest.raises(InvalidRequest, match="cannot change"):
            await leases.nack([item], headers={}, if_dead=NEXT)
        server.script[Type.ACK_THEN].append(loses([offsets.from_text(offset), 1]))
        assert await leases.dead([item], then=NEXT) == [item]

    with_client(body)


def test_thread_nacks_with_messages(with_client: Any) -> None:
    errors: list[str] = []

    def handler(message: Any) -> None:
        message.dead("gone", then=NEXT).wait(PATIENCE_S)
        try:
            message.dead(then=NEXT)
        except InvalidRequest as error:
            errors.append(error.message)

    async def body(server: FakeServer, client: Client) -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: client.run("t", "g", handler))
            await until_holds(lambda: server.subscribed)
            server.deliver(server.subscription(), [b"v"], token=TOKEN)
            await until_holds(lambda: errors)
            tasks.cancel_scope.cancel()
        assert server.ack_thens[0][5:] == (DEAD, None, "gone") and "settled before" in errors[0]

    with_client(body)
