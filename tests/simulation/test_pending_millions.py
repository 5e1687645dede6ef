"""Millions of pending messages on a real disk in virtual time: a tenth is cancelled, a tenth moved, the rest delivered.

Each message is delivered once, at its time, and memory stays below a limit that does not depend on their number. The
node is the engine alone: WAL, LevelDB, Raft and the partition, driven by the test. The fields of a message follow
from its number, so the test needs one byte per message."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandq.broker.replication.applier import Published
from sandq.broker.replication.node_log import NodeLog
from sandq.broker.replication.raft_group import RaftGroup
from sandq.broker.replication.runner import CHECKPOINT_ENTRIES
from sandq.metadata import commands as m
from sandq.model import offsets
from sandq.model.batch import Column, encode
from sandq.model.errors import SandqError
from sandq.model.limits import Limits
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.raft import Members
from sandq.storage.files import RealFiles
from sandq.storage.level_stores import LevelStores
from tests.support.registered import register_node
from tests.support.simulation.oracle import messages_of
from tests.support.simulation.stepped import START_MS, VirtualClock

BATCH = 1000
FILLER = bytes(92)
LEAD_MS = 60_000
STEP_MS = 50
LEASE_MS = 3_600_000
BOUND_BYTES = 100_000_000
CHECKPOINT_BYTES = 32 << 20
NUMBER = struct.Struct("<Q")
PENDING, CANCELLED, DELIVERED = 0, 1, 2


def anonymous_bytes() -> int:
    """Return the memory of this process in bytes, without mapped files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


class Drive:
    """Runs an engine with one partition, with its steps in the usual order."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir()
        self.clock = VirtualClock()
        self.stores = LevelStores(directory / "store")
        self._published: list[Published] = []
        self.node_log = NodeLog(
            RealFiles(directory),
            self.stores,
            node_id="n1",
            now_ms=self.clock.now_ms,
            publish=self._published.append,
            limits=Limits(),
        )
        metadata = self.node_log.open_metadata()
        self._until(lambda: metadata.ready)
        self.call(metadata, register_node("n1", "store", {}))
        settings = parse_settings({"lease": "1h"}).record()
        self.call(metadata, m.CreateTopic("t", "timer", 1, [["n1"]], settings))
        topic = metadata.status.topics["t"]
        self.node_log.install([(topic.partitions[0].group, "n1#1", Members(topic.partitions[0].members))])
        self.host: RaftGroup = self.node_log.open_partition(topic, 0)
        self._until(lambda: self.host.ready)

    def call(self, host: RaftGroup, command: Any) -> Any:
        return self.call_all(host, [command])[0]

    def call_all(self, host: RaftGroup, commands: list[Any]) -> list[Any]:
        answers: list[Any] = []
        for command in commands:
            host.submit(command, answers.append)
        self._until(lambda: len(answers) == len(commands))
        for answer in answers:
            assert not isinstance(answer, SandqError), answer
        if self.node_log.bytes_since_checkpoint > CHECKPOINT_BYTES or self.node_log.entries_kept > CHECKPOINT_ENTRIES:
            self.checkpoint()
        return answers

    def checkpoint(self) -> None:
        applied = self.node_log.applied_indices()
        self.node_log.stores.flush()
        self.node_log.truncate(applied)
        self._step()
        self.node_log.release()

    def upkeep(self) -> None:
        """Run upkeeps until none is due."""
        while (due_ms := self.host.status.upkeep_ms) is not None and due_ms <= self.clock.ms:
            self.call(self.host, c.Upkeep())

    def _until(self, done: Callable[[], bool]) -> None:
        for _ in range(1000):
            if done():
                return
            self._step()
        raise AssertionError("the engine makes no progress")

    def _step(self) -> None:
        node_log = self.node_log
        records, ready = node_log.tick()
        if records:
            node_log.commit(records)
        self.node_log.applier.run([*ready, *node_log.synced()])
        node_log.stores.write_out()
        while self._published:
            node_log.published(self._published.pop(0))

    def close(self) -> None:
        self.node_log.wal.close()
        self.stores.close()


def run(directory: Path, messages: int, span_ms: int) -> dict[str, int]:
    """Run the scenario in virtual time. All messages are due within `span_ms`."""
    shift_ms = 2 * span_ms

    def due_ms(number: int) -> int:
        """Return the delivery time of a message. The times are spread evenly, in random order."""
        return START_MS + LEAD_MS + number * 2_654_435_761 % span_ms

    state = bytearray(messages)
    # Allocate this memory before the first measurement, because it belongs to the test.
    state[:] = bytes([PENDING]) * messages
    drive = Drive(directory)
    host, clock = drive.host, drive.clock
    drive.call(host, c.OpenGroup("g", "earliest"))
    empty = peak = anonymous_bytes()
    sampled: list[bytes] = []
    for first in range(0, messages, 4 * BATCH):
        batches = []
        for start in range(first, min(first + 4 * BATCH, messages), BATCH):
            numbers = range(start, start + BATCH)
            columns = {
                Column.VALUE: [NUMBER.pack(number) + FILLER for number in numbers],
                Column.DELIVER_MS: [due_ms(number) for number in numbers],
            }
            batches.append(c.Append(encode(columns)))
        for at, stored in enumerate(drive.call_all(host, batches)):
            number = first + at * BATCH + 17
            if due_ms(number) >= START_MS + LEAD_MS + span_ms // 2:
                sampled.append(stored.offsets[17 * 16 : 18 * 16])
                state[number] = CANCELLED
        peak = max(peak, anonymous_bytes())
    # Cancel and move one time window each, a tenth of all messages, in bulk. Cancel the messages outside of both
    # windows that were sampled one by one.
    tenth = span_ms // 10
    cancel_from, move_from = START_MS + LEAD_MS, START_MS + LEAD_MS + 2 * tenth
    jobs = {"cancel": (cancel_from, {}), "move": (move_from, {"shift_ms": shift_ms})}
    totals: dict[str, int] = {}
    for kind, (from_ms, more) in jobs.items():
        window = {"from_ms": from_ms, "until_ms": from_ms + tenth, "key_prefix": None, "dry_run": False}
        job = drive.call(host, c.StartJob(kind.encode().ljust(16), kind, window | more))
        assert job["state"] == "running"
        drive.upkeep()
        totals[kind] = host.replica.queries.job(job["job_id"])["done"]  # type: ignore[attr-defined]
        peak = max(peak, anonymous_bytes())
    for number in range(messages):
        if cancel_from <= due_ms(number) < cancel_from + tenth:
            state[number] = CANCELLED
    assert totals["cancel"] + len(sampled) == state.count(CANCELLED)
    assert totals["move"] == sum(1 for n in range(messages) if move_from <= due_ms(n) < move_from + tenth)
    for at in range(0, len(sampled), BATCH):
        outcomes = drive.call(host, c.Cancel([[c.TARGET_ID, one] for one in sampled[at : at + BATCH]]))
        assert all(verdict == "cancelled" for verdict, _ in outcomes)
    delivered = 0
    while (next_ms := host.status.groups[0].next_ms) is not None:
        before_ms = clock.ms
        clock.ms = max(clock.ms + STEP_MS, next_ms)
        # All messages that are due by now are delivered, and no message is early.
        while True:
            leases = drive.call(host, c.Lease("g", clock.ms, [c.Grant("c", 1000, LEASE_MS)] * 8))
            for delivery in leases:
                for offset, value in messages_of(delivery):
                    number = NUMBER.unpack_from(value)[0]
                    at_ms = due_ms(number)
                    if move_from <= at_ms < move_from + tenth:
                        at_ms += shift_ms
                    assert state[number] == PENDING, f"message {number}: {state[number]}"
                    assert at_ms == offsets.deliver_ms(offset)
                    assert before_ms < at_ms <= clock.ms
                    state[number] = DELIVERED
                    delivered += 1
            if not leases:
                break
            drive.call(host, c.Ack([(delivery.token, None) for delivery in leases]))
            drive.upkeep()
        peak = max(peak, anonymous_bytes())
    assert PENDING not in state, "some were never delivered"
    assert (host.status.messages, host.status.later) == (0, 0)
    drive.close()
    return totals | {"sampled": len(sampled), "delivered": delivered, "memory": peak - empty}


def test_twenty_thousand(tmp_path: Path) -> None:
    found = run(tmp_path / "node", 20_000, 10_000)
    assert found["memory"] < BOUND_BYTES
    assert found["delivered"] == 20_000 - found["cancel"] - found["sampled"]


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_ten_million(tmp_path: Path) -> None:
    found = run(tmp_path / "node", 10_000_000, 3_600_000)
    assert found["memory"] < BOUND_BYTES, found
    assert found["delivered"] == 10_000_000 - found["cancel"] - found["sampled"]
