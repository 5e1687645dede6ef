"""Debounced messages through a real node with a movable clock: values and times of delivered messages."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import sandq.testing
from sandq.sync import Client
from sandq.testing import Broker


@pytest.fixture
def b() -> Iterator[Broker]:
    with sandq.testing.broker() as broker:
        yield broker


@pytest.fixture
def client(b: Broker) -> Iterator[Client]:
    with sandq.sync.connect(b.address) as opened:
        opened.admin.create_topic("t", backoff={"kind": "fixed", "first": "1m", "jitter_percent": 0})
        yield opened


def send(client: Client, value: bytes, **options: Any) -> tuple[str, str | None]:
    """Send a debounced message. Return its outcome, and the state of the earlier message."""
    receipt = client.send("t", value, **{"unique_key": "k", "on_conflict": "debounce", "delay": "5s"} | options)
    receipt.wait()
    assert receipt.outcome is not None
    return receipt.outcome.outcome, receipt.outcome.state


def received(b: Broker, client: Client, start_ms: int, seconds: int) -> list[tuple[float, bytes]]:
    """Advance the clock by seconds, and ack the messages. Return their seconds since `start_ms`, and their values."""
    leases, found = client.leases("t", "g"), []
    for _ in range(seconds):
        b.advance("1s")
        for message in leases.take(10):
            found.append(((b.now_ms() - start_ms) / 1000, message.value))
            leases.ack([message])
    return found


def test_debounce_delivers_the_last_value_after_the_last_delay(b: Broker, client: Client) -> None:
    start_ms = b.now_ms()
    outcomes = []
    for value in (b"1", b"2", b"3"):
        outcomes.append(send(client, value)[0])
        b.advance("3s")
    assert outcomes == ["stored", "replaced", "replaced"]
    assert received(b, client, start_ms, 30) == [(11, b"3")]


def test_max_wait_bounds_the_time_since_the_first_message(b: Broker, client: Client) -> None:
    start_ms = b.now_ms()
    found = []
    for number in range(10):
        send(client, b"%d" % number, max_wait="12s")
        found += received(b, client, start_ms, 3)
    found += received(b, client, start_ms, 30)
    # The second series begins with the first message after the delivery.
    assert found == [(12, b"3"), (24, b"7"), (32, b"9")]


def test_debounce_without_a_worker_replaces_the_message_that_is_due(b: Broker, client: Client) -> None:
    send(client, b"1", max_wait="10s")
    b.advance("1m")
    start_ms = b.now_ms()
    assert send(client, b"2", max_wait="10s") == ("replaced", None)
    leases = client.leases("t", "g")
    assert [message.value for message in leases.take(10)] == [b"2"] and b.now_ms() == start_ms


def test_debounce_of_a_leased_message_delivers_both(b: Broker, client: Client) -> None:
    send(client, b"1", delay=0)
    leases = client.leases("t", "g")
    (held,) = leases.take(1)
    start_ms = b.now_ms()
    assert send(client, b"2", max_wait="7s") == ("stored", "leased")
    b.advance("3s")
    assert send(client, b"3", max_wait="7s") == ("replaced", None)
    named = client.messages("t").get(unique_key="k")
    assert named.value == b"3"
    leases.ack([held])
    assert received(b, client, start_ms, 20) == [(7, b"3")]


def test_debounce_of_a_waiting_message_replaces_it(b: Broker, client: Client) -> None:
    send(client, b"1", delay=0)
    leases = client.leases("t", "g")
    leases.nack(leases.take(1), error="not now")
    start_ms = b.now_ms()
    assert send(client, b"2") == ("replaced", None)
    assert received(b, client, start_ms, 90) == [(5, b"2")]


def test_debounce_of_a_waiting_message_without_its_key_delivers_both(b: Broker, client: Client) -> None:
    client.admin.update_topic("t", dedup_window="10s")
    send(client, b"1", delay=0)
    leases = client.leases("t", "g")
    leases.nack(leases.take(1), error="not now")
    start_ms = b.now_ms()
    b.advance("20s")
    assert send(client, b"2")[0] == "stored"
    assert received(b, client, start_ms, 90) == [(25, b"2"), (60, b"1")]


def test_debounce_of_a_finished_message_stores_the_new_one(b: Broker, client: Client) -> None:
    send(client, b"1", delay=0)
    leases = client.leases("t", "g")
    leases.ack(leases.take(1))
    start_ms = b.now_ms()
    outcome, state = send(client, b"2")
    assert outcome == "stored" and state in ("acked", "delivered")
    assert received(b, client, start_ms, 20) == [(5, b"2")]


def test_debounce_of_different_keys_of_a_batch_keeps_each(b: Broker, client: Client) -> None:
    options: dict[str, Any] = {"on_conflict": "debounce", "delay": "5s", "max_wait": "1m"}
    rows = [{"value": value, "unique_key": name} for name, value in ((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))]
    with client.producer("t") as producer:
        receipts = producer.send_many(rows, **options)
        receipts.wait()
    start_ms = b.now_ms()
    assert received(b, client, start_ms, 10) == [(5, b"2"), (5, b"3")]
