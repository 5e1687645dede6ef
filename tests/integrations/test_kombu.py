"""kombu on a real node: exchanges, queues, acks, priorities and errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess

pytest.importorskip("kombu", reason="`make test` installs requirements-workers.lock")

from kombu import Connection, Exchange, Queue
from kombu.exceptions import OperationalError
from sandq_workers.kombu.bindings import Bindings

import sandq.sync
from sandq.errors import ConnectionLost


@pytest.fixture
def connection(node: NodeProcess) -> Iterator[Any]:
    with Connection(f"sandq://{node.address}/kombu") as connection:
        connection.connect()
        yield connection


def received(connection: Any, queue: Queue, count: int) -> list[Any]:
    """Return the next messages of a queue, acked."""
    found: list[Any] = []

    def take(body: Any, message: Any) -> None:
        message.ack()
        found.append(body)

    with connection.Consumer([queue], callbacks=[take], accept=["json", "text/plain"]):
        while len(found) < count:
            connection.drain_events(timeout=30)
    return found


PROGRAMS = [
    "from celery import Celery; connection = Celery('x', broker='sandq://a,b').connection()",
    "from kombu import Connection, Queue; Queue('q'); connection = Connection('sandq://a,b')",
    "import sandq_workers.kombu; from kombu import Connection; connection = Connection('sandq://a,b')",
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_transport_is_known_after_an_installation_alone(program: str) -> None:
    command = [sys.executable, "-c", f"{program}; print(connection.transport.driver_type)"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "sandq\n"


def test_direct_exchange_delivers_to_a_queue_with_an_odd_name(connection: Any) -> None:
    exchange = Exchange("orders", "direct")
    queue = Queue("orders @ home", exchange, routing_key="paid")
    producer = connection.Producer()
    for number in range(3):
        producer.publish(number, exchange=exchange, routing_key="paid", declare=[queue])
    assert received(connection, queue, 3) == [0, 1, 2]
    assert ("orders @ home", "orders", "paid") in connection.default_channel.list_bindings()


def test_temporary_queues_get_only_what_they_are_bound_for(connection: Any) -> None:
    exchange = Exchange("events", "topic")
    every = Queue("every", exchange, routing_key="#", exclusive=True, durable=False)
    some = Queue("some", exchange, routing_key="task.*", auto_delete=True, durable=False)
    durable = Queue("kept", exchange, routing_key="task.#")
    channel = connection.default_channel
    for queue in (every, some, durable):
        queue(channel).declare()
    producer = connection.Producer()
    for key in ("task.sent", "worker.online", "task.failed"):
        producer.publish(key, exchange=exchange, routing_key=key)
    assert received(connection, every, 3) == ["task.sent", "worker.online", "task.failed"]
    assert received(connection, some, 2) == received(connection, durable, 2) == ["task.sent", "task.failed"]


def test_exchange_keeps_broadcasting_if_a_late_process_declares_it(node: NodeProcess) -> None:
    with sandq.sync.connect(node.address) as client:
        early, late = Bindings(client, "late."), Bindings(client, "late.")
        early.start()
        early.declare_exchange("e", {"type": "fanout"})
        early.broadcast("e")
        late.declare_exchange("e", {"type": "fanout"})  # it has not read the record yet
        assert late.exchanges["e"] == {"type": "fanout", "broadcasts": True}
        assert late.route("e", "").broadcasts


def test_changed_prefetch_count_keeps_held_messages(connection: Any) -> None:
    queue = Queue("prefetched")
    for number in range(3):
        connection.Producer().publish(number, exchange="", routing_key="prefetched", declare=[queue])
    channel = connection.default_channel
    found: list[Any] = []
    with connection.Consumer([queue], channel=channel, on_message=found.append, prefetch_count=1):
        connection.drain_events(timeout=30)
        assert not channel.qos.can_consume()
        channel.basic_qos(0, 3, False)
        for _ in range(2):
            connection.drain_events(timeout=30)
        assert sorted(message.payload for message in found) == [0, 1, 2] and not channel.qos.can_consume()
        for message in found:
            message.ack()
    assert connection.channel().basic_get("prefetched") is None


def test_requeue_reject_and_recover_of_single_messages(connection: Any, node: NodeProcess) -> None:
    queue = Queue("single")
    connection.Producer().publish("one", exchange="", routing_key="single", declare=[queue])
    channel = connection.channel()
    message = channel.basic_get("single")
    message.reject(requeue=True)
    message = channel.basic_get("single")
    assert message.payload == "one" and channel.basic_get("single") is None
    message.reject()
    with sandq.sync.connect(node.address) as client:
        (dead,) = client.dead("kombu.single", "workers").list()
        assert dead.value == b"one"
    assert channel.queue_purge("single") == 0


def test_priority_and_eta_are_those_of_the_broker(connection: Any, node: NodeProcess) -> None:
    queue = Queue("ranked", max_priority=9)
    producer = connection.Producer()
    for priority in (0, 9, 4):
        producer.publish(priority, exchange="", routing_key="ranked", priority=priority, declare=[queue])
    assert received(connection, queue, 3) == [9, 4, 0]
    eta = datetime.now(UTC) + timedelta(days=1000)
    producer.publish("later", exchange="", routing_key="ranked", headers={"eta": eta.isoformat()})
    assert connection.default_channel.basic_get("ranked") is None
    assert connection.default_channel.queue_purge("ranked") == 1


def test_errors_are_those_of_kombu(connection: Any) -> None:
    channel = connection.default_channel
    with pytest.raises(connection.channel_errors, match="NOT_FOUND"):
        channel.queue_declare("missing", passive=True)
    with pytest.raises(connection.channel_errors, match="8388608 is the limit"):
        connection.Producer().publish("x" * 9_000_000, exchange="", routing_key="large")
    with pytest.raises(connection.channel_errors, match=r"years|days"):
        headers = {"eta": "2500-01-01T00:00:00+00:00"}
        connection.Producer().publish("x", exchange="", routing_key="large", headers=headers)
    channel.exchange_declare("kind", "direct")
    with pytest.raises(connection.channel_errors, match="has the type 'direct'"):
        channel.exchange_declare("kind", "fanout")


def test_broker_that_is_away_and_a_wrong_url_are_reported() -> None:
    away = Connection(f"sandq://127.0.0.1:{free_port()}?timeout=1s")
    with pytest.raises(OperationalError):
        away.ensure_connection(max_retries=1, interval_start=0, interval_max=0)
    with pytest.raises(ConnectionLost):
        away.connect()
    with pytest.raises(ValueError, match="unknown option 'hearbeat'"):
        Connection("sandq://127.0.0.1?hearbeat=5").connect()
    assert Connection("sandq://token@a,b").as_uri() == "sandq://**@a,b"


def test_consumer_survives_a_restart_of_the_broker(tmp_path: Path) -> None:
    node = NodeProcess(tmp_path)
    node.start()
    found: list[Any] = []
    url = f"sandq://{node.address}?delivery_timeout=60s"
    with Connection(url) as consuming, Connection(url) as producing:
        with consuming.Consumer([Queue("kept")], on_message=found.append):
            producing.Producer().publish(1, exchange="", routing_key="kept")
            consuming.drain_events(timeout=30)
            node.kill()
            node.start()
            producing.Producer().publish(2, exchange="", routing_key="kept", retry=True)
            consuming.drain_events(timeout=60)
            for message in found:
                message.ack()
        assert [message.payload for message in found] == [1, 2]
        assert consuming.default_channel.basic_get("kept") is None
    node.close()
