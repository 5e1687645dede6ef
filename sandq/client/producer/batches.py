"""What a producer collects: messages put into columns, batches, receipts. No network in here.

A batch is *open* while messages are added, *sealed* once it is encoded, *done* once it has offsets or an
error. The messages of a batch are of one lot (`validation.Lot`): those without a time (which the broker stores whole),
at an instant and after a delay (times relative to the leader's clock) never share one, nor do those with different
ways out of a conflict over their unique keys, nor writes to keys with and without a condition, nor messages with and
without a rank.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Any, Final, NamedTuple

from sandq.client.options import again
from sandq.client.producer.batch_sender import NumberedBatch
from sandq.client.producer.validation import DELAY, EXPECTED_BIT, NOW, RANK_BIT, TIME_BITS, Lot, Rank, on_conflict_of
from sandq.model import offsets as offset_model
from sandq.model.batch import Column, encode
from sandq.model.errors import DuplicateKey, SandqError, VersionChanged
from sandq.protocol.replies import IGNORED, STORED
from sandq.protocol.requests import REJECT

MESSAGE_OVERHEAD_BYTES = 32
"""Counted for each message beside its bytes: its cells' offsets, its receipt."""
CHANGED: Final = "changed"
"""The conflict of a write whose key has another version than was expected."""


class Batch(NumberedBatch):
    """Messages of one lot for one partition, and what became of them."""

    __slots__ = (
        "expected",
        "headers",
        "keys",
        "lot",
        "partition",
        "raised",
        "ranks",
        "size_bytes",
        "times",
        "ttls",
        "unique_keys",
        "values",
    )

    def __init__(self, lot: Lot, partition: int, opened_at: float) -> None:
        super().__init__(opened_at, on_conflict_of(lot))
        self.lot = lot
        self.partition = partition
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.headers: list[bytes | None] = []
        self.times: list[int] = []
        self.ttls: list[int | None] = []
        self.unique_keys: list[bytes | None] = []
        self.expected: list[bytes | None] = []
        self.ranks: list[Rank] = []
        self.size_bytes = 0
        self.raised = 0  # receipts that raised their error already

    def add_more(
        self, time: int, ttl_ms: int | None, unique_key: bytes | None, rank: Rank | None, expected: bytes | None
    ) -> None:
        """What the last message has beside value, key and headers, as far as the lot has it."""
        if self.lot & TIME_BITS:
            self.times.append(time)
        if self.lot > TIME_BITS:
            self.ttls.append(ttl_ms)
            self.unique_keys.append(unique_key)
        if self.lot & EXPECTED_BIT:
            self.expected.append(expected)
        if rank is not None:
            self.ranks.append(rank)

    def __len__(self) -> int:
        return len(self.values)

    def seal(self) -> bytes:
        """The encoded batch; nothing is added any more."""
        if self.data is None:
            columns: dict[int, Any] = {
                Column.VALUE: self.values,
                Column.KEY: self.keys,
                Column.HEADERS: self.headers,
            }
            if self.lot & TIME_BITS != NOW:
                columns[Column.DELIVER_MS] = self.times
            if self.lot > TIME_BITS:
                columns[Column.TTL_MS] = self.ttls
                columns[Column.UNIQUE_KEY] = self.unique_keys
            if self.lot & EXPECTED_BIT:
                columns[Column.EXPECTED_VERSION] = self.expected
            if self.lot & RANK_BIT:
                columns[Column.PRIORITY], columns[Column.TENANT] = zip(*self.ranks, strict=True)
            self.data = encode(columns, relative=self.lot & TIME_BITS == DELAY)
            self.keys = self.headers = []
        return self.data

    def offset(self, position: int) -> str:
        """The text of a message's offset; raises its error."""
        error = self.error_of(position)
        if error is not None:
            raise error
        return self._offset_text(position)

    def offset_texts(self, first: int, count: int) -> list[str] | None:
        """Those of several messages, once the batch is done; None unless all of it was stored."""
        if self.offsets is None or self.offsets.conflicts:
            return None
        return [offset_model.to_text(offset) for offset in self._offsets(first, count)]

    def _offset_text(self, position: int) -> str:
        return offset_model.to_text(self._offsets(position, 1)[0])

    def _offsets(self, first: int, count: int) -> list[bytes]:
        assert self.offsets is not None
        base, _, column, *_ = self.offsets
        if column is None:
            return offset_model.run(offset_model.shift(base, first), count)
        size = offset_model.OFFSET_BYTES
        return [column[at : at + size] for at in range(first * size, (first + count) * size, size)]

    def error_of(self, position: int) -> SandqError | None:
        """Why a message was not stored, once the batch is done."""
        if self.error is not None:
            return again(self.error)
        if self.offsets is None or position not in self.offsets.conflicts:
            return None
        state, id_text = self.offsets.conflicts[position], self._offset_text(position)
        if state == CHANGED:
            version = None if self._offsets(position, 1)[0] == offset_model.FIRST else id_text
            has = "no value" if version is None else f"version {version}"
            return VersionChanged(f"the key has {has}, which is not what was expected", version=version)
        text = f"a message has this unique key already: {id_text}, which is {state}"
        return DuplicateKey(text, id=id_text, state=state)

    def outcome(self, position: int) -> SendOutcome | None:
        """What became of a message; None: that is not known, or it was not stored."""
        if self.offsets is None or position in self.offsets.conflicts:
            return None
        if self.on_conflict == REJECT:
            return SendOutcome(STORED)
        if self.offsets.outcomes is None:
            return None
        outcome, detail = self.offsets.outcomes.get(position, (STORED, None))
        if isinstance(detail, bytes):
            return SendOutcome(outcome, offset_model.to_text(detail))
        return SendOutcome(outcome, self._offset_text(position) if outcome == IGNORED else None, detail)

    @property
    def failures(self) -> int:
        """Messages that were not stored, as far as no receipt has raised why."""
        if self.error is not None:
            return len(self) - self.raised
        return len(self.offsets.conflicts) - self.raised if self.offsets is not None else 0

    @property
    def first_error(self) -> SandqError | None:
        """The error of the first message that has one."""
        conflicts = self.offsets.conflicts if self.offsets is not None else ()
        return self.error_of(min(conflicts, default=0))


class SendOutcome(NamedTuple):
    """What became of a message that was sent: `outcome` is "stored", "replaced" (it took the place of a pending message
    of its unique key: `other` is the id of that one), or "ignored" (nothing was stored, for one has its unique key).

    `state`: how the message was that has the unique key: of one that was ignored, and of one that was stored although
    it was to replace, which it came too late for: that one is `acked`, `dead` or `delivered` (done with, and gone).
    """

    outcome: str
    other: str | None = None
    state: str | None = None


class Receipt:
    """What `send` returns: `await receipt` gives the message's offset (26 characters) or raises what went wrong.

    DuplicateKey: a message has its unique key already; with `on_conflict="ignore"` the offset is that one's id instead.
    `outcome` says whether another message was replaced.
    """

    __slots__ = ("_batch", "_position", "_raised")

    def __init__(self, batch: Batch, position: int) -> None:
        self._batch = batch
        self._position = position
        self._raised = False

    @property
    def done(self) -> bool:
        """Whether awaiting it would not wait."""
        return self._batch.done

    @property
    def partition(self) -> int:
        """The partition that the message goes to."""
        return self._batch.partition

    @property
    def may_conflict(self) -> bool:
        """Whether it has a unique key, and an `on_conflict` other than "reject"."""
        return self._batch.on_conflict != REJECT

    @property
    def outcome(self) -> SendOutcome | None:
        """What became of the message, once it is awaited. None: that is not known yet, or it was not stored
        (awaiting it raises why)."""
        return self._batch.outcome(self._position)

    def __await__(self) -> Generator[Any, Any, str]:
        return self._wait().__await__()

    async def _wait(self) -> str:
        batch = self._batch
        await batch.wait()
        try:
            return batch.offset(self._position)
        except SandqError:
            if not self._raised:
                self._raised = True
                batch.raised += 1
            raise


class Receipts:
    """What `send_many` returns: a sequence of receipts; `await receipts` gives the list of offsets, or raises."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[tuple[Batch, int, int]] = []  # batch, first position, count

    def add(self, batch: Batch, position: int) -> None:
        """The next message is at this position."""
        if self._parts:
            last, first, count = self._parts[-1]
            if last is batch and first + count == position:
                self._parts[-1] = (batch, first, count + 1)
                return
        self._parts.append((batch, position, 1))

    def append(self, receipt: Receipt) -> None:
        """The next message is that of a receipt."""
        self.add(receipt._batch, receipt._position)

    def __len__(self) -> int:
        return sum(count for _, _, count in self._parts)

    def __iter__(self) -> Iterator[Receipt]:
        for batch, first, count in self._parts:
            for position in range(first, first + count):
                yield Receipt(batch, position)

    def __await__(self) -> Generator[Any, Any, list[str]]:
        return self._wait().__await__()

    async def _wait(self) -> list[str]:
        found: list[str] = []
        for batch, first, count in self._parts:
            await batch.wait()
            texts = batch.offset_texts(first, count)
            found += texts or [await Receipt(batch, position) for position in range(first, first + count)]
        return found


def failure_of(topic: str, batches: Iterable[Batch]) -> SandqError | None:
    """One error for the batches that failed, as far as no receipt has raised it: the first, and how many."""
    failed = [(error, batch) for batch in batches if batch.failures and (error := batch.first_error)]
    if not failed:
        return None
    first = failed[0][0]
    messages = sum(batch.failures for _, batch in failed)
    unknown = sum(batch.failures for _, batch in failed if batch.unknown and batch.error is not None)
    text = first.message
    if messages > 1:
        maybe = f" (the outcome of {unknown} is unknown)" if unknown else ""
        text = f"{messages} messages to topic {topic!r} were not produced{maybe}; the first: {text}"
    failure = again(first, text)
    for note in sorted({f"{error.code}: {error.message}" for error, _ in failed[1:]}):
        if note != f"{first.code}: {first.message}":
            failure.add_note(note)
    return failure
