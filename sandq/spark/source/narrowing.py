"""`Narrowed`: the part of a batch that the filters of its query select.

Topics and partitions select the partitions to plan. Delivery times bound the ranges, because an offset begins with a
delivery time. Keys select rows before these are sent to the JVM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from sandq.model import offsets as offset_model

_ALL: Final = frozenset(range(offset_model.PARTITION_MAX + 1))


@dataclass(frozen=True, slots=True)
class Narrowed:
    """Bounds of the rows to read. Delivery times are in epoch ms; the end is exclusive."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] = _ALL
    start_ms: int = 0
    end_ms: int = offset_model.U48_MAX
    keys: frozenset[bytes] | None = None

    def has(self, topic: str, partition: int) -> bool:
        """Return whether the partition may have selected rows."""
        return partition in self.partitions and (self.topics is None or topic in self.topics)

    def end(self) -> bytes | None:
        """Return the exclusive end as an offset; None if there is no end."""
        return None if self.end_ms == offset_model.U48_MAX else offset_model.pack(self.end_ms, 0, 0, 0)

    def rows(self, batch: Any) -> Any:
        """Return the rows of a record batch (pyarrow.RecordBatch) that have a selected key."""
        if self.keys is None:
            return batch
        return batch.filter(pc.is_in(batch.column("key"), pa.array(sorted(self.keys), pa.binary())))


WHOLE: Final = Narrowed()
