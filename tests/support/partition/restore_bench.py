"""Restore a partition in memory from the rows of a source partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sandq.model.names import RESTORING
from sandq.partition import commands as c
from sandq.partition.base.view import Row
from sandq.partition.restore.restoring import encode_chunk
from tests.support.partition.bench import ALL, Bench
from tests.support.partition.ranked_bench import RankedBench

RESTORE = "r-1"


def rows_of(bench: Bench) -> list[Row]:
    """Return all rows of a partition that a backup contains."""
    return bench.stores.scan(b"", b"\xff", limit=ALL, max_bytes=ALL)


def chunks_of(rows: Sequence[Row], size: int = 3) -> list[bytes]:
    """Return the rows in small chunks."""
    return [encode_chunk([part for row in rows[at : at + size] for part in row]) for at in range(0, len(rows), size)]


def empty_like(bench: Bench, restore_id: str = RESTORE, **settings: Any) -> Bench:
    """Return an empty partition of the same kind and settings, whose topic is being restored."""
    empty = RankedBench(bench.kind) if isinstance(bench, RankedBench) else type(bench)()
    empty.settings = {**bench.machine.settings, **settings, RESTORING: restore_id}
    empty.machine = empty.machine_class.load(0, empty.settings, empty.view, empty.look_aheads)
    return empty


def begin(bench: Bench, at: int = 0, targets: Sequence[tuple[int, int]] = (), restore_id: str = RESTORE) -> Any:
    return bench.apply(at, c.RestoreBegin(restore_id, [list(pair) for pair in targets]))[0]


def put(bench: Bench, number: int, data: bytes, at: int = 0, restore_id: str = RESTORE) -> Any:
    return bench.apply(at, c.RestoreRows(restore_id, number, data))[0]


def end(bench: Bench, chunks: int, at: int = 0, restore_id: str = RESTORE) -> Any:
    return bench.apply(at, c.RestoreEnd(restore_id, chunks))[0]


def open_up(bench: Bench, at: int = 0) -> None:
    """Finish the restore of the topic."""
    settings = {name: value for name, value in bench.machine.settings.items() if name != RESTORING}
    bench.apply(at, c.Configure(settings))


def restored(bench: Bench, at: int = 0, targets: Sequence[tuple[int, int]] = (), *, is_open: bool = True) -> Bench:
    """Return a partition that is restored from the rows of `bench` at that time."""
    made = empty_like(bench)
    begin(made, at, targets)
    chunks = chunks_of(rows_of(bench))
    for number, chunk in enumerate(chunks):
        put(made, number, chunk, at)
    told = end(made, len(chunks), at)
    assert isinstance(told, dict) and told["whole"], told
    if is_open:
        open_up(made, at)
    return made
