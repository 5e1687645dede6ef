"""What of a batch is asked for, by filters of the query.

Topics and partitions choose what is planned, delivery times are bounds of it (an offset begins with one), and keys
leave rows out before they go to the JVM.
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
    """What is left to read; delivery times in epoch ms, the end not included."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] = _ALL
    start_ms: int = 0
    end_ms: int = offset_model.U48_MAX
    keys: frozenset[bytes] | None = None

    def has(self, topic: str, partition: int) -> bool:
        """Whether something of a partition is asked for."""
        return partition in self.partitions and (self.topics is None or topic in self.topics)

    def end(self) -> bytes | None:
        """The first offset that may not be; None: all may."""
        return None if self.end_ms == offset_model.U48_MAX else offset_model.pack(self.end_ms, 0, 0, 0)

    def rows(self, batch: Any) -> Any:
        """Those of a record batch (pyarrow.RecordBatch) that have a key that is asked for."""
        if self.keys is None:
            return batch
        return batch.filter(pc.is_in(batch.column("key"), pa.array(sorted(self.keys), pa.binary())))


WHOLE: Final = Narrowed()
