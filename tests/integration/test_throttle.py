"""Throttled messages through a real node with a movable clock: outcomes, and times and values of deliveries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import sandq.testing
from sandq.sync import Client
from sandq.testing import Broker

THROTTLED: dict[str, Any] = {"unique_key": "k", "on_conflict": "throttle", "window": "1m"}


@pytest.fixture
def b() -> Iterator[Broker]:
    with sandq.testing.broker() as broker:
        yield broker


@pytest.fixture
def client(b: Broker) -> Iterator[Client]:
    with sandq.sync.connect(b.address) as opened:
        opened.admin.create_topic("t", dedup_window="0s")
        yield opened


def send(client: Client, value: bytes, **options: Any) -> str:
    """Send a throttled message. Return its outcome."""
    receipt = client.send("t", value, **THROTTLED | options)
    receipt.wait()
    assert receipt.outcome is not None
    return receipt.outcome.outcome


def received(b: Broker, client: Client) -> list[tuple[str, bytes]]:
    """Lease and ack all ready messages. Return the minute and second of the clock, and the value of each."""
    leases = client.leases("t", "g")
    messages = leases.take(10)
    leases.ack(messages)
    return [(f"{b.now():%M:%S}", message.value) for message in messages]


def run(b: Broker, client: Client, **options: Any) -> tuple[list[str], list[tuple[str, bytes]]]:
    """Send a message every 25 s, ten times. Return the outcomes, and the deliveries."""
    outcomes, found = [], []
    for number in range(10):
        outcomes.append(send(client, b"%d" % number, **options))
        found += received(b, client)
        for _ in range(5):
            b.advance("5s")
            found += received(b, client)
    for _ in range(20):
        b.advance("5s")
        found += received(b, client)
    return outcomes, found


def test_leading_edge_delivers_the_first_message_of_each_window(b: Broker, client: Client) -> None:
    outcomes, found = run(b, client)
    assert outcomes == ["stored", "ignored", "ignored"] * 3 + ["stored"]
    assert found == [("00:00", b"0"), ("01:15", b"3"), ("02:30", b"6"), ("03:45", b"9")]


def test_both_edges_deliver_the_newest_message_at_the_end_of_each_window(b: Broker, client: Client) -> None:
    outcomes, found = run(b, client, edge="both")
    assert found == [("00:00", b"0"), ("01:00", b"2"), ("02:00", b"4"), ("03:00", b"7"), ("04:00", b"9")]
    assert outcomes == [
        *("stored", "stored", "replaced", "stored", "replaced"),
        *("stored", "replaced", "replaced", "stored", "replaced"),
    ]


def test_repeated_message_returns_the_id_of_the_stored_one(b: Broker, client: Client) -> None:
    first = client.produce("t", b"1", **THROTTLED)
    assert client.produce("t", b"2", **THROTTLED) == first
    client.messages("t").cancel(unique_key="k")
    assert client.produce("t", b"3", **THROTTLED) != first


def test_messages_of_one_call_are_throttled_by_key(b: Broker, client: Client) -> None:
    rows = [
        {"value": value, "unique_key": key} for key, value in ((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"a", b"4"))
    ]
    with client.producer("t") as producer:
        producer.send_many(rows, on_conflict="throttle", window="1m", edge="both").wait()
    assert received(b, client) == [("00:00", b"1"), ("00:00", b"2")]
    b.advance("1m")
    assert received(b, client) == [("01:00", b"4")]
