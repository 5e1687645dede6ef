"""Who writes: the names by which the broker knows the chunks of a task, whichever attempt of it sends them.

A task of a write is an idempotent producer of its own (`partition/producers/producers.py`). Its id follows from the
write's name and the number of the Spark partition, its epoch from the micro-batch; within the epoch each topic
partition counts 1, 2, 3, ... So an attempt that is run again, and a micro-batch that is replayed after a restart, name
their chunks as the first attempt did; and once a later micro-batch has begun, what is left of an earlier one is fenced.

* A stream's name is its query id, which is in its checkpoint. The same stream from a new checkpoint is another one.
* A batch's name is `writeId`; without it, one that the driver makes up for this write, so that its tasks can be tried
  again and the write as a whole is new each time. A write that is repeated under its `writeId` must be divided into
  the same Spark partitions.

PERSISTED: `producer_id`. A broker knows the producers of writes that another version of this began.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Final

from sandq.model.errors import InvalidRequest

QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
"""Local properties of a task of a stream. Spark names them nowhere in its documentation."""
EPOCH_MAX: Final = 2**32 - 1
_ID_BITS: Final = 63


@dataclass(frozen=True, slots=True)
class Identity:
    """What a task is to the broker."""

    name: str
    """Of the write."""
    partition: int
    """Spark's."""
    epoch: int = 1
    resent: bool = False
    """Whether an earlier attempt may have sent the same."""

    @property
    def producer_id(self) -> int:
        """63 bits, not 0."""
        digest = blake2b(f"{self.name}\0{self.partition}".encode(), digest_size=8, person=b"sandq sink").digest()
        return int.from_bytes(digest, "big") >> (64 - _ID_BITS) or 1

    def another(self) -> Identity:
        """One that nobody ever had."""
        return replace(self, name=f"again\0{uuid.uuid4()}", epoch=1, resent=False)


def of_batch(write_id: str | None) -> str:
    """The name of a batch write."""
    return f"write\0{uuid.uuid4()}" if write_id is None else f"writeId\0{write_id}"


def of_stream(partition: int, local_property: Callable[[str], str | None]) -> Identity:
    """A task of a micro-batch, by its local properties. InvalidRequest when they do not tell."""
    query_id, batch_id = local_property(QUERY_ID), local_property(BATCH_ID)
    if not query_id or batch_id is None or not (batch_id.isascii() and batch_id.isdecimal()):
        raise InvalidRequest(
            f"sandq sink: the task has no {QUERY_ID} ({query_id!r}) or no {BATCH_ID} ({batch_id!r}), by which a "
            "micro-batch that is written again is known; this release of Spark cannot be used for exactly-once streams"
        )
    epoch = int(batch_id) + 1
    if epoch > EPOCH_MAX:
        raise InvalidRequest(f"sandq sink: micro-batch {batch_id} is beyond the last one, {EPOCH_MAX - 1}")
    return Identity(f"query\0{query_id}", partition, epoch, resent=True)
