"""How a producer numbers its batches, on the wire and in a Raft entry: one u64.

    bit 63       RESENT: the batch was sent before and no answer came, so that it may be stored already
    bits 47..62  the chain: a checksum of all batches before it in its epoch; 0 of producers that keep none
    bits 0..46   the number, 1, 2, 3, ... within an epoch

RESENT changes nothing as long as the partition remembers the producer; when it does not, a first batch that was sent
before is told from one that is new. The chain makes a comparison of the last few batches one of all: a batch that is
sent again is the same only if its chain is, too.
"""

from __future__ import annotations

from typing import Final

RESENT: Final = 1 << 63
NUMBER_BITS: Final = 47
CHAIN_BITS: Final = 16
MAX_NUMBER: Final = (1 << NUMBER_BITS) - 1
MAX_CHAIN: Final = (1 << CHAIN_BITS) - 1


def sequence_of(number: int, chain: int = 0) -> int:
    """A batch with this number, that was not sent before."""
    return chain << NUMBER_BITS | number


def number_of(sequence: int) -> int:
    """The batch's number."""
    return sequence & MAX_NUMBER


def chain_of(sequence: int) -> int:
    """The checksum of the batches before it."""
    return sequence >> NUMBER_BITS & MAX_CHAIN


def is_resent(sequence: int) -> bool:
    """Whether it was sent before without an answer."""
    return bool(sequence & RESENT)
