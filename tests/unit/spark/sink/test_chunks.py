"""Tests of chunks of rows: their content and their ends, which depend only on the rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from sandq.model.batch import Batch, Column, encode
from sandq.model.headers import headers_pack
from sandq.model.sequence import MAX_CHAIN
from sandq.protocol.requests import IGNORE, REJECT, REPLACE
from sandq.spark.sink import chunks as chunks_module
from sandq.spark.sink.chunk_file import KeptChunks
from sandq.spark.sink.chunks import CHUNK_BYTES, CHUNK_ROWS, Chunk
from sandq.spark.sink.columns import SIZE
from sandq.spark.sink.encoding import encode_rows
from tests.support.examples import seeds
from tests.support.spark.sink_bed import cut, record, small_chunks, table, values_of

MS = 1_800_000_000_000


def some(rng: random.Random, count: int) -> dict[str, list[Any]]:
    """Return cells of every column, with nulls."""

    def cells(make: Any) -> list[Any]:
        return [None if rng.random() < 0.2 else make() for _ in range(count)]

    return {
        "value": cells(lambda: rng.randbytes(rng.randrange(40))),
        "key": cells(lambda: rng.randbytes(rng.randrange(1, 9))),
        "headers": cells(lambda: headers_pack({"h": rng.randrange(9)})),
        "deliver_at": cells(lambda: MS + rng.randrange(10**6)),
        "ttl_ms": cells(lambda: rng.randrange(1, 10**6)),
        "unique_key": cells(lambda: rng.randbytes(4)),
        "priority": cells(lambda: rng.randrange(-9, 9)),
        "tenant": cells(lambda: b"t%d" % rng.randrange(40)),
    }


def arrays(cells: dict[str, list[Any]]) -> dict[str, Any]:
    return {
        name: pa.array(column, pa.int64() if name.endswith(("_at", "_ms")) or name == "priority" else pa.binary())
        for name, column in cells.items()
    }


def sliced(rng: random.Random, batch: Any) -> list[Any]:
    """Return the same rows in other record batches, some of them empty."""
    positions = sorted(rng.choices(range(batch.num_rows + 1), k=rng.randrange(12)))
    return [
        batch.slice(start, stop - start)
        for start, stop in zip([0, *positions], [*positions, batch.num_rows], strict=True)
    ]


@pytest.mark.parametrize("seed", range(20))
def test_encoded_rows_equal_the_client_encoding(seed: int) -> None:
    rng = random.Random(seed)
    cells = some(rng, rng.randrange(1, 200))
    for name in rng.sample(sorted(cells), rng.randrange(4)):
        cells[name] = [None] * len(cells[name])
    relative = rng.random() < 0.5
    columns = {
        Column.VALUE: cells["value"],
        Column.KEY: cells["key"],
        Column.HEADERS: cells["headers"],
        Column.DELIVER_MS: cells["deliver_at"],
        Column.TTL_MS: cells["ttl_ms"],
        Column.PRIORITY: cells["priority"],
        Column.TENANT: cells["tenant"],
        Column.UNIQUE_KEY: cells["unique_key"],
    }
    if relative:
        cells["delay_ms"] = cells.pop("deliver_at")
    found = arrays(cells)
    batch = pa.record_batch(found)
    assert encode_rows([batch], relative=relative) == encode(columns, relative=relative), f"seed {seed}"
    parts = [part for part in sliced(rng, batch) if part.num_rows]
    assert encode_rows(parts, relative=relative) == encode(columns, relative=relative), f"seed {seed}"


def test_bytes_behind_a_null_are_not_sent() -> None:
    offsets, data = pa.array([b"ab", b"secret", b"c"]).buffers()[1:]
    key = pa.Array.from_buffers(pa.binary(), 3, [pa.py_buffer(b"\xfd"), offsets, data])
    batch = pa.record_batch({"value": pa.array([b"1", b"2", b"3"]), "key": key})
    raw = encode_rows([batch], relative=False)
    assert raw == encode({Column.VALUE: [b"1", b"2", b"3"], Column.KEY: [b"ab", None, b"c"]})
    assert b"secret" not in raw


@pytest.mark.parametrize("kind", ["timer", "fair"])
@pytest.mark.parametrize("seed", seeds(2, 15))
def test_chunks_depend_only_on_the_rows(seed: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunks do not depend on Arrow's record batches."""
    rng = random.Random(seed)
    small_chunks(monkeypatch, 32)
    monkeypatch.setattr(chunks_module, "BLOCK_BYTES", rng.choice([500, 4000, 10**6]))
    monkeypatch.setattr(chunks_module, "CHUNK_BYTES", rng.choice([700, 5000, 10**6]))
    monkeypatch.setattr(chunks_module, "WAITING_BYTES", rng.choice([2000, 10**6]))
    count = 1500
    cells = some(rng, count)
    cells["value"] = [b"%d " % place + bytes(rng.randrange(60)) for place in range(count)]
    cells["unique_key"] = [None] * count
    cells["delay_ms"] = [rng.randrange(9) if at is None and rng.random() < 0.5 else None for at in cells["deliver_at"]]
    del cells["headers"]
    if kind == "timer":
        del cells["priority"], cells["tenant"]
    topic = pa.array(rng.choices(["t", "u"], k=count))
    columns = arrays(cells)
    if kind == "fair":
        columns["tenant"] = columns["tenant"].cast(pa.string())
    whole = pa.record_batch({**columns, "topic": topic})
    topics = (record(3, kind=kind), record(2, kind=kind, name="u"))
    expected = cut([whole], topics=topics, topic=None, partition=seed)
    for _ in range(3):
        assert cut(sliced(rng, whole), topics=topics, topic=None, partition=seed) == expected, f"seed {seed}"
    found = [int((value or b"").split()[0]) for value in values_of(expected)]
    assert sorted(found) == [*range(count)], f"seed {seed}: every row once"
    positions: dict[tuple[str, int], list[Chunk]] = {}
    for chunk in expected:
        positions.setdefault((chunk.topic, chunk.partition), []).append(chunk)
        times = Batch.parse(chunk.data)
        assert chunk.rows == times.count
    assert len(positions) == 5
    for chunks in positions.values():
        assert [chunk.number for chunk in chunks] == [*range(1, len(chunks) + 1)]


def test_limits() -> None:
    rows = 3 * CHUNK_ROWS
    chunks = cut([table(range(rows))])
    assert sum(chunk.rows for chunk in chunks) == rows
    assert [chunk.rows for chunk in chunks] == [CHUNK_ROWS] * 3
    large = pa.record_batch({"value": [bytes(CHUNK_BYTES // 8)] * 40 + [bytes(CHUNK_BYTES + 1)] + [b"x"] * 3})
    chunks = cut([large])
    assert sum(chunk.rows for chunk in chunks) == 44
    assert max(len(chunk.data) for chunk in chunks if chunk.rows > 1) <= CHUNK_BYTES
    assert max(len(chunk.data) for chunk in chunks) > CHUNK_BYTES, "a larger row is a separate chunk"
    assert cut([]) == cut([table([])]) == []


def test_chunk_has_the_chain_of_earlier_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch, 100)
    same = [*range(1000, 3000)]

    def chains(first: Sequence[int]) -> list[int]:
        """Return the chain lengths of the chunks of `same`."""
        chunks = cut([table([*first, *same])])
        assert chunks[0].chain == 0 and all(chunk.chain <= MAX_CHAIN for chunk in chunks)
        return [chunk.chain for chunk in chunks[len(first) // 100 :]]

    one, other = chains([1, 2, 3, 4] * 50), chains([1, 2, 4, 3] * 50)
    assert len(one) == len(set(one)) == 20
    assert not any(left == right for left, right in zip(one, other, strict=True))
    assert chains([1, 2, 3, 4] * 50) == one


def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chunks of many targets wait until they are full, but not forever."""
    monkeypatch.setattr(chunks_module, "WAITING_BYTES", 100_000)
    chunker = chunks_module.Chunker(IGNORE, 10**6)
    targets = [chunks_module.Target("t", partition, False) for partition in range(200)]
    rows = pa.record_batch({"value": [bytes(50)] * 20, SIZE: pa.array([82] * 20, pa.int64())})
    sent = 0
    for number in range(20):
        for target in targets[number % 2 :: 2]:
            chunker.add(target, rows)
        sent += sum(chunk.rows for chunk in chunker.full())
        waiting = (number + 1) * len(targets) // 2 * 20 - sent
        assert waiting * 82 <= 100_000 + len(targets) // 2 * 20 * 82
    sent += sum(chunk.rows for chunk in chunker.rest())
    assert sent == 20 * 100 * 20


@pytest.mark.parametrize("on_conflict", [IGNORE, REPLACE, REJECT])
def test_unique_keys(on_conflict: int) -> None:
    (chunk,) = cut([table([1, 2], unique_key=["a", "b"])], on_conflict=on_conflict)
    assert (chunk.on_conflict, chunk.ignorable) == (on_conflict, on_conflict == IGNORE)
    (chunk,) = cut([table([1, 2], unique_key=["a", None])], on_conflict=on_conflict)
    assert (chunk.on_conflict, chunk.ignorable) == (on_conflict, False)
    (chunk,) = cut([table([1, 2], unique_key=pa.array([None, None], pa.binary()))], on_conflict=on_conflict)
    assert (chunk.on_conflict, chunk.ignorable) == (REJECT, False)
    assert Column.UNIQUE_KEY not in Batch.parse(chunk.data).columns


def test_chunks_that_are_kept() -> None:
    chunks = cut([table(range(50_000), unique_key=[f"u{place}" for place in range(50_000)])])
    kept = KeptChunks()
    assert [*kept.read("t", 0)] == []
    kept.add(chunks[:2])
    kept.add(chunks[2:])
    assert [*kept.read("t", 0)] == [*kept.read("t", 0)] == chunks
    kept.clear()
    assert [*kept.read("t", 0)] == []
