"""The sequence number of a producer's batch, on the wire and in a Raft entry: one u64.

    bit 63       RESENT: the batch was sent before without a reply, so that it may be stored already
    bits 47..62  the chain: a checksum of all earlier batches of the epoch; 0 if the producer keeps none
    bits 0..46   the number, 1, 2, 3, ... within an epoch

RESENT has no effect while the partition remembers the producer. If the partition has forgotten the producer, RESENT
distinguishes a first batch that was sent before from a new batch. The partition keeps checksums of the last few batches
only. The chain extends the comparison to all batches: a resent batch counts as the same only if all batches before it
are the same, too.
"""

from __future__ import annotations

from typing import Final

RESENT: Final = 1 << 63
NUMBER_BITS: Final = 47
CHAIN_BITS: Final = 16
MAX_NUMBER: Final = (1 << NUMBER_BITS) - 1
MAX_CHAIN: Final = (1 << CHAIN_BITS) - 1


def sequence_of(number: int, chain: int = 0) -> int:
    """Return the sequence of a batch with this number that was not sent before."""
    return chain << NUMBER_BITS | number


def number_of(sequence: int) -> int:
    """Return the number of the batch."""
    return sequence & MAX_NUMBER


def chain_of(sequence: int) -> int:
    """Return the checksum of the batches before it."""
    return sequence >> NUMBER_BITS & MAX_CHAIN


def is_resent(sequence: int) -> bool:
    """Return whether the batch was sent before without a reply."""
    return bool(sequence & RESENT)
