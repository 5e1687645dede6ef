"""Send requests of every kind, valid and damaged, to one node or three nodes, and kill nodes meanwhile.

No node may end by itself, each must start again after a kill, and the replicas of each partition must be equal
afterwards."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgpack
import trio

from sandq.model.batch import Column, encode
from sandq.protocol.frames import Type
from tests.support.fuzz.requests import SETTINGS, TOPICS, Requests, packed
from tests.support.nodes.raw_client import RawClient
from tests.support.processes.cluster import ClusterProcess
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S

ROUND: Final = 8
"""Number of requests that are sent before their replies are awaited."""
ROUNDS_OF_CONNECTION: Final = 60
REMEMBERED: Final = 200
"""Number of requests per connection that a failure shows."""
ALIVE: Final = "alive"
"""Topic that no request names: every restarted node must accept a message for it."""
KEEPS_ALL: Final = {"delete_on_ack": False}
GRANTS: Final = (
    ("admin",),
    ("admin",),
    ("manage:*", "read:*", "consume:*", "produce:*"),
    ("manage:t", "consume:keys"),
    ("cluster", "manage:r*", "produce:r*", "consume:r*"),
    ("produce:t", "read:fair"),
)
"""Grants of the tokens that the fuzzer uses. The token `boss` is not among them: it restores the other tokens."""


class Fuzz:
    """Sends requests to nodes, kills nodes, and collects the faults."""

    def __init__(self, nodes: Sequence[NodeProcess], seed: int, *, replicas: int, tokens: bool) -> None:
        self._nodes = nodes
        self._seed = seed
        self._replicas = replicas
        self._tokens: list[str] | None = [] if tokens else None
        self._boss: str | None = None
        self._stopped: set[int] = set()
        """Indexes of the nodes that are being killed and restarted."""
        self._sent: list[deque[tuple[int, list[Any]]]] = []
        self.requests = self.kills = 0
        self.codes: Counter[str] = Counter()
        """Number of replies by error code; `REPLY` for successes."""
        self.internal: list[str] = []
        """Requests that were answered with INTERNAL, and the answers."""

    # -- connections ----------------------------------------------------------------------------------------------

    async def _connected(self, node: NodeProcess, token: str | None) -> RawClient:
        raw = RawClient(await trio.open_tcp_stream(node.host, node.port))
        try:
            options = {} if token is None else {"token": token}
            answer = await raw.call(Type.HELLO, 2, "fuzz", options)
            if answer[0] != Type.REPLY:
                raise EOFError(str(answer))
        except BaseException:
            await trio.aclose_forcefully(raw.stream)
            raise
        return raw

    async def prepare(self) -> None:
        """Create the topics and, if callers are authorized, the tokens."""
        if self._tokens is not None:
            self._boss = await trio.to_thread.run_sync(self._first_token)
        await self._ask_until(Type.TOPIC_CREATE, ALIVE, "timer", 1, self._replicas, KEEPS_ALL)
        await self.make_topics()

    async def make_topics(self) -> None:
        """Create the topics and tokens that do not exist: requests may have deleted them."""
        for name in ("ordered", *TOPICS):
            await self._ask_until(Type.TOPIC_CREATE, name, TOPICS[name], 1, self._replicas, SETTINGS.get(name, {}))
        if self._tokens is None:
            return
        from sandq.model.principals import token_hash, token_text

        for number, grants in enumerate(GRANTS):
            text = token_text(bytes([number + 1]) * 32)
            fields = {"grants": [*grants], "secret_hash": token_hash(text)}
            await self._ask_until(Type.IDENTITY_PUT, f"token:fuzz{number}", True, fields)
            if text not in self._tokens:
                self._tokens.append(text)

    def _first_token(self) -> str:
        paths = [node.data_dir / "admin.token" for node in self._nodes]
        while True:
            for path in paths:
                if path.exists() and (text := path.read_text().strip()):
                    return text.splitlines()[-1].strip()
            time.sleep(0.05)

    async def _ask_until(self, kind: int, *fields: Any) -> list[Any]:
        """Send a request to one node after the other until one executes it or gives a permanent error."""
        last: object = None
        with trio.move_on_after(PATIENCE_S):
            for node in itertools.cycle(self._nodes):
                with suppress(OSError, EOFError, trio.BrokenResourceError):
                    raw = await self._connected(node, self._boss)
                    try:
                        last = answer = await raw.call(kind, *fields)
                    finally:
                        await trio.aclose_forcefully(raw.stream)
                    if answer[0] == Type.REPLY or not _is_passing(answer):
                        return answer
                await trio.sleep(0.1)
        raise AssertionError(f"no node executes {Type(kind).name} {fields}: {last}")

    # -- requests -------------------------------------------------------------------------------------------------

    async def run(self, minutes: float | None, rounds: int | None, *, connections: int = 4, kill_s: float = 15) -> None:
        """Send requests for `minutes`, or for `rounds` rounds per connection.

        A node is killed every `kill_s` seconds, or (with rounds) once in the middle."""
        until_s = None if minutes is None else trio.current_time() + 60 * minutes
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._watch)
            async with trio.open_nursery() as senders:
                for number in range(connections):
                    senders.start_soon(self._send, number, until_s, rounds)
                if minutes is not None:
                    nursery.start_soon(self._kill_often, kill_s)
            nursery.cancel_scope.cancel()

    async def _send(self, number: int, until_s: float | None, rounds: int | None) -> None:
        rng = random.Random(f"{self._seed} {number}")
        remembered: deque[tuple[int, list[Any]]] = deque(maxlen=REMEMBERED)
        self._sent.append(remembered)
        requests = Requests(rng.getrandbits(64), int(time.time() * 1000))
        done = 0
        while (until_s is None or trio.current_time() < until_s) and (rounds is None or done < rounds):
            token = None if self._tokens is None else rng.choice(self._tokens)
            try:
                raw = await self._connected(rng.choice(self._nodes), token)
            except (OSError, EOFError, trio.BrokenResourceError):
                await self.make_topics()
                await trio.sleep(0.05)
                continue
            try:
                for _ in range(ROUNDS_OF_CONNECTION):
                    await self._round(raw, requests, remembered)
                    done += 1
                    if rounds is not None and done >= rounds:
                        break
            except (EOFError, trio.BrokenResourceError, trio.ClosedResourceError):
                done += 1  # the node closed the connection because of the frame, or was killed
            finally:
                await trio.aclose_forcefully(raw.stream)
            if rng.random() < 0.3:
                await self.make_topics()

    async def _round(self, raw: RawClient, requests: Requests, remembered: deque[tuple[int, list[Any]]]) -> None:
        asked: dict[int, tuple[int, list[Any]]] = {}
        data = b""
        while len(asked) < ROUND:
            self.requests += 1
            request = requests.next()
            body = packed(request[0], self.requests, request[1])
            if body is not None:
                asked[self.requests] = request
                remembered.append(request)
                data += body
        self.requests += 1
        ping = self.requests
        ping_body = packed(Type.PING, ping, [])
        assert ping_body is not None
        await raw.send_bytes(data + ping_body)
        with trio.fail_after(PATIENCE_S):
            while True:
                frame = await self._received(raw)
                request = asked.get(frame[1])  # type: ignore[assignment]
                if frame[0] == Type.ERROR:
                    self.codes[frame[2]] += 1
                    if frame[2] == "INTERNAL":
                        self.internal.append(f"{request!r:.3000} -> {frame}")
                elif frame[0] == Type.REPLY:
                    self.codes["REPLY"] += 1
                requests.heard(request, frame)
                if frame[:2] == [Type.REPLY, ping]:
                    return

    async def _received(self, raw: RawClient) -> list[Any]:
        try:
            return await raw.receive()
        except (ValueError, msgpack.UnpackException) as error:
            raise AssertionError(f"a node sent a frame that cannot be decoded: {error!r}") from error

    # -- kills ----------------------------------------------------------------------------------------------------

    async def _kill_often(self, kill_s: float) -> None:
        rng = random.Random(self._seed)
        while True:
            await trio.sleep(rng.uniform(0.5, 1.5) * kill_s)
            with trio.CancelScope(shield=True):
                await self.kill(rng.randrange(len(self._nodes)))

    async def kill(self, number: int) -> None:
        """Kill a node with SIGKILL; it must start again and accept a message."""
        node = self._nodes[number]
        self._stopped.add(number)
        self._check(number, node)
        await trio.to_thread.run_sync(node.kill)
        self.kills += 1
        await trio.to_thread.run_sync(node.start)
        self._stopped.discard(number)
        await self.check_alive()

    async def check_alive(self) -> None:
        """Check that a message is accepted."""
        batch = encode({Column.VALUE: [b"alive"]})
        answer = await self._ask_until(Type.PRODUCE, ALIVE, 0, 0, 0, 0, 0, batch)
        assert answer[0] == Type.REPLY, answer

    async def _watch(self) -> None:
        """Fail if a node ends by itself."""
        while True:
            for number, node in enumerate(self._nodes):
                if number not in self._stopped:
                    self._check(number, node)
            await trio.sleep(0.2)

    def _check(self, number: int, node: NodeProcess) -> None:
        if node.runs:
            return
        with suppress(OSError):
            (node.directory / "last_requests.txt").write_text(
                "\n\n".join("\n".join(f"{Type(kind).name} {fields!r}" for kind, fields in one) for one in self._sent)
            )
        tail = "\n".join([line[-2000:] for line in node.output().splitlines()[-30:]])
        raise AssertionError(
            f"node {number} ended by itself after {self.requests} requests (seed {self._seed}); the last requests "
            f"are in {node.directory / 'last_requests.txt'}:\n{tail}"
        )

    def faults(self) -> list[str]:
        """Return the errors in the logs of the nodes, one of each kind, and the requests answered with INTERNAL."""
        found: dict[str, str] = {}
        for node in self._nodes:
            for line in node.output().splitlines():
                event = _event(line)
                if event is not None:
                    found.setdefault(event, line[-3000:])
        return [*found.values(), *self.internal[:20]]


def _is_passing(answer: list[Any]) -> bool:
    """Return whether an error may be temporary."""
    return bool(answer[4]) or answer[2] in (
        "UNAUTHENTICATED",
        "NOT_LEADER",
        "UNKNOWN_TOPIC",
        "UNAVAILABLE",
        "FORBIDDEN",
    )


def _event(line: str) -> str | None:
    """Return the event of a log line that reports a fault; None if it reports none."""
    try:
        said = json.loads(line)
    except ValueError:
        return line if line.startswith("Traceback") else None
    return said.get("event") if said.get("level") in ("error", "critical") else None


def one_node(directory: Path, host: str, *, tokens: bool) -> list[NodeProcess]:
    """Return a single node, which is a whole cluster."""
    (directory / "node1").mkdir(parents=True)
    return [NodeProcess(directory / "node1", host=host, **_environ(tokens))]


def three_nodes(directory: Path, host: str, *, tokens: bool) -> ClusterProcess:
    """Return a cluster of three nodes. They listen at one address, or at three consecutive ones."""
    first, _, last = host.rpartition(".")
    names = ("node1", "node2", "node3")
    hosts = {name: host if host == "127.0.0.1" else f"{first}.{int(last) + at}" for at, name in enumerate(names)}
    directory.mkdir(parents=True, exist_ok=True)
    program = ("-m", "tests.support.fuzz.comparing_node")
    return ClusterProcess(
        directory, hosts=hosts, options={name: {"program": program} for name in names}, **_environ(tokens)
    )


def _environ(tokens: bool) -> dict[str, str]:
    return {
        "SANDQ_LIMITS__TOPICS": "60",
        **({"SANDQ_SECURITY__AUTHENTICATION": "require"} if tokens else {}),
    }
