"""The parts of a producer that need no network: batches as columns of messages, and receipts.

A batch is *open* while messages are added, *sealed* once it is encoded, and *done* once it has offsets or an error. All
messages of a batch have the same traits (`validation.Traits`). So these messages never share a batch:

- messages without a time (stored as one batch row), with an instant, and with a delay (relative to the leader's clock);
- messages with different values of `on_conflict`, `max_wait`, `window` or `edge`;
- writes to keys with and without an expected version;
- messages with and without a rank;
- messages with and without rules of their own: attempts, back-off, cost;
- messages with and without a URL (the broker refuses a batch with a URL that it does not allow).
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Any, Final, NamedTuple

from sandq.client.producer.batch_sender import NumberedBatch
from sandq.client.producer.validation import (
    DELAY,
    EXPECTED_BIT,
    NOW,
    RANK_BIT,
    RULES_BIT,
    TIME_BITS,
    Rank,
    Traits,
    on_conflict_of,
)
from sandq.model import offsets as offset_model
from sandq.model.batch import Column, encode
from sandq.model.errors import DuplicateKey, SandqError, VersionChanged
from sandq.model.retries import RULE_COLUMNS, MessageRules
from sandq.protocol.replies import IGNORED, STORED
from sandq.protocol.requests import REJECT

MESSAGE_OVERHEAD_BYTES = 32
"""Bytes of memory to count per message in addition to its own bytes, for the offsets of its cells and its receipt."""
CHANGED: Final = "changed"
"""The conflict reported for a write whose key does not have the expected version."""


class Batch(NumberedBatch):
    """Messages with the same traits for one partition, and their outcome."""

    __slots__ = (
        "expected",
        "has_grown",
        "headers",
        "keys",
        "partition",
        "raised",
        "ranks",
        "rules",
        "size_bytes",
        "times",
        "traits",
        "ttls",
        "unique_keys",
        "values",
    )

    def __init__(self, traits: Traits, partition: int, opened_at: float) -> None:
        super().__init__(opened_at, on_conflict_of(traits))
        self.traits = traits
        self.partition = partition
        self.values: list[bytes | None] = []
        self.keys: list[bytes | None] = []
        self.headers: list[bytes | None] = []
        self.times: list[int] = []
        self.ttls: list[int | None] = []
        self.unique_keys: list[bytes | None] = []
        self.expected: list[bytes | None] = []
        self.ranks: list[Rank] = []
        self.rules: list[MessageRules] = []
        self.size_bytes = 0
        self.has_grown = False  # whether it was still open after its linger time
        self.raised = 0  # number of receipts that have raised their error

    def add_more(
        self,
        time: int,
        ttl_ms: int | None,
        unique_key: bytes | None,
        rank: Rank | None,
        rules: MessageRules | None,
        expected: bytes | None,
    ) -> None:
        """Add the other fields of the last message (not value, key and headers), as far as the traits include them."""
        if self.traits & TIME_BITS:
            self.times.append(time)
        if self.traits > TIME_BITS:
            self.ttls.append(ttl_ms)
            self.unique_keys.append(unique_key)
        if self.traits & EXPECTED_BIT:
            self.expected.append(expected)
        if rank is not None:
            self.ranks.append(rank)
        if rules is not None:
            self.rules.append(rules)

    def __len__(self) -> int:
        return len(self.values)

    def seal(self) -> bytes:
        """Encode the batch on the first call, and return its bytes. Afterwards, no message may be added."""
        if self.data is None:
            columns: dict[int, Any] = {
                Column.VALUE: self.values,
                Column.KEY: self.keys,
                Column.HEADERS: self.headers,
            }
            if self.traits & TIME_BITS != NOW:
                columns[Column.DELIVER_MS] = self.times
            if self.traits > TIME_BITS:
                columns[Column.TTL_MS] = self.ttls
                columns[Column.UNIQUE_KEY] = self.unique_keys
            if self.traits & EXPECTED_BIT:
                columns[Column.EXPECTED_VERSION] = self.expected
            if self.traits & RANK_BIT:
                columns[Column.PRIORITY], columns[Column.TENANT] = zip(*self.ranks, strict=True)
            if self.traits & RULES_BIT:
                columns |= dict(zip(RULE_COLUMNS, zip(*self.rules, strict=True), strict=True))
            self.data = encode(columns, relative=self.traits & TIME_BITS == DELAY)
            self.keys = self.headers = []
        return self.data

    def offset(self, position: int) -> str:
        """Return the text of a message's offset, or raise its error."""
        error = self.error_of(position)
        if error is not None:
            raise error
        return self._offset_text(position)

    def offset_texts(self, first: int, count: int) -> list[str] | None:
        """Return the offsets of several messages of a finished batch. None unless the whole batch was stored."""
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
        """Return why a message of a finished batch was not stored. None if it was stored."""
        if self.error is not None:
            return self.error.again()
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
        """Return the outcome of a message; None if it is not known or the message was not stored."""
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
        """Number of messages that were not stored, and whose receipt has not raised the error yet."""
        if self.error is not None:
            return len(self) - self.raised
        return len(self.offsets.conflicts) - self.raised if self.offsets is not None else 0

    @property
    def first_error(self) -> SandqError | None:
        """The error of the first message that has one."""
        conflicts = self.offsets.conflicts if self.offsets is not None else ()
        return self.error_of(min(conflicts, default=0))


class SendOutcome(NamedTuple):
    """The outcome of a message that was sent.

    `outcome` is "stored", "replaced" (it replaced a pending message with its unique key; `other` is the id of that
    message) or "ignored" (nothing was stored because a message with the unique key exists; `other` is its id).

    `state` is the state of the other message, which has the unique key. It is set if the new message was ignored. It is
    also set if the new message was too late to replace the other one, which is `acked`, `dead` or `delivered`
    (finished, and deleted since). With "debounce", it can also be `leased`, and with "throttle" it can have any state.
    The new message is then stored, too.
    """

    outcome: str
    other: str | None = None
    state: str | None = None


class Receipt:
    """The result of `send`: `await receipt` returns the message's offset (26 characters) or raises the error.

    DuplicateKey means that another message has the unique key. With `on_conflict="ignore"` or "throttle", the result is
    the id of the other message instead. `outcome` says whether a message was replaced.
    """

    __slots__ = ("_batch", "_position", "_raised")

    def __init__(self, batch: Batch, position: int) -> None:
        self._batch = batch
        self._position = position
        self._raised = False

    @property
    def done(self) -> bool:
        """True if awaiting the receipt would not block."""
        return self._batch.done

    @property
    def partition(self) -> int:
        """Number of the partition that the message goes to."""
        return self._batch.partition

    @property
    def may_conflict(self) -> bool:
        """True if the message has a unique key and an `on_conflict` other than "reject"."""
        return self._batch.on_conflict != REJECT

    @property
    def outcome(self) -> SendOutcome | None:
        """The outcome of the message, once the receipt was awaited; None if it is not known yet or nothing was stored.

        Awaiting the receipt raises the reason if the message was not stored.
        """
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
    """The result of `send_many`: a sequence of receipts; `await receipts` returns the list of offsets, or raises."""

    __slots__ = ("_parts",)

    def __init__(self) -> None:
        self._parts: list[tuple[Batch, int, int]] = []  # batch, first position, count

    def add(self, batch: Batch, position: int) -> None:
        """Add the receipt of the next message."""
        if self._parts:
            last, first, count = self._parts[-1]
            if last is batch and first + count == position:
                self._parts[-1] = (batch, first, count + 1)
                return
        self._parts.append((batch, position, 1))

    def append(self, receipt: Receipt) -> None:
        """Add an existing receipt for the next message."""
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
    """Return one error for all failed messages whose receipts raised none: the first error, with the number of
    failures."""
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
    failure = first.again(text)
    for note in sorted({f"{error.code}: {error.message}" for error, _ in failed[1:]}):
        if note != f"{first.code}: {first.message}":
            failure.add_note(note)
    return failure
