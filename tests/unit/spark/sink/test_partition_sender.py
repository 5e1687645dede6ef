"""Tests of chunks that are sent to one partition: each is stored once, and changed rows are detected in all
failures."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import AsyncIterator, Sequence

import pyarrow as pa
import pytest
import trio
import trio.testing

from sandq.client.options import Options
from sandq.client.transport.connection import Build, OnReply
from sandq.errors import DuplicateKey, NotLeader, OutOfSequence, Overloaded, ProducerFenced, StorageFailed, TimedOut
from sandq.model.errors import ConnectionLost, SandqError, Unavailable
from sandq.model.sequence import sequence_of
from sandq.protocol.requests import REJECT, OnBehalf
from sandq.spark.sink.chunks import Chunk
from sandq.spark.sink.identity import Identity
from sandq.spark.sink.partition_sender import RETRY_S, ChangedRows
from tests.support.partition.bench import batch_of
from tests.support.spark.sink_bed import LOSE_ANSWER, LOSE_REQUEST, FakeCluster, cut, small_chunks, table, write

FIRST = Identity("test", 0)
RETRY = Identity("test", 0, resent=True)


@pytest.fixture(autouse=True)
def chunks_of_64(monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock) -> None:
    small_chunks(monkeypatch, 64)


@pytest.fixture
async def cluster(nursery: trio.Nursery) -> AsyncIterator[FakeCluster]:
    found = FakeCluster()
    nursery.start_soon(found.serve)
    yield found
    nursery.cancel_scope.cancel()


def rows(numbers: Sequence[int]) -> list[Chunk]:
    return cut([table(numbers)])


def unique(numbers: Sequence[int], **options: int) -> list[Chunk]:
    return cut([table(numbers, unique_key=pa.array([f"u{number}" for number in numbers]))], **options)


async def test_chunks_are_stored_once_in_order(cluster: FakeCluster) -> None:
    partition_sender = await write(cluster, rows(range(2000)))
    assert cluster.stored() == [*range(2000)]
    assert cluster.questions == 1
    numbers = [number for _, number, _ in cluster.seen]
    assert numbers == [*range(1, len(numbers) + 1)] and len(numbers) > 30
    assert {epoch for epoch, _, _ in cluster.seen} == {1}
    assert not any(resent for _, _, resent in cluster.seen), "no earlier attempt can have sent the chunk"
    assert (partition_sender.already_stored, partition_sender.again) == (0, 0)


@pytest.mark.parametrize("upto", [1, 3, 5, 6, 7, 20, 1000])
async def test_an_attempt_after_one_that_broke_off(cluster: FakeCluster, upto: int) -> None:
    chunks = rows(range(2000))
    with pytest.raises(ZeroDivisionError):
        await write(cluster, chunks[:upto])
        raise ZeroDivisionError
    before = len(cluster.seen)
    partition_sender = await write(cluster, chunks, identity=RETRY)
    assert cluster.stored() == [*range(2000)]
    known = min(upto, len(chunks))
    assert partition_sender.already_stored == known
    assert [number for _, number, _ in cluster.seen[before:]] == [*range(max(known - 4, 1), len(chunks) + 1)]
    assert all(resent for _, _, resent in cluster.seen[before:])


FATES = (
    LOSE_ANSWER,
    LOSE_REQUEST,
    NotLeader("elsewhere"),
    Overloaded("busy"),
    TimedOut("lost"),
    Unavailable("none"),
    OutOfSequence("a gap", expected=1),
)


@pytest.mark.parametrize("seed", range(12))
async def test_lost_or_refused_requests_are_resent(cluster: FakeCluster, seed: int) -> None:
    chance = random.Random(seed)
    cluster.fates = {place: chance.choice(FATES) for place in range(200) if chance.random() < 0.3}
    cluster.leaderless = chance.randrange(3)
    chunks = rows(range(2000))
    broken = chunks[: chance.randrange(len(chunks))]
    await write(cluster, broken, at_once=chance.randrange(1, 9))
    await write(cluster, chunks, identity=RETRY, at_once=chance.randrange(1, 9))
    assert cluster.stored() == [*range(2000)], f"seed {seed}"
    again: set[tuple[int, int]] = set()
    for epoch, number, resent in cluster.seen:
        assert resent or (epoch, number) not in again, f"seed {seed}: {number} is resent without the resent flag"
        again.add((epoch, number))


async def test_sender_gives_up_after_the_retry_time(
    cluster: FakeCluster, autojump_clock: trio.testing.MockClock
) -> None:
    cluster.options = Options()
    cluster.fates = {place: Overloaded("busy") for place in range(3, 10_000)}
    began = trio.current_time()
    with pytest.raises(Overloaded, match=r"chunk 4 was not confirmed in 120 s; the last error: .*busy"):
        await write(cluster, rows(range(2000)))
    assert RETRY_S - 1 < trio.current_time() - began <= RETRY_S + 1
    assert len(set(cluster.stored())) == len(cluster.stored())


@pytest.mark.parametrize("error", [StorageFailed("disk full"), SandqError("a bug")], ids=lambda error: error.code)
async def test_permanent_error_is_raised_at_once(cluster: FakeCluster, error: SandqError) -> None:
    cluster.fates = {2: error}
    with pytest.raises(type(error), match=f"topic 't', partition 0: {error.message}"):
        await write(cluster, rows(range(2000)))


# -- changed rows -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("upto", [1, 4, 5])
async def test_changed_rows_are_refused_before_anything_is_stored(cluster: FakeCluster, upto: int) -> None:
    await write(cluster, rows(range(2000))[:upto])
    before = cluster.stored()
    with pytest.raises(
        ChangedRows,
        match=r"rows differ between attempts.*differs from the one that an earlier attempt stored.*sortWithin",
    ):
        await write(cluster, rows(range(1999, -1, -1)), identity=RETRY)
    assert cluster.stored() == before


@pytest.mark.parametrize("per_chunk", [1, 64])
async def test_blocks_of_rows_that_changed_positions(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, per_chunk: int
) -> None:
    """The last five chunks have the same rows, but their chain shows that earlier chunks differ."""
    small_chunks(monkeypatch, per_chunk)
    at = 10 * per_chunk
    one, other, same = [*range(at)], [*range(at, 2 * at)], [*range(2 * at, 5 * at)]
    await write(cluster, rows([*one, *same, *other])[:22])
    before = cluster.stored()
    changed = rows([*other, *same, *one])
    assert [chunk.data for chunk in changed[17:22]] == [chunk.data for chunk in rows([*one, *same, *other])[17:22]]
    with pytest.raises(ChangedRows):
        await write(cluster, changed, identity=RETRY)
    assert cluster.stored() == before == [*one, *same][: 22 * per_chunk]


async def test_an_attempt_after_one_with_large_rows(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk of one row works like a chunk of many rows."""
    small_chunks(monkeypatch, 1)
    chunks = rows(range(20))
    await write(cluster, chunks[:8])
    partition_sender = await write(cluster, chunks, identity=RETRY)
    assert cluster.stored() == [*range(20)] and partition_sender.already_stored == 8


async def test_an_attempt_with_fewer_rows(cluster: FakeCluster) -> None:
    chunks = rows(range(2000))
    await write(cluster, chunks)
    for fewer in (1, 8, len(chunks) - 8, len(chunks) - 1):
        with pytest.raises(ChangedRows, match=f"stored {len(chunks)} chunks, and this one ends with {fewer}"):
            await write(cluster, chunks[:fewer], identity=RETRY)
    assert cluster.stored() == [*range(2000)]


@pytest.mark.parametrize("upto", [3, 25])
async def test_changed_rows_are_written_again_if_asked(
    cluster: FakeCluster, upto: int, caplog: pytest.LogCaptureFixture
) -> None:
    await write(cluster, rows(range(2000))[:upto])
    before = cluster.stored()
    chunks = rows(range(1999, -1, -1))
    with caplog.at_level(logging.WARNING, "sandq.spark"):
        partition_sender = await write(cluster, chunks, identity=RETRY, again=True)
    assert cluster.stored() == [*before, *range(1999, -1, -1)]
    assert partition_sender.again == -(-max(upto - 4, 1) // 3) * 3, (
        "chunks up to the first compared chunk are sent, in groups of three"
    )
    assert partition_sender.already_stored == 0
    assert "are written again: some will be stored twice" in caplog.text


async def test_fewer_rows_are_written_again_if_asked(cluster: FakeCluster) -> None:
    chunks = rows(range(2000))
    await write(cluster, chunks)
    partition_sender = await write(cluster, chunks[:7], identity=RETRY, again=True)
    assert cluster.stored() == [*range(2000), *range(sum(chunk.rows for chunk in chunks[:7]))]
    assert partition_sender.again == 7


async def test_stored_rows_are_not_written_again(cluster: FakeCluster) -> None:
    chunks = rows(range(2000))
    await write(cluster, chunks[:25], again=True)
    partition_sender = await write(cluster, chunks, identity=RETRY, again=True)
    assert cluster.stored() == [*range(2000)]
    assert (partition_sender.already_stored, partition_sender.again) == (25, 0)


async def test_unique_keys_make_changed_rows_harmless(cluster: FakeCluster, caplog: pytest.LogCaptureFixture) -> None:
    await write(cluster, unique(range(2000))[:25])
    with caplog.at_level(logging.WARNING, "sandq.spark"):
        partition_sender = await write(cluster, unique(range(1999, -1, -1)), identity=RETRY)
    assert sorted(cluster.stored()) == [*range(2000)]
    assert partition_sender.again > 0 and "unique keys prevent duplicates" in caplog.text


async def test_taken_unique_key_is_distinguished_from_changed_rows(cluster: FakeCluster) -> None:
    await write(cluster, unique(range(100), on_conflict=REJECT))
    with pytest.raises(ChangedRows):
        await write(cluster, unique(range(99, -1, -1), on_conflict=REJECT), identity=RETRY)
    for _ in range(2):
        with pytest.raises(DuplicateKey, match=r"1 rows of a chunk .* b'u7', of a message that is ready.*onConflict"):
            await write(cluster, unique([200, 7, 201], on_conflict=REJECT), identity=Identity("other", 0))
    assert sorted(cluster.stored()) == [*range(100), 200, 201]


# -- concurrent writers -----------------------------------------------------------------------------------------------


async def test_micro_batches(cluster: FakeCluster) -> None:
    batches = [Identity("query", 0, epoch, resent=True) for epoch in (1, 2, 3)]
    for place, identity in enumerate(batches):
        chunks = rows(range(100 * place, 100 * place + 100))
        await write(cluster, chunks, identity=identity)
        partition_sender = await write(cluster, chunks, identity=identity)
        assert partition_sender.already_stored == len(chunks), "a replay must store nothing"
    assert cluster.stored() == [*range(300)]
    with pytest.raises(ProducerFenced, match="a later micro-batch, or a second query with the same checkpoint"):
        await write(cluster, rows(range(100, 200)), identity=batches[1])
    with pytest.raises(ProducerFenced):
        await write(cluster, rows(range(100, 200)), identity=batches[1], again=True)
    assert cluster.stored() == [*range(300)]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("seed", range(6))
async def test_two_attempts_at_once(cluster: FakeCluster, seed: int, again: bool) -> None:
    chance = random.Random(seed)
    chunks = rows(range(2000))

    async def attempt(identity: Identity) -> None:
        parts = 1 + chance.randrange(9)
        await trio.sleep(chance.random() / 100)
        await write(cluster, chunks, identity=identity, at_once=parts, again=again)

    cluster.fates = {place: ConnectionLost("cut") for place in range(100) if chance.random() < 0.2}
    async with trio.open_nursery() as both:
        both.start_soon(attempt, FIRST)
        both.start_soon(attempt, RETRY)
    assert cluster.stored() == [*range(2000)], f"seed {seed}"


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("after", [1, 9])
async def test_concurrent_attempt_with_changed_rows_is_detected(cluster: FakeCluster, after: int, again: bool) -> None:
    """The other attempt stores rows after this one has asked what is stored. Only its last chunk is compared."""
    mine, other = rows(range(2000)), rows(range(1999, -1, -1))
    await write(cluster, mine[:2])
    calls, count = cluster.request, 0

    def request(build: Build, on_reply: OnReply, asker: OnBehalf) -> int:
        nonlocal count
        if count == after:
            last = max(number for _, number, _ in cluster.seen)
            for number in range(last + 1, last + 20):
                one = other[number - 1]
                cluster.store(one.data, RETRY.producer_id, 1, sequence_of(number, one.chain))
        count += 1
        return calls(build, on_reply, asker)

    cluster.request = request  # type: ignore[method-assign]
    if again:
        partition_sender = await write(cluster, mine, identity=RETRY, again=True)
        assert partition_sender.again > 0 and set(cluster.stored()) == {*range(2000)}
        assert Counter(cluster.stored())[0] == 1 or after == 1, "confirmed chunks are not written again"
        return
    with pytest.raises(ChangedRows):
        await write(cluster, mine, identity=RETRY)


async def test_leader_is_looked_up_again_after_not_leader(cluster: FakeCluster) -> None:
    cluster.fates = {0: Overloaded("busy"), 2: TimedOut("lost"), 4: OutOfSequence("a gap", expected=1)}
    await write(cluster, rows(range(300)))
    assert cluster.refreshed == 0
    cluster.fates = {place: NotLeader("elsewhere") for place in (25, 30)}
    await write(cluster, rows(range(2000)), identity=Identity("other", 0))
    assert cluster.refreshed == 2


async def test_more_taken_keys_than_a_broker_keeps(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    small_chunks(monkeypatch, 5000)
    await write(cluster, unique(range(1500)))
    taken = unique(range(1500), on_conflict=REJECT)
    with pytest.raises(DuplicateKey, match="1500 rows of a chunk"):
        await write(cluster, taken, identity=Identity("other", 0))
    with pytest.raises(DuplicateKey, match="over 1000 rows have a unique key that is taken"):
        await write(cluster, taken, identity=Identity("other", 0, resent=True))
    for _ in range(2):
        await write(cluster, unique(range(1600)), identity=Identity("more", 0))
    assert sorted(cluster.stored()) == [*range(1600)]


async def test_a_broker_that_forgot_the_task(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, autojump_clock: trio.testing.MockClock
) -> None:
    """The broker may have stored all chunks. It refuses as long as this is unknown."""
    cluster.options = Options()
    monkeypatch.setattr("sandq.partition.producers.producers.PRODUCERS", 3)
    chunks = rows(range(100))
    await write(cluster, chunks)
    for other in range(5):
        cluster.store(batch_of(["-1"]), 1000 + other, 1, 1)
    with pytest.raises(OutOfSequence, match="not known any more"):
        await write(cluster, chunks, identity=RETRY)
    assert sorted(cluster.stored())[5:] == [*range(100)]
