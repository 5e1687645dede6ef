"""A node, or its HTTP process, is killed with kill -9 under HTTP load.

Messages answered with 201 are kept, acked ones are not redelivered, and none is early."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest
import trio

from tests.support.http_client import NO_TLS
from tests.support.ports import free_port
from tests.support.processes.node import NodeProcess
from tests.support.waiting import PATIENCE_S, until_holds

KILLS = 2
A_LIFE = 100
"""Number of messages to store before the node is killed again."""
LEASE = "/topics/t/groups/g/lease"


@dataclass
class Record:
    """Answers of the node, and messages that it delivered."""

    stored: set[str] = field(default_factory=set)
    due_ms: dict[str, int] = field(default_factory=dict)
    acked: set[str] = field(default_factory=set)
    unsure: set[str] = field(default_factory=set)
    """Messages whose ack was not answered. The ack may have been applied."""
    faults: list[str] = field(default_factory=list)

    def deliver(self, message: dict[str, Any]) -> None:
        text = message["text"]
        if time.time() * 1000 < self.due_ms[text] - 1:
            self.faults.append(f"{text} was delivered early")
        if text in self.acked:
            self.faults.append(f"{text} was acked, and delivered again")


async def asked(client: httpx.AsyncClient, path: str, body: Any) -> Any:
    """Return the answer. None: the request failed, or the answer was an error."""
    try:
        answer = await client.post(path, json=body)
    except httpx.TransportError:
        await trio.sleep(0.02)
        return None
    return answer.json() if answer.is_success else None


async def is_there(client: httpx.AsyncClient, path: str) -> bool:
    with suppress(httpx.TransportError):
        return (await client.get(path)).is_success
    return False


async def produce(client: httpx.AsyncClient, record: Record, stop: trio.Event, worker: int) -> None:
    number = 0
    while not stop.is_set():
        messages = []
        for n in range(1 + number % 3 * 4):
            text = f"{worker}.{number}.{n}"
            record.due_ms[text] = int(time.time() * 1000) + (0, 50, 400)[n % 3]
            messages.append({"text": text, "deliver_at": record.due_ms[text]})
        answer = await asked(client, "/topics/t", messages[0] if len(messages) == 1 else {"messages": messages})
        if answer is not None:
            record.stored.update(message["text"] for message in messages)
        number += 1


async def consume(client: httpx.AsyncClient, record: Record, done: trio.Event) -> None:
    while not done.is_set():
        answer = await asked(client, LEASE, {"max": 20, "wait": "200ms", "lease": "2s"})
        if answer is None or not answer["messages"]:
            continue
        texts = {message["text"] for message in answer["messages"]}
        for message in answer["messages"]:
            record.deliver(message)
        if await asked(client, "/topics/t/groups/g/ack", answer) is None:
            record.unsure |= texts
        else:
            record.acked |= texts


def kill_node(node: NodeProcess) -> None:
    """Kill the node and restart it."""
    node.kill()
    node.start()


# If a kill ends a request, httpx leaves one of its generators to the garbage collector, which warns.
@pytest.mark.filterwarnings("ignore:Async generator 'httpx:ResourceWarning")
@pytest.mark.parametrize("kill", [kill_node, NodeProcess.kill_http], ids=["node", "process"])
async def test_kills_under_http_keep_acknowledged_messages(
    kill: Callable[[NodeProcess], None], make_node: Callable[..., NodeProcess]
) -> None:
    port = free_port()
    node = make_node(SANDQ_LISTEN__HTTP=f"127.0.0.1:{port}")
    node.start()
    record = Record()
    stop, done = trio.Event(), trio.Event()
    async with httpx.AsyncClient(verify=NO_TLS, base_url=f"http://127.0.0.1:{port}", timeout=5) as client:
        settings = {"backoff": {"kind": "none"}, "max_attempts": None}
        with trio.fail_after(PATIENCE_S):
            while await asked(client, "/topics", {"name": "t", "partitions": 2, "settings": settings}) is None:
                if await is_there(client, "/topics/t"):
                    break  # the first attempt created it, and its answer was lost
        async with trio.open_nursery() as nursery:
            for worker in range(3):
                nursery.start_soon(produce, client, record, stop, worker)
                nursery.start_soon(consume, client, record, done)
            for _ in range(KILLS):
                until = len(record.stored) + A_LIFE
                await until_holds(lambda until=until: len(record.stored) >= until)
                await trio.to_thread.run_sync(kill, node)
            stop.set()
            await until_holds(lambda: record.stored <= record.acked | record.unsure)  # no message is lost
            done.set()
    assert record.faults == []
