"""The producer: it collects messages into batches and sends them to the leaders of the partitions.

The exported names are for programs that check messages as a producer does, or that build their own batches.
"""

from __future__ import annotations

from sandq.client.producer.batch_sender import NEVER, BatchSender, NumberedBatch
from sandq.client.producer.batches import MESSAGE_OVERHEAD_BYTES
from sandq.client.producer.partitioner import check_rank
from sandq.client.producer.producer import Producer
from sandq.client.producer.validation import MessageValidation, Ready, delay_of, rank_of

__all__ = [
    "MESSAGE_OVERHEAD_BYTES",
    "NEVER",
    "BatchSender",
    "MessageValidation",
    "NumberedBatch",
    "Producer",
    "Ready",
    "check_rank",
    "delay_of",
    "rank_of",
]
