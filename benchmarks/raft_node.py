"""A member of one Raft group and nothing else: `python -m benchmarks.raft_node DIRECTORY COUNT NAME=PORT...`.

The node has the log, syncs and links, but no clients and no state machines. The first name is this node. The smallest
name leads, prints when it begins, commits COUNT entries, and prints the seconds they took.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import structlog
import trio

from sandq.broker.event_loop import Signal
from sandq.broker.peers.handshake import Peer, PeerIdentity
from sandq.broker.peers.links import PeerLinks
from sandq.broker.peers.stream import PeerStream
from sandq.model.config_schema import Address
from sandq.model.members import member_id
from sandq.protocol.peer import PeerFrame
from sandq.raft import Group, GroupCommit, GroupJournal, Members
from sandq.storage.files import RealFiles
from sandq.storage.known_peers import KnownPeers
from sandq.storage.wal import Wal

GROUP = 1
WINDOW = 4000
"""Maximum number of entries in flight."""
COMMAND = bytes(100)


class Node:
    def __init__(self, directory: Path, count: int, ports: dict[str, int]) -> None:
        self._name, *others = ports
        self._port = ports[self._name]
        self._count = count
        files = RealFiles(directory)
        self._wal, _ = Wal.open(files, known_groups=lambda group: True)
        self._wakeup = Signal()
        self._links = PeerLinks(
            cluster="benchmark",
            secrets=None,
            identity=lambda: PeerIdentity(
                node_id=self._name, store_uuid=f"store of {self._name}", cluster_uuid=None, addresses={}
            ),
            peers={other: Address("127.0.0.1", ports[other]) for other in others},
            known=KnownPeers.open(files),
        )
        self._group_commit = GroupCommit(wake=self._wakeup.set, may_send=self._links.accepts)
        members = Members(tuple(member_id(name, 1) for name in sorted(ports)))
        journal = GroupJournal.create(self._group_commit.records, GROUP, members)
        own = member_id(self._name, 1)
        self._group: Group = self._group_commit.add(GROUP, own, journal, applied=0, before_tick=self._propose)
        if self._name == min(ports):
            self._group.campaign_soon()
        self._sent = self._done = 0
        self._began_s = 0.0

    def _propose(self) -> None:
        if self._group.is_leader and self._group.commit_index >= self._group.term_start:
            if not self._began_s:
                self._began_s = time.perf_counter()
                print("begun", flush=True)
            while self._sent < self._count and self._sent - self._done < WINDOW:
                self._sent += 1
                self._group.propose(COMMAND, self._committed)

    def _committed(self, index: int | None, failure: object) -> None:
        assert failure is None, failure
        self._done += 1
        if self._done == self._count:
            print(time.perf_counter() - self._began_s, flush=True)
        self._group_commit.mark(self._group)

    async def run(self) -> None:
        listeners = await trio.open_tcp_listeners(self._port, host="127.0.0.1")
        async with trio.open_nursery() as nursery:
            await nursery.start(self._links.run, listeners, self)
            while True:
                self._group_commit.on_time()
                if not self._group_commit.has_work:
                    with trio.move_on_after(self._group_commit.pause_s()):
                        await self._wakeup.wait()
                    continue
                await self._pass()

    async def _pass(self) -> None:
        records, _ = self._group_commit.tick()
        if records:
            await trio.to_thread.run_sync(self._wal.commit, records)
        else:
            await trio.lowlevel.checkpoint()
        self._group_commit.synced()
        for node, messages in self._group_commit.take_outgoing().items():
            self._links.send(node, PeerFrame.RAFT, messages)

    # -- what the links call --------------------------------------------------------------------------------------

    def up(self, peer: Peer) -> None:
        self._group_commit.connected(peer.identity.node_id)

    def down(self, node: str) -> None:
        self._group_commit.disconnected(node)

    def on_frame(self, node: str, kind: int, body: Any, size: int) -> None:
        self._group_commit.receive(node, body, size)

    async def on_stream(self, node: str, stream: PeerStream) -> None:
        pass

    def takes_more(self) -> bool:
        return True


def main(directory: str, count: str, *named_ports: str) -> None:
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    ports = {name: int(port) for name, port in (named.split("=") for named in named_ports)}
    trio.run(Node(Path(directory), int(count), ports).run)


if __name__ == "__main__":
    main(*sys.argv[1:])
