"""Schedules skipped or repeated occurrences after changes, or accepted invalid input. The test moves the clock."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgpack
import pytest

import sandq.sync
import sandq.testing
from sandq.client.transport.requests import call_leader
from sandq.errors import Conflict, InvalidRequest
from sandq.model.batch import Column, encode
from sandq.model.times import TIME_MAX_MS
from sandq.protocol.requests_schedules import SchedulePut
from sandq.sync import Client, Schedules
from sandq.testing import Broker

HOUR_MS = 3_600_000


@pytest.fixture
def broker() -> Iterator[Broker]:
    """Run a broker with the timer topic "t"."""
    with sandq.testing.broker() as broker:
        broker.create_topic("t")
        yield broker


@pytest.fixture
def client(broker: Broker) -> Iterator[Client]:
    with sandq.sync.connect(broker.address) as client:
        yield client


@pytest.fixture
def schedules(client: Client) -> Schedules:
    return client.schedules("t")


def test_overlap_group_with_long_lease_skips_occurrences(broker: Broker, client: Client, schedules: Schedules) -> None:
    schedules.create("s", b"", every="1h", overlap_group="g")
    group = client.leases("t", "g")
    group.take()
    broker.advance("1h")
    (running,) = group.take(lease="12h")
    schedules.trigger("s")
    for _ in range(15):
        broker.advance("1h")
        group.extend([running], lease="12h")
    history = schedules.get("s").history
    assert [one.outcome for one in history] == ["sent", *["skipped"] * 9]
    (triggered,) = group.take(100, lease="12h")
    assert "sandq-triggered" in triggered.headers
    group.ack([running, triggered])
    broker.advance("1h")
    assert schedules.get("s").history[-1].outcome == "sent" and len(group.take(100)) == 1


def test_schedule_update_keeps_occurrence_delayed_by_jitter(
    broker: Broker, client: Client, schedules: Schedules
) -> None:
    schedules.create("s", b"old", cron="0 * * * *", jitter="50m")
    group = client.leases("t", "g")
    group.take()
    first, second = schedules.next("s", 2)
    broker.advance((first.occurrence_ms - broker.now_ms()) / 1000)
    assert first.fire_ms > broker.now_ms()
    assert schedules.update("s", value=b"new").fire_ms == first.fire_ms
    # Without the jitter, the occurrence is due at once.
    assert schedules.update("s", jitter=None).next_ms == second.occurrence_ms  # the current occurrence has fired
    assert [(m.value, m.headers["sandq-occurrence"]) for m in group.take(9)] == [(b"new", first.occurrence_ms)]


def test_schedule_update_with_new_times_takes_effect_at_once(broker: Broker, schedules: Schedules) -> None:
    schedules.create("s", b"", cron="0 * * * *", jitter="50m")
    (first,) = schedules.next("s", 1)
    broker.advance((first.occurrence_ms + 120_000 - broker.now_ms()) / 1000)
    changed = schedules.update("s", cron="1 * * * *")
    assert changed.next_ms == first.occurrence_ms + HOUR_MS + 60_000


def test_schedule_update_after_early_delivery_skips_delivered_occurrence(
    broker: Broker, client: Client, schedules: Schedules
) -> None:
    made = schedules.create("s", b"old", every="1h")
    group = client.leases("t", "g")
    group.take()
    assert made.next_id is not None and made.next_ms is not None
    client.messages("t").move(made.next_id, delay="1s")
    broker.advance("2s")
    (early,) = group.take(lease="12h")
    changed = schedules.update("s", value=b"new")
    assert changed.next_ms == made.next_ms + HOUR_MS and changed.fired == 1
    broker.advance("2h")
    assert [message.value for message in group.take(9)] == [b"new"]
    assert early.headers["sandq-occurrence"] == made.next_ms


def test_schedule_at_maximum_time_has_one_occurrence(broker: Broker, client: Client, schedules: Schedules) -> None:
    made = schedules.create("s", b"", every="1d", start=TIME_MAX_MS, jitter="1h")
    assert made.next_ms == made.fire_ms == TIME_MAX_MS
    assert [*schedules.next("s")] == [(TIME_MAX_MS, TIME_MAX_MS)]
    assert client.produce("t", b"alive")


CELLS = {
    "nested": msgpack.packb({"a": {"b": 1}}),
    "no map": msgpack.packb([1]),
    "no text": msgpack.packb({1: 2}),
    "no msgpack": b"\xc1\xff",
}


@pytest.mark.parametrize("cell", CELLS.values(), ids=[*CELLS])
def test_schedule_with_invalid_headers_is_rejected(
    broker: Broker, client: Client, schedules: Schedules, cell: bytes
) -> None:
    """Another client may send headers that this client cannot send."""
    batch = encode({Column.VALUE: [b""], Column.HEADERS: [cell]})
    request = SchedulePut("t", 0, [["s", None, {"every_ms": HOUR_MS}, batch, False]])
    with pytest.raises(InvalidRequest, match=r"schedule 's': .*headers: "):
        client.call(lambda inner: call_leader(inner._cluster, request))
    schedules.create("other", b"", every="1h")
    broker.advance("2h")
    assert [(one.name, one.fired) for one in schedules.list()] == [("other", 2)]


ONE = {"name": "s", "value": b"", "every": "1h"}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([5], "schedule 1: a mapping of the arguments of create is expected, not 5"),
        ([ONE, {"value": b"", "every": "1h"}], "schedule 2: name: it is missing"),
        ([{**ONE, "evry": "1h"}], "schedule 1: 'evry': no such argument; did you mean 'every'\\?"),
        ([{**ONE, "paused": "no"}], "schedule 's': paused: a bool is expected, not 'no'"),
        ([ONE, {**ONE, "name": "t", "count": "3"}], "schedule 't': count: a whole number"),
        ([ONE, {**ONE, "name": "t", "ttl": 0}], "schedule 't': ttl: it must be greater"),
        ([*[{**ONE, "name": f"s{at % 1100}"} for at in range(1200)]], "schedule 's0' is given twice"),
    ],
)
def test_create_many_with_invalid_schedule_names_the_error(
    broker: Broker, schedules: Schedules, given: list[Any], message: str
) -> None:
    with pytest.raises(InvalidRequest, match=message):
        schedules.create_many(given)
    assert [*schedules.list()] == []


def test_preview_with_long_name_is_rejected(broker: Broker, schedules: Schedules) -> None:
    with pytest.raises(InvalidRequest, match=r"^the name of a schedule has 1\.\.255 bytes, not 300"):
        schedules.preview(every="1h", name="n" * 300)


def test_repeated_create_keeps_schedule_paused(broker: Broker, schedules: Schedules) -> None:
    """A program starts again after an operator has paused its schedule."""
    schedules.create("s", b"", every="1h")
    schedules.pause("s")
    assert schedules.create("s", b"", every="1h").paused
    assert schedules.create_many([ONE]) == (0, 0, 1)
    assert schedules.create_many([{**ONE, "value": b"new"}]) == (0, 1, 0) and schedules.get("s").paused
    assert schedules.create_many([{**ONE, "value": b"new", "paused": False}]) == (0, 1, 0)
    assert schedules.get("s").state == "active"
    assert schedules.create("t", b"", every="1h", paused=True).paused
    with pytest.raises(Conflict):
        schedules.create("t", b"", every="1h", paused=False)
