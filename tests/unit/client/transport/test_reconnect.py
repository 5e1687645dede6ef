"""Tests of broken connections, moved leaders, and nodes with changed addresses."""

from __future__ import annotations

import socket
from functools import partial
from typing import Any

import anyio
import pytest

from sandq.client.client import Client, connect, connect_with
from sandq.client.options import Options, parse_server
from sandq.client.transport import cluster
from sandq.model import offsets
from sandq.model.batch import Batch
from sandq.model.errors import (
    ClosedError,
    ConnectionLost,
    InvalidRequest,
    NotFound,
    NotLeader,
    ProtocolError,
    TimedOut,
    Unavailable,
    UnknownTopic,
    WrongPort,
    WrongVersion,
)
from sandq.model.sequence import RESENT
from sandq.protocol.frames import Type, encode_error, encode_reply
from sandq.protocol.replies import Node
from tests.support.client.fake_server import CUT, GROUP_NUMBER, NOW_MS, SILENCE, FakeServer
from tests.support.client.helpers import QUICK, take, two_nodes
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_S, until_holds

TOKEN = 5 << 16
ID = offsets.to_text(offsets.pack(NOW_MS, 1, 0, 0))


def test_a_client_that_may_starts_before_its_server(run: Any) -> None:
    async def body() -> None:
        async with anyio.create_task_group() as tasks:
            server, other = FakeServer(), FakeServer()
            for each in (server, other):
                each.add_topic("t", 1)
                await each.start(tasks)
                await each.stop()
            servers = (other.address, server.address)
            with pytest.raises(ConnectionLost):
                async with connect_with(Options(**QUICK), servers, "test"):
                    pass
            async with connect_with(Options(**QUICK, starts_alone=True), servers, "test") as client:
                with pytest.raises(Unavailable):
                    await client.admin.topic("t")
                await server.start(tasks)
                assert (await client.admin.topic("t")).name == "t"
            tasks.cancel_scope.cancel()

    run(body)


def test_held_messages_survive_a_cut(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=10) as subscription:
            subscribed = server.subscription()
            base = server.deliver(subscribed, [b"a", b"b", b"c"], token=TOKEN)
            server.deliver(subscribed, [b"x"], token=TOKEN + 1)
            first, second, third, _ = await take(subscription, 4)
            await first.ack()
            second.ack()
            server.cut_all()
            await until_holds(lambda: len(server.subscribed) == 2 and server.connections)
            request = server.subscribed[1]
            # The last lease may be incomplete. So the client does not name it as held, and the node pushes it again.
            assert request.held == [[GROUP_NUMBER, 0, TOKEN]]
            assert request.consumer_id == server.subscribed[0].consumer_id
            assert request.credit == 8 or request.credit == 7  # with or without the ack that was lost
            subscribed = server.subscription()
            server.deliver(subscribed, [b"x"], token=TOKEN + 1, base=offsets.shift(base, -offsets.unpack(base).place))
            await second.ack()
            await third.ack()
        acked = set().union(*(server.named(item[1]) or set() for ack in server.acks for item in ack.items))
        assert acked == set(offsets.run(base, 3))

    with_client(body)


def test_message_that_is_pushed_twice_is_seen_once(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g", credit=4) as subscription:
            subscribed = server.subscription()
            base = server.deliver(subscribed, [b"a", b"b"], token=TOKEN)
            first, second = await take(subscription, 2)
            await first.ack()
            server.cut_all()
            await until_holds(lambda: len(server.subscribed) == 2 and server.connections)
            subscribed = server.subscription()
            assert subscribed.credit == 3
            # The complete lease again in other pieces, with the messages that were missing at the cut.
            server.deliver(subscribed, [b"a", b"b", b"c"], token=TOKEN, base=base, last=True)
            (third,) = await take(subscription, 1)
            assert third.value == b"c"
            # two messages are held, and repeated messages use no credit
            await until_holds(lambda: subscribed.credit == 2)
            await second.ack()
            await third.ack()
            # All messages are settled. A push that was already in flight is dropped too.
            server.deliver(subscribed, [b"a", b"b", b"c"], token=TOKEN, base=base)
            server.deliver(subscribed, [b"d"], token=TOKEN + 1)
            (fourth,) = await take(subscription, 1)
            assert fourth.value == b"d"

    with_client(body)


def test_acks_queued_while_away_are_sent_later(with_client: Any) -> None:
    async def main(server: FakeServer, client: Client) -> None:
        async with client.subscribe("t", group="g") as subscription, anyio.create_task_group() as tasks:
            server.deliver(server.subscription(), [b"a", b"b"], token=TOKEN, last=True)
            first, second = await take(subscription, 2)
            await server.stop()
            first.ack()
            with anyio.move_on_after(0.05) as scope:
                await second.ack()
            assert scope.cancelled_caught
            await server.start(tasks)
            await second.ack()
            assert [ack.items for ack in server.acks] == [[[TOKEN, None]]]
            await client.produce("t", b"x")
            await server.stop()

    with_client(main)


def test_messages_sent_while_away_are_stored_later(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        async with anyio.create_task_group() as tasks:
            async with client.producer("t") as producer:
                await server.stop()
                receipts = await producer.send_many([b"a", b"b"])
                await server.start(tasks)
                assert len(await receipts) == 2
            await server.stop()

    with_client(body)


def test_a_silent_node_is_given_up(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.script[Type.PRODUCE] += [SILENCE]
        server.script[Type.PING] += [SILENCE] * 20
        assert await client.produce("t", b"x")
        assert len(server.of_type(Type.HELLO)) > 1

    with_client(body, keepalive_s=0.02, keepalive_timeout_s=0.05)


def test_partitions_are_found_at_their_leaders(run: Any) -> None:
    async def main() -> None:
        async with two_nodes() as (one, two, client):
            await client.produce("t", b"a", partition=0)
            await client.produce("t", b"b", partition=1)
            assert [len(server.produced) for server in (one, two)] == [1, 1]
            async with client.subscribe("t", group="g", credit=10) as subscription:
                assert one.subscribed[0].credit == two.subscribed[0].credit == 5
                two.deliver(two.subscription(), [b"from two"], token=TOKEN, partition=1)
                (message,) = await take(subscription, 1)
                await message.ack()
                assert two.acks and not one.acks

                # Now n1 leads everything, and n2 reports this.
                for server in (one, two):
                    server.add_topic("t", 2, leaders=["n1", "n1"])
                error = encode_error(two.subscribed[0].subscription_id, NotLeader("moved"))
                two.subscription().connection.send(error)
                await until_holds(lambda: one.subscription().credit == 10)
                two.script[Type.PRODUCE] += [NotLeader("moved")]
                await client.produce("t", b"c", partition=1)
                assert len(one.produced) == 2
            rows = await client.admin.groups("t")
            assert len(rows) == 1

    run(main)


def test_leaders_that_were_never_met_are_asked(run: Any) -> None:
    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            one, two = FakeServer("n1"), FakeServer("n2")
            for server in (one, two):
                server.add_topic("t", 2, leaders=["n1", "n2"])
                await server.start(tasks)
            one.nodes = [Node("n1", "127.0.0.1", one.port), Node("n2", "127.0.0.1", two.port)]
            async with connect_with(Options(**QUICK), (one.address,), "test") as client:
                await client.admin.stats("t")
                assert [len(server.of_type(Type.TOPIC_STATS)) for server in (one, two)] == [1, 1]
            tasks.cancel_scope.cancel()

    run(main)


def test_stalled_node_does_not_delay_the_search_for_a_leader(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "_ASK_TIMEOUT_S", 0.05)

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            one, two = FakeServer("n1"), FakeServer("n2")
            for server in (one, two):
                server.add_topic("t", 1, leaders=["n1"])
                await server.start(tasks)
            one.nodes = two.nodes = [Node("n1", "127.0.0.1", one.port), Node("n2", "127.0.0.1", two.port)]
            async with connect_with(Options(**QUICK | {"timeout_s": 60.0}), (one.address,), "test") as client:
                await client.produce("t", b"a")
                for server in (one, two):
                    server.add_topic("t", 1, leaders=["n2"])
                one.script[Type.METADATA] += [SILENCE] * 2
                two.script[Type.METADATA] += [SILENCE]
                one.script[Type.PRODUCE] += [NotLeader("moved")] * 100
                await client.produce("t", b"b")
                assert len(two.produced) == 1
            tasks.cancel_scope.cancel()

    run(main)


@pytest.mark.parametrize("kind", [Type.GET, Type.PRODUCE], ids=["get", "produce"])
def test_requests_of_silent_node_are_sent_to_the_new_leader(run: Any, kind: Type) -> None:
    """Its connection is open, and it answers PINGs."""

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            one, two = FakeServer("n1"), FakeServer("n2")
            for server in (one, two):
                server.add_topic("t", 1, leaders=["n1"])
                await server.start(tasks)
            one.nodes = two.nodes = [Node("n1", "127.0.0.1", one.port), Node("n2", "127.0.0.1", two.port)]
            options = Options(**{**QUICK, "standstill_s": 0.05, "leader_check_s": 0.01})
            async with connect_with(options, (one.address,), "test") as client:
                await client.produce("t", b"before")
                await until_holds(lambda: two.connections)
                one.script[kind] += [SILENCE]
                two.add_topic("t", 1, leaders=["n2"])  # n1 does not know the change
                if kind == Type.PRODUCE:
                    await client.produce("t", b"on its way")
                    (asked,), (sent,) = two.produced, one.of_type(Type.PRODUCE)[1:]
                    assert asked.sequence == sent[6] | RESENT
                else:
                    two.script[Type.GET] += [NotFound("it was never there")]
                    with pytest.raises(NotFound):
                        await client.messages("t").get(ID)
                assert len(one.of_type(kind)) == 1 + (kind == Type.PRODUCE)
            tasks.cancel_scope.cancel()

    run(main)


def test_a_silent_node_that_leads_still_is_waited_for(run: Any) -> None:
    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            one, two = FakeServer("n1"), FakeServer("n2")
            for server in (one, two):
                server.add_topic("t", 1, leaders=["n1"])
                await server.start(tasks)
            one.nodes = two.nodes = [Node("n1", "127.0.0.1", one.port), Node("n2", "127.0.0.1", two.port)]
            options = Options(**{**QUICK, "standstill_s": 0.05, "leader_check_s": 0.01, "timeout_s": 0.5})
            async with connect_with(options, (one.address,), "test") as client:
                await client.produce("t", b"before")
                one.script[Type.GET] += [SILENCE] * 10
                with pytest.raises(TimedOut):
                    await client.messages("t").get(ID)
                assert not two.of_type(Type.GET)
            tasks.cancel_scope.cancel()

    run(main)


def test_subscriber_of_a_lost_leader_asks_until_a_node_knows_the_new_one(run: Any) -> None:
    """Right after the death of a leader the other nodes still name it."""

    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            one, two = FakeServer("n1"), FakeServer("n2")
            for server in (one, two):
                server.add_topic("t", 1, leaders=["n2"])
                await server.start(tasks)
            one.nodes = two.nodes = [Node("n1", "127.0.0.1", one.port), Node("n2", "127.0.0.1", two.port)]
            options = Options(**QUICK | {"metadata_interval_s": 3600.0})
            async with (
                connect_with(options, (one.address,), "test") as client,
                client.subscribe("t", group="g", credit=10) as subscription,
            ):
                await until_holds(lambda: bool(two.subscribed))
                asked = len(one.of_type(Type.METADATA))
                await two.stop()
                await until_holds(lambda: len(one.of_type(Type.METADATA)) > asked + 3)
                one.add_topic("t", 1, leaders=["n1"])
                await until_holds(lambda: bool(one.subscribed))
                one.deliver(one.subscription(), [b"found"], token=TOKEN)
                (message,) = await take(subscription, 1)
                assert message.value == b"found"
            tasks.cancel_scope.cancel()

    run(main)


def test_next_server_of_the_list_is_tried(run: Any) -> None:
    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            server = FakeServer()
            server.add_topic("t")
            await server.start(tasks)
            async with connect("127.0.0.1:1", server.address, name="two") as client:
                assert await client.produce("t", b"x")
                assert server.connections[0].client_name == "two"
                assert client.cluster_uuid == "c1"
            tasks.cancel_scope.cancel()

    run(main)


def test_a_name_that_is_not_found(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fails(*args: Any, **more: Any) -> Any:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    async def main() -> None:
        monkeypatch.setattr(anyio, "connect_tcp", fails)
        with pytest.raises(ConnectionLost, match=r"^cannot connect to nowhere:7170: Name or service not known$"):
            async with connect("nowhere:7170"):
                pass

    run(main)


def test_unreachable_servers_raise_connection_lost(run: Any) -> None:
    async def main() -> None:
        with pytest.raises(ConnectionLost, match=r"^cannot connect to 127\.0\.0\.1:1: Connection refused$"):
            async with connect("127.0.0.1:1"):
                pass
        with pytest.raises(ConnectionLost, match=r"no server can be reached: cannot connect to .*; cannot connect"):
            async with connect("127.0.0.1:1", "127.0.0.1:2"):
                pass
        with pytest.raises(InvalidRequest):
            async with connect("127.0.0.1:seven"):
                pass

    run(main)


def test_server_that_is_no_sandq_node_is_reported(run: Any) -> None:
    async def talk(answer: bytes, error: Any, words: str) -> None:
        async def serve(stream: Any) -> None:
            async with stream:
                await stream.receive()
                await stream.send(answer)

        async with anyio.create_task_group() as tasks:
            listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
            port = listener.extra(anyio.abc.SocketAttribute.local_port)
            tasks.start_soon(listener.serve, serve)
            with pytest.raises(error, match=words):
                async with connect(f"127.0.0.1:{port}", timeout=2):
                    pass
            tasks.cancel_scope.cancel()
        await listener.aclose()

    async def main() -> None:
        await talk(b"HTTP/1.1 400 Bad Request\r\n\r\n", WrongPort, "HTTP")
        await talk(encode_error(1, WrongVersion("speak 2")), WrongVersion, "speak 2")
        await talk(encode_error(0, ProtocolError("no")), ProtocolError, "no")
        await talk(b"\0\0\0\x03\x93\x00\x02\x00", ProtocolError, "frame")
        await talk(b"", ConnectionLost, "closed the connection")

    run(main)


def test_another_cluster_at_the_same_address_is_refused(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        await client.produce("t", b"x")
        server.cluster_uuid = "c2"
        server.cut_all()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.produce, "t", b"y")
            await until_holds(lambda: len(server.of_type(Type.HELLO)) > 3)
            assert len(server.produced) == 1
            server.cluster_uuid = "c1"
        assert len(server.produced) == 2

    with_client(body)


def test_a_node_under_another_name_is_found(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.node_id = "n9"
        server.add_topic("t")
        server.cut_all()
        assert await client.produce("t", b"x")

    with_client(body)


def test_cuts_at_any_moment_lose_nothing(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        sent = [f"{number}".encode() for number in range(3000)]
        for kind in (Type.HELLO, Type.METADATA, Type.PRODUCE):
            server.script[kind] += [CUT, CUT, None, CUT, None, None, CUT]
        server.cut_all()
        async with client.producer("t", linger=0) as producer:
            for value in sent:
                await producer.send(value)
                if len(value) % 3 == 0:
                    await anyio.lowlevel.checkpoint()
        stored = {value for request in server.produced for value in Batch.parse(request.batch).values()}
        assert stored == set(sent)

    with_client(body)


def test_use_after_close(with_client: Any, run: Any) -> None:
    kept: list[Any] = []

    async def body(server: FakeServer, client: Client) -> None:
        kept[:] = [client, client.producer("t"), client.subscribe("t", group="g")]

    async def later() -> None:
        client, producer, subscription = kept
        for use in (
            lambda: client.produce("t", b"x"),
            producer.__aenter__,
            subscription.__aenter__,
            client.admin.list_topics,
        ):
            with pytest.raises(ClosedError):
                await use()
        with pytest.raises(ClosedError):
            client.producer("t")

    with_client(body)
    run(later)


def test_closing_the_client_ends_waiting_tasks(run: Any) -> None:
    async def main() -> None:
        ended: list[str] = []

        async def consume(client: Client) -> None:
            with pytest.raises(ClosedError):
                async with client.subscribe("t", group="g") as subscription:
                    await subscription.__anext__()
            ended.append("consumer")

        async def produce(client: Client) -> None:
            with pytest.raises(ClosedError, match="may have been stored"):
                await client.produce("t", b"x")
            ended.append("producer")

        async with anyio.create_task_group() as tasks:
            server = FakeServer()
            server.add_topic("t")
            server.script[Type.PRODUCE] += [SILENCE]
            await server.start(tasks)
            async with anyio.create_task_group() as users:
                options = Options(**{**QUICK, "close_timeout_s": 0.1})
                async with connect_with(options, (server.address,), "test") as client:
                    users.start_soon(consume, client)
                    users.start_soon(produce, client)
                    await until_holds(lambda: server.subscribed and server.of_type(Type.PRODUCE))
            assert sorted(ended) == ["consumer", "producer"]
            tasks.cancel_scope.cancel()

    run(main)


def test_cancelling_connect_and_everything_in_it(run: Any) -> None:
    async def main() -> None:
        async with anyio.create_task_group() as tasks:
            server = FakeServer()
            server.add_topic("t")
            await server.start(tasks)
            with anyio.CancelScope() as scope:
                async with connect(server.address) as client, client.subscribe("t", group="g") as subscription:
                    server.deliver(server.subscription(), [b"a"], token=TOKEN)
                    async for _ in subscription:
                        scope.cancel()
            assert scope.cancelled_caught
            assert server.unsubscribed

            scope = anyio.CancelScope()
            server.script[Type.HELLO] += [lambda connection, frame: scope.cancel()]
            with scope:
                async with connect(server.address):
                    pass
            assert scope.cancelled_caught
            server.script[Type.HELLO] += [SILENCE]
            with pytest.raises(ConnectionLost, match=r"no answer in 0\.05 s"):
                async with connect(server.address, timeout="50ms"):
                    pass
            server.script[Type.HELLO] += [SILENCE] * 3
            told = f"cannot connect to {server.address}: no answer in 0.333 s"  # identical errors are shown once
            with pytest.raises(ConnectionLost) as caught:  # the attempts share the time
                async with connect(*[server.address] * 3, timeout="1s"):
                    pass
            assert caught.value.message == f"no server can be reached: {told}"
            tasks.cancel_scope.cancel()

    run(main)


def test_requests_are_tried_again_only_when_that_is_safe(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        server.script[Type.METADATA] += [CUT, Unavailable("soon")]
        assert [topic.name for topic in await client.admin.list_topics()] == ["t"]
        server.script[Type.TOPIC_CREATE] += [Unavailable("soon"), NotLeader("not me", node_id="n1")]
        assert (await client.admin.create_topic("u", partitions=2)).number == 2
        server.script[Type.TOPIC_CREATE] += [CUT]
        with pytest.raises(ConnectionLost):
            await client.admin.create_topic("v")
        assert "v" not in server.topics
        with pytest.raises(UnknownTopic):
            await client.admin.topic("v")

    with_client(body)


def test_server_texts() -> None:
    assert parse_server("host") == ("host", 7170)
    assert parse_server("host:80") == ("host", 80)
    assert parse_server("[::1]:80") == ("::1", 80)
    assert parse_server("::1") == ("::1", 7170)
    assert parse_server("fe80::1%eth0") == ("fe80::1%eth0", 7170)
    assert parse_server("[::1]") == ("::1", 7170)
    wrong = ("", ":80", "host:", "host:0", "host:65536", "host:x", "host:+1", "a b:80", "host/x", "u@host:80")
    for text in (*wrong, "a:b:c", "::1:x"):
        with pytest.raises(InvalidRequest, match="is not a server: HOST:PORT is expected"):
            parse_server(text)
    for text in ("http://host:2108", "https://host", "sandq://host:7170/x"):
        with pytest.raises(InvalidRequest, match=r"is a URL, and a server is HOST:PORT .* like '127\.0\.0\.1:7170'"):
            parse_server(text)
    assert NOW_MS > 10**11


def test_unknown_topic_reply_to_older_request_is_ignored(with_client: Any) -> None:
    """The reply to an earlier request was in flight when the topic was created."""

    async def body(server: FakeServer, client: Client) -> None:
        cluster = client._cluster
        held: list[tuple[Any, bytes]] = []

        def hold(connection: Any, frame: Any) -> None:
            assert frame[2] == ["u"]
            held.append((connection, encode_error(frame[1], UnknownTopic("there is no topic 'u'"))))

        server.script[Type.METADATA].append(hold)
        cluster.refresh("u")
        await until_holds(lambda: held)
        server.add_topic("u", 3)

        async def answer() -> None:
            await until_holds(lambda: "u" in cluster._wanted)  # `topic` has begun to wait
            for connection, data in held:
                connection.send(data)

        async with anyio.create_task_group() as both:
            both.start_soon(answer)
            assert len((await cluster.topic("u")).partitions) == 3

    with_client(body)


def test_an_answer_from_before_a_topic_was_deleted_says_nothing(with_client: Any) -> None:
    """The reply was in flight when the topic was deleted and recreated with a different kind."""

    async def body(server: FakeServer, client: Client) -> None:
        cluster = client._cluster
        await cluster.topic("t")
        held: list[tuple[Any, bytes]] = []

        def hold(connection: Any, frame: Any) -> None:
            held.append((connection, encode_reply(frame[1], *server.do_metadata(connection, frame))))

        server.script[Type.METADATA].append(hold)
        cluster.refresh("t")
        await until_holds(lambda: held)
        await client.admin.delete_topic("t")
        server.add_topic("t", kind="compacted")

        async def answer() -> None:
            await until_holds(lambda: "t" in cluster._wanted)  # `topic` has begun to wait
            for connection, data in held:
                connection.send(data)

        async with anyio.create_task_group() as both:
            both.start_soon(answer)
            assert (await cluster.topic("t")).kind == "compacted"

    with_client(body)


def test_update_reply_from_before_topic_deletion_is_ignored(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        await client._cluster.topic("t")
        held: list[tuple[Any, bytes]] = []

        def hold(connection: Any, frame: Any) -> None:
            held.append((connection, encode_reply(frame[1], server.record("t").to_map())))

        server.script[Type.TOPIC_UPDATE].append(hold)
        async with anyio.create_task_group() as both:
            both.start_soon(partial(client.admin.update_topic, "t", partitions=5))
            await until_holds(lambda: held)
            await client.admin.delete_topic("t")
            server.add_topic("t", kind="compacted")
            for connection, data in held:
                connection.send(data)
        assert (await client._cluster.topic("t")).kind == "compacted"

    with_client(body)


def test_topics_that_come_and_go_leave_nothing_behind(with_client: Any) -> None:
    """A client may create and delete topics with new names without end."""

    async def body(server: FakeServer, client: Client) -> None:
        def kept() -> int:
            parts = vars(client._cluster).values()
            return sum(len(part) for part in parts if isinstance(part, dict))

        before = kept()
        for number in range(100):
            await client.admin.create_topic(f"new-{number}")
            await client.admin.delete_topic(f"new-{number}")
        assert kept() == before

    with_client(body)


def test_named_leader_that_is_gone_does_not_delay_the_request(with_client: Any) -> None:
    async def body(server: FakeServer, client: Client) -> None:
        # The asked node names a node that has left.
        gone = [NotLeader("n2 leads", node_id="n2", host="127.0.0.1", port=free_port()) for _ in range(2)]
        server.script[Type.TOPIC_CREATE] += gone
        await client.admin.create_topic("made")
        assert len(server.of_type(Type.TOPIC_CREATE)) == 3

    with_client(body, timeout_s=PATIENCE_S)
