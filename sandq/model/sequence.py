"""How a producer numbers its batches, on the wire and in a Raft entry: one u64.

The low 63 bits are the batch's number, 1, 2, 3, ... within an epoch. The highest bit, `RESENT`, says that the batch was
sent before and that no answer came: it may be stored already. It changes nothing as long as the partition remembers
the producer; when it does not, a first batch that was sent before is told from one that is new.
"""

from __future__ import annotations

from typing import Final

RESENT: Final = 1 << 63


def number_of(sequence: int) -> int:
    """The batch's number."""
    return sequence & ~RESENT


def is_resent(sequence: int) -> bool:
    """Whether it was sent before without an answer."""
    return bool(sequence & RESENT)
