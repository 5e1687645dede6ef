"""Increments contain the replacement of a skipped entry, and their replay gives the rows of the replicas (ADR 46)."""

from __future__ import annotations

from typing import Any

from sandq.backup.chain import OF_MANIFEST, Topic, Window
from sandq.backup.manifest import PartitionPart
from sandq.backup.replay import PartitionReplay, Wanted
from sandq.broker.backups.log_reads import _entries
from sandq.model.settings import parse_settings
from sandq.partition import commands as c
from sandq.partition.base.digest import comparable
from sandq.partition.reader.look_aheads import LookAheads
from sandq.partition.restore.restoring import encode_chunk
from sandq.raft import GroupJournal, Members, Skip, wire
from sandq.storage.stores import MemoryStores
from tests.support.partition.bench import T, batch_of
from tests.support.partition.replay_bench import STORE, RowBlocks
from tests.support.partition.shut_bed import SKIP_ID, ShutBed

COMMANDS: list[c.Command] = [
    c.RaiseLevel(18),
    c.OpenGroup("g", "earliest"),
    c.Append(batch_of(["a"])),
    c.Append(batch_of(["poison"]), 77, 1, 1),
    c.Append(batch_of(["b"])),
    c.Lease("g", T, (c.Grant("c", 5, 30_000),)),
]
POISON = 3
BASE = 2
"""Entries that the full backup has."""


def test_replay_of_increments_has_the_rows_of_a_replica_that_skipped() -> None:
    entries = [c.Entry(T, (command,)).encode() for command in COMMANDS]
    replacement = c.Entry(T, (c.Skipped.of(SKIP_ID, COMMANDS[POISON]),)).encode()
    skip = Skip(POISON + 2, 1, SKIP_ID, replacement)
    journal = GroupJournal.create([], 7, Members(("n1#1",)))
    logged = [*[bytes([wire.REGULAR]) + entry for entry in entries], bytes([wire.SKIP]) + skip.encode()]
    for index, command in enumerate(logged, 2):
        journal.add(command, index, 1)
    last = journal.last_index
    undecided = _entries(journal, 1, last, 1 << 20, last - 1)
    assert undecided[2 * POISON + 1] == entries[POISON], "a SKIP that is not committed changes nothing"
    shipped = _entries(journal, 1, last, 1 << 20, last)[1::2]
    assert shipped[POISON] == replacement and shipped[-1] == b""

    settings = parse_settings({}).record()
    replica, base = ShutBed("timer", settings), ShutBed("timer", settings)
    for bed, until in ((replica, len(shipped)), (base, BASE)):
        bed.applier.run([bed.task(1, b"")])
        bed.applier.run([bed.task(at, command) for at, command in enumerate(shipped[:until], 2)])
        bed.applier.rest()
        assert bed.replica.failure is None
    topic = Topic(
        name="t",
        number=1,
        kind="timer",
        partitions=1,
        initial_partitions=1,
        replicas=1,
        settings={},
        owner=None,
        created_ms=0,
    )
    wanted = Wanted(
        topic,
        Window(
            topic=1, partition=0, base=OF_MANIFEST, base_index=BASE + 1, base_ms=0, index=BASE + 1, term=None, to_ms=0
        ),
        PartitionPart(0, BASE + 1, 0, 1, ()),
    )
    made = PartitionReplay(MemoryStores(), STORE, wanted, LookAheads())
    made.put_rows(encode_chunk([part for row in base._stored() for part in row]))
    made.load()
    for index, command in enumerate(shipped, 2):
        made.apply(index, 1, command, None)
    files: Any = RowBlocks()
    for _ in made.end(files):
        pass
    assert comparable(zip(files.flat[::2], files.flat[1::2], strict=True)) == replica.rows()
