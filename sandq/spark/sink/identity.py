"""`Identity`: the producer id and epoch of a task, which are the same for all attempts of the task.

Each task of a write is an idempotent producer (`partition/producers/producers.py`). Its id is computed from the write's
name and the number of the Spark partition. Its epoch is computed from the number of the micro-batch. Within the epoch,
chunks are numbered from 1 in each topic partition. So a repeated attempt, and a replay of a micro-batch after a
restart, give their chunks the same numbers as the first attempt. Once a later micro-batch has begun, the broker fences
late attempts of earlier ones.

* A stream's name is its query id, which is stored in its checkpoint. With a new checkpoint it is a different stream.
* A batch's name is its `writeId`. Without one, the driver chooses a random name: then tasks can be retried, but each
  write is a new one. If a write is repeated with its `writeId`, it must have the same Spark partitions.

PERSISTED: `producer_id`. Brokers remember producers of writes that began with a different version of sandq.
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
"""Local properties of a stream's tasks. Spark does not document them."""
EPOCH_MAX: Final = 2**32 - 1
_ID_BITS: Final = 63


@dataclass(frozen=True, slots=True)
class Identity:
    """Identifies a task to the broker."""

    name: str
    """Name of the write."""
    partition: int
    """Number of the Spark partition."""
    epoch: int = 1
    resent: bool = False
    """Whether an earlier attempt may have sent the same chunks."""

    @property
    def producer_id(self) -> int:
        """Id of the producer: 63 bits, never 0."""
        digest = blake2b(f"{self.name}\0{self.partition}".encode(), digest_size=8, person=b"sandq sink").digest()
        return int.from_bytes(digest, "big") >> (64 - _ID_BITS) or 1

    def renewed(self) -> Identity:
        """Return a new identity with a random name, for the same Spark partition."""
        return replace(self, name=f"again\0{uuid.uuid4()}", epoch=1, resent=False)


def name_of_batch(write_id: str | None) -> str:
    """Return the name of a batch write."""
    return f"write\0{uuid.uuid4()}" if write_id is None else f"writeId\0{write_id}"


def identity_in_stream(partition: int, local_property: Callable[[str], str | None]) -> Identity:
    """Return the identity of a micro-batch's task from its local properties.

    Raises InvalidRequest if Spark has not set them.
    """
    query_id, batch_id = local_property(QUERY_ID), local_property(BATCH_ID)
    if not query_id or batch_id is None or not (batch_id.isascii() and batch_id.isdecimal()):
        raise InvalidRequest(
            f"sandq sink: the task has no {QUERY_ID} ({query_id!r}) or no {BATCH_ID} ({batch_id!r}), which identify a "
            "repeated micro-batch; this release of Spark cannot be used for exactly-once streams"
        )
    epoch = int(batch_id) + 1
    if epoch > EPOCH_MAX:
        raise InvalidRequest(f"sandq sink: micro-batch {batch_id} is larger than the largest number, {EPOCH_MAX - 1}")
    return Identity(f"query\0{query_id}", partition, epoch, resent=True)
