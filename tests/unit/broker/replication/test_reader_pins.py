"""Tests of the log entries that are kept for external readers, and of their release."""

from __future__ import annotations

import pytest

from sandq.broker.replication import reader_pins
from sandq.broker.replication.reader_pins import IDLE_S, READERS_MOST, ReaderPins
from sandq.model.errors import Overloaded
from tests.unit.broker.replication.test_log_pin import ENTRY_BYTES, journal


class Bed:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(reader_pins, "READER_BYTES", 5 * ENTRY_BYTES)
        self.now_s = 1000.0
        self.pins = ReaderPins(lambda: self.now_s)


def test_log_is_kept_for_the_slowest_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Bed(monkeypatch)
    assert bed.pins.needed_from(journal(14)) is None
    assert bed.pins.put("one", 12) and bed.pins.put("two", 11)
    assert bed.pins.needed_from(journal(14)) == 11
    assert not bed.pins.put("two", 11) and bed.pins.put("two", 14), "it goes on"
    assert bed.pins.needed_from(journal(14)) == 12


def test_more_than_the_budget_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Bed(monkeypatch)
    bed.pins.put("far", 10)
    bed.pins.put("near", 13)
    assert bed.pins.needed_from(journal(14)) == 10, "five entries after entry 10"
    assert bed.pins.needed_from(journal(15)) == 13
    assert bed.pins.needed_from(journal(18)) is None and len(bed.pins) == 0


def test_pin_of_idle_reader_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Bed(monkeypatch)
    bed.pins.put("gone", 12)
    bed.now_s += IDLE_S
    bed.pins.put("there", 13)
    assert bed.pins.needed_from(journal(14)) == 12
    bed.now_s += 1
    assert bed.pins.needed_from(journal(14)) == 13
    bed.pins.lose()
    assert bed.pins.needed_from(journal(14)) is None


def test_number_of_readers_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    bed = Bed(monkeypatch)
    for number in range(READERS_MOST):
        bed.pins.put(f"{number}", 12)
    with pytest.raises(Overloaded, match="4 others read"):
        bed.pins.put("more", 12)
    bed.pins.put("0", 13)
    bed.now_s += IDLE_S + 1
    bed.pins.put("more", 12)
