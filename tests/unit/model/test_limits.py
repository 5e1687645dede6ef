from __future__ import annotations

import dataclasses

import pytest

from sandq.model.batch import MAX_MESSAGES
from sandq.model.limits import DEFAULT, FIXED, Limits
from sandq.model.names import MAX_NAME_CHARS
from sandq.model.offsets import PARTITION_MAX, PLACE_MAX, TOKEN_PLACE_MAX
from sandq.model.sequence import MAX_CHAIN, MAX_NUMBER, RESENT, chain_of, is_resent, number_of, sequence_of


def test_default_limits_have_the_documented_values() -> None:
    mib = 2**20
    assert (DEFAULT.message_bytes, DEFAULT.batch_bytes, DEFAULT.frame_bytes) == (8 * mib, 16 * mib, 32 * mib)
    assert (DEFAULT.key_bytes, DEFAULT.headers_bytes) == (65_536, 65_536)
    assert (DEFAULT.partitions_per_topic, FIXED.groups_per_topic) == (4096, 1000)
    assert (FIXED.producers, FIXED.producer_ttl_ms, FIXED.producer_answers) == (10_000, 7 * 86_400_000, 5)


def test_defaults_fit_the_formats() -> None:
    assert DEFAULT.batch_messages == MAX_MESSAGES
    assert FIXED.name_chars == MAX_NAME_CHARS
    assert DEFAULT.partitions_per_topic - 1 <= PARTITION_MAX
    assert DEFAULT.entry_messages - 1 <= PLACE_MAX
    assert FIXED.entry_grants - 1 <= TOKEN_PLACE_MAX


@pytest.mark.parametrize("chain", [0, 1, MAX_CHAIN])
@pytest.mark.parametrize("number", [1, 7, MAX_NUMBER])
def test_sequence_has_number_chain_and_resend_flag(number: int, chain: int) -> None:
    sequence = sequence_of(number, chain)
    assert (number_of(sequence), chain_of(sequence), is_resent(sequence)) == (number, chain, False)
    sequence |= RESENT
    assert (number_of(sequence), chain_of(sequence), is_resent(sequence)) == (number, chain, True)
    assert sequence < 2**64


def test_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        DEFAULT.connections = 1  # type: ignore[misc]
    assert dataclasses.replace(DEFAULT, connections=1) == Limits(connections=1)
