"""Tests of a pump whose messages have their own URLs, with a fake broker and fake hosts in virtual time."""

from __future__ import annotations

import heapq
import math
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count
from typing import Any

import msgpack
import pytest
import trio

from sandq.client import Outgoing
from sandq.errors import LeaseLost, SandqError, UnknownTopic
from sandq.model.message_targets import PUSH_HEADER, PushTarget
from sandq.model.push_targets import Target, TargetRefused
from sandq.model.times import duration_ms
from sandq.model.webhooks import secret_text
from sandq.push.hosts import Hosts
from sandq.push.http_client import Answer, PushFailed
from sandq.push.pump import MessagePump, PushCounts

SLOTS = 40
TIMEOUT_S = 30.0


@dataclass(eq=False)
class FakeMessage:
    broker: FakeBroker
    id: str
    headers: dict[str, Any]
    value: bytes = b"{}"
    attempt: int = 1
    is_held: bool = True
    topic: str = "t"
    partition: int = 0
    key: bytes | None = None
    deliver_at_ms: int = 0
    deleted: bool = False
    errors: list[str | None] = field(default_factory=list)
    snoozes: int = 0
    returns: int = 0
    """How often it was given back without a request."""

    @property
    def headers_bytes(self) -> bytes:
        packed: bytes = msgpack.packb(self.headers)
        return packed

    def ack(self, *, then: Sequence[Outgoing] | None = None) -> FakeSettlement:
        def done() -> None:
            self.broker.acked[self.id] = trio.current_time() - self.broker.began_s

        return self._end(done, then)

    def dead(self, error: str | None, *, then: Sequence[Outgoing] | None = None) -> FakeSettlement:
        return self._end(lambda: self.broker.dead.update({self.id: error}), then)

    def nack(
        self, *, delay: str | None, error: str | None, count: bool, if_dead: Sequence[Outgoing] | None = None
    ) -> FakeSettlement:
        if count and self.attempt == self.broker.max_attempts:
            return self.dead(error, then=if_dead)
        return self._end(lambda: self._retry(delay, error, count), None, refuse=if_dead or ())

    def give_back(self, *, delay: timedelta, error: str) -> FakeSettlement:
        def done() -> None:
            self.errors.append(error)
            self.returns += 1
            self.broker.put(self, trio.current_time() + delay.total_seconds())

        return self._end(done, None)

    def _retry(self, delay: str | None, error: str | None, count: bool) -> None:
        self.errors.append(error)
        self.attempt += count
        self.snoozes += not count
        wait_s = 1.0 if delay is None else duration_ms(delay) / 1000
        self.broker.put(self, trio.current_time() + wait_s)

    def _end(
        self, done: Callable[[], object], then: Sequence[Outgoing] | None, refuse: Sequence[Outgoing] = ()
    ) -> FakeSettlement:
        """Settle the message. If the topic of a message to send does not exist, the message is held again."""
        assert self.is_held
        self.is_held = False
        for one in [*(then or ()), *refuse]:
            if one.topic not in self.broker.callbacks:
                return FakeSettlement(self, UnknownTopic(f"there is no topic {one.topic!r}"))
        for one in then or ():
            self.broker.callbacks[str(one.topic)].append(one.json)
        done()
        return FakeSettlement(self, None)


@dataclass
class FakeSettlement:
    message: FakeMessage
    error: SandqError | None

    def __await__(self) -> Generator[Any, Any, None]:
        return self._confirmed().__await__()

    async def _confirmed(self) -> None:
        await trio.lowlevel.checkpoint()
        if self.error is not None:
            self.message.is_held = True
            raise self.error


class FakeBroker:
    """Gives messages to the handler of a consumer in the order of their times, up to its credit."""

    def __init__(self) -> None:
        self.acked: dict[str, float] = {}
        self.dead: dict[str, str | None] = {}
        self.callbacks: dict[str, list[dict[str, Any]]] = {}
        """Values of callbacks, by topic."""
        self.max_attempts = 0
        """0: no limit."""
        self.began_s = 0.0
        self.most_held = 0
        self._numbers = count()
        self._due: list[tuple[float, int, FakeMessage]] = []
        self._more = trio.Event()

    @property
    def left(self) -> list[FakeMessage]:
        return [message for _, _, message in self._due]

    def produce(self, headers: dict[str, Any]) -> FakeMessage:
        message = FakeMessage(self, f"m{next(self._numbers)}", headers)
        self.put(message, self.began_s)
        return message

    def put(self, message: FakeMessage, due_s: float) -> None:
        heapq.heappush(self._due, (due_s, next(self._numbers), message))
        self._more.set()
        self._more = trio.Event()

    async def run(self, topic: str, group: str, handler: Any, *, credit: int, **_: Any) -> None:
        held = trio.Semaphore(credit)
        async with trio.open_nursery() as nursery:
            while True:
                await held.acquire()
                self.most_held = max(self.most_held, credit - held.value)
                nursery.start_soon(self._handle, await self._next(), handler, held)

    async def _next(self) -> FakeMessage:
        while not self._due or self._due[0][0] > trio.current_time():
            more = self._more
            with trio.move_on_at(self._due[0][0] if self._due else math.inf):
                await more.wait()
        _, _, message = heapq.heappop(self._due)
        message.is_held = True
        return message

    async def _handle(self, message: FakeMessage, handler: Any, held: trio.Semaphore) -> None:
        await handler(message)
        assert not message.is_held
        held.release()


class FakeHttp:
    """Hosts that answer after a while; the name of a host says how."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.most_failing = 0
        self.requests: list[tuple[str, Target, dict[str, str]]] = []
        self.by_host: defaultdict[str, int] = defaultdict(int)
        self.body = b"fine"

    async def send(
        self, target: Target, headers: list[tuple[bytes, bytes]], body: bytes, timeout_s: float, *, method: str
    ) -> Answer:
        kind = target.host.partition("-")[0]
        self.requests.append((method, target, {name.decode(): value.decode() for name, value in headers}))
        self.by_host[target.host] += 1
        self.running[target.host] += 1
        self.most[target.host] = max(self.most[target.host], self.running[target.host])
        failing = sum(number for host, number in self.running.items() if not host.startswith("good"))
        self.most_failing = max(self.most_failing, failing)
        try:
            await trio.sleep(timeout_s if kind == "hangs" else 0.05)
        finally:
            self.running[target.host] -= 1
        if kind == "hangs":
            raise PushFailed(f"no answer within {timeout_s:g} s")
        if kind == "private":
            raise TargetRefused("no public address")
        status = {"busy": 429, "gone": 410, "broken": 500}.get(kind, 204)
        return Answer(status, "5" if kind == "busy" else None, "", self.body)


@dataclass
class World:
    broker: FakeBroker
    http: FakeHttp
    pump: Any
    counts: PushCounts

    async def run(self, for_s: float) -> None:
        with trio.move_on_after(for_s):
            await self.pump.run()


@pytest.fixture
def world() -> World:
    broker, http, counts = FakeBroker(), FakeHttp(), PushCounts()
    push = {"url": None, "secrets": [secret_text(bytes(24))], "concurrency": SLOTS, "timeout_ms": TIMEOUT_S * 1000}
    pump: Any = MessagePump(
        Hosts(most=100),
        topic="t",
        group="g",
        push=push,
        client=broker,  # type: ignore[arg-type]
        http=http,  # type: ignore[arg-type]
        counts=counts,
        now_ms=lambda: 7,
        observe=lambda took_s: None,
        agent="sandq",
        slots=trio.CapacityLimiter(math.inf),
        grace_s=10.0,
    )
    pump.lead([0])
    return World(broker, http, pump, counts)


def to(host: str, **more: Any) -> dict[str, Any]:
    return {PUSH_HEADER: PushTarget(f"https://{host}/hook", **more).text()}


async def test_hosts_that_hang_or_answer_429_do_not_delay_the_others(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    names = [f"hangs-{n}" for n in range(5)] + [f"busy-{n}" for n in range(5)] + [f"good-{n}" for n in range(40)]
    messages = {name: [world.broker.produce(to(name)) for _ in range(20)] for name in names}
    await world.run(200.0)
    good = [message.id for name in names if name.startswith("good") for message in messages[name]]
    assert sorted(world.broker.acked) == sorted(good)
    assert max(world.broker.acked.values()) < 5.0
    assert all(world.http.by_host[name] == 20 for name in names if name.startswith("good")), "none was sent twice"
    failing = [message for name in names if not name.startswith("good") for message in messages[name]]
    assert {message.id for message in world.broker.left} | _held(failing) == {message.id for message in failing}
    assert not world.broker.dead
    assert max(world.http.most.values()) <= SLOTS // 4 and world.http.most_failing <= SLOTS // 2
    assert world.broker.most_held <= 2 * SLOTS
    assert world.pump.row()["open_hosts"] == sorted(name for name in names if not name.startswith("good"))


def _held(messages: list[FakeMessage]) -> set[str]:
    return {message.id for message in messages if message.is_held}


async def test_failing_host_that_was_sent_everything_first_does_not_delay_the_others(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    for _ in range(1000):
        world.broker.produce(to("hangs-0"))
    good = [world.broker.produce(to(f"good-{n % 4}")).id for n in range(200)]
    await world.run(30.0)
    assert sorted(world.broker.acked) == sorted(good)
    assert max(world.broker.acked.values()) < 5.0
    returns = sum(message.returns for message in world.broker.left)
    assert 1000 < returns < 2500, "messages are not leased again and again while their host is down"


async def test_one_busy_host_is_served_at_its_own_rate(world: World, autojump_clock: trio.testing.MockClock) -> None:
    messages = [world.broker.produce(to("good-0")) for _ in range(2000)]
    await world.run(60.0)
    assert len(world.broker.acked) == 2000
    # 10 requests of 50 ms each at a time.
    assert max(world.broker.acked.values()) < 2 * 2000 / 200
    assert world.http.most["good-0"] == SLOTS // 4
    assert sum(message.returns for message in messages) < 3 * 2000 and not any(message.snoozes for message in messages)


async def test_host_that_answers_again_gets_its_messages(world: World, autojump_clock: trio.testing.MockClock) -> None:
    names = [f"broken-{n}" for n in range(3)]
    for name in names:
        for _ in range(20):
            world.broker.produce(to(name))
    await world.run(20.0)
    assert not world.broker.acked and len(world.pump.row()["open_hosts"]) == 3
    for message in world.broker.left:
        message.headers = to(message.headers[PUSH_HEADER].split("/")[2])
    world.http.send = answers_everything  # type: ignore[method-assign]
    await world.run(60.0)
    assert len(world.broker.acked) == 60 and world.pump.row()["open_hosts"] == []


async def answers_everything(*_: Any, **__: Any) -> Answer:
    await trio.sleep(0.05)
    return Answer(204, None, "")


async def test_message_without_a_target_is_dead_with_the_reason(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    missing, wrong = world.broker.produce({}), world.broker.produce({PUSH_HEADER: "{"})
    fine = world.broker.produce(to("good-0"))
    await world.run(1.0)
    assert PUSH_HEADER in (world.broker.dead[missing.id] or "")
    assert "JSON" in (world.broker.dead[wrong.id] or "")
    assert list(world.broker.acked) == [fine.id]


async def test_410_kills_the_message_and_does_not_count_against_its_host(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    ids = [world.broker.produce(to("gone-0")).id for _ in range(20)]
    await world.run(5.0)
    assert sorted(world.broker.dead) == sorted(ids) and world.pump.row()["open_hosts"] == []


async def test_address_that_is_not_allowed_counts_as_an_attempt(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    message = world.broker.produce(to("private-0"))
    await world.run(0.5)
    assert (message.attempt, message.errors) == (2, ["no public address"])


async def test_request_has_the_method_headers_and_timeout_of_the_target(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    target = to("hangs-0", method="PUT", headers={"Authorization": "Bearer x", "Content-Type": "text/x"}, timeout="2s")
    message = world.broker.produce({**target, "trace": "y"})
    await world.run(2.5)
    ((method, at, headers),) = world.http.requests
    assert (method, at.path) == ("PUT", "/hook")
    assert (headers["authorization"], headers["content-type"]) == ("Bearer x", "text/x")
    assert headers["sandq-header-trace"] == "y" and not [name for name in headers if PUSH_HEADER in name]
    assert message.errors == ["no answer within 2 s"]


async def test_hosts_are_remembered_up_to_the_limit(world: World, autojump_clock: trio.testing.MockClock) -> None:
    for number in range(1000):
        world.broker.produce(to(f"good-{number}"))
    await world.run(60.0)
    assert len(world.broker.acked) == 1000 and len(world.pump._hosts) == 100


async def test_message_that_waits_for_a_slot_is_given_back_once_the_push_ends(
    world: World, autojump_clock: trio.testing.MockClock
) -> None:
    for _ in range(3):
        world.broker.produce(to("good-0"))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(world.pump.run)
        await trio.sleep(0.01)
        world.pump._ending = True  # as `end`, without ending the fake consumer, which has no grace time
        await trio.sleep(0.3)
        nursery.cancel_scope.cancel()
    assert world.http.by_host["good-0"] == len(world.broker.acked) == 1
    assert [(message.returns, message.snoozes) for message in world.broker.left] == [(1, 0), (1, 0)]


# -- callbacks -------------------------------------------------------------------------------------------------------

BOTH = {"callback": "done", "failure_callback": "failed"}


def with_callbacks(world: World, *topics: str) -> World:
    world.broker.callbacks = {topic: [] for topic in topics}
    return world


async def test_callback_reports_the_response(world: World, autojump_clock: trio.testing.MockClock) -> None:
    with_callbacks(world, "done", "failed")
    message = world.broker.produce({PUSH_HEADER: PushTarget("https://good-0/hook?token=x", **BOTH).text()})
    await world.run(1.0)
    assert world.broker.callbacks == {
        "done": [
            {
                "topic": "t",
                "partition": 0,
                "id": message.id,
                "group": "g",
                "url": "https://good-0/hook?token=…",
                "status": 204,
                "attempts": 1,
                "response": "fine",
                "error": None,
                "delivered_at": "1970-01-01T00:00:00.007Z",
            }
        ],
        "failed": [],
    }
    assert list(world.broker.acked) == [message.id] and world.pump.row()["acked"] == 1


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", ""),
        ("é".encode() * 3000, "é" * 3000),
        (("a" + "é" * 2048).encode()[:4096], "a" + "é" * 2047),
        (b"\xc3", None),
        (b"\xff" * 4096, None),
    ],
)
async def test_response_is_text_or_base64(
    world: World, autojump_clock: trio.testing.MockClock, body: bytes, text: str | None
) -> None:
    with_callbacks(world, "done")
    world.http.body = body
    world.broker.produce(to("good-0", callback="done"))
    await world.run(1.0)
    (value,) = world.broker.callbacks["done"]
    assert value["response"] == text
    assert ("response_base64" in value) is (text is None)
    if text is None:
        assert b64decode(value["response_base64"]) == body


@pytest.mark.parametrize(("host", "status"), [("gone-0", 410), ("broken-0", 500), ("hangs-0", None)])
async def test_failure_callback_comes_with_the_death_only(
    world: World, autojump_clock: trio.testing.MockClock, host: str, status: int | None
) -> None:
    with_callbacks(world, "done", "failed").broker.max_attempts = 3
    message = world.broker.produce(to(host, **BOTH, timeout="2s"))
    await world.run(60.0)
    (value,) = world.broker.callbacks["failed"]
    attempts = 1 if status == 410 else 3
    assert (value["status"], value["attempts"], value["id"]) == (status, attempts, message.id)
    assert value["error"] == world.broker.dead[message.id] and world.broker.callbacks["done"] == []
    assert value["response"] == (None if status is None else "fine")
    row = world.pump.row()
    assert (row["dead"], row["retried"]) == ((1, 0) if status == 410 else (0, 3))


async def test_snoozed_message_has_no_callback(world: World, autojump_clock: trio.testing.MockClock) -> None:
    message = with_callbacks(world, "failed").broker.produce(to("busy-0", failure_callback="failed"))
    await world.run(3.0)
    assert message.snoozes and world.broker.callbacks == {"failed": []}


@pytest.mark.parametrize("host", ["good-0", "gone-0", "broken-0"])
async def test_message_is_settled_without_a_callback_whose_topic_was_deleted(
    world: World, autojump_clock: trio.testing.MockClock, host: str
) -> None:
    world.broker.max_attempts = 3
    message = world.broker.produce(to(host, **BOTH))
    await world.run(60.0)
    assert world.http.by_host[host] == (3 if host == "broken-0" else 1)
    settled = world.broker.acked if host == "good-0" else world.broker.dead
    assert list(settled) == [message.id]
    row = world.pump.row()
    assert "there is no topic" in row["error"] and row["error"].startswith("no callback was sent to topic ")
    assert row["acked"] + row["dead"] + row["retried"] == world.http.by_host[host]


async def test_lost_lease_of_a_message_with_a_callback_is_noted(
    world: World, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = with_callbacks(world, "done").broker.produce(to("good-0", callback="done"))
    lost = FakeSettlement(message, LeaseLost("the lease was lost"))
    calls: list[object] = []

    def ack(*, then: object = None) -> FakeSettlement:
        calls.append(then)
        return lost

    monkeypatch.setattr(message, "ack", ack)
    with pytest.RaisesGroup(AssertionError, flatten_subgroups=True):  # the fake consumer: the handler left it held
        await world.run(1.0)
    assert len(calls) == 1 and world.pump.row()["error"] == "the lease was lost"
