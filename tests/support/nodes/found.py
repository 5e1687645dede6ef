"""Run nodes of one cluster in this process. The nodes find each other by gossip."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from sandq.broker.bootstrap.bootstrap import Bootstrap
from sandq.model.config import NodeConfig, load_config
from sandq.model.features import KNOWN, Levels
from sandq.model.membership import State
from tests.support.nodes.hand_clock import HandClock
from tests.support.nodes.three import ThreeNodes
from tests.support.ports import free_port
from tests.support.waiting import until_answer, until_holds

QUICK = {
    "GOSSIP__PROFILE": "local",
    "GOSSIP__PROBE_INTERVAL": "200ms",
    "GOSSIP__PROBE_TIMEOUT": "100ms",
    "GOSSIP__GOSSIP_INTERVAL": "20ms",
    "GOSSIP__RECONNECT_INTERVAL": "200ms",
}

CHECKS = 10


class FoundNodes(ThreeNodes):
    """Nodes of one cluster. `node1` founds it and has no seeds; every other node has `node1` as its seed."""

    def __init__(self, directory: Path, nursery: trio.Nursery, **environ: str) -> None:
        super().__init__(directory, nursery, **{**QUICK, **environ})
        names = [f"node{number}" for number in range(1, 8)]
        self.client_ports = {name: free_port() for name in names}
        self.peer_ports = {name: free_port() for name in names}
        self.gossip_ports = {name: free_port() for name in names}
        self.hand: HandClock | None = None
        self.own: dict[str, dict[str, str]] = {}
        """Settings that only one node has, by the name of the node."""

    def config(self, name: str, **environ: str) -> NodeConfig:
        begin = {"CLUSTER__BOOTSTRAP": "true"} if name == "node1" else {"CLUSTER__SEEDS": self.gossip("node1")}
        settings = {
            "NODE__ID": name,
            "NODE__DATA_DIR": str(self.data_dir(name)),
            "LISTEN__CLIENT": f"127.0.0.1:{self.client_ports[name]}",
            "LISTEN__PEER": f"127.0.0.1:{self.peer_ports[name]}",
            "LISTEN__GOSSIP": self.gossip(name),
            "LISTEN__HTTP": "none",
            "STORAGE__SEGMENT_BYTES": "1048576",
            **begin,
            **self.environ,
            **self.own.get(name, {}),
            **environ,
        }
        return load_config(None, {f"SANDQ_{key}": value for key, value in settings.items()})

    def gossip(self, name: str) -> str:
        return f"127.0.0.1:{self.gossip_ports[name]}"

    async def _start(self, name: str, options: dict[str, Any]) -> None:
        clock = {} if self.hand is None else {"clock": self.hand.guarded()}
        await super()._start(name, {**clock, **options})

    def launch(self, name: str, **options: Any) -> None:
        """Start a node that may be stopped before it serves."""

        async def run() -> None:
            with suppress(RuntimeError):  # it was stopped before it served
                await self._start(name, options)

        self._nursery.start_soon(run)

    def registered(self, name: str) -> Collection[str]:
        return self.running[name].broker.metadata.nodes.keys() if name in self.running else ()

    async def until_registered(self, *names: str) -> None:
        """Wait until every running node knows exactly these nodes."""
        await until_holds(lambda: all(set(self.registered(name)) == set(names) for name in self.running))

    def voters(self, name: str) -> Collection[str]:
        return self.running[name].broker.metadata_host.group.members.voters

    async def until_believed(self, about: str, state: State, *by: str) -> None:
        async def rows(name: str) -> dict[str, Any]:
            async with self.connect(name) as client:
                return {row["node"]: row for row in (await client.admin.cluster())["nodes"]}

        for name in by:
            ask = partial(rows, name)
            await until_answer(ask, lambda found: found.get(about, {}).get("member") == state.value)


@contextmanager
def refusals() -> Iterator[Callable[..., int]]:
    """Count log entries in the block: `count(*said)` is the number of entries that contain all these values.

    The values are the rejected node and the reason. A rejected node retries and is rejected again, so its final state
    is reached."""
    with capture_logs() as logs:
        yield lambda *said: sum(all(word in entry.values() for word in said) for entry in logs)


class BootstrapChecks:
    """Counts how often each node that waits for its cluster has checked whether one exists."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made: Counter[str] = Counter()
        member = Bootstrap._member

        def counted_member(forming: Bootstrap) -> str | None:
            self.made[forming._own_node] += 1
            return member(forming)

        monkeypatch.setattr(Bootstrap, "_member", counted_member)

    async def until_more(self, *names: str) -> None:
        """Wait for several more checks of each node. After them, the node has reacted to the current state."""
        before = self.made.copy()
        await until_holds(lambda: all(self.made[name] >= before[name] + CHECKS for name in names))


@asynccontextmanager
async def found_nodes(
    directory: Path, *names: str, hand: HandClock | None = None, levels: Levels = KNOWN, **environ: str
) -> AsyncIterator[FoundNodes]:
    """Run a cluster of these nodes.

    `hand`: clock that moves the clocks of all nodes. `levels`: feature levels that the nodes know."""
    async with trio.open_nursery() as nursery:
        nodes = FoundNodes(directory, nursery, **environ)
        nodes.hand = hand
        await nodes.start(*names, levels=levels)
        await nodes.until_registered(*names)
        yield nodes
        await nodes.stop(*nodes.running)
        nursery.cancel_scope.cancel()
