"""Tests of the reads of a trim step: rows are read before their deletion, and a step has only a few large rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from sandq.partition.base.view import Row
from sandq.partition.log.trim import TRIM_BYTES
from tests.support.partition.bench import Bench, T

MIB = 1 << 20
ROWS = 80


def test_a_step_reads_a_bounded_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    bench.checks_loading = False
    bench.open()
    for n in range(ROWS):
        bench.append("x" * MIB, at=n)
    while leases := bench.lease(at=ROWS):
        for lease in leases:
            bench.ack(lease.token, at=ROWS)
    read = [0]
    scan = bench.stores.scan

    def counted(*args: Any, **limits: Any) -> Sequence[Row]:
        found = scan(*args, **limits)
        read[-1] += sum(len(value) for _, value in found)
        return found

    monkeypatch.setattr(bench.stores, "scan", counted)
    while (bench.status().upkeep_ms or T + ROWS + 1) <= T + ROWS:
        read.append(0)
        bench.upkeep(at=ROWS)
    assert bench.status().messages == 0
    assert max(read) <= TRIM_BYTES + 2 * MIB
