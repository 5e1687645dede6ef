"""Tests of the blocking client: the same names, use from any thread, and its end."""

from __future__ import annotations

import gc
import inspect
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

import sandq
from sandq.client.admin.admin import Admin
from sandq.client.consumer.lease_api import Leases
from sandq.errors import (
    ClosedError,
    Conflict,
    ConnectionLost,
    InvalidRequest,
    InvalidTime,
    LeaseLost,
    NotFound,
    TimedOut,
    TooLarge,
    TopicExists,
    UnknownPartition,
    UnknownTopic,
)
from sandq.protocol.frames import Type, encode_reply
from tests.support.client.fake_server import SILENCE, FakeServer
from tests.support.client.threaded_server import ThreadedServer
from tests.support.waiting import PATIENCE_S, wait_until

PAIRS: list[tuple[type, type, set[str]]] = [
    (sandq.Client, sandq.sync.Client, set()),
    (sandq.Producer, sandq.sync.Producer, {"add", "check_open", "checks", "send_ready", "wait_for_capacity"}),
    (
        sandq.Subscription,
        sandq.sync.Subscription,
        {
            "check_open",
            "gather_arrivals",
            "prepare_gather",
            "next_arrivals",
            "has_arrived",
            "options",
            "take_ready",
            "take_arrived",
            "stop",
        },
    ),
    (sandq.Message, sandq.sync.Message, set()),
    (sandq.MessageBatch, sandq.sync.MessageBatch, set()),
    (sandq.Messages, sandq.sync.Messages, set()),
    (sandq.DeadLetters, sandq.sync.DeadLetters, set()),
    (Leases, sandq.sync.Leases, set()),
    (sandq.Keys, sandq.sync.Keys, set()),
    (sandq.Watch, sandq.sync.Watch, {"check_open", "next_answers", "take_arrived"}),
    (Admin, sandq.sync.Admin, set()),
]


def public(kind: type) -> dict[str, Any]:
    return {name: value for name, value in inspect.getmembers(kind) if not name.startswith("_")}


@pytest.mark.parametrize(("ours", "blocking", "internal"), PAIRS)
def test_names_and_arguments_are_the_same(ours: type, blocking: type, internal: set[str]) -> None:
    there = public(blocking)
    for name, method in public(ours).items():
        if name in internal:
            continue
        assert name in there, f"{blocking.__name__} has no {name}"
        if inspect.isfunction(method):
            wanted, given = inspect.signature(method).parameters, inspect.signature(there[name]).parameters
            assert {key: (p.kind, p.default) for key, p in wanted.items() if key != "self"} == {
                key: (p.kind, p.default) for key, p in given.items() if key != "self"
            }, name
            assert there[name].__doc__


def test_produce_and_consume(client: sandq.sync.Client, server: FakeServer) -> None:
    offset = client.produce("t", b"one", key="k", headers={"a": 1})
    assert len(offset) == 26
    with client.subscribe("t", group="g") as subscription:
        message = next(subscription)
        assert (message.value, message.key, message.headers, message.offset) == (b"one", b"k", {"a": 1}, offset)
        assert (message.topic, message.partition, message.attempt, message.is_held) == ("t", 0, 1, True)
        assert message.extend("1m").wait() > 0
        message.ack().wait()
        assert message.is_settled and not message.is_held
        message.ack().wait()
        assert len(server.acks) == 1, "a second ack changes nothing"
    assert server.unsubscribed


def test_acks_without_wait_are_sent_at_block_exit(client: sandq.sync.Client, server: FakeServer) -> None:
    with client.producer("t") as producer:
        producer.send_many([b"%d" % n for n in range(50)])
    with client.subscribe("t", group="g", credit=50) as subscription:
        messages = [next(subscription) for _ in range(50)]
        free = threading.Event()
        client._portal.post(lambda: free.wait(PATIENCE_S))  # the client's event loop is busy
        for message in messages:
            message.ack()
        free.set()
    assert {row.state for row in server.stored["t", 0]} == {"acked"}
    assert len(server.acks) < 50, "they share frames"


def test_many_threads_share_a_subscription_and_a_producer(client: sandq.sync.Client, server: FakeServer) -> None:
    seen: list[bytes] = []
    with client.producer("t") as producer, ThreadPoolExecutor(8) as pool:
        receipts = list(pool.map(lambda n: producer.send(b"%d" % n), range(400)))
        offsets = {receipt.wait() for receipt in receipts}
    assert len(offsets) == 400
    everything = threading.Event()

    def work(subscription: sandq.sync.Subscription) -> None:
        try:
            for message in subscription:
                message.ack()
                seen.append(message.value)
                if len(seen) >= 400:
                    everything.set()
        except ClosedError:
            pass

    with ThreadPoolExecutor(8) as pool, client.subscribe("t", group="g", credit=20) as subscription:
        for _ in range(8):
            pool.submit(work, subscription)
        assert everything.wait(PATIENCE_S)
    assert sorted(seen) == sorted(b"%d" % n for n in range(400)), "each message went to one of the threads"
    assert {row.state for row in server.stored["t", 0]} == {"acked"}


def test_giving_up_and_snoozing(client: sandq.sync.Client, server: FakeServer, threaded: ThreadedServer) -> None:
    server.auto = False
    with client.subscribe("t", group="g") as subscription:
        batches = subscription.batches()
        wait_until(lambda: server.subscription().credit >= 10_000)
        threaded.soon(lambda: server.deliver(server.subscription(), [b"a", b"b", b"c"]))
        batch = next(batches)
        first, second, _ = batch.messages
        first.dead("410 gone").wait()
        second.nack(delay="3s", count=False).wait()
        with pytest.raises(InvalidRequest, match="given up already, it cannot be nacked"):
            first.nack()
        batch.dead().wait()
    found = [item[2:] for nack in server.nacks for item in nack.items]
    assert found == [[None, "410 gone", True, None, 1], [3000, None, True, None, 2], [None, None, True, None, 1]]


def test_batches(client: sandq.sync.Client, server: FakeServer, threaded: ThreadedServer) -> None:
    server.auto = False
    with client.subscribe("t", group="g") as subscription:
        batches = subscription.batches()
        wait_until(lambda: server.subscription().credit >= 10_000)
        threaded.soon(lambda: server.deliver(server.subscription(), [b"a", b"b", b"c"]))
        batch = next(batches)
        assert (len(batch), batch.values, batch.keys, batch.partition) == (3, [b"a", b"b", b"c"], [None] * 3, 0)
        first, *_ = batch.messages
        first.nack(delay="3s").wait()
        assert batch.extend("1m").wait() > 0
        batch.ack().wait()
        with pytest.raises(InvalidRequest, match="nacked already"):
            first.ack()
    (nack,), (ack,) = server.nacks, server.acks
    assert nack.items[0][2] == 3000 and ack.items[0][1][0][1] == 2


def test_gathered_batches(client: sandq.sync.Client, server: FakeServer, threaded: ThreadedServer) -> None:
    server.auto = False
    with client.subscribe("t", group="g", credit=100) as subscription:
        with pytest.raises(InvalidRequest, match="more than the credit"):
            subscription.gather(101)
        for values in ([b"a", b"b"], [b"c"], [b"d"]):
            threaded.soon(lambda values=values: server.deliver(server.subscription(), values))
        (first, *others) = next(subscription.gather(4, max_wait="1m"))
        assert [first.values, *[batch.values for batch in others]] == [[b"a", b"b"], [b"c"], [b"d"]]
        for batch in (first, *others):
            batch.ack().wait()
        threaded.soon(lambda: server.deliver(server.subscription(), [b"e"]))
        ((last,),) = [next(subscription.gather(4, max_wait="10ms"))]
        last.ack().wait()
        assert last.values == [b"e"]


def test_a_lost_lease_is_raised_by_waiting(client: sandq.sync.Client, server: FakeServer, caplog: Any) -> None:
    client.produce("t", b"one")
    with client.subscribe("t", group="g") as subscription:
        message = next(subscription)
        server.script[Type.ACK].append(lambda to, frame: to.send(encode_reply(frame[1], [[]])))
        with pytest.raises(LeaseLost):
            message.ack().wait()
        assert message.is_lost


def test_mistakes_are_raised_where_they_are_made(client: sandq.sync.Client) -> None:
    call: Callable[[], object]
    with pytest.raises(UnknownTopic):
        client.produce("nope", b"")
    with pytest.raises(InvalidRequest, match="credit"):
        client.subscribe("t", group="g", credit=0)
    with pytest.raises(InvalidRequest, match="priority"):
        client.produce("t", b"", priority=3)
    with client.producer("t") as producer:
        for call in (
            lambda: producer.send(b"", delay="soon"),
            lambda: producer.send(3),  # type: ignore[arg-type]
            lambda: producer.send(b"", on_conflict="ignore"),
            lambda: producer.send(b"", unique_key="u", max_wait="1m"),
            lambda: producer.send(b"", unique_key="u", window="1m"),
            lambda: producer.send(b"", unique_key="u", on_conflict="throttle", window="1m", edge="trailing"),
            lambda: producer.send(b"", tenant="a b"),
            lambda: producer.send_many([b"", 3]),  # type: ignore[list-item]
        ):
            with pytest.raises(InvalidRequest):
                call()
        with pytest.raises(TooLarge):
            producer.send(b"x" * 9_000_000)
        with pytest.raises(InvalidRequest, match="message 1500 of send_many"):
            producer.send_many([*[b""] * 1500, 3])  # type: ignore[list-item]
        with pytest.raises(InvalidRequest, match="tenant: topic 't' is a timer topic"):
            producer.send(b"", tenant="a").wait()
        receipt = producer.send(b"", partition=7)
        with pytest.raises(UnknownPartition):
            receipt.wait()
        with pytest.raises(UnknownPartition):
            _ = receipt.partition
    client.produce("t", b"one")
    with client.subscribe("t", group="g") as subscription:
        message = next(subscription)
        with pytest.raises(InvalidTime):
            message.nack(delay="soon")
        with pytest.raises(InvalidRequest):
            message.extend(0)
        assert message.is_held, "a refused call must change nothing"
        message.ack()
        with pytest.raises(InvalidRequest, match="acked already"):
            message.nack()


def test_receipts(client: sandq.sync.Client, server: FakeServer, threaded: ThreadedServer) -> None:
    with client.producer("t") as producer:
        receipts = producer.send_many((b"%d" % n for n in range(2500)), key="k")
        assert len(receipts) == 2500
        offsets = receipts.wait()
        assert [receipt.wait() for receipt in receipts] == offsets and len(set(offsets)) == 2500
        receipt = producer.send(b"last")
        assert receipt.partition == 0
        producer.flush()
        assert receipt.done and len(receipt.wait()) == 26
        server.script[Type.PRODUCE].append(SILENCE)
        slow = producer.send(b"slow")
        with pytest.raises(TimedOut, match="unknown"):
            slow.wait(timeout="20ms")
        assert not slow.done
        wait_until(lambda: not server.script[Type.PRODUCE])  # the server has received the request
        threaded.soon(server.cut_all)
        assert len(slow.wait("10m")) == 26


def test_failed_messages_are_raised_at_block_exit(client: sandq.sync.Client, server: FakeServer) -> None:
    producer = client.producer("t")
    with pytest.raises(Conflict, match="2 messages to topic 't' were not produced"), producer:
        for _ in range(2):
            server.script[Type.PRODUCE].append(Conflict("no"))
        producer.send(b"a", delay=5)
        producer.send(b"b")
    with pytest.raises(ClosedError):
        producer.send(b"c")
    with pytest.raises(ClosedError):
        producer.__enter__()


def test_stored_messages_and_administration(client: sandq.sync.Client) -> None:
    assert client.admin.create_topic("u", partitions=2).name == "u"
    with pytest.raises(TopicExists):
        client.admin.create_topic("u")
    assert [topic.name for topic in client.admin.list_topics()] == ["t", "u"]
    ids = [client.produce("t", b"%d" % n, delay="1h") for n in range(3)]
    messages = client.messages("t")
    assert messages.topic == "t"
    assert [message.id for message in messages.list(state="delayed")] == ids
    assert [message.id for message in messages.list(limit=1)] == ids[:1]
    assert messages.get(ids[0]).state == "delayed"
    assert messages.cancel(ids[0]) == ids[0]
    with pytest.raises(NotFound):
        messages.get("0" * 26)
    rows = messages.list(values=True)
    assert next(rows).value == b"1"
    assert [row.value for row in rows] == [b"2"]
    assert list(rows) == [], "the iterator stays at its end"
    with pytest.raises(InvalidRequest):
        messages.list(state="nonsense")
    reported: list[int] = []
    assert messages.cancel_all(progress=lambda result: reported.append(result.done)).done == 2
    assert reported
    dead = client.dead("t", "g")
    assert dead.group == "g"
    assert dead.redrive_ids(ids[1:2]) == [(ids[1], "not_found", None)]
    assert dead.purge_ids(ids[1:2]) == [(ids[1], "not_found", None)]
    with pytest.raises(UnknownTopic):
        list(client.messages("nope").list())
    with pytest.raises(UnknownTopic):
        list(client.fetch("nope", 0))


def test_a_progress_function_cannot_use_the_client(client: sandq.sync.Client) -> None:
    client.produce("t", b"", delay="1h")
    with pytest.raises(InvalidRequest, match="own event loop's thread"):
        client.messages("t").cancel_all(progress=lambda result: client.produce("t", b""))


def test_run(client: sandq.sync.Client, server: FakeServer) -> None:
    threads: set[int] = set()

    class Stop(BaseException):
        pass

    def handler(message: sandq.sync.Message) -> None:
        threads.add(threading.get_ident())
        if message.value == b"bad":
            raise ValueError("no")
        if message.value == b"produces":
            client.produce("t", b"last")
        if message.value == b"last":
            raise Stop

    for value in (b"bad", b"fine", b"produces"):
        client.produce("t", value)
    with pytest.raises(Stop):
        client.run("t", "g", handler, concurrency=2)
    assert threading.get_ident() not in threads
    assert {row.value for row in server.stored["t", 0] if row.state == "acked"} == {b"fine", b"produces"}
    assert sorted(item[3] for nack in server.nacks for item in nack.items) == ["Stop: ", "ValueError: no"]

    async def coroutine(message: sandq.sync.Message) -> None: ...

    with pytest.raises(InvalidRequest, match="a plain function is expected"):
        client.run("t", "g", coroutine)
    with pytest.raises(InvalidRequest, match="concurrency"):
        client.run("t", "g", handler, concurrency=0)


def test_used_after_it_was_closed(server: FakeServer) -> None:
    client = sandq.sync.connect(server.address, name="mine")
    assert (client.name, client.cluster_uuid) == ("mine", "c1")
    producer = client.producer("t").__enter__()
    subscription = client.subscribe("t", group="g").__enter__()
    rows = client.messages("t").list()
    client.produce("t", b"one")
    message = next(subscription)
    client.close()
    client.close()
    for use in (
        lambda: client.produce("t", b""),
        lambda: client.producer("t"),
        lambda: client.subscribe("t", group="g"),
        lambda: client.messages("t"),
        lambda: client.dead("t", "g"),
        lambda: client.fetch("t", 0),
        lambda: client.run("t", "g", lambda message: None),
        lambda: client.admin.list_topics(),
        lambda: client.__enter__(),
        lambda: producer.send(b""),
        lambda: producer.flush(),
        lambda: next(subscription),
        lambda: message.ack(),
        lambda: next(rows),
    ):
        with pytest.raises(ClosedError):
            use()
    subscription.__exit__(None, None, None)
    producer.__exit__(None, None, None)
    client.__exit__(None, None, None)


def test_open_subscriptions_and_producers_close_with_the_client(server: FakeServer) -> None:
    client = sandq.sync.connect(server.address)
    client.produce("t", b"one")
    subscription = client.subscribe("t", group="g").__enter__()
    next(subscription).ack()
    producer = client.producer("t", linger="1h").__enter__()
    receipt = producer.send(b"two")
    client.close()
    assert receipt.done and [row.value for row in server.stored["t", 0]] == [b"one", b"two"]
    assert server.stored["t", 0][0].state == "acked" and server.unsubscribed
    producer.__exit__(None, None, None)

    client = sandq.sync.connect(server.address)
    failing = client.producer("t", linger="1h").__enter__()
    failing.send(b"three")
    server.script[Type.PRODUCE].append(Conflict("no"))
    client.close()
    with pytest.raises(Conflict, match="no"):
        failing.__exit__(None, None, None)


def test_close_wakes_waiters(server: FakeServer) -> None:
    client = sandq.sync.connect(server.address)
    with ThreadPoolExecutor(2) as pool, client.subscribe("t", group="g") as subscription:
        server.script[Type.TOPIC_STATS].append(SILENCE)
        waits = [pool.submit(next, subscription), pool.submit(client.admin.stats, "t")]
        wait_until(lambda: server.of_type(Type.TOPIC_STATS))
        client.close()
        for wait in waits:
            with pytest.raises(ClosedError):
                wait.result(PATIENCE_S)


def test_run_returns_when_another_thread_closes_the_client(server: FakeServer) -> None:
    client = sandq.sync.connect(server.address)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.run, "t", "g", lambda message: None)
        wait_until(lambda: server.subscribed)
        client.close()
        running.result(PATIENCE_S)


def test_run_raises_if_the_loop_of_the_client_fails(server: FakeServer, caplog: pytest.LogCaptureFixture) -> None:
    client = sandq.sync.connect(server.address)

    async def fail() -> None:
        raise RuntimeError("a bug")

    async def break_loop(inner: sandq.Client) -> None:
        inner._tasks.start_soon(fail)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(client.run, "t", "g", lambda message: None)
        wait_until(lambda: server.subscribed)
        with suppress(ClosedError):
            client.call(break_loop)
        with pytest.raises(ClosedError, match="has ended because of an error, which is in the log"):
            running.result(PATIENCE_S)
    client.close()
    assert "the client of sandq.sync ended" in caplog.text


def test_connect_without_server_raises_connection_lost() -> None:
    with pytest.raises(ConnectionLost, match="cannot connect"):
        sandq.sync.connect("127.0.0.1:1")
    with pytest.raises(InvalidRequest):
        sandq.sync.connect("nonsense:nonsense")
    wait_until(lambda: not any(thread.name == "sandq-client" for thread in threading.enumerate()))


def test_a_client_that_was_forgotten_ends(server: FakeServer) -> None:
    client = sandq.sync.connect(server.address)
    thread = weakref.ref(client._thread._thread)
    admin = client.admin
    del client
    gc.collect()
    assert admin.list_topics(), "the parts of the client keep it alive"
    del admin
    gc.collect()
    found = thread()
    if found is not None:
        found.join(PATIENCE_S)
        assert not found.is_alive()


def test_from_an_event_loop_it_works_and_blocks_it(client: sandq.sync.Client) -> None:
    import asyncio

    async def main() -> str:
        return client.produce("t", b"from a notebook")

    assert len(asyncio.run(main())) == 26
