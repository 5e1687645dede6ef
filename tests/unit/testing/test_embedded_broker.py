"""Tests of the embedded broker in blocking tests: virtual time jumps from one relevant moment to the next."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
import trio
import trio.testing

import sandq
import sandq.testing
from sandq.errors import (
    ClosedError,
    ConsumerFenced,
    Forbidden,
    InvalidRequest,
    InvalidSetting,
    LeaseLost,
    SandqError,
    StartupError,
    TimedOut,
    Unauthenticated,
)
from sandq.testing import AsyncBroker, Broker, silence
from sandq.testing.node import EmbeddedNode, State
from sandq.testing.silence import BUSY_MOST_S, BUSY_SHARE, UPDATE_MOST_S, Silence, _Times
from tests.support.http_client import NO_TLS
from tests.support.waiting import PATIENCE_S

FIXED = {"kind": "fixed", "first": "10m", "jitter_percent": 0}


@pytest.fixture
def b(request: pytest.FixtureRequest) -> Iterator[Broker]:
    with sandq.testing.broker(patience=getattr(request, "param", "1h")) as started:
        yield started


@pytest.fixture
def client(b: Broker) -> Iterator[sandq.sync.Client]:
    with b.client() as opened:
        yield opened


holding_on = pytest.mark.parametrize("b", ["100ms"], indirect=True)
"""A short time limit for tests that hold a message on purpose."""


@contextlib.contextmanager
def working(b: Broker, topic: str, handler: Callable[[Any], object], **options: Any) -> Iterator[None]:
    """Run a worker in a thread during the block."""

    with b.client() as client:
        thread = threading.Thread(target=client.run, args=(topic, "workers", handler), kwargs=options)
        thread.start()
        b.wait_for_consumers(topic, "workers")
        yield
    thread.join()


def ours() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("sandq")}


# -- time -------------------------------------------------------------------------------------------------------------


def test_time_is_fixed_until_it_is_advanced(b: Broker) -> None:
    assert b.now() == datetime(2030, 1, 1, tzinfo=UTC)
    time.sleep(0.01)
    assert b.now_ms() == 1_893_456_000_000
    b.advance("1d1ms")
    assert b.now() == datetime(2030, 1, 2, 0, 0, 0, 1000, tzinfo=UTC)
    b.advance_to("2030-01-03T00:00:00Z")
    assert b.now() == datetime(2030, 1, 3, tzinfo=UTC)
    b.advance(0)
    b.advance(timedelta(seconds=1))
    assert b.now_ms() == 1_893_456_000_000 + 2 * 86_400_000 + 1000


def test_time_does_not_go_back(b: Broker) -> None:
    with pytest.raises(InvalidRequest, match="does not go back"):
        b.advance_to("2029-12-31T00:00:00Z")
    with pytest.raises(SandqError):
        b.advance(-1)
    assert b.now_ms() == 1_893_456_000_000


def test_a_start_of_ones_own() -> None:
    with sandq.testing.broker(start="2024-02-29T12:00:00Z") as b:
        assert b.now() == datetime(2024, 2, 29, 12, tzinfo=UTC)


@pytest.mark.parametrize("options", [{"start": 5}, {"start": "soon"}, {"patience": "long"}])
def test_unknown_option_is_refused_before_anything_starts(options: dict[str, Any]) -> None:
    with pytest.raises(SandqError):
        sandq.testing.broker(**options)
    assert not ours()


def test_messages_are_delivered_exactly_at_their_time(b: Broker, client: sandq.sync.Client) -> None:
    b.create_topic("t")
    seen: list[tuple[bytes, int]] = []
    start_ms = b.now_ms()
    with working(b, "t", lambda message: seen.append((message.value, b.now_ms() - start_ms))):
        client.produce("t", b"now")
        client.produce("t", b"hour", delay="1h")
        client.produce("t", b"day", deliver_at=b.now() + timedelta(days=1))
        client.produce("t", b"minute", delay="1m")
        b.advance("59m59.999s")
        assert seen == [(b"now", 0), (b"minute", 60_000)]
        b.advance("1ms")
        assert seen[2:] == [(b"hour", 3_600_000)]
        b.advance("30d")
        assert seen[3:] == [(b"day", 86_400_000)]
    assert b.messages("t") == []


def test_delay_counts_from_virtual_time_after_it_was_put_forward(b: Broker, client: sandq.sync.Client) -> None:
    b.create_topic("t")
    b.advance("365d")
    client.produce("t", b"x", delay="10s")
    (stored,) = b.pending("t")
    assert stored.deliver_at_ms == b.now_ms() + 10_000


def test_thirty_days_of_retries_in_order(b: Broker, client: sandq.sync.Client) -> None:
    backoff = {"kind": "exponential", "first": "1h", "cap": "7d", "jitter_percent": 0}
    b.create_topic("t", max_attempts=8, backoff=backoff)
    seen: list[tuple[bytes, int, float]] = []
    start = b.now()

    def handle(message: Any) -> None:
        seen.append((message.value, message.attempt, (b.now() - start) / timedelta(hours=1)))
        if message.attempt < 6 or message.value == b"hopeless":
            raise ValueError("not yet")

    with working(b, "t", handle):
        client.produce("t", b"slow", delay="1d")
        client.produce("t", b"hopeless", delay="2d")
        b.advance("30d")
    slow = [(attempt, at) for value, attempt, at in seen if value == b"slow"]
    assert slow == [(1, 24), (2, 25), (3, 27), (4, 31), (5, 39), (6, 55)]
    hopeless = [at for value, _, at in seen if value == b"hopeless"]
    assert hopeless == [48, 49, 51, 55, 63, 79, 111, 175]
    assert [at for _, _, at in seen] == sorted(at for _, _, at in seen)
    (letter,) = b.dead("t", "workers")
    assert (letter.value, letter.attempts, letter.reason) == (b"hopeless", 8, "nacked")


def test_handlers_give_messages_up_and_snooze_them(b: Broker, client: sandq.sync.Client) -> None:
    b.create_topic("t", max_attempts=2, max_snoozes=30, backoff=FIXED)
    seen: list[tuple[bytes, int]] = []
    opens = b.now() + timedelta(hours=20)

    def handle(message: Any) -> None:
        seen.append((message.value, message.attempt))
        if message.value == b"gone":
            raise sandq.Dead("410 gone")
        if message.value == b"wrong":
            raise KeyError("account")
        if b.now() < opens:
            raise sandq.Retry("1h", "429", count=False)

    with working(b, "t", handle, dead_on=LookupError):
        for value in (b"gone", b"wrong", b"busy"):
            client.produce("t", value)
        b.advance("1d")
    assert sorted(seen) == sorted([(b"gone", 1), (b"wrong", 1), *21 * [(b"busy", 1)]])
    letters = {letter.value: letter for letter in b.dead("t", "workers")}
    assert {value: (one.reason, one.error, one.attempts) for value, one in letters.items()} == {
        b"gone": ("rejected", "410 gone", 1),
        b"wrong": ("rejected", "KeyError: 'account'", 1),
    }


def test_dead_letters_and_sent_messages_are_complete_when_queried(b: Broker, client: sandq.sync.Client) -> None:
    b.create_topic("failed")
    b.create_topic("t", max_attempts=1, dead_letter_topic="failed")
    done: list[bytes] = []

    def handle(message: Any) -> None:
        done.append(message.value)
        if message.value == b"hopeless":
            raise ValueError("no such account")
        if message.value == b"begin":
            then = [sandq.Outgoing(b"end", delay="1h"), sandq.Outgoing(b"note", "failed", headers={"a": 1})]
            message.ack(then=then).wait()
            with pytest.raises(InvalidRequest, match="settled before"):
                message.ack(then=then)

    with working(b, "t", handle):
        for value in (b"hopeless", b"begin"):
            client.produce("t", value)
        b.advance("2h")
    # two due messages are handled at the same time
    assert sorted(done[:2]) == [b"begin", b"hopeless"] and done[2:] == [b"end"]
    assert b.dead("t", "workers") == []
    with client.subscribe("failed", group="g") as subscription:
        found = {message.value: message.headers for message in itertools.islice(subscription, 2)}
    assert found[b"note"] == {"a": 1}
    assert found[b"hopeless"]["sandq-dead-error"] == "ValueError: no such account"


def test_a_chain_of_messages_each_at_its_time(b: Broker, client: sandq.sync.Client) -> None:
    b.create_topic("t")
    seen: list[datetime] = []

    def handle(message: Any) -> None:
        seen.append(b.now())
        client.produce("t", b"tick", delay="8h")
        message.ack().wait()

    with working(b, "t", handle):
        client.produce("t", b"tick")
        b.advance("10d")
        assert seen == [datetime(2030, 1, 1, tzinfo=UTC) + timedelta(hours=8 * n) for n in range(31)]
        assert len(b.pending("t")) == 1


@holding_on
def test_leases_run_out_at_their_virtual_time(b: Broker, client: sandq.sync.Client) -> None:
    b.create_topic("t", lease="30s", backoff=FIXED)
    client.produce("t", b"x")
    leases = client.leases("t", "g")
    (first,) = leases.take()
    b.advance("29.999s")
    assert leases.take() == []
    assert [message.state for message in b.messages("t")] == ["leased"]
    b.advance("1ms")
    assert [message.state for message in b.messages("t")] == ["waiting"]
    assert len(leases.ack([first])) == 1, "the lease of the message was lost"
    b.advance("10m")
    (second,) = leases.take()
    assert second.attempt == 2


@holding_on
def test_a_message_that_is_held_over_an_advance_is_lost_to_its_consumer(b: Broker, client: sandq.sync.Client) -> None:
    b.create_topic("t", lease="30s", max_attempts=2, backoff=FIXED)
    client.produce("t", b"x")
    with client.subscribe("t", group="g") as subscription:
        message = next(subscription)
        b.advance("1h")
        with pytest.raises(LeaseLost):
            message.ack().wait()
    (letter,) = b.dead("t", "g")
    assert (letter.reason, letter.attempts) == ("lease_expired", 2)


@holding_on
def test_a_consumer_that_holds_on_is_waited_for_once(
    b: Broker, client: sandq.sync.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled: list[bool] = []
    give_up = EmbeddedNode.give_up

    def counting(node: EmbeddedNode, state: State) -> None:
        settled.append(node.is_settled(state))
        give_up(node, state)

    monkeypatch.setattr(EmbeddedNode, "give_up", counting)
    b.create_topic("t", lease="12h")
    for hour in range(10):
        client.produce("t", b"x", delay=f"{hour}h")
    with client.subscribe("t", group="g", credit=1) as subscription:
        held = next(subscription)
        b.advance("9h")
        assert settled.count(False) == 1, "not once an hour"
        held.ack().wait()


@pytest.mark.parametrize("api", ["blocking", "async"])
async def test_stall_of_the_machine_does_not_count_as_waiting(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, api: str
) -> None:
    checks: list[bool] = []

    class Node:
        _options = SimpleNamespace(patience_s=0.1)

        async def state(self) -> State:
            autojump_clock.jump(3.0)
            checks.append(True)
            return State(1, 1, 1, 0)

        def is_settled(self, state: State) -> bool:
            return False

        def give_up(self, state: State) -> None: ...

    async def call(self: AsyncBroker, work: Any) -> Any:
        return await work()

    monkeypatch.setattr(AsyncBroker, "_call", call)
    monkeypatch.setattr(silence, "_times", dict)
    node: Any = Node()
    await (
        EmbeddedNode.wait_for_clients(node, Silence())
        if api == "blocking"
        else AsyncBroker(node, 0.1)._wait_for_clients(Silence())
    )
    assert len(checks) == pytest.approx(0.1 / UPDATE_MOST_S, abs=2)


@pytest.mark.parametrize("of_another", [False, True])
def test_time_in_which_other_threads_work_or_wait_for_a_processor_is_no_silence(
    monkeypatch: pytest.MonkeyPatch, of_another: bool
) -> None:
    thread = threading.get_native_id() + of_another
    second_ns = 1_000_000_000
    busy_ns = round(BUSY_SHARE * second_ns)
    times = [{thread: _Times(ran_ns, 0)} for ran_ns in (0, busy_ns - 1, 2 * busy_ns, 2 * busy_ns)]
    monkeypatch.setattr(silence, "_times", partial(next, iter(times)))
    found = Silence()
    found.begin(0.0)
    waited = [round(found.update(now_s, is_settled=False) / UPDATE_MOST_S) for now_s in (1.0, 2.0, 3.0)]
    assert waited == ([1, 1, 2] if of_another else [1, 2, 3])


def test_time_in_which_handlers_could_not_run_is_no_silence(monkeypatch: pytest.MonkeyPatch) -> None:
    own, other, second_ns = threading.get_native_id(), threading.get_native_id() + 1, 1_000_000_000
    times = iter([
        {own: _Times(0, 0), other: _Times(0, 0)},
        {own: _Times(0, 0), other: _Times(0, 0, is_ready=True)},
        {own: _Times(0, round(0.8 * second_ns)), other: _Times(round(0.1 * second_ns), 0)},
        {own: _Times(0, round(0.8 * second_ns)), other: _Times(round(0.2 * second_ns), 0)},
    ])  # fmt: skip
    monkeypatch.setattr(silence, "_times", partial(next, times))
    found = Silence()
    found.begin(0.0)
    assert found.update(1.0, is_settled=False) == 0, "a handler waits for a processor"
    assert found.update(2.0, is_settled=False) == 0, "this thread, which may have the interpreter's lock, waited"
    assert found.update(3.0, is_settled=False) == UPDATE_MOST_S


def test_waiting_for_busy_threads_is_limited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    thread = threading.get_native_id() + 1
    times = ({thread: _Times(number * 60_000_000_000, 0)} for number in itertools.count())
    monkeypatch.setattr(silence, "_times", partial(next, times))
    found = Silence()
    found.begin(0.0)
    assert found.update(1.0, is_settled=True) == UPDATE_MOST_S, "no wait is needed once everything is settled"
    found.end()
    assert found.update(1.0 + BUSY_MOST_S, is_settled=False) == 0
    found.begin(1.0 + BUSY_MOST_S)
    assert found.update(2.0 + BUSY_MOST_S, is_settled=False) == UPDATE_MOST_S


def test_a_handler_that_computes_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a loaded machine, half a second of CPU time may take longer than the limit.
    monkeypatch.setattr(silence, "BUSY_MOST_S", PATIENCE_S)
    with sandq.testing.broker() as b, b.client() as client:
        b.create_topic("t", lease="1s")
        settled: list[str] = []

        def work() -> None:
            with client.subscribe("t", group="g", auto_extend=False) as subscription:
                message = next(subscription)
                began_s = time.thread_time()
                while time.thread_time() < began_s + 0.5:
                    pass
                message.ack().wait()
                settled.append(f"attempt {message.attempt}")

        worker = threading.Thread(target=work)
        worker.start()
        b.wait_for_consumers("t", "g")
        client.produce("t", b"1")
        b.advance("1h")
        worker.join(PATIENCE_S)
        assert settled == ["attempt 1"]


def test_a_slow_handler_is_waited_for(client: sandq.sync.Client) -> None:
    with sandq.testing.broker(patience="1h") as b, b.client() as client:
        b.create_topic("t")
        done: list[int] = []

        def handle(message: Any) -> None:
            time.sleep(0.12)
            done.append(b.now_ms())

        with working(b, "t", handle):
            client.produce("t", b"x", delay="1s")
            b.advance("1h")
            assert done == [1_893_456_001_000]


def test_jobs_continue_while_time_is_fixed(b: Broker, client: sandq.sync.Client) -> None:
    b.create_topic("t", max_attempts=1)
    with working(b, "t", lambda message: 1 / 0):
        for _ in range(5):
            client.produce("t", b"x")
        b.advance(0)
        assert len(b.dead("t", "workers")) == 5
    assert client.dead("t", "workers").redrive().done == 5
    assert len(client.leases("t", "workers").take(max=10)) == 5


# -- several brokers, and their ends ----------------------------------------------------------------------------------


def _story(b: Broker) -> list[Any]:
    """Produce messages and let them be leased, nacked, retried and die, with jitter. Return the client's view with
    offsets."""
    backoff = {"kind": "exponential", "first": "1m", "jitter_percent": 50}
    b.create_topic("t", partitions=3, max_attempts=4, backoff=backoff)
    seen: list[Any] = []
    with b.client() as client:
        for n in range(12):
            seen.append(str(client.produce("t", b"%d" % n, key=b"k%d" % (n % 5), delay=f"{n}m")))

        def handle(message: Any) -> None:
            seen.append((message.offset, message.attempt, message.value, b.now_ms()))
            if int(message.value) % 3 == 0:
                raise ValueError("no")

        with working(b, "t", handle, concurrency=1):
            b.advance("3h")
        seen += [(letter.offset, letter.dead_ms) for letter in b.dead("t", "workers")]
    return seen


def test_repeated_test_gives_the_same_offsets_and_order() -> None:
    stories = []
    for _ in range(3):
        with sandq.testing.broker(patience="1h") as b:
            stories.append(_story(b))
    assert stories[0] == stories[1] == stories[2]
    assert len(stories[0]) == 12 + 12 + 4 * 3 + 4


def test_offsets_do_not_depend_on_how_fast_the_broker_is() -> None:
    """Each message is leased at once, so entries of leases and messages alternate.

    Lease extensions would interfere too: they follow the client's clock, which is real.
    """
    stories = []
    for _ in range(3):
        with sandq.testing.broker() as b, b.client() as client:
            b.create_topic("t", lease="12h")
            with client.subscribe("t", group="g", credit=1000):
                stories.append([client.produce("t", b"x") for _ in range(100)])
    assert stories[0] == stories[1] == stories[2]


def test_blocking_producer_gives_messages_their_own_attempts() -> None:
    with sandq.testing.broker() as b, b.client() as client:
        b.create_topic("t", max_attempts=3, backoff=FIXED)
        with client.producer("t") as producer:
            producer.send(b"send", max_attempts=1)
            producer.send_many([b"many", {"value": b"mapping", "max_attempts": 2}], max_attempts=4)
        client.produce("t", b"topic")
        leases, attempts = client.leases("t", "g"), dict[bytes, int]()
        for _ in range(4):
            taken = leases.take(10)
            attempts |= {message.value: message.attempt for message in taken}
            leases.nack(taken)
            b.advance("10m")
        assert attempts == {b"send": 1, b"mapping": 2, b"topic": 3, b"many": 4}
        assert {letter.value: letter.attempts for letter in b.dead("t", "g")} == attempts


def test_client_request_waits_for_the_request_in_flight(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    wait = EmbeddedNode._idle

    async def counting(node: EmbeddedNode) -> None:
        await wait(node)
        waited.append(node.broker.node_log.backlog.bytes)

    with sandq.testing.broker() as b, b.client() as client:
        b.create_topic("t")
        monkeypatch.setattr(EmbeddedNode, "_idle", counting)
        for n in range(1, 11):
            client.produce("t", b"x")
            assert len(waited) >= n
    assert set(waited) == {0}, "nothing was"


def test_two_brokers_at_once_have_nothing_in_common() -> None:
    with sandq.testing.broker() as one, sandq.testing.broker() as two:
        assert one.address != two.address
        one.create_topic("t")
        one.advance("1d")
        assert two.now_ms() == 1_893_456_000_000
        with two.client() as client:
            assert client.admin.list_topics() == []
            two.create_topic("t")
            client.produce("t", b"x")
        assert (len(two.messages("t")), len(one.messages("t"))) == (1, 0)


def test_a_test_that_fails_leaves_no_thread_behind() -> None:
    seen = threading.Event()
    with pytest.raises(ZeroDivisionError), sandq.testing.broker(patience="1h") as b, b.client() as client:
        b.create_topic("t")
        client.produce("t", b"x", delay="1s")
        with working(b, "t", lambda message: seen.set()):
            assert "sandq-testing" in ours()
            b.advance("1s")
            assert seen.is_set()
            raise ZeroDivisionError
    assert not ours()


def test_stopped_broker_raises_closed_error(b: Broker) -> None:
    with sandq.testing.broker() as gone:
        pass
    with pytest.raises(ClosedError, match="was stopped"):
        gone.advance("1s")
    starting = sandq.testing.broker()
    with starting, pytest.raises(InvalidRequest, match="started once"), starting:
        pass
    assert b.now_ms()


def test_a_broker_that_cannot_start_says_why() -> None:
    with pytest.raises(StartupError, match="limits"), sandq.testing.broker(settings={"LIMITS__MESSAGE_BYTES": "none"}):
        raise AssertionError("it started")
    assert not ours()


def test_settings_of_the_node(b: Broker) -> None:
    with sandq.testing.broker(settings={"LIMITS__MESSAGE_BYTES": "10"}) as small, small.client() as client:
        small.create_topic("t")
        with pytest.raises(SandqError, match="10 is the limit"):
            client.produce("t", b"x" * 11)


def test_http_is_served_where_it_is_asked_for(b: Broker) -> None:
    httpx = pytest.importorskip("httpx")
    with pytest.raises(InvalidRequest, match="http=True"):
        assert b.http
    with sandq.testing.broker(http=True) as web:
        web.create_topic("t")
        with httpx.Client(verify=NO_TLS, base_url=web.http, timeout=PATIENCE_S) as http:
            http.post("/topics/t", json={"text": "x", "delay": "1h"}).raise_for_status()
            web.advance("1h")
            leased = http.post("/topics/t/groups/g/lease", json={}).json()["messages"]
            assert [message["text"] for message in leased] == ["x"]
            assert "sandq_early_deliveries_total 0" in http.get("/metrics").text


def test_missing_consumers_are_named(b: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandq.testing.node.CONSUMERS_S", 0.05)
    with pytest.raises(TimedOut, match="topic 't', group 'g': 0 of 1 consumers"):
        b.wait_for_consumers("t", "g")


def test_logs_are_quiet_unless_the_test_wants_them(capfd: pytest.CaptureFixture[str]) -> None:
    structlog.reset_defaults()  # a test before this one may have captured logs
    with sandq.testing.broker() as b:
        b.create_topic("t")
    assert capfd.readouterr().out == ""
    assert not structlog.is_configured(), "as it was"


def test_keys_end_in_its_time(b: Broker) -> None:
    b.create_topic("config", kind="compacted", partitions=2)
    with b.client() as client:
        kv = client.kv("config")
        version = kv.put("theme", "dark", ttl="3d")
        kv.cas("theme", "light", expected=version, ttl="3d")
        kv.put("port", "8080")
        b.advance("2d")
        assert [(entry.key, entry.value) for entry in kv.scan()] == [(b"port", b"8080"), (b"theme", b"light")]
        with kv.watch("theme") as changes:
            b.advance("1d")
            assert kv.get("theme") is None
            assert next(changes).deleted
        assert [entry.key for entry in kv.scan()] == [b"port"]


def test_group_limits_apply_while_time_is_fixed(b: Broker, client: sandq.sync.Client) -> None:
    client.admin.create_topic("t")
    client.admin.limit_group("t", "g", max_in_flight=3, rate="1/m", burst=2)
    for number in range(6):
        client.produce("t", b"%d" % number)
    leases, counts = client.leases("t", "g"), []
    for _ in range(6):
        taken = leases.take(5)
        counts.append(len(taken))
        leases.ack(taken)
        b.advance("30s")
    assert counts == [2, 0, 1, 0, 1, 0]
    with pytest.raises(InvalidSetting, match="max_in_flight"):
        client.admin.limit_group("t", "g", max_in_flight=2**70)
    with pytest.raises(InvalidSetting, match="rate"):
        client.admin.limit_group("t", "g", rate=float("nan"))


def test_restarted_worker_gets_its_message_while_time_is_fixed(b: Broker, client: sandq.sync.Client) -> None:
    """Both processes connect at the same time. The later process gets the held messages, and the earlier process can no
    longer settle them."""
    b.create_topic("jobs", lease="10m")
    client.produce("jobs", b"one")
    with b.client() as before, before.subscribe("jobs", group="g", consumer_id="worker-3") as zombie:
        held = next(zombie)
        with client.subscribe("jobs", group="g", consumer_id="worker-3") as again:
            message = next(again)
            assert (message.value, message.attempt) == (b"one", 1)
            with pytest.raises(ConsumerFenced):
                next(zombie)
            with pytest.raises(LeaseLost):
                held.ack().wait()
            message.ack().wait()


def test_a_subscription_to_several_topics(b: Broker, client: sandq.sync.Client) -> None:
    for topic in ("log.a", "log.b"):
        b.create_topic(topic)
        client.produce(topic, topic.encode())
    for topics in (["log.a", "log.b"], sandq.pattern("log.*")):
        with client.subscribe(topics, group="g") as subscription:
            got = {message.topic: message for message in (next(subscription), next(subscription))}
            assert sorted(got) == sorted(subscription.topics) == ["log.a", "log.b"]
            assert all(message.value == topic.encode() for topic, message in got.items())


def test_broker_with_authentication_checks_tokens() -> None:
    with sandq.testing.broker(authentication=True) as b:
        b.create_topic("t")
        with pytest.raises(Unauthenticated), sandq.sync.connect(b.address):
            pass
        with b.client(b.token("app", "read:t")) as client:
            assert client.admin.whoami().grants == ["read:t"]
            with pytest.raises(Forbidden):
                client.produce("t", b"x")
        with b.client() as client:
            client.produce("t", b"x", delay="1h")
        b.advance("1h")
        assert [message.state for message in b.messages("t")] == ["ready"]
