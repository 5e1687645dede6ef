"""Tests of the table of command handlers."""

from __future__ import annotations

import pytest

from sandq.partition import commands as c
from sandq.partition.kv.compacted import CompactedPartition
from sandq.partition.state_machine import TimerPartition


@pytest.mark.parametrize("kind", [TimerPartition, CompactedPartition])
def test_every_command_has_a_handler(kind: type[TimerPartition]) -> None:
    assert kind.HANDLERS.keys() == set(c._CLASSES.values())
