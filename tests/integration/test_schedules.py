"""Schedules in the client API, on a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from zoneinfo import ZoneInfo

import pytest

import sandq.testing
from sandq.model.errors import Conflict, InvalidRequest, NotFound
from sandq.sync import Client
from sandq.testing import Broker
from tests.support.waiting import PATIENCE_S

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.fixture
def b() -> Iterator[Broker]:
    with sandq.testing.broker() as broker:
        yield broker


@pytest.fixture
def client(b: Broker) -> Iterator[Client]:
    with sandq.sync.connect(b.address, timeout=PATIENCE_S) as client:
        yield client


def clock_ms(client: Client) -> int:
    return int(client.admin.clock()["guarded_ms"])


def go_to(b: Broker, client: Client, text: str) -> None:
    """Let time pass up to an instant."""
    at_ms = int(datetime.fromisoformat(text).timestamp() * 1000)
    b.advance((at_ms - clock_ms(client)) / 1000)


def on_clock(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, BERLIN).isoformat()


def test_a_clock_that_leaves_out_an_hour_and_repeats_one(b: Broker, client: Client) -> None:
    client.admin.create_topic("t", partitions=3)
    schedules, group = client.schedules("t"), client.leases("t", "g")
    group.take()
    go_to(b, client, "2030-03-29T12:00:00+00:00")
    schedules.create("half", b"two", cron="30 2 * * *", zone="Europe/Berlin", count=3)
    schedules.create("quarter", b"hourly", cron="15 * * * *", zone="Europe/Berlin")
    b.advance("3d")
    came = [(message.value, on_clock(message.deliver_at_ms)) for message in group.take(1000, ack=True)]
    assert [at for value, at in came if value == b"two"] == [
        "2030-03-30T02:30:00+01:00",
        "2030-03-31T03:00:00+02:00",  # 02:30 does not exist on this day
        "2030-04-01T02:30:00+02:00",
    ]
    hours = [at[11:] for value, at in came if value == b"hourly" and at.startswith("2030-03-31")]
    assert hours == [f"{hour:02}:15:00+0{1 if hour < 2 else 2}:00" for hour in range(24) if hour != 2]
    assert schedules.get("half").state == "ended"

    for name in ("half", "quarter"):
        schedules.delete(name)
    go_to(b, client, "2030-10-26T12:00:00+00:00")
    schedules.create("quarter", b"hourly", cron="15 * * * *", zone="Europe/Berlin")
    schedules.create("half", b"two", cron="30 2 * * *", zone="Europe/Berlin")
    b.advance("1d")
    came = [(message.value, on_clock(message.deliver_at_ms)) for message in group.take(1000, ack=True)]
    assert [at for value, at in came if value == b"two"] == ["2030-10-27T02:30:00+02:00"], (
        "the schedule must fire once, at the first occurrence of the hour"
    )
    assert [at[11:] for value, at in came if value == b"hourly" and at[11:13] == "02"] == [
        "02:15:00+02:00",
        "02:15:00+01:00",  # an hourly schedule must also fire in the repeated hour
    ]


def test_update_replaces_the_pending_occurrence(b: Broker, client: Client) -> None:
    client.admin.create_topic("t")
    schedules, group = client.schedules("t"), client.leases("t", "g")
    group.take()
    before = schedules.create("s", b"old", every="1h", headers={"n": 1}, ttl="1d")
    assert client.messages("t").get(before.next_id).value == b"old"
    after = schedules.update("s", value=b"new", every="2h", ttl=None)
    assert (after.every_ms, after.headers, after.ttl_ms) == (7_200_000, {"n": 1}, None)
    assert after.version > before.version and after.next_id != before.next_id
    with pytest.raises(NotFound):
        client.messages("t").get(before.next_id)
    b.advance("4h")
    assert [message.value for message in group.take(10, ack=True)] == [b"new", b"new"]

    schedules.pause("s")
    assert schedules.get("s").state == "paused" and schedules.next("s") == []
    b.advance("1d")
    assert group.take(10) == []
    schedules.resume("s")
    b.advance("2h")
    (message,) = group.take(10, ack=True)
    assert message.headers["sandq-occurrence"] == message.deliver_at_ms and message.headers["n"] == 1
    schedules.delete("s")
    b.advance("1d")
    assert group.take(10) == []
    for act in (schedules.get, schedules.pause, schedules.resume, schedules.delete, schedules.trigger, schedules.next):
        with pytest.raises(NotFound, match="'s'"):
            act("s")


def test_a_cancelled_occurrence_is_the_only_one_that_is_left_out(b: Broker, client: Client) -> None:
    client.admin.create_topic("t")
    schedules, group = client.schedules("t"), client.leases("t", "g")
    group.take()
    first = schedules.create("s", b"", every="1h")
    client.messages("t").cancel(first.next_id)
    b.advance("2h")
    (message,) = group.take(10)
    assert message.deliver_at_ms == first.next_ms + 3_600_000


def test_end_count_and_triggers_of_schedules(b: Broker, client: Client) -> None:
    client.admin.create_topic("t")
    schedules, group = client.schedules("t"), client.leases("t", "g")
    group.take()
    now_ms = clock_ms(client)
    schedules.create("ends", b"ends", every="1h", start=now_ms + 1000, end=now_ms + 3 * 3_600_000)
    schedules.create("counts", b"counts", every="1h", start=now_ms + 1000, count=2)
    b.advance("1d")
    came = [message.value for message in group.take(100, ack=True)]
    assert sorted(came) == [b"counts"] * 2 + [b"ends"] * 3
    for name, fired in (("ends", 3), ("counts", 2)):
        schedule = schedules.get(name)
        assert (schedule.state, schedule.fired, schedule.next_ms) == ("ended", fired, None)
        sent = schedules.trigger(name)
        (message,) = group.take(10, ack=True)
        assert message.id == sent and message.value.decode() == name
        assert message.headers["sandq-triggered"] == clock_ms(client) and "sandq-occurrence" not in message.headers
        assert schedules.get(name).fired == fired
    more = schedules.update("counts", count=4)
    assert more.state == "active"
    b.advance("1d")
    assert [message.value for message in group.take(10)] == [b"counts"] * 2


def test_unacked_occurrence_delays_the_next(b: Broker, client: Client) -> None:
    client.admin.create_topic("t")
    schedules, group = client.schedules("t"), client.leases("t", "g")
    group.take()
    schedules.create("s", b"", every="1h", overlap_group="g")
    b.advance("1h")
    (running,) = group.take(10, lease="12h")
    b.advance("3h")
    assert group.take(10) == []
    group.ack([running])
    b.advance("1h")
    assert len(group.take(10)) == 1
    schedule = schedules.get("s")
    assert (schedule.fired, schedule.missed) == (5, 0)
    assert [event.outcome for event in schedule.history] == ["sent", "skipped", "skipped", "skipped", "sent"]


def test_unacked_triggered_run_holds_up_the_next(b: Broker, client: Client) -> None:
    client.admin.create_topic("t")
    schedules, group = client.schedules("t"), client.leases("t", "g")
    group.take()
    schedules.create("s", b"", every="1h", overlap_group="g")
    schedules.trigger("s")
    (running,) = group.take(10, lease="12h")
    b.advance("1h")
    assert group.take(10) == []
    group.ack([running])
    b.advance("1h")
    assert len(group.take(10)) == 1
    assert [event.outcome for event in schedules.get("s").history] == ["triggered", "skipped", "sent"]


@pytest.mark.parametrize("how", ["cancelled", "purged"])
def test_cancelled_next_occurrence_is_shown_no_longer(b: Broker, client: Client, how: str) -> None:
    client.admin.create_topic("t")
    schedules, group = client.schedules("t"), client.leases("t", "g")
    group.take()
    schedules.create("s", b"v", every="10m", count=3)
    before = schedules.get("s")
    assert before.next_id is not None and before.next_ms is not None
    if how == "cancelled":
        client.messages("t").cancel(before.next_id)
    else:
        client.admin.purge_topic("t")
    shown = schedules.get("s")
    assert (shown.next_ms, shown.next_id, shown.fired) == (before.next_ms + 600_000, None, 1)
    assert [row.next_ms for row in schedules.list()] == [shown.next_ms]
    fires = schedules.next("s", 5)
    assert [fire.occurrence_ms for fire in fires] == [shown.next_ms, shown.next_ms + 600_000]
    b.advance("10m")
    assert group.take(10, ack=True) == []
    assert schedules.get("s").next_ms == shown.next_ms and schedules.get("s").fired == 1
    b.advance("10m")
    assert len(group.take(10, ack=True)) == 1


def test_moved_next_occurrence_is_shown_still(client: Client) -> None:
    client.admin.create_topic("t")
    schedules = client.schedules("t")
    before = schedules.create("s", b"v", every="10m")
    assert before.next_id is not None
    client.messages("t").move(before.next_id, delay="5m")
    assert schedules.get("s").next_ms == before.next_ms


def test_tenants_of_a_fair_topic(b: Broker, client: Client) -> None:
    client.admin.create_topic("f", kind="fair", partitions=3)
    schedules, group = client.schedules("f"), client.leases("f", "g")
    group.take()
    for tenant in (None, "acme", "acme.video"):
        schedules.create("s", str(tenant).encode(), every="1h", tenant=tenant, priority=2)
    b.advance("1h")
    came = {message.value: (message.tenant or "default", message.priority) for message in group.take(10, ack=True)}
    assert came == {b"None": ("default", 2), b"acme": ("acme", 2), b"acme.video": ("acme.video", 2)}
    schedules.delete("s", tenant="acme")
    assert [row.tenant for row in schedules.list()] == [None, "acme.video"]
    b.advance("1h")
    assert len(group.take(10)) == 2


def test_topics_of_other_kinds(client: Client) -> None:
    client.admin.create_topic("ordered", ordering="key")
    schedules = client.schedules("ordered")
    assert schedules.create("s", b"", every="1h").key is None
    assert schedules.create("k", b"", every="1h", key="k").key == b"k"
    with pytest.raises(InvalidRequest, match="key"):
        schedules.create("x", b"", every="1h", key="another")
    client.admin.create_topic("urgent", kind="priority")
    assert client.schedules("urgent").create("s", b"", every="1h", priority=-3).priority == -3
    for wrong in ({"priority": 1}, {"tenant": "acme"}):
        with pytest.raises(InvalidRequest, match=next(iter(wrong))):
            schedules.create("w", b"", every="1h", **wrong)
    client.admin.create_topic("keys", kind="compacted")
    with pytest.raises(InvalidRequest, match="compacted"):
        client.schedules("keys").create("s", b"", every="1h")


def test_making_them_again(client: Client) -> None:
    client.admin.create_topic("t", partitions=4)
    schedules = client.schedules("t")
    first = schedules.create("s", b"v", cron="@daily", jitter="5m")
    assert schedules.create("s", b"v", cron="@daily", jitter="5m") == first
    with pytest.raises(Conflict, match="update it"):
        schedules.create("s", b"w", cron="@daily", jitter="5m")
    many = [{"name": f"n{number:03}", "value": b"", "every": "1h"} for number in range(300)]
    assert schedules.create_many(many) == (300, 0, 0)
    many[7]["every"] = "2h"
    assert schedules.create_many(iter(many)) == (0, 1, 299)
    assert [row.name for row in schedules.list()] == [one["name"] for one in many] + ["s"]
    assert [row.name for row in schedules.list(prefix="n29", limit=3, after="n290")] == ["n291", "n292", "n293"]


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({}, "cron"),
        ({"cron": "@daily", "every": "1h"}, "cron"),
        ({"cron": "61 * * * *"}, "minute"),
        ({"cron": "0 0 31 2 *"}, "never"),
        ({"cron": "@daily", "zone": "Europe/Atlantis"}, "Europe/Atlantis"),
        ({"every": "10ms"}, "every"),
        ({"every": "1h", "jitter": "2h"}, "jitter"),
        ({"every": "1h", "count": 0}, "count"),
        ({"every": "1h", "misfire": "none"}, "misfire"),
        ({"every": "1h", "misfire": "all", "misfire_most": 101}, "misfire_most"),
        ({"every": "1h", "start": 2_000_000_000_000, "end": 1_999_999_999_999}, "end"),
        ({"every": "1h", "overlap_group": "a b"}, "group"),
    ],
)
def test_invalid_schedules_are_refused(client: Client, wrong: dict[str, object], said: str) -> None:
    client.admin.create_topic("t")
    schedules = client.schedules("t")
    with pytest.raises(InvalidRequest, match=said):
        schedules.create("s", b"", **wrong)
    assert [*schedules.list()] == []
