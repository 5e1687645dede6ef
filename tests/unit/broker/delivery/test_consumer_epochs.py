"""Tests of the epochs of named consumers: which are accepted, and which process gets a granted lease."""

from __future__ import annotations

import pytest

from sandq.broker.delivery.subscribe import EPOCH_BITS, EPOCHS_AHEAD_MS, check_epoch
from sandq.model.errors import InvalidRequest

NOW_MS = 1_800_000_000_000


@pytest.mark.parametrize("epoch", [1, NOW_MS * 1_000_000, NOW_MS + EPOCHS_AHEAD_MS << EPOCH_BITS])
def test_epochs_of_now_and_of_before_are_taken(epoch: int) -> None:
    check_epoch(epoch, NOW_MS)


@pytest.mark.parametrize("epoch", [(NOW_MS + EPOCHS_AHEAD_MS << EPOCH_BITS) + 1, 2**63 - 1])
def test_epoch_too_far_ahead_is_refused(epoch: int) -> None:
    with pytest.raises(InvalidRequest, match=f"epoch {epoch} is more than a year ahead.*2\\^20"):
        check_epoch(epoch, NOW_MS)
