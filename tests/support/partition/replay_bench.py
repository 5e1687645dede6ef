"""Record the entries of a partition in memory, and replay them from any moment to any other."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import msgpack

from sandq.backup.chain import OF_MANIFEST, Topic, Window
from sandq.backup.manifest import PartitionPart
from sandq.backup.replay import PartitionReplay, Wanted
from sandq.partition import commands as c
from sandq.partition.base.digest import comparable
from sandq.partition.reader.look_aheads import LookAheads
from sandq.partition.restore.restoring import encode_chunk
from sandq.storage.stores import MemoryStores
from tests.support.partition.bench import Bench, T
from tests.support.partition.restore_bench import rows_of

STORE = 3


class RowBlocks:
    """Receives the blocks that would be the files of a backup."""

    parts: tuple[Any, ...] = ()

    def __init__(self) -> None:
        self.flat: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.flat += msgpack.unpackb(data)

    def end(self) -> None:
        pass

    give_up = end


class Recorded(NamedTuple):
    """An entry, and all rows of the partition after the entry."""

    number: int
    stamp_ms: int
    command: bytes
    flat: list[bytes]
    """Keys and values of all rows, alternating."""
    is_reset: bool
    """Whether a clock reset was in progress after the entry."""

    @property
    def rows(self) -> Any:
        return comparable(zip(self.flat[::2], self.flat[1::2], strict=True))


class Recorder:
    """Records the entries that a bench applies from now on."""

    def __init__(self, bench: Bench) -> None:
        self.recorded: list[Recorded] = []
        self._kind = bench.kind
        apply = bench.apply

        def recording(at: int, *commands: c.Command) -> list[Any]:
            results = apply(at, *commands)
            flat = [part for row in rows_of(bench) for part in row]
            entry = c.Entry(T + at, commands).encode()
            is_reset = bench.machine.resets.state is not None
            self.recorded.append(Recorded(bench.index, T + at, entry, flat, is_reset))
            return results

        bench.apply = recording  # type: ignore[method-assign]

    def check(self, random: Random, tries: int) -> int:
        """Replay the entries between random moments, compare the rows each time, and return the number of replays."""
        done = 0
        for _ in range(tries if self.recorded else 0):
            base = random.randrange(len(self.recorded))
            stamps = [one.stamp_ms + off for one in self.recorded[base:] for off in (0, 1)]
            until_ms = random.choice([None, *stamps])
            last = base
            for at in range(base + 1, len(self.recorded)):
                if until_ms is not None and self.recorded[at].stamp_ms > until_ms:
                    break
                last = at
            if not self.recorded[last].is_reset:  # during a clock reset, no backup is possible
                self._check(self.recorded[base], self.recorded[last], until_ms)
                done += 1
        return done

    def _check(self, base: Recorded, last: Recorded, until_ms: int | None) -> None:
        topic = Topic(
            name="t",
            number=1,
            kind=self._kind,
            partitions=1,
            initial_partitions=1,
            replicas=1,
            settings={},
            owner=None,
            created_ms=0,
        )
        window = Window(
            topic=1,
            partition=0,
            base=OF_MANIFEST,
            base_index=base.number,
            base_ms=0,
            index=base.number,
            term=None,
            to_ms=0,
        )
        wanted = Wanted(topic, window, PartitionPart(0, base.number, 0, 1, ()))
        made = PartitionReplay(MemoryStores(), STORE, wanted, LookAheads())
        made.put_rows(encode_chunk(base.flat))
        made.load()
        for one in self.recorded:  # includes entries that the rows contain already: a replay must skip them
            made.apply(one.number, 1, one.command, until_ms)
        files: Any = RowBlocks()
        ending = made.end(files)
        try:
            while True:
                next(ending)
        except StopIteration as done:
            assert done.value.index == last.number, (base.number, until_ms)
        rows, found = last.rows, comparable(zip(files.flat[::2], files.flat[1::2], strict=True))
        differ = {key: (found.get(key), rows.get(key)) for key in rows.keys() | found.keys()}
        assert found == rows, {key: both for key, both in differ.items() if both[0] != both[1]}
